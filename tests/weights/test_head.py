"""The loss over a cut vocabulary against torch's cross-entropy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rankloom.plan import Role
from rankloom.weights import IGNORE, TensorParallelRegion, VocabularyHead, head
from tests.weights.units import TP, Units, W, communicator

B, S, H = 2, 8, 6


def inputs(vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(vocab)
    weight = torch.randn(vocab, H, generator=generator).to(dtype)
    return weight, (3 * torch.randn(B, S, H, generator=generator)).to(dtype)


def labels_of(vocab: int, kind: str) -> Tensor:
    labels = torch.randint(0, vocab, (B, S), generator=torch.Generator().manual_seed(1))
    labels[0, 0], labels[0, 1] = 0, vocab - 1
    if kind == "some":
        labels[:, 2::3] = IGNORE
        labels[1] = IGNORE
    if kind == "none":
        labels[:] = IGNORE
    return labels


def plain(vocab: int, dtype: torch.dtype, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss sum, gradient of hidden, gradient of the weight; logits in the dtype, the rest in fp32."""
    weight, hidden = (t.requires_grad_() for t in inputs(vocab, dtype))
    logits = (hidden @ weight.t()).float()
    loss = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum"
    )
    loss.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return loss.detach(), hidden.grad, weight.grad


def plain_log_probabilities(vocab: int, dtype: torch.dtype, labels: Tensor) -> Tensor:
    weight, hidden = inputs(vocab, dtype)
    logits = (hidden @ weight.t()).float()
    flat = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="none"
    )
    return -flat.view(labels.shape)


def cut_head(
    rank: int,
    world_size: int,
    settings: dict[str, Any],
    vocab: int,
    dtype: torch.dtype,
    kind: str,
    chunk: int,
) -> dict[str, tuple[Tensor, Tensor]]:
    comm = communicator(rank, world_size, settings)
    units = Units.make(comm, {"head": (Role.HEAD, (vocab, H))}, dtype=dtype)
    weight, hidden = inputs(vocab, dtype)
    labels = labels_of(vocab, kind)
    units.fill({"head": weight})
    region = TensorParallelRegion(comm["tp"], comm.layout.sequence_parallel)
    handle = units.handle("head")
    cut = VocabularyHead(handle, region, handle.placement.tp_box(comm["tp"].index).starts[0])
    parts = comm["tp"].size if comm.layout.sequence_parallel else 1
    mine = comm["tp"].index if parts > 1 else 0
    before, head.CHUNK_ELEMENTS = head.CHUNK_ELEMENTS, chunk
    try:
        units.begin()
        loss, grad = cut.loss_and_gradient(hidden.chunk(parts, dim=1)[mine], labels)
        units.end()
        units.schedule.begin("evaluate")
        alone = cut.loss(hidden.chunk(parts, dim=1)[mine], labels)
        values = cut.log_probabilities(hidden.chunk(parts, dim=1)[mine], labels)
        units.schedule.end()
    finally:
        head.CHUNK_ELEMENTS = before
    want_loss, want_hidden, want_weight = plain(vocab, dtype, labels)
    return {
        "loss": (loss, want_loss.double()),
        "loss alone": (alone, loss),
        "log-probabilities": (values, plain_log_probabilities(vocab, dtype, labels)),
        "hidden": (grad, want_hidden.chunk(parts, dim=1)[mine]),
        "weight": (
            units.gradient("head"),
            comm["gtp_remat"].size * units.rows_here("head", want_weight).float(),
        ),
    }


LAYOUTS = [
    (1, {}),
    (2, {TP: 2}),
    (2, {TP: 2, "sequence_parallel": False}),
    (4, {TP: 4}),
    (4, {TP: 2, W: 4}),
    (4, {W: 4}),
]
WHOLE = 1 << 23


def check(results: list[dict[str, tuple[Tensor, Tensor]]], *, tolerance: float) -> None:
    for result in results:
        for name, (got, want) in result.items():
            assert got.dtype == want.dtype, name
            error = (got.double() - want.double()).norm()
            assert error <= tolerance * want.double().norm(), (name, got, want)
        assert torch.equal(*result["loss alone"])
        assert torch.equal(result["loss"][0], results[0]["loss"][0])


@pytest.mark.parametrize("kind", ["all", "some", "none"])
@pytest.mark.parametrize("vocab", [16, 101])
@pytest.mark.parametrize(("world", "settings"), LAYOUTS, ids=str)
def test_loss_and_gradients_equal_cross_entropy(
    ranks: Any, world: int, settings: dict[str, Any], vocab: int, kind: str
) -> None:
    results = ranks(world, cut_head, settings, vocab, torch.float32, kind, WHOLE)
    check(results, tolerance=1e-6)
    if kind == "none":
        assert results[0]["loss"][0].item() == 0.0
        assert not results[0]["hidden"][0].any()


@pytest.mark.parametrize("chunk", [1, 3 * 101, 7 * 101])
@pytest.mark.parametrize(("world", "settings"), [(1, {}), (2, {TP: 2}), (4, {W: 4})], ids=str)
def test_chunks_of_tokens_do_not_change_loss_or_gradients(
    ranks: Any, world: int, settings: dict[str, Any], chunk: int
) -> None:
    check(ranks(world, cut_head, settings, 101, torch.float32, "some", chunk), tolerance=1e-6)


@pytest.mark.parametrize(("world", "settings"), LAYOUTS, ids=str)
def test_bf16_logits_have_their_loss_in_fp32(ranks: Any, world: int, settings: dict[str, Any]) -> None:
    results = ranks(world, cut_head, settings, 101, torch.bfloat16, "some", WHOLE)
    for result in results:
        loss, want = result["loss"]
        assert loss.item() == pytest.approx(want.item(), rel=1e-6)
        for name in ("hidden", "weight"):
            got, want = result[name]
            assert (got.double() - want.double()).norm() <= 2**-8 * want.double().norm(), name


def logits_of_any_size(rank: int, world_size: int, shift: float) -> tuple[float, bool]:
    """A constant added to all logits changes nothing; exp of them alone would overflow."""
    comm = communicator(rank, world_size, {TP: world_size, "sequence_parallel": False})
    units = Units.make(comm, {"head": (Role.HEAD, (10, 1))})
    units.fill({"head": torch.arange(10.0).view(10, 1) + shift})
    handle = units.handle("head")
    cut = VocabularyHead(
        handle, TensorParallelRegion(comm["tp"], False), handle.placement.tp_box(comm["tp"].index).starts[0]
    )
    units.begin()
    loss, grad = cut.loss_and_gradient(torch.ones(1, 1, 1), torch.tensor([[9]]))
    units.end()
    return loss.item(), bool(grad.isfinite().all())


@pytest.mark.parametrize("shift", [0.0, 1000.0, -1000.0])
@pytest.mark.parametrize("n", [1, 2])
def test_large_logits_do_not_overflow(ranks: Any, n: int, shift: float) -> None:
    want = functional.cross_entropy(torch.arange(10.0)[None], torch.tensor([9])).item()
    for loss, finite in ranks(n, logits_of_any_size, shift):
        assert finite
        assert loss == pytest.approx(want, rel=1e-5)
