"""Puts sharded weights under an unmodified Hugging Face model: each linear and embedding gets another
``forward``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rankloom.plan import ModelPlan, Placement, Role
from rankloom.weights import SmallUnit, TensorParallelRegion, WeightHandle, linear, vocabulary_rows

__all__ = ["wire"]


def wire(
    model: nn.Module,
    plan: ModelPlan,
    *,
    handles: Mapping[str, WeightHandle],
    small: SmallUnit,
    region: TensorParallelRegion,
) -> None:
    """Replaces the forward of every module whose weight the plan shards, and the small parameters by stored
    ones."""
    for name, parameter in small.parameters.items():
        owner, _, leaf = name.rpartition(".")
        model.get_submodule(owner)._parameters[leaf] = parameter
    entrances: dict[str, nn.Module] = {}
    for name, handle in handles.items():
        path = name.removesuffix(".weight")
        module = model.get_submodule(path)
        _set_forward(module, _forward_of(module, handle, region))
        if handle.placement.spec.role is Role.COLUMN:
            parent = path.rpartition(".")[0]
            entrances[parent] = model.get_submodule(parent)
    for module in entrances.values():
        module.register_forward_pre_hook(_entrance(region), with_kwargs=True)


def _set_forward(module: nn.Module, forward: Callable[..., Tensor]) -> None:
    # Not a subclass and not setattr on the class: other models of this process keep theirs.
    module.__dict__["forward"] = forward


def _forward_of(
    module: nn.Module, handle: WeightHandle, region: TensorParallelRegion
) -> Callable[..., Tensor]:
    bias = module._parameters.get("bias")
    role = handle.placement.spec.role
    if role is Role.EMBEDDING:
        return _embedding(module, handle, region)
    if role is Role.COLUMN:
        return lambda x: linear(x, bias, handle)
    if role is Role.ROW:
        return lambda x: _with_bias(region.leave(linear(x, None, handle)), bias)
    assert role is Role.HEAD  # the loss has its own product with it
    return _no_logits


def _with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


def _no_logits(*_: Any, **__: Any) -> Tensor:
    raise RuntimeError("the output head is part of the loss; whole logits are never computed")


def _embedding(
    module: nn.Module, handle: WeightHandle, region: TensorParallelRegion
) -> Callable[..., Tensor]:
    anchor = torch.zeros((), requires_grad=True, device=handle.unit.stored.device)
    first_row = first_vocabulary_row(handle.placement, region)
    padding_id = getattr(module, "padding_idx", None)

    def forward(ids: Tensor) -> Tensor:
        return region.leave(vocabulary_rows(ids, anchor, handle, first_row=first_row, padding_id=padding_id))

    return forward


def first_vocabulary_row(placement: Placement, region: TensorParallelRegion) -> int:
    """Token id of this TP rank's first row."""
    return placement.tp_box(region.group.index).starts[0]


def _entrance(region: TensorParallelRegion) -> Callable[..., Any]:
    """Modules read the shape of their input before projecting it, so the sequence is made whole at their
    entrance."""

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (region.enter(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": region.enter(kwargs["hidden_states"])}

    return enter
