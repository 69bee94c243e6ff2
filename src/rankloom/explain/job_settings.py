"""The settings of a job that its layout, its machines and its batch come from."""

from __future__ import annotations

from rankloom.explain.derivations import SettingRow, setting_rows
from rankloom.plan.job import Job

__all__ = ["job_settings"]


def job_settings(job: Job) -> tuple[SettingRow, ...]:
    """Those of the layout, then those of machines and batch that are known."""
    batch = job.batch
    values: dict[str, object] = {
        "cluster.nvlink_domain_size": job.topology.nvlink_domain_size,
        "cluster.gpus_per_node": job.topology.gpus_per_node,
        "train.global_batch_size": batch and batch.global_batch_size,
        "train.micro_batch_size": batch and batch.micro_batch_size,
        "data.max_seq_length": job.sequence_length,
    }
    others = [
        SettingRow(key.split(".")[1], job.spelled.get(key, ""), str(value), job.sources.get(key, ""))
        for key, value in values.items()
        if value is not None
    ]
    return (*setting_rows(job.layout, sources=job.sources, spelled=job.spelled), *others)
