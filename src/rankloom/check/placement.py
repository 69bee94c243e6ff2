"""Where the ranks of a job stand: groups that leave an NVLink domain or a node, idle GPUs, what would be
better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rankloom.config.derive import fill_cluster
from rankloom.config.examine import Examined
from rankloom.config.findings import Finding
from rankloom.config.schema import ClusterSection
from rankloom.layout import GTPParallelLayout, Topology
from rankloom.layout.topology import UNKNOWN
from rankloom.layout.words import stretches_text
from rankloom.plan.alternatives import HEAVY, alternatives
from rankloom.plan.job import Job
from rankloom.plan.links import Crossing, crossings

__all__ = ["Placement", "look_at_placement", "topology_of"]

ORDINARY = ("context", "replica", "lane", "pp")
ON_CPUS = "placement: cluster.device is cpu, and no NVLink domain is given"
DOMAIN_KEYS = ("cluster.nvlink_domain_size", "cluster.nvlink_domains", "cluster.gpus_per_node")


@dataclass(frozen=True, eq=False)
class Placement:
    """Findings about where ranks stand, and every kind of group with what it sends over links."""

    findings: tuple[Finding, ...]
    crossings: tuple[Crossing, ...]
    not_looked_at: tuple[str, ...] = ()


def topology_of(examined: Examined, layout: GTPParallelLayout) -> Topology:
    """The domains and nodes that the cluster section says. Raises UserError for ranks listed wrongly."""
    cluster = examined.get(ClusterSection) or ClusterSection()
    if cluster.nvlink_domains is not None:
        return Topology.listed(layout, cluster.nvlink_domains, gpus_per_node=cluster.gpus_per_node)
    size = fill_cluster(cluster).nvlink_domain_size
    assert size is not None
    return Topology.regular(layout, nvlink_domain_size=size, gpus_per_node=cluster.gpus_per_node)


def look_at_placement(job: Job, examined: Examined) -> Placement:
    """What leaves a domain or a node, with its bytes where the job's model and batch are known."""
    found = crossings(job.layout, job.topology, job.records)
    if not examined.refused.isdisjoint(DOMAIN_KEYS):
        return Placement((), found)  # nobody knows of how many GPUs
    said = any(examined.overlay.values.get(key) is not None for key in DOMAIN_KEYS)
    if examined.value("cluster.device") == "cpu" and not said:
        return Placement((), found, (ON_CPUS,))
    findings = [
        *_idle(job, examined),
        *_unknown(job, examined),
        *_split(job, examined),
        *_crossing(job, found, examined),
    ]
    return Placement(tuple(findings), found)


def _idle(job: Job, examined: Examined) -> Iterator[Finding]:
    gpus, world = job.topology.gpus_per_node, job.layout.world_size
    if gpus is None or world % gpus == 0:
        return
    keys = ("cluster.world_size", "cluster.gpus_per_node")
    below, last = world // gpus * gpus, world % gpus
    tries = " or ".join(str(size) for size in (below, below + gpus) if size)
    idle = f"{gpus - last} GPUs are" if gpus - last > 1 else "1 GPU is"
    message = (
        f"{idle} idle: cluster.world_size {world} is not a multiple of cluster.gpus_per_node {gpus}, and the "
        f"last node runs {last} rank{'s' * (last > 1)}; try world_size {tries}"
    )
    yield Finding("warning", "placement", message, keys, examined.where(*keys))


def _unknown(job: Job, examined: Examined) -> Iterator[Finding]:
    unknown = np.flatnonzero(job.topology.domains == UNKNOWN) + job.topology.first_rank
    if unknown.size:
        key = "cluster.nvlink_domains"
        message = (
            f"the NVLink domain of {unknown.size} rank{'s' * (unknown.size > 1)} is not known, as "
            f"cluster.nvlink_domains does not list {'them' if unknown.size > 1 else 'it'}: "
            f"{stretches_text(unknown.tolist())}"
        )
        yield Finding("warning", "placement", message, (key,), examined.where(key))


def _split(job: Job, examined: Examined) -> Iterator[Finding]:
    """Nodes that are shared out among domains which have GPUs of other nodes too."""
    known = (job.topology.domains != UNKNOWN) & (job.topology.nodes != UNKNOWN)
    pairs = np.unique(np.stack([job.topology.nodes[known], job.topology.domains[known]], axis=1), axis=0)
    nodes, domains = pairs[:, 0], pairs[:, 1]
    shared = (np.bincount(nodes)[nodes] > 1) & (np.bincount(domains)[domains] > 1)
    split = np.unique(nodes[shared])
    if split.size:
        reached = domains[nodes == split[0]].tolist()
        message = (
            f"{split.size} of {np.unique(nodes).size} nodes are split between NVLink domains that have GPUs"
            f" of other nodes too, as node {split[0]} between domains {' and '.join(map(str, reached))};"
            " usually nodes fill a domain, or domains a node"
        )
        yield Finding("note", "placement", message, DOMAIN_KEYS, examined.where(*DOMAIN_KEYS))


def _crossing(job: Job, found: tuple[Crossing, ...], examined: Examined) -> Iterator[Finding]:
    where = examined.where(*DOMAIN_KEYS) or _assumed(job)
    heavy = False
    for crossing in found:
        if not crossing.num_crossing or (crossing.level == "node" and _nodes_are_domains(job)):
            continue
        if crossing.group in HEAVY and crossing.level == "domain":
            heavy = True
            yield Finding("warning", "placement", crossing.describe(), DOMAIN_KEYS, where)
        elif crossing.group in HEAVY + ORDINARY:
            yield Finding("note", "placement", crossing.describe(), DOMAIN_KEYS, where)
    if heavy:
        spec = job.plan.spec if job.plan is not None else None
        for alternative in alternatives(job.layout, job.topology, spec=spec, shape=job.step):
            yield Finding("note", "placement", alternative.text)


def _assumed(job: Job) -> str:
    return f"NVLink domains of {job.topology.nvlink_domain_size} are assumed"


def _nodes_are_domains(job: Job) -> bool:
    return bool(np.array_equal(job.topology.domains, job.topology.nodes))
