"""The settings of another program's job, examined with the rules that hold here and in its own words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from rankloom.config.batch import check_eval_batch_size, check_sequence_multiple, sequence_multiple
from rankloom.config.draft import Settings
from rankloom.config.examine import Examined, examine_layers
from rankloom.config.findings import Finding, Topic
from rankloom.config.foreign.job import ForeignJob
from rankloom.errors import UserError
from rankloom.layout import RANK_ORDERS

__all__ = ["examine_foreign"]

SEQUENCE_MULTIPLE = "data.sequence_multiple"
GLOBAL, EVAL_BATCH, EVAL_MICRO, MICRO = (
    "train.global_batch_size",
    "train.eval_batch_size",
    "train.eval_micro_batch_size",
    "train.micro_batch_size",
)


def examine_foreign(
    foreign: ForeignJob, *, cli: Settings | None = None, flags: Iterable[str] = ()
) -> Examined:
    """Examine the job of another program; ``cli`` are settings of ours that win over what it says.

    ``flags``: those of them that were given as flags of their own.
    """
    said, own, typed = _layers(foreign)
    above = {**typed, **(cli or {})}
    unknown = sorted(foreign.unknown)

    def look() -> Examined:
        return examine_layers(
            said,
            cli=above,
            defaults=own,
            origin=foreign.origin,
            foreign=foreign,
            flags=(*flags, *typed),
            unknown=unknown,
        )

    examined = look()
    if _fills_batch(foreign, examined):
        if (batch := _own_batch(examined)) is not None:
            own[GLOBAL] = batch
        else:  # nobody knows how many lanes there are
            unknown.append(GLOBAL)
        examined = look()
    settled = set(cli or {})  # what is wrong with a setting is gone where the user sets it
    findings = [
        *examined.findings,
        *(f for f in foreign.findings if not f.keys or not settled.issuperset(f.keys)),
        *_other_order(examined),
        *_padding(foreign, examined),
        *_evaluation(foreign, examined),
    ]
    if foreign.sequence_multiple is not None:  # rows are padded to it, so their longest length may be any
        findings = [f for f in findings if f.keys != ("data.max_seq_length",)]
    return replace(
        examined,
        findings=tuple(
            replace(f, message=examined.spell(f.message), where=f.where or examined.where(*f.keys))
            for f in findings
        ),
        missing=tuple(examined.spell(text) for text in examined.missing),
    )


def _layers(foreign: ForeignJob) -> tuple[dict[str, object], dict[str, object], dict[str, object]]:
    """What the job says, nested by section; with dotted keys its program's own defaults, and what was typed
    on a command line."""
    said: dict[str, dict[str, object]] = {}
    own: dict[str, object] = {}
    typed: dict[str, object] = {}
    for section, settings in foreign.mapping.items():
        for name, value in settings.items():
            key = f"{section}.{name}"
            if value is None:
                continue
            source = foreign.sources.get(key)
            if source in ("default", "cli"):
                (own if source == "default" else typed)[key] = value
            else:
                said.setdefault(section, {})[name] = value
    return dict(said), own, typed


def _fills_batch(foreign: ForeignJob, examined: Examined) -> bool:
    """Whether it is a Megatron-LM job that trains and says no global batch."""
    said = examined.overlay.values
    return (
        foreign.program == "megatron"
        and GLOBAL not in said
        and GLOBAL not in foreign.unknown
        and any(key.startswith("train.") for key in said)
    )


def _own_batch(examined: Examined) -> int | None:
    """The global batch that Megatron-LM takes then: a microbatch for every lane."""
    micro, layout = examined.overlay.values.get(MICRO), examined.layout
    if layout is None or not isinstance(micro, int) or micro < 1:
        return None
    return micro * layout.batch_parallel_size


def _other_order(examined: Examined) -> list[Finding]:
    """What would be different if the ranks were numbered in the other order."""
    layout = examined.layout
    if layout is None:
        return []
    (other,) = (order for order in RANK_ORDERS if order != layout.rank_order)
    lanes, others = (each.coord_arrays()["lane"] for each in (layout, replace(layout, rank_order=other)))
    moved = int((lanes != others).sum())
    told = f"{moved} of {layout.world_size} ranks would be in other lanes" if moved else "lanes are the same"
    message = f"with rank order {other} {told}"
    return [Finding("note", "layout", message, ("parallel.rank_order",))]


def _padding(foreign: ForeignJob, examined: Examined) -> list[Finding]:
    """The multiple to which the program pads rows, against what the layout needs."""
    multiple, layout = foreign.sequence_multiple, examined.layout
    if multiple is None or layout is None:
        return []
    refused = _refusal(lambda: check_sequence_multiple(multiple, layout), "sequence", SEQUENCE_MULTIPLE)
    needed = sequence_multiple(layout)
    if refused or multiple == needed:
        return refused
    message = f"{SEQUENCE_MULTIPLE} {multiple} pads more than this layout needs: {needed} is enough"
    return [Finding("note", "sequence", message, (SEQUENCE_MULTIPLE,))]


def _evaluation(foreign: ForeignJob, examined: Examined) -> list[Finding]:
    """The batches of evaluation, which some programs cut by a microbatch of its own."""
    size, layout = foreign.eval_batch_size, examined.layout
    micro = foreign.eval_micro_batch_size or examined.value(MICRO)
    if size is None or not isinstance(micro, int) or layout is None:
        return []
    micro_key = MICRO if foreign.eval_micro_batch_size is None else EVAL_MICRO
    return _refusal(
        lambda: check_eval_batch_size(layout, size, micro_batch_size=micro, micro_key=micro_key),
        "batch",
        EVAL_BATCH,
        micro_key,
    )


def _refusal(check: Callable[[], None], topic: Topic, *keys: str) -> list[Finding]:
    try:
        check()
    except UserError as error:
        return [Finding("error", topic, str(error), keys)]
    return []
