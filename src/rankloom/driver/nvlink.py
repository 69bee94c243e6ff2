"""Which NVLink domain a node stands in: what its labels say, or what its GPUs report. Unknown stays None."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

__all__ = ["DOMAIN_LABELS", "domain_of_labels", "domain_of_report", "probe_domain"]

# Labels of a Ray node, the first that is there counts. The last is what NVIDIA's tools call it in Kubernetes.
DOMAIN_LABELS = ("nvlink_domain", "nvlink-domain", "rankloom.io/nvlink-domain", "nvidia.com/gpu.clique")
_PATIENCE_S = 20.0
_CLUSTER = re.compile(r"^\s*ClusterUUID\s*:\s*(\S+)\s*$", re.MULTILINE)
_CLIQUE = re.compile(r"^\s*CliqueId\s*:\s*(\S+)\s*$", re.MULTILINE)


def domain_of_labels(labels: Mapping[str, str]) -> str | None:
    """The domain that whoever started the node gave it."""
    return next((labels[name] for name in DOMAIN_LABELS if labels.get(name)), None)


def domain_of_report(report: str) -> str | None:
    """The domain in what ``nvidia-smi -q`` prints: the fabric's cluster and clique, where it has any.

    None where there is no fabric (N/A, or a cluster of zeros only) or where the GPUs of the node differ.

    >>> domain_of_report("Fabric\\n  CliqueId : 32766\\n  ClusterUUID : 5a3c-11\\n")
    '5a3c-11.32766'
    """
    found = set(zip(_CLUSTER.findall(report), _CLIQUE.findall(report), strict=False))
    if len(found) != 1:
        return None
    cluster, clique = found.pop()
    absent = "N/A" in (cluster, clique) or not re.search("[1-9a-fA-F]", cluster)
    return None if absent else f"{cluster}.{clique}"


def probe_domain() -> str | None:
    """Asks the GPUs of this machine; None where there is no nvidia-smi, or it does not answer."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "-q"], capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError):  # not there, no driver, or stuck: then nothing is known
        return None
    return domain_of_report(asked.stdout)
