"""In which order units are used within a microbatch, and how often each must therefore be gathered.

A *visit* is a stretch of uses of one unit. A gathered unit is kept while its next visit is at most ``KEEP``
visits away, and the gather of the next visit is launched one visit ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankloom.plan.model_plan import ModelPlan

__all__ = ["KEEP", "evaluation_visits", "gathers_of", "training_gathers", "training_visits"]

KEEP = 2


def training_visits(plan: ModelPlan) -> tuple[str, ...]:
    """Names of the units in the order of their visits: forward, head with its loss and gradient, backward.
    Recomputing a layer's activations falls into the visit of its backward; the embedding's backward needs no
    weight."""
    layers = [unit.name for unit in plan.weights if unit.name.startswith("model.layers.")]
    return ("model.embed_tokens", *layers, plan.head_unit, *reversed(layers))


def training_gathers(plan: ModelPlan) -> list[str]:
    """The unit of every gather of a microbatch, of the model or of one pipeline stage.

    Between forward and backward of a microbatch a stage works on others, so nothing is kept from one to the
    other; the last stage goes straight on with the backward.
    """
    if plan.is_first and plan.is_last:
        return list(gathers_of(training_visits(plan)))
    layers = [unit.name for unit in plan.weights if unit.name.startswith("model.layers.")]
    forward = [*["model.embed_tokens"] * plan.is_first, *layers]
    backward = layers[::-1]
    if plan.is_last:
        return list(gathers_of([*forward, plan.head_unit, *backward]))
    return [*gathers_of(forward), *gathers_of(backward)]


def evaluation_visits(plan: ModelPlan) -> tuple[str, ...]:
    """The same of a forward pass alone."""
    layers = [unit.name for unit in plan.weights if unit.name.startswith("model.layers.")]
    return ("model.embed_tokens", *layers, plan.head_unit)


def gathers_of(visits: Sequence[str]) -> Iterator[str]:
    """The unit of every gather of a microbatch with these visits, in the order of their launch."""
    held: set[str] = set()
    for at, unit in enumerate(visits):
        held &= {unit, *visits[at + 1 : at + 1 + KEEP]}
        for wanted in visits[at : at + 2]:
            if wanted not in held:
                held.add(wanted)
                yield wanted
