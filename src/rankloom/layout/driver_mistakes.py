"""What went wrong with a driver whose axes are not the lanes, in one sentence, where it can be told."""

from __future__ import annotations

from collections.abc import Mapping

from rankloom.layout.axes import DEFAULT_RANK_ORDER
from rankloom.layout.driver_words import CONTEXT, DATA, DRIVER_AXES, GTP, PIPELINE, TENSOR, CpIs
from rankloom.layout.gtp import GTPParallelLayout


def find_mistake(sizes: Mapping[str, int], cp_is: CpIs, layout: GTPParallelLayout) -> str:
    """The mistake of a driver that disagrees with the layout, "" if none of the known ones.

    ``sizes``: the driver's axes, outermost first, a plain reshape of the rank numbers.
    """
    if sizes.get(GTP, 1) > 1:
        return _gtp_counts(sizes, layout) or _wrong_sizes(sizes, layout) or _gtp_order(sizes, layout)
    return (
        _configured_cp(sizes, cp_is, layout)
        or _gtp_in_tensor(sizes, layout)
        or _wrong_sizes(sizes, layout)
        or _wrong_order(sizes, layout)
        or _not_neighbours(layout)
    )


def _configured_cp(sizes: Mapping[str, int], cp_is: CpIs, layout: GTPParallelLayout) -> str:
    configured, runtime = layout.context_parallel_size, layout.runtime_context_parallel_size
    shards = layout.gtp_remat_num_sequence_shards
    if shards == 1 or sizes.get(CONTEXT, 1) != configured or cp_is == "runtime":
        return ""
    if any(sizes.get(name, 1) != right for name, right in _right_sizes(layout).items() if name != CONTEXT):
        return ""
    name = "cp" if cp_is == "configured" else f"{CONTEXT} {configured}"
    return (
        f"it counts {shards} times too many lanes: {name} is the configured degree {configured}, attention"
        f" runs over runtime_cp {runtime} = {configured} x {shards} GTP sequence shards; write runtime_cp"
        f"{_then(layout)}"
    )


def _gtp_in_tensor(sizes: Mapping[str, int], layout: GTPParallelLayout) -> str:
    tensor, tp, remat = sizes.get(TENSOR, 1), layout.tensor_model_parallel_size, layout.gtp_remat_size
    if remat == 1 or tensor != tp * remat:
        return ""
    return (
        f"it counts the GTP_remat ranks as one lane: {TENSOR} {tensor} is"
        f" tensor_parallel_num_weight_shards = TP {tp} x GTP_remat {remat}, and only the"
        f" {tp * layout.gtp_remat_num_sequence_shards} ranks of TP and GTP sequence shards share a lane;"
        f" write {TENSOR} {tp}"
    )


def _wrong_sizes(sizes: Mapping[str, int], layout: GTPParallelLayout) -> str:
    words = {
        PIPELINE: "pipeline_model_parallel_size",
        CONTEXT: "runtime_context_parallel_size",
        TENSOR: "tensor_model_parallel_size",
    }
    wrong = [
        f"{name} is {sizes.get(name, 1)}, and {words[name]} is {right}"
        for name, right in _right_sizes(layout).items()
        if sizes.get(name, 1) != right
    ]
    return "; ".join(wrong)


def _wrong_order(sizes: Mapping[str, int], layout: GTPParallelLayout) -> str:
    names = [name for name, size in sizes.items() if size > 1]
    right = [name for name in DRIVER_AXES if name in names]
    if names == right:
        return ""
    return (
        "the axes stand in another order than the ranks are numbered;"
        f" write {', '.join(right)}{_then(layout)}"
    )


def _not_neighbours(layout: GTPParallelLayout) -> str:
    if not _interleaved(layout):
        return ""
    cp, batch_shards = layout.context_parallel_size, layout.gtp_remat_num_batch_shards
    return (
        f"ranks of a lane are not neighbours in rank order {layout.rank_order}: with context_parallel_size"
        f" {cp} and {batch_shards} GTP batch shards, each of the {cp} parts of a lane is followed by those of"
        f" {batch_shards - 1} other lane{'s' * (batch_shards > 2)}; use the right axes, or rank order"
        " tp-cp-gtp-dp-pp"
    )


def _then(layout: GTPParallelLayout) -> str:
    """What would still be wrong after a remedy that leaves the ranks as they are numbered."""
    return f"; with that, {_not_neighbours(layout)}" if _interleaved(layout) else ""


def _gtp_counts(sizes: Mapping[str, int], layout: GTPParallelLayout) -> str:
    """Of a driver that has a GTP_remat axis: data alone is D pieces, data and gtp together D x G."""
    remat, shards = layout.gtp_remat_size, layout.gtp_remat_num_sequence_shards
    data, gtp, lanes = sizes[DATA], sizes[GTP], layout.batch_parallel_size
    if gtp == remat and shards > 1:
        return (
            f"gtp counts all {remat} GTP_remat ranks, of which each {shards} share a sequence: {DATA} alone"
            f" is {data}, {DATA} x gtp is {data * gtp}, and there are {lanes} lanes; leave gtp out and write"
            f" runtime_cp{_then(layout)}"
        )
    if data * gtp != lanes:
        return (
            f"{DATA} x gtp is {data} x {gtp} = {data * gtp}, and there are {lanes} lanes"
            f" = data_parallel_size {layout.data_parallel_size} x {layout.gtp_remat_num_batch_shards}"
            " GTP batch shards"
        )
    return ""


def _gtp_order(sizes: Mapping[str, int], layout: GTPParallelLayout) -> str:
    """With all sizes right and no sequence shards, a reshape in rank order is right."""
    if layout.gtp_remat_num_sequence_shards > 1 or sizes[GTP] != layout.gtp_remat_size:
        return ""
    inner = (CONTEXT, GTP) if layout.rank_order == DEFAULT_RANK_ORDER else (GTP, CONTEXT)
    right = [name for name in (PIPELINE, DATA, *inner, TENSOR) if name in sizes]
    return (
        f"the axes stand in another order than rank order {layout.rank_order} numbers the ranks;"
        f" write {', '.join(right)}"
    )


def _interleaved(layout: GTPParallelLayout) -> bool:
    """Whether the ranks of a lane have ranks of other lanes between them."""
    return (
        layout.rank_order == DEFAULT_RANK_ORDER
        and layout.context_parallel_size > 1
        and layout.gtp_remat_num_batch_shards > 1
    )


def _right_sizes(layout: GTPParallelLayout) -> dict[str, int]:
    return {
        PIPELINE: layout.pipeline_model_parallel_size,
        CONTEXT: layout.runtime_context_parallel_size,
        TENSOR: layout.tensor_model_parallel_size,
    }
