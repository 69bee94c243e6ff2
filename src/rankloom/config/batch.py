"""How rows are dealt: global batch, lanes, microbatches; and what a row's length must be a multiple of.

    global_batch_size = micro_batch_size x lanes x num_microbatches
    lanes = world_size / (PP x runtime CP x TP)

The global batch is the user's number and never changes with the layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from rankloom.config.rampup import BatchSizes
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout
from rankloom.layout.arithmetic import divisors

__all__ = [
    "BatchArithmetic",
    "check_eval_batch_size",
    "check_rampup",
    "check_sequence_length",
    "check_sequence_multiple",
    "sequence_multiple",
]

MOST_TRIED = 2**16  # larger microbatches are not looked at for a remedy


@dataclass(frozen=True)
class BatchArithmetic:
    """The batch of one optimizer step, in rows."""

    global_batch_size: int
    micro_batch_size: int
    num_lanes: int
    num_microbatches: int

    @property
    def rows_per_lane(self) -> int:
        """Rows a lane trains on in one step."""
        return self.micro_batch_size * self.num_microbatches

    @classmethod
    def compute(
        cls, layout: GTPParallelLayout, *, global_batch_size: int, micro_batch_size: int
    ) -> BatchArithmetic:
        """Raises UserError, in config keys, when the global batch does not divide over the lanes."""
        for key, size in (("global_batch_size", global_batch_size), ("micro_batch_size", micro_batch_size)):
            if size < 1:
                raise UserError(f"train.{key} must be an integer of at least 1, not {size}")
        lanes = layout.batch_parallel_size
        _check_divides(layout, "train.global_batch_size", global_batch_size, micro_batch_size)
        return cls(
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            num_lanes=lanes,
            num_microbatches=global_batch_size // (micro_batch_size * lanes),
        )


def check_rampup(
    layout: GTPParallelLayout,
    rampup: tuple[int, int, int],
    *,
    global_batch_size: int,
    micro_batch_size: int,
) -> None:
    """Raises UserError, in config keys, unless every size of the ramp divides over the lanes."""
    step = micro_batch_size * layout.batch_parallel_size
    sizes = BatchSizes(global_batch_size, rampup)
    first, increment = rampup[0], rampup[1]
    # Where the first two sizes are multiples, so are all.
    early = (first,) if sizes.num_increments == 1 else (first, first + increment)
    wrong = next((size for size in early if size % step), None)
    if wrong is not None:
        lanes_text, arithmetic = _lanes_text(layout)
        raise UserError(
            f"train.rampup_batch_size {list(rampup)} comes to {wrong} rows, which is not a multiple of "
            f"{step} = train.micro_batch_size {micro_batch_size} x {lanes_text}; its first size and its "
            f"increment have to be: {_nearest_ramp(rampup, step, global_batch_size)} ({arithmetic})"
        )


def _nearest_ramp(rampup: tuple[int, int, int], step: int, global_batch_size: int) -> str:
    """A ramp like this one of multiples of ``step``, in words."""
    most = (global_batch_size - 1) // step * step
    if not most:
        return "set it to null"
    below = rampup[0] // step * step
    start = min((max(step, below), min(most, below + step)), key=lambda size: abs(size - rampup[0]))
    rest = (global_batch_size - start) // step
    increments = sorted(step * count for count in divisors(rest))
    increment = min(increments, key=lambda size: abs(size - rampup[1]))
    return f"try [{start}, {increment}, {rampup[2]}]"


def check_eval_batch_size(
    layout: GTPParallelLayout,
    eval_batch_size: int,
    *,
    micro_batch_size: int,
    micro_key: str = "train.micro_batch_size",
) -> None:
    """Raises UserError, in config keys, when an evaluation batch does not divide over the lanes."""
    _check_divides(layout, "train.eval_batch_size", eval_batch_size, micro_batch_size, micro_key=micro_key)


def _check_divides(
    layout: GTPParallelLayout,
    key: str,
    size: int,
    micro_batch_size: int,
    *,
    micro_key: str = "train.micro_batch_size",
) -> None:
    lanes = layout.batch_parallel_size
    step = micro_batch_size * lanes
    if size % step == 0:
        return
    lanes_text, arithmetic = _lanes_text(layout)
    remedies = [f"try {_neighbours(size, step)}"]
    if size % lanes == 0:
        rows = size // lanes
        smaller = range(1, min(micro_batch_size, rows + 1, MOST_TRIED))
        sizes = [micro for micro in smaller if rows % micro == 0]
        remedies.append(f"or {micro_key} {sizes[-1]}")
    raise UserError(
        f"{key} {size} is not a multiple of {step} = {micro_key} "
        f"{micro_batch_size} x {lanes_text}; {', '.join(remedies)} ({arithmetic})"
    )


def _lanes_text(layout: GTPParallelLayout) -> tuple[str, str]:
    """ "2 lanes", and how that comes about."""
    lanes = layout.batch_parallel_size
    text = f"{lanes} lane{'s' * (lanes > 1)}"
    return text, (
        f"{text} = {layout.world_size} / ({layout.pipeline_model_parallel_size} x "
        f"{layout.runtime_context_parallel_size} x {layout.tensor_model_parallel_size}): cluster.world_size "
        "/ (pipeline x runtime context x tensor parallel size)"
    )


def _neighbours(size: int, step: int) -> str:
    """The multiples of ``step`` next to ``size``: "2 or 4"."""
    below = size // step * step
    return f"{below} or {below + step}" if below else f"{step}"


def sequence_multiple(layout: GTPParallelLayout) -> int:
    """What the length of a row (tokens, padding included) must be a multiple of, to be cut evenly.

    Runtime CP cuts a row into 2 x CP chunks (each rank takes an early and a late one, so that causal
    attention is balanced), and sequence parallelism cuts a rank's part over TP.
    """
    context, tp = layout.runtime_context_parallel_size, layout.tensor_model_parallel_size
    if layout.sequence_parallel:
        return context * lcm(2, tp) if context > 1 else tp
    return 2 * context if context > 1 else 1


def check_sequence_length(max_seq_length: int, layout: GTPParallelLayout) -> None:
    """Raises UserError unless rows of ``max_seq_length`` tokens can be cut evenly."""
    multiple = sequence_multiple(layout)
    if max_seq_length % multiple:
        raise UserError(
            f"data.max_seq_length {max_seq_length} is not a multiple of {multiple} = "
            f"{_multiple_text(layout)}; try {_neighbours(max_seq_length, multiple)}"
        )


def check_sequence_multiple(multiple: int, layout: GTPParallelLayout) -> None:
    """Raises UserError unless rows padded to multiples of ``multiple`` tokens can be cut evenly."""
    needed = sequence_multiple(layout)
    if multiple % needed:
        raise UserError(
            f"data.sequence_multiple {multiple} is not a multiple of {needed} = {_multiple_text(layout)}; "
            f"try {needed}"
        )


def _multiple_text(layout: GTPParallelLayout) -> str:
    context, tp = layout.runtime_context_parallel_size, layout.tensor_model_parallel_size
    if context == 1:
        return f"tensor_model_parallel_size {tp} with sequence_parallel true"
    if not layout.sequence_parallel:
        return f"2 x runtime context parallel size {context}"
    tp_text = f"lcm(2, tensor_model_parallel_size {tp})"
    return f"runtime context parallel size {context} x {tp_text} with sequence_parallel true"
