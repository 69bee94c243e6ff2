"""Two older ways to say how weights and tokens share ranks, translated into today's settings."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from rankloom.layout.arithmetic import CP, Q, W, positive
from rankloom.layout.provenance import Provenance


@dataclass(frozen=True)
class Translation:
    """The settings an older spelling stands for; pass ``settings`` on to ``GTPParallelLayout.resolve``."""

    spelling: str
    tensor_parallel_num_weight_shards: int
    tensor_parallel_num_sequence_shards: int
    context_parallel_size: int

    @property
    def settings(self) -> dict[str, int]:
        return {
            W: self.tensor_parallel_num_weight_shards,
            Q: self.tensor_parallel_num_sequence_shards,
            CP: self.context_parallel_size,
        }

    def describe(self) -> str:
        """ "--fold-whole-cp means tensor_parallel_num_weight_shards 8, ..."."""
        return (
            f"{self.spelling} means {', '.join(f'{name} {value}' for name, value in self.settings.items())}"
        )


def from_gtp_remat_fold_cp(
    *,
    runtime_context_parallel_size: int,
    gtp_remat_size: int,
    tensor_model_parallel_size: int = 1,
    sequence_parallel: bool | None = None,
) -> Translation:
    """``--gtp-remat-fold-cp``: the runtime CP degree c and GTP_remat G overlap as far as they can.

    S = gcd(c, G), Q = SP degree * S, CP = c / S, and W = TP * G as before.

    >>> list(from_gtp_remat_fold_cp(runtime_context_parallel_size=8, gtp_remat_size=4).settings.values())
    [4, 4, 2]
    """
    c = positive("runtime_context_parallel_size", runtime_context_parallel_size, where=Provenance())
    remat = positive("gtp_remat_size", gtp_remat_size, where=Provenance())
    tp = positive("tensor_model_parallel_size", tensor_model_parallel_size, where=Provenance())
    shared = gcd(c, remat)
    degree = 1 if sequence_parallel is False else tp
    return Translation("--gtp-remat-fold-cp", tp * remat, degree * shared, c // shared)


def from_fold_whole_cp(
    *,
    context_parallel_size: int,
    gtp_remat_size: int,
    tensor_model_parallel_size: int = 1,
    sequence_parallel: bool | None = None,
) -> Translation:
    """``--fold-whole-cp``: the whole CP axis c joins the weight group, so CP peers stop holding copies.

    W = TP * G * c, Q = SP degree * c, CP = 1: every rank keeps the lane and context it has in a job of TP, G
    and CP = c numbered ``tp-cp-gtp-dp-pp``.

    >>> list(from_fold_whole_cp(context_parallel_size=2, gtp_remat_size=4).settings.values())
    [8, 2, 1]
    """
    c = positive("context_parallel_size", context_parallel_size, where=Provenance())
    remat = positive("gtp_remat_size", gtp_remat_size, where=Provenance())
    tp = positive("tensor_model_parallel_size", tensor_model_parallel_size, where=Provenance())
    degree = 1 if sequence_parallel is False else tp
    return Translation("--fold-whole-cp", tp * remat * c, degree * c, 1)
