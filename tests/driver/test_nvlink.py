"""NVLink domains from labels and from what the GPUs report."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankloom.driver.nvlink import domain_of_labels, domain_of_report, probe_domain

FABRIC = """
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : {clique}
        ClusterUUID                       : {cluster}
        Health
            Bandwidth                     : Full
"""
CLUSTER = "8a3f7b52-1c9e-4f0d-9d5a-6e2b1f4c7d80"


def test_gpus_of_one_fabric() -> None:
    report = FABRIC.format(clique=32766, cluster=CLUSTER) * 4
    assert domain_of_report(report) == f"{CLUSTER}.32766"


@pytest.mark.parametrize(
    ("clique", "cluster"),
    [("N/A", "N/A"), ("0", "00000000-0000-0000-0000-000000000000"), ("0", "N/A")],
)
def test_no_fabric_is_unknown_and_never_domain_0(clique: str, cluster: str) -> None:
    assert domain_of_report(FABRIC.format(clique=clique, cluster=cluster)) is None


def test_gpus_that_differ_are_unknown() -> None:
    one, other = FABRIC.format(clique=1, cluster=CLUSTER), FABRIC.format(clique=2, cluster=CLUSTER)
    assert domain_of_report(one + other) is None
    assert domain_of_report(one + FABRIC.format(clique="N/A", cluster="N/A")) is None


def test_a_report_of_another_program() -> None:
    assert domain_of_report("no devices were found") is None


def test_labels() -> None:
    assert domain_of_labels({"nvlink_domain": "A", "nvidia.com/gpu.clique": "x.1"}) == "A"
    assert domain_of_labels({"nvidia.com/gpu.clique": "x.1", "ray.io/node-id": "7"}) == "x.1"
    assert domain_of_labels({"nvlink_domain": "", "ray.io/node-id": "7"}) is None


def test_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe_domain() is None  # there is none
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n[ $1 = -q ] && echo '{FABRIC.format(clique=7, cluster=CLUSTER)}'\n")
    tool.chmod(0o755)
    assert probe_domain() == f"{CLUSTER}.7"
    tool.write_text("#!/bin/sh\necho NVIDIA-SMI has failed; exit 9\n")
    assert probe_domain() is None
    assert os.environ["PATH"] == str(tmp_path)
