"""How people write the axes of a driver: ``pp,-1,cp,tp``, or ``data_parallel=6,tensor_parallel=4``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Literal

from rankloom.errors import UserError
from rankloom.layout.arithmetic import nearest
from rankloom.layout.gtp import GTPParallelLayout

PIPELINE, DATA, CONTEXT, TENSOR = (
    "pipeline_parallel",
    "data_parallel",
    "context_parallel",
    "tensor_parallel",
)
GTP = "gtp"
DRIVER_AXES = (PIPELINE, DATA, CONTEXT, TENSOR)
AXIS_OF_WORD = {
    "pp": PIPELINE,
    "-1": DATA,
    "dp": DATA,
    "cp": CONTEXT,
    "runtime_cp": CONTEXT,
    "tp": TENSOR,
    "gtp": GTP,
}
_LONG_WORDS = {PIPELINE: "pp", CONTEXT: "cp", TENSOR: "tp", "gtp_remat": "gtp"}
_WORDS_SHOWN = "pp, dp, cp, runtime_cp, tp, gtp, -1 or a whole number"

CpIs = Literal["configured", "runtime", "given"]


@dataclass(frozen=True)
class Axis:
    """One axis as it was written: its canonical name, the word for its size, and that size (None: ``-1``)."""

    name: str
    word: str
    size: int | None

    @property
    def said(self) -> str:
        """The axis with its number, for an equation: "cp 2", "tensor_parallel 4"."""
        return f"{self.name if self.word.isdigit() else self.word} {self.size}"


def axis_name(word: str) -> str:
    """The canonical name of an axis word, long or short; the word itself if it is none of them."""
    plain = word.strip().casefold()
    return AXIS_OF_WORD.get(plain, AXIS_OF_WORD.get(_LONG_WORDS.get(plain, ""), plain))


def read_axes(spelling: str, layout: GTPParallelLayout) -> tuple[Axis, ...]:
    """The axes of a spelling, outermost first, all sizes known, their product the world size.

    A number without a name is, before the data axis, the pipeline axis; behind it, counted from the last
    place, tensor_parallel, context_parallel and gtp, as far as they are not named. Four entries without a
    data axis are ``DRIVER_AXES``. Raises UserError for an
    unknown word, an axis that comes twice, no data axis, or a product that is not the world size.
    """
    entries = [entry.strip() for entry in _inside(spelling).strip().rstrip(",").split(",")]
    words = [entry.split("=", 1)[-1].strip().casefold() for entry in entries]
    names = _names(entries, spelling)
    sizes = [_size(word, spelling, layout) for word in words]
    axes = [Axis(*parts) for parts in zip(names, words, sizes, strict=True)]
    _refuse_wrong_names(axes, spelling)
    _refuse_wrong_product(axes, spelling, layout)
    others = prod(axis.size or 1 for axis in axes)
    return tuple(
        axis if axis.size else Axis(axis.name, axis.word, layout.world_size // others) for axis in axes
    )


def cp_is(axes: tuple[Axis, ...]) -> CpIs:
    """What the size of the context axis was said to be: the words cp or runtime_cp, or only a number."""
    words = {axis.word for axis in axes if axis.name == CONTEXT}
    if words & {"cp", CONTEXT}:
        return "configured"
    return "runtime" if "runtime_cp" in words else "given"


def _inside(spelling: str) -> str:
    """What stands between the innermost brackets, if there are any: ``np.arange(8).reshape(pp, -1, tp)``."""
    inner = re.findall(r"[(\[]([^()\[\]]*)[)\]]", spelling)
    return inner[-1] if inner else spelling


def _names(entries: list[str], spelling: str) -> list[str]:
    """The axis of every entry; numbers take the names that are left over (see :func:`read_axes`)."""
    names: list[str | None] = []
    for entry in entries:
        name, equals, _ = entry.partition("=")
        word = name if equals or not re.fullmatch(r"[+-]?\d+", entry) or entry == "-1" else None
        names.append(None if word is None else axis_name(word))
    if DATA not in names and len(names) == len(DRIVER_AXES):
        names = [name or axis for name, axis in zip(names, DRIVER_AXES, strict=True)]
    behind = names.index(DATA) if DATA in names else 0
    for place in reversed(range(len(names))):
        if names[place] is None:
            choices = (PIPELINE,) if place < behind else (TENSOR, CONTEXT, GTP)
            names[place] = next((name for name in choices if name not in names), None)
        if names[place] is None:
            raise UserError(
                f"driver {spelling!r}: no axis is left that the number {entries[place]} could be;"
                f" give it a name, as in context_parallel={entries[place]}"
            )
    return [name for name in names if name is not None]


def _size(word: str, spelling: str, layout: GTPParallelLayout) -> int | None:
    sizes: dict[str, int | None] = {
        "pp": layout.pipeline_model_parallel_size,
        "-1": None,
        DATA: None,
        "dp": layout.data_parallel_size,
        "cp": layout.context_parallel_size,
        "runtime_cp": layout.runtime_context_parallel_size,
        "tp": layout.tensor_model_parallel_size,
        "gtp": layout.gtp_remat_size,
    }
    word = _LONG_WORDS.get(word, word)
    if word in sizes:
        return sizes[word]
    if not re.fullmatch(r"[+-]?\d+", word):
        raise UserError(f"driver {spelling!r}: {word!r} is not known; use {_WORDS_SHOWN}")
    if int(word) < 1:
        raise UserError(
            f"driver {spelling!r}: an axis has a size of at least 1, or -1 for the rest, not {word}"
        )
    return int(word)


def _refuse_wrong_names(axes: list[Axis], spelling: str) -> None:
    names = [axis.name for axis in axes]
    for name in names:
        if name not in (*DRIVER_AXES, GTP):
            known = ", ".join((*DRIVER_AXES, GTP))
            raise UserError(f"driver {spelling!r}: there is no axis {name!r}; its axes are {known}")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        words = [axis.word for axis in axes if axis.name == twice[0]]
        raise UserError(
            f"driver {spelling!r}: the axis {twice[0]} comes {len(words)} times ({' and '.join(words)});"
            " keep one"
        )
    if DATA not in names:
        raise UserError(f"driver {spelling!r} has no data axis; write -1 where it stands, as in pp,-1,cp,tp")
    if len(open_axes := [axis for axis in axes if axis.size is None]) > 1:
        both = " and ".join(axis.name for axis in open_axes)
        raise UserError(f"driver {spelling!r}: only one axis can be -1, not {both}; try -1 for {DATA} alone")


def _refuse_wrong_product(axes: list[Axis], spelling: str, layout: GTPParallelLayout) -> None:
    world, known = layout.world_size, [axis for axis in axes if axis.size is not None]
    product = prod(axis.size or 1 for axis in known)
    inferred = len(known) < len(axes)
    if world % product == 0 if inferred else world == product:
        return
    relation = "not a multiple of" if inferred else "not"
    equation = (
        f"driver {spelling!r}: world_size {world} is {relation} {product}"
        f" = {' x '.join(axis.said for axis in known)}"
    )
    raise UserError(f"{equation}; {_remedy(axes, product, layout)}")


def _remedy(axes: list[Axis], product: int, layout: GTPParallelLayout) -> str:
    """What to write instead of sizes whose product does not fit."""
    words, shards = {axis.word for axis in axes}, layout.gtp_remat_num_sequence_shards
    if {"gtp", "runtime_cp"} <= words and shards > 1:
        return f"gtp and runtime_cp both count the {shards} GTP sequence shards; try cp"
    if "dp" in words and all(axis.word in AXIS_OF_WORD for axis in axes):
        return (
            f"dp is data_parallel_size {layout.data_parallel_size},"
            f" and there are {layout.batch_parallel_size} lanes; try -1"
        )
    inferred = any(axis.size is None for axis in axes)
    tries = []
    for axis in axes:
        if axis.size is None or not axis.word.isdigit():
            continue
        others = product // axis.size
        fits = [
            size
            for size in range(1, layout.world_size + 1)
            if (layout.world_size % (others * size) == 0 if inferred else others * size == layout.world_size)
        ]
        if found := nearest(axis.size, fits):
            tries.append(f"{axis.name} {' or '.join(map(str, found))}")
    return f"try {', or '.join(tries)}" if tries else f"try -1 for {DATA} and the words {_WORDS_SHOWN}"
