"""Where ranks stand: groups that leave a domain, idle GPUs, what nobody knows, and what would be better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rankloom.check import Report
from rankloom.config.findings import Finding
from tests.check.jobs import LLAMA, look, told

W = "tensor_parallel_num_weight_shards"


def report_on(size: int, parallel: Mapping[str, object] | None = None, **cluster: object) -> Report:
    return look({"cluster": {"world_size": size, **cluster}, "parallel": parallel or {}})


def placement(report: Report) -> list[Finding]:
    return told(report, "placement")


@pytest.mark.parametrize(
    ("size", "gpus", "message"),
    [
        (14, 8, "2 GPUs are idle: cluster.world_size 14 is not a multiple of cluster.gpus_per_node 8, and "
         "the last node runs 6 ranks; try world_size 8 or 16"),
        (15, 8, "1 GPU is idle: cluster.world_size 15 is not a multiple of cluster.gpus_per_node 8, and "
         "the last node runs 7 ranks; try world_size 8 or 16"),
        (1, 8, "7 GPUs are idle: cluster.world_size 1 is not a multiple of cluster.gpus_per_node 8, and "
         "the last node runs 1 rank; try world_size 8"),
    ],
)  # fmt: skip
def test_idle_gpus(size: int, gpus: int, message: str) -> None:
    found = [f for f in placement(report_on(size, gpus_per_node=gpus)) if f.severity == "warning"]
    keys = ("cluster.world_size", "cluster.gpus_per_node")
    assert found == [Finding("warning", "placement", message, keys, "cluster section of run.yaml")]


def test_full_nodes_and_ranks_without_gpus_are_no_news() -> None:
    assert placement(report_on(8, gpus_per_node=8)) == []
    report = report_on(14, device="cpu")
    assert placement(report) == []
    assert report.not_looked_at[-1] == ("placement: cluster.device is cpu, and no NVLink domain is given")


@pytest.mark.parametrize(
    "said", [{"gpus_per_node": 4}, {"nvlink_domain_size": 4}, {"nvlink_domains": "0-3;4-7"}]
)
def test_domains_that_are_said_are_judged_on_cpus_too(said: dict[str, object]) -> None:
    report = report_on(8, {W: 8}, device="cpu", **said)
    (warning,) = [f for f in placement(report) if f.severity == "warning"]
    assert warning.message.startswith("1 of 1 gtp_remat groups (8 ranks each) cross NVLink domains")
    assert not any(line.startswith("placement:") for line in report.not_looked_at)


def test_nodes_that_are_split_between_domains_of_other_nodes() -> None:
    # Domains of ranks 0-5, 6-11, ...; nodes of 0-3, 4-7, ...: nodes 1 and 4 are split.
    (note,) = [
        f for f in placement(report_on(24, gpus_per_node=4, nvlink_domain_size=6)) if "nodes are" in f.message
    ]
    assert (note.severity, note.message) == (
        "note",
        "2 of 6 nodes are split between NVLink domains that have GPUs of other nodes too, as node 1 between "
        "domains 0 and 1; usually nodes fill a domain, or domains a node",
    )
    for gpus, domain in ((4, 8), (8, 4), (4, 4), (4, 24)):
        found = placement(report_on(24, gpus_per_node=gpus, nvlink_domain_size=domain))
        assert not any("nodes are split" in f.message for f in found)


def test_a_domain_is_a_node_where_nothing_else_is_said() -> None:
    examined = report_on(8, gpus_per_node=4).examined
    assert examined.value("cluster.nvlink_domain_size") == 4
    assert examined.sources["cluster.nvlink_domain_size"] == "derived"
    assert report_on(8).examined.value("cluster.nvlink_domain_size") == 8
    listed = report_on(8, gpus_per_node=4, nvlink_domains="0-7").examined
    assert listed.value("cluster.nvlink_domain_size") is None


def test_heavy_groups_in_one_domain_are_no_warning() -> None:
    # two domains of two nodes of four GPUs
    report = report_on(16, {W: 8}, nvlink_domain_size=8, gpus_per_node=4)
    assert [f.severity for f in placement(report) if "gtp_remat groups" in f.message] == ["note"]
    assert report.exit_code == 0


def test_heavy_groups_that_cross_are_a_warning_with_a_way_out() -> None:
    report = report_on(16, {W: 16}, nvlink_domain_size=8, gpus_per_node=4)
    (finding,) = told(report, "placement", severity="warning")
    assert finding.message == (
        "1 of 1 gtp_remat groups (16 ranks each) cross NVLink domains: ranks 0-15 stand in NVLink domains "
        "0 and 1"
    )
    assert finding.where == "cluster section of run.yaml"
    assert any(f.message.startswith(f"{W} 8: 0 of 2 gtp_remat groups cross") for f in placement(report))
    assert report.exit_code == 1


def test_bytes_are_told_where_model_and_batch_are_known() -> None:
    config: dict[str, Any] = {
        "cluster": {"world_size": 16, "nvlink_domain_size": 8},
        "parallel": {W: 16},
        "model": {"config": LLAMA},
        "train": {"global_batch_size": 16, "max_steps": 1},
    }
    report = look(config, files=False)
    (finding,) = told(report, "placement", severity="warning")
    assert "a step leave one NVLink domain" in finding.message
    (crossing,) = [c for c in report.crossings if c.group == "gtp_remat"]
    assert report.job is not None
    sent = sum(r.count * r.bytes_sent for r in report.job.records if r.group == "gtp_remat")
    assert (crossing.rank_bytes, crossing.link_bytes) == (sent, sent)  # one edge of the ring leaves a domain
    without = report_on(16, {W: 16}, nvlink_domain_size=8)
    assert {c.link_bytes for c in without.crossings} == {None}


def test_assumed_domains_are_called_so() -> None:
    (finding,) = placement(report_on(16))
    assert finding.where == "NVLink domains of 8 are assumed"
    assert finding.severity == "note"


@pytest.mark.parametrize(
    "listed", ["0-1,4-5;2-3,6-7", [[0, 1, 4, 5], [2, 3, 6, 7]], ["0-1,4-5", [2, 3, 6, 7]]]
)
def test_listed_domains(listed: object) -> None:
    report = report_on(8, {W: 4}, nvlink_domains=listed)
    (finding,) = told(report, "placement", severity="warning")
    assert finding.message.startswith(
        "2 of 2 gtp_remat groups (4 ranks each) cross NVLink domains: ranks 0-3"
    )
    assert report.job is not None
    assert report.job.topology.domains.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("0-3;3-7", "nvlink_domains lists rank 3 twice (domain 0 and 1)"),
        ("0-3;4-8", "nvlink_domains lists rank 8, and the layout holds ranks 0 to 7"),
    ],
)
def test_ranks_listed_wrongly(listed: str, message: str) -> None:
    config = {"cluster": {"world_size": 8, "nvlink_domains": listed}}
    report = look(config, driver="pp,-1,tp", calls=["x: shard=data_parallel"])
    keys, where = ("cluster.nvlink_domains",), "cluster section of run.yaml"
    assert placement(report) == [Finding("error", "placement", message, keys, where)]
    assert report.job is None
    assert report.outcome is not None
    assert report.outcome.agrees
    assert len(report.reaches) == 1


@pytest.mark.parametrize(
    "listed", ["7-3", "a-b", "", [], [[]], [[0], ["x"]], 3, {"a": 1}, "-3", [[-1]], [[True]]]
)
def test_lists_that_are_none(listed: object) -> None:
    report = look({"cluster": {"world_size": 8, "nvlink_domains": listed}})
    errors = told(report, severity="error")
    (finding,) = errors
    assert finding.message.startswith(
        "cluster.nvlink_domains must be a list with the ranks of each domain, such as [[0, 1], [2, 3]] or "
        '"0-1;2-3", or null, not '
    )
    assert placement(report) == []
    assert report.job is not None  # its layout needs no domains


def test_domains_that_nobody_knows() -> None:
    (finding,) = told(report_on(8, nvlink_domains="0-5"), severity="warning")
    assert finding == Finding(
        "warning",
        "placement",
        "the NVLink domain of 2 ranks is not known, as cluster.nvlink_domains does not list them: 6, 7",
        ("cluster.nvlink_domains",),
        "cluster section of run.yaml",
    )
    (finding,) = told(report_on(8, nvlink_domains="0-6"), severity="warning")
    assert finding.message == (
        "the NVLink domain of 1 rank is not known, as cluster.nvlink_domains does not list it: 7"
    )


def test_size_and_lists_exclude_each_other() -> None:
    report = report_on(8, nvlink_domains="0-7", nvlink_domain_size=4)
    (finding,) = told(report, severity="error")
    assert finding.message == (
        "cluster.nvlink_domains and cluster.nvlink_domain_size are both set; keep one and set the other null"
    )


def test_the_reshape_trap_is_a_note_and_a_wrong_driver_an_error() -> None:
    parallel = {"context_parallel_size": 2, W: 2}
    (note,) = told(report_on(8, parallel), "driver")
    assert note.severity == "note"
    assert note.message == (
        "a driver that reshapes the ranks to (pp, -1, runtime_cp, tp) would put 4 of 8 of them in the wrong "
        "lane, rank 1 in lane 0 instead of 1; --driver pp,-1,runtime_cp,tp shows why, and the right axes"
    )
    config = {"cluster": {"world_size": 8}, "parallel": parallel}
    wrong = look(config, driver="pp,-1,cp,tp")
    (finding,) = told(wrong, "driver")
    assert finding.severity == "error"
    assert wrong.exit_code == 2
    right = look({**config, "parallel": {**parallel, "rank_order": "tp-cp-gtp-dp-pp"}}, driver="pp,-1,cp,tp")
    assert [f.severity for f in told(right, "driver")] == ["note"]


def test_calls() -> None:
    config = {"cluster": {"world_size": 24}, "parallel": {"tensor_model_parallel_size": 4, W: 12}}
    call = "sync: shard=data_parallel replicate=pipeline_parallel,context_parallel,tensor_parallel"
    report = look(config, driver="pp,-1,gtp,cp,tp", calls=[call, "nonsense", "x: shard=a"])
    found = told(report, "calls")
    assert [f.severity for f in found] == ["error"] * 3
    reaching = next(f for f in found if f.message.startswith("sync reaches"))
    assert "8 of 24 ranks" in reaching.message
    assert [f.where for f in found if f is not reaching] == ["--call", "--call"]
    assert len(report.reaches) == 1


@pytest.mark.parametrize(
    "listed", ["0-1000000000000;2", ",".join(["0-1000000"] * 2000), "5-99999999999999999999"]
)
def test_lists_of_more_ranks_than_there_may_be_are_refused_at_once(listed: str) -> None:
    (error,) = told(report_on(8, nvlink_domains=listed), severity="error")
    assert error.message.startswith("cluster.nvlink_domains must be a list with the ranks of each domain")
