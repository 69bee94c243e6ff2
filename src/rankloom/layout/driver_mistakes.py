"""What went wrong with a driver whose axes are not the lanes, in one sentence, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from rankloom.layout.driver_words import CONTEXT, DATA, DRIVER_AXES, GTP, PIPELINE, TENSOR, CpIs
from rankloom.layout.gtp import GTPParallelLayout

PLAIN_RESHAPE = "pp,-1,runtime_cp,tp"
GTP_RESHAPES = ("pp,-1,cp,gtp,tp", "pp,-1,gtp,cp,tp")
OTHER_ORDER = "tp-cp-gtp-dp-pp"  # in which ranks of a lane are neighbours
Suffices = Callable[[str, GTPParallelLayout], bool]  # whether a driver of this spelling has the lanes


def find_mistake(
    spelling: str, sizes: Mapping[str, int], cp_is: CpIs, layout: GTPParallelLayout, *, suffices: Suffices
) -> str:
    """What is wrong with a driver that disagrees with the layout, and a remedy that is enough.

    ``sizes``: the driver's axes, outermost first, a plain reshape of the rank numbers.
    """
    if sizes.get(GTP, 1) > 1:
        cause = _gtp_counts(sizes, layout) or _wrong_sizes(sizes, layout) or _gtp_order(sizes, layout)
    else:
        cause = (
            _configured_cp(sizes, cp_is, layout)
            or _gtp_in_tensor(sizes, layout)
            or _wrong_sizes(sizes, layout)
            or _wrong_order(sizes)
        )
    return "; ".join(filter(None, (cause, _remedy(spelling, sizes, layout, suffices))))


def _remedy(spelling: str, sizes: Mapping[str, int], layout: GTPParallelLayout, suffices: Suffices) -> str:
    """The spelling of a driver that has the lanes, one with a gtp axis only where this one has it too."""
    with_gtp = sizes.get(GTP, 1) > 1 and layout.gtp_remat_num_sequence_shards == 1
    for tried in (*(GTP_RESHAPES if with_gtp else ()), PLAIN_RESHAPE):
        if suffices(tried, layout):
            return f"write {tried}"
    order = f"rank order {OTHER_ORDER}"
    if not suffices(spelling, replace(layout, rank_order=OTHER_ORDER)):
        order += f" with {PLAIN_RESHAPE}"
    return f"{_not_neighbours(layout)}; use the right axes, or {order}"


def _configured_cp(sizes: Mapping[str, int], cp_is: CpIs, layout: GTPParallelLayout) -> str:
    configured, runtime = layout.context_parallel_size, layout.runtime_context_parallel_size
    shards = layout.gtp_remat_num_sequence_shards
    if shards == 1 or sizes.get(CONTEXT, 1) != configured or cp_is == "runtime":
        return ""
    if any(sizes.get(name, 1) != right for name, right in _right_sizes(layout).items() if name != CONTEXT):
        return ""
    name = "cp" if cp_is == "configured" else f"{CONTEXT} {configured}"
    axis = (
        f"{name} is the configured degree {configured}" if CONTEXT in sizes else f"it has no {CONTEXT} axis"
    )
    return (
        f"it counts {shards} times too many lanes: {axis}, attention runs over runtime_cp {runtime}"
        f" = {configured} x {shards} GTP sequence shards"
    )


def _gtp_in_tensor(sizes: Mapping[str, int], layout: GTPParallelLayout) -> str:
    tensor, tp, remat = sizes.get(TENSOR, 1), layout.tensor_model_parallel_size, layout.gtp_remat_size
    if remat == 1 or tensor != tp * remat:
        return ""
    return (
        f"it counts the GTP_remat ranks as one lane: {TENSOR} {tensor} is"
        f" tensor_parallel_num_weight_shards = TP {tp} x GTP_remat {remat}, and only the"
        f" {tp * layout.gtp_remat_num_sequence_shards} ranks of TP and GTP sequence shards share a lane"
    )


def _wrong_sizes(sizes: Mapping[str, int], layout: GTPParallelLayout) -> str:
    return "; ".join(_wrong_size_texts(sizes, layout))


def _wrong_size_texts(sizes: Mapping[str, int], layout: GTPParallelLayout) -> Iterator[str]:
    words = {
        PIPELINE: "pipeline_model_parallel_size",
        CONTEXT: "runtime_context_parallel_size",
        TENSOR: "tensor_model_parallel_size",
    }
    for name, right in _right_sizes(layout).items():
        if sizes.get(name, 1) != right:
            axis = f"{name} is {sizes[name]}" if name in sizes else f"it has no {name} axis"
            yield f"{axis}, and {words[name]} is {right}"


def _wrong_order(sizes: Mapping[str, int]) -> str:
    names = [name for name, size in sizes.items() if size > 1]
    right = [name for name in DRIVER_AXES if name in names]
    return "" if names == right else "the axes stand in another order than the ranks are numbered"


def _not_neighbours(layout: GTPParallelLayout) -> str:
    """Why no plain reshape has the lanes."""
    cp, batch_shards = layout.context_parallel_size, layout.gtp_remat_num_batch_shards
    return (
        f"ranks of a lane are not neighbours in rank order {layout.rank_order}: with context_parallel_size"
        f" {cp} and {batch_shards} GTP batch shards, each of the {cp} parts of a lane is followed by those of"
        f" {batch_shards - 1} other lane{'s' * (batch_shards > 2)}"
    )


def _gtp_counts(sizes: Mapping[str, int], layout: GTPParallelLayout) -> str:
    """Of a driver that has a GTP_remat axis: data alone is D pieces, data and gtp together D x G."""
    remat, shards = layout.gtp_remat_size, layout.gtp_remat_num_sequence_shards
    data, gtp, lanes = sizes[DATA], sizes[GTP], layout.batch_parallel_size
    there = "is 1 lane" if lanes == 1 else f"are {lanes} lanes"
    if gtp == remat and shards > 1:
        sharing = "all" if shards == remat else f"every {shards}"
        return (
            f"gtp counts all {remat} GTP_remat ranks, and {sharing} of them share a sequence: {DATA} alone"
            f" is {data}, {DATA} x gtp is {data * gtp}, and there {there}"
        )
    if data * gtp != lanes:
        return (
            f"{DATA} x gtp is {data} x {gtp} = {data * gtp}, and there {there}"
            f" = data_parallel_size {layout.data_parallel_size} x {layout.gtp_remat_num_batch_shards}"
            " GTP batch shards"
        )
    return ""


def _gtp_order(sizes: Mapping[str, int], layout: GTPParallelLayout) -> str:
    if layout.gtp_remat_num_sequence_shards > 1 or sizes[GTP] != layout.gtp_remat_size:
        return ""
    return f"the axes stand in another order than rank order {layout.rank_order} numbers the ranks"


def _right_sizes(layout: GTPParallelLayout) -> dict[str, int]:
    return {
        PIPELINE: layout.pipeline_model_parallel_size,
        CONTEXT: layout.runtime_context_parallel_size,
        TENSOR: layout.tensor_model_parallel_size,
    }
