"""Every reduction is a plain sum, whatever the layout; 1 / N comes once, in the optimizer step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rankloom.optim import ShardedAdamW
from rankloom.plan import Role
from tests.weights.units import CP, TP, Q, Units, W, communicator

ROLES = {"weight": (Role.COLUMN, (8, 3)), "norm": (Role.NORM, (5,))}
NUMEL = 8 * 3 + 5


def optimizer_of(units: Units, *, clip_grad: float = 0.0) -> ShardedAdamW:
    optimizer = ShardedAdamW(
        [units.weights],
        units.small,
        units.comm,
        decays=lambda p: p.sharded,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.0,
        clip_grad=clip_grad,
    )
    units.reducer.on_complete = optimizer.launch_reduction
    return optimizer


def accumulate(units: Units, values: list[float]) -> None:
    """A microbatch for each value, which becomes the gradient of every element."""
    for m, value in enumerate(values):
        units.begin(first=m == 0, last=m == len(values) - 1)
        rows, cols = units.weights.placement("weight").tp_local_shape
        dtype = units.weights.stored.dtype
        units.handle("weight").add_gradient(
            torch.full((1, rows), value, dtype=dtype), torch.ones(1, cols, dtype=dtype)
        )
        units.handle("weight").gradient_written()
        (units.small.parameters["norm"] * value).sum().backward()
        units.end()


def pieces(optimizer: ShardedAdamW) -> dict[str, set[float]]:
    """Different values in the summed gradients that this rank owns, by parameter."""
    found: dict[str, set[float]] = {}
    for piece in optimizer.pieces:
        for placement, _, gradient in piece.parameters():
            found.setdefault(placement.name, set()).update(gradient.tolist())
    return found


def lanes_with_gradients_one_to_four(
    rank: int, world_size: int, settings: dict[str, Any], num_microbatches: int
) -> tuple[dict[str, set[float]], float, dict[str, set[float]]]:
    comm = communicator(rank, world_size, settings)
    units = Units.make(comm, ROLES)
    optimizer = optimizer_of(units)
    lane = comm.layout.lane(rank)
    for _ in range(2):  # the second step starts from zero again
        accumulate(units, [float(lane + 1)] * num_microbatches)
        optimizer.finish_reductions()
        sums, norm = pieces(optimizer), optimizer.gradient_norm(4)
        optimizer.step(lr=0.0, num_tokens=4, norm=norm)
    return sums, norm, pieces(optimizer)


@pytest.mark.parametrize("num_microbatches", [1, 3])
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_four_lanes_are_summed_and_divided_once(ranks: Any, shards: int, num_microbatches: int) -> None:
    results = ranks(4, lanes_with_gradients_one_to_four, {W: shards}, num_microbatches)
    for sums, norm, divided in results:
        for name, values in sums.items():
            assert values == {10.0 * num_microbatches}
            assert divided[name] == {2.5 * num_microbatches}
        assert norm == pytest.approx(2.5 * num_microbatches * math.sqrt(NUMEL), rel=1e-15)
    assert {name for sums, _, _ in results for name in sums} == {"weight", "norm"}


def a_step_left_out(rank: int, world_size: int, settings: dict[str, Any]) -> dict[str, set[float]]:
    """Gradients that are not finite are summed and then not used."""
    units = Units.make(communicator(rank, world_size, settings), ROLES)
    optimizer = optimizer_of(units)
    accumulate(units, [math.inf, math.nan])
    optimizer.finish_reductions()
    assert not math.isfinite(optimizer.gradient_norm(1))
    accumulate(units, [1.0])
    optimizer.finish_reductions()
    return pieces(optimizer)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_nothing_is_left_of_gradients_that_are_not_finite(ranks: Any, shards: int) -> None:
    for found in ranks(4, a_step_left_out, {W: shards}):
        assert all(values == {4.0} for values in found.values())


def every_rank_contributes_one(rank: int, world_size: int, settings: dict[str, Any]) -> Any:
    units = Units.make(communicator(rank, world_size, settings), ROLES)
    optimizer = optimizer_of(units)
    accumulate(units, [1.0])
    optimizer.finish_reductions()
    return pieces(optimizer), optimizer.gradient_norm(1)


@pytest.mark.parametrize(
    ("world", "settings", "weight", "norm"),
    [
        # Everything is summed over all but tp; a norm also over tp where its gradient is partial there.
        (8, {W: 4}, 8.0, 8.0),
        (8, {W: 4, Q: 2, CP: 2}, 8.0, 8.0),
        (4, {TP: 2, W: 4}, 2.0, 4.0),
        (4, {TP: 2, W: 4, "sequence_parallel": False}, 2.0, 2.0),
        (8, {TP: 2, W: 4, CP: 2, "rank_order": "tp-cp-gtp-dp-pp"}, 4.0, 8.0),
    ],
    ids=str,
)
def test_each_kind_is_summed_over_the_ranks_that_hold_a_part(
    ranks: Any, world: int, settings: dict[str, Any], weight: float, norm: float
) -> None:
    for found, total in ranks(world, every_rank_contributes_one, settings):
        assert found["weight"] == {weight}
        assert found.get("norm", {norm}) == {norm}  # 5 elements: some ranks own none
        assert total == pytest.approx(math.sqrt(24 * weight**2 + 5 * norm**2), rel=1e-15)


def one_and_seven_small_parts(rank: int, world_size: int, dtype: torch.dtype) -> set[float]:
    units = Units.make(communicator(rank, world_size, {W: 8}), ROLES, dtype=dtype)
    accumulate(units, [1.0 if rank == 0 else 2.0**-9])
    return set(units.gradient("weight").flatten().tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_summed_in_fp32_also_of_bf16_weights(ranks: Any, dtype: torch.dtype) -> None:
    assert ranks(8, one_and_seven_small_parts, dtype) == [{1.013671875}] * 8


def a_tied_weight(rank: int, world_size: int, order: str) -> tuple[float, int]:
    """Its two users give [1, 4] and [2, 0]."""
    comm = communicator(rank, world_size, {W: 4})
    units = Units.make(comm, {"table": (Role.EMBEDDING, (2, 1))}, num_users=2)
    optimizer = optimizer_of(units)
    handle = units.handle("table")
    launched = []
    launch = units.weights.launch_reduction
    units.weights.launch_reduction = lambda **k: launched.append(1) or launch(**k)  # type: ignore[method-assign]
    units.begin()
    for user in order:
        if user == "h":
            handle.add_gradient(torch.tensor([[0.25, 1.0]]), torch.ones(1, 1))
        else:
            handle.add_row_gradient(torch.tensor([0]), torch.tensor([[0.5]]))
        handle.gradient_written()
    units.end()
    optimizer.finish_reductions()
    return optimizer.gradient_norm(1), len(launched)


@pytest.mark.parametrize("order", ["he", "eh"])
def test_a_tied_weight_is_one_parameter_with_both_gradients(ranks: Any, order: str) -> None:
    assert ranks(4, a_tied_weight, order) == [(5.0, 1)] * 4


SHAPES = {"weight": (6, 3), "norm": (5,), "bias": (6,), "down": (4, 6)}  # 6 rows leave padding
ALL_ROLES = {"weight": Role.COLUMN, "norm": Role.NORM, "bias": Role.COLUMN_BIAS, "down": Role.ROW}


def gradients() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def clipped(rank: int, world_size: int, settings: dict[str, Any], clip_grad: float) -> Any:
    """Gradients that differ in every element: their norm, and their squares per parameter after the step."""
    comm = communicator(rank, world_size, settings)
    units = Units.make(comm, {name: (ALL_ROLES[name], shape) for name, shape in SHAPES.items()})
    optimizer = optimizer_of(units, clip_grad=clip_grad)
    whole, tp = gradients(), comm["tp"]
    share = 2.0 / (world_size // tp.size)
    units.begin()
    for name in ("weight", "down"):
        box = units.weights.placement(name).tp_box(tp.index)
        mine = whole[name][tuple(slice(a, b) for a, b in zip(box.starts, box.stops, strict=True))]
        units.handle(name).add_gradient(torch.eye(len(mine)), mine * share)
        units.handle(name).gradient_written()
    partial = tp.size if comm.layout.sequence_parallel else 1
    (units.small.parameters["norm"] * whole["norm"] * (share / partial)).sum().backward()
    (units.small.parameters["bias"] * units.rows_here("bias", whole["bias"]) * share).sum().backward()
    units.end()
    optimizer.finish_reductions()
    norm = optimizer.gradient_norm(2)
    optimizer.step(lr=0.0, num_tokens=2, norm=norm)
    return norm, [
        (p.name, tp.index, gradient.double().square().sum().item())
        for piece in optimizer.pieces
        for p, _, gradient in piece.parameters()
    ]


@pytest.mark.parametrize("clip_grad", [0.0, 0.5, 100.0])
@pytest.mark.parametrize(
    ("world", "settings"),
    [
        (1, {}),
        (2, {TP: 2}),
        (2, {TP: 2, "sequence_parallel": False}),
        (4, {TP: 2, W: 4}),
        (4, {W: 2}),
        (8, {TP: 2, W: 4, CP: 2}),
    ],
    ids=str,
)
def test_norm_and_clipping_are_those_of_torch(
    ranks: Any, world: int, settings: dict[str, Any], clip_grad: float
) -> None:
    parameters = {name: torch.nn.Parameter(torch.zeros_like(g)) for name, g in gradients().items()}
    for name, value in gradients().items():
        parameters[name].grad = value
    want = torch.nn.utils.clip_grad_norm_(parameters.values(), clip_grad or math.inf).item()
    squares: dict[str, float] = dict.fromkeys(parameters, 0.0)
    for norm, owned in ranks(world, clipped, settings, clip_grad):
        assert norm == pytest.approx(want, rel=1e-6)
        for name, tp, square in owned:
            squares[name] += square if name != "norm" or tp == 0 else 0.0  # whole on every tp rank
    for name, parameter in parameters.items():
        assert parameter.grad is not None
        assert squares[name] == pytest.approx(parameter.grad.double().square().sum().item(), rel=2e-6), name
