"""How far apart two trainings are, and how far apart they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tests.parity.reference import Trajectory

__all__ = ["Differences", "differences"]

EXACT = ("consumed_samples", "consumed_chats", "consumed_tokens", "valid_tokens")
MAX_LOSS, MAX_GRAD_NORM, MAX_WEIGHT = 1e-5, 1e-4, 1e-4


@dataclass(frozen=True)
class Differences:
    """The largest relative differences over all steps, and over all parameters |w - w'| / |w'|."""

    loss: float
    grad_norm: float
    weight: float
    worst_parameter: str

    def refuse(self) -> None:
        """Fails unless all are within the tolerances of fp32."""
        assert self.loss <= MAX_LOSS, self
        assert self.grad_norm <= MAX_GRAD_NORM, self
        assert self.weight <= MAX_WEIGHT, self


def differences(got: Trajectory, want: Trajectory) -> Differences:
    """Fails where counts, learning rates or names differ at all."""
    _refuse_other_counts(got.rows, want.rows)
    assert got.weights.keys() == want.weights.keys()
    weights = {name: _relative(got.weights[name], value) for name, value in want.weights.items()}
    worst = max(weights, key=lambda name: weights[name])
    return Differences(
        loss=_largest(got.rows, want.rows, "loss"),
        grad_norm=_largest(got.rows, want.rows, "grad_norm"),
        weight=weights[worst],
        worst_parameter=worst,
    )


def _refuse_other_counts(got: Sequence[Mapping[str, Any]], want: Sequence[Mapping[str, Any]]) -> None:
    assert len(got) == len(want)
    for step, (a, b) in enumerate(zip(got, want, strict=True), start=1):
        assert a["step"] == step
        assert {key: a[key] for key in EXACT} == {key: b[key] for key in EXACT}, f"step {step}"
        assert abs(a["lr"] - b["lr"]) <= 1e-12, f"step {step}: lr {a['lr']}, want {b['lr']}"


def _largest(got: Sequence[Mapping[str, Any]], want: Sequence[Mapping[str, Any]], key: str) -> float:
    return max(abs(a[key] - b[key]) / abs(b[key]) for a, b in zip(got, want, strict=True))


def _relative(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm())
