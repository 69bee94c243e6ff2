"""The products with sharded weights against plain layers in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rankloom.plan import Role
from rankloom.weights import TensorParallelRegion, linear, vocabulary_rows
from tests.weights.units import TP, Units, W, communicator

Layer = dict[str, tuple[Role, tuple[int, ...]]]
COLUMN: Layer = {"weight": (Role.COLUMN, (12, 8)), "bias": (Role.COLUMN_BIAS, (12,))}
ROW: Layer = {"weight": (Role.ROW, (12, 8)), "bias": (Role.ROW_BIAS, (12,))}
GENERATOR_SEED = 4


def whole_values() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(GENERATOR_SEED)
    return {
        "weight": torch.randn(12, 8, generator=generator),
        "bias": torch.randn(12, generator=generator),
        "x": torch.randn(2, 4, 8, generator=generator),
        "grad": torch.randn(2, 4, 12, generator=generator),
    }


def plain_layer() -> dict[str, Tensor]:
    """Output and gradients of torch's own layer."""
    v = {name: t.clone().requires_grad_(name != "grad") for name, t in whole_values().items()}
    y = functional.linear(v["x"], v["weight"], v["bias"])
    y.backward(v["grad"])
    return {"y": y.detach(), "x": v["x"].grad, "weight": v["weight"].grad, "bias": v["bias"].grad}


def column_layer(rank: int, world_size: int, settings: dict[str, Any]) -> dict[str, Any]:
    """12 outputs cut by tp; every rank sees the same input, so sums over gtp_remat are multiples."""
    comm = communicator(rank, world_size, settings)
    units, v, tp = Units.make(comm, COLUMN), whole_values(), comm["tp"]
    units.fill(v)
    region = TensorParallelRegion(tp, comm.layout.sequence_parallel)
    s = 4 // tp.size if comm.layout.sequence_parallel else 4
    x = v["x"][:, tp.index * s :][:, :s].clone() if comm.layout.sequence_parallel else v["x"].clone()
    x.requires_grad_()
    units.begin()
    y = linear(region.enter(x), units.small.parameters["bias"], units.handle("weight"))
    y.backward(v["grad"].chunk(tp.size, dim=-1)[tp.index])
    units.end()
    assert x.grad is not None
    wanted = plain_layer()
    return {
        "y": (y.detach(), wanted["y"].chunk(tp.size, dim=-1)[tp.index]),
        "x": (x.grad, wanted["x"].chunk(4 // s, dim=1)[tp.index if s < 4 else 0]),
        "weight": (
            units.gradient("weight"),
            comm["gtp_remat"].size * units.rows_here("weight", wanted["weight"]),
        ),
        "bias": (units.gradient("bias"), units.rows_here("bias", wanted["bias"])),
        "stored": (tuple(units.weights.shard("weight").shape), tuple(units.small.shard("bias").shape)),
    }


def row_layer(rank: int, world_size: int, settings: dict[str, Any]) -> dict[str, Any]:
    """8 inputs cut by tp; the bias is added once, after the sum."""
    comm = communicator(rank, world_size, settings)
    units, v, tp = Units.make(comm, ROW), whole_values(), comm["tp"]
    units.fill(v)
    region = TensorParallelRegion(tp, comm.layout.sequence_parallel)
    parts = tp.size if comm.layout.sequence_parallel else 1
    mine = tp.index if parts > 1 else 0
    x = v["x"].chunk(tp.size, dim=-1)[tp.index].clone().requires_grad_()
    units.begin()
    y = region.leave(linear(x, None, units.handle("weight"))) + units.small.parameters["bias"]
    y.backward(v["grad"].chunk(parts, dim=1)[mine])
    units.end()
    units.small.sum_partial()
    assert x.grad is not None
    wanted = plain_layer()
    return {
        "y": (y.detach(), wanted["y"].chunk(parts, dim=1)[mine]),
        "x": (x.grad, wanted["x"].chunk(tp.size, dim=-1)[tp.index]),
        "weight": (
            units.gradient("weight"),
            comm["gtp_remat"].size * units.rows_here("weight", wanted["weight"]),
        ),
        "bias": (units.gradient("bias"), wanted["bias"]),
        "stored": (tuple(units.weights.shard("weight").shape), tuple(units.small.shard("bias").shape)),
    }


LAYOUTS = [
    (1, {}),
    (4, {W: 4}),
    (2, {TP: 2}),
    (2, {TP: 2, "sequence_parallel": False}),
    (4, {TP: 2, W: 4}),
    (8, {TP: 2, W: 8}),
]


@pytest.mark.parametrize(("world", "settings"), LAYOUTS, ids=str)
@pytest.mark.parametrize("body", [column_layer, row_layer])
def test_outputs_and_gradients_equal_the_plain_layer(
    ranks: Any, world: int, settings: dict[str, Any], body: Any
) -> None:
    for result in ranks(world, body, settings):
        for name in ("y", "x", "weight", "bias"):
            got, want = result[name]
            torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("world", "settings", "weight", "bias"),
    [
        (4, {W: 4}, (3, 8), (12,)),
        (2, {TP: 2}, (6, 8), (6,)),
        (8, {TP: 2, W: 8}, (2, 8), (6,)),  # 6 rows over 4 ranks: padded to 8
    ],
    ids=str,
)
def test_a_bias_has_the_length_of_the_output(
    ranks: Any,
    world: int,
    settings: dict[str, Any],
    weight: tuple[int, ...],
    bias: tuple[int, ...],
) -> None:
    for result in ranks(world, column_layer, settings):
        assert result["stored"] == (weight, bias)


def test_a_row_parallel_layer_keeps_its_bias_whole(ranks: Any) -> None:
    for result in ranks(4, row_layer, {TP: 2, W: 4}):
        assert result["stored"] == ((6, 4), (12,))


def embedding(rank: int, world_size: int, settings: dict[str, Any], padding_id: int | None) -> Any:
    comm = communicator(rank, world_size, settings)
    units = Units.make(comm, {"table": (Role.EMBEDDING, (11, 3))})
    table = torch.arange(33.0).view(11, 3)
    units.fill({"table": table})
    region = TensorParallelRegion(comm["tp"], False)
    ids = torch.tensor([[0, 10, 5, 5], [6, 9, 1, 0]])
    handle = units.handle("table")
    first_row = handle.placement.tp_box(comm["tp"].index).starts[0]
    anchor = torch.zeros((), requires_grad=True)
    units.begin()
    y = region.leave(vocabulary_rows(ids, anchor, handle, first_row=first_row, padding_id=padding_id))
    y.backward(torch.arange(24.0).view(2, 4, 3))
    units.end()
    plain = table.clone().requires_grad_()
    functional.embedding(ids, plain, padding_idx=padding_id).backward(torch.arange(24.0).view(2, 4, 3))
    assert plain.grad is not None
    want = comm["gtp_remat"].size * units.rows_here("table", plain.grad)
    return torch.equal(y, table[ids]) and torch.equal(units.gradient("table"), want)


@pytest.mark.parametrize("padding_id", [None, 5, 9])
@pytest.mark.parametrize(("world", "settings"), LAYOUTS[:5], ids=str)
def test_an_embedding_of_odd_size_equals_the_plain_one(
    ranks: Any, world: int, settings: dict[str, Any], padding_id: int | None
) -> None:
    if settings.get("sequence_parallel") is None and TP in settings:
        settings = {**settings, "sequence_parallel": False}
    assert all(ranks(world, embedding, settings, padding_id))
