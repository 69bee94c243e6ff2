"""A config on its way to being resolved: validated sections, and everything found wrong so far."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rankloom.config.batch import (
    BatchArithmetic,
    check_eval_batch_size,
    check_rampup,
    check_sequence_length,
)
from rankloom.config.derive import (
    fill_cluster,
    fill_data,
    fill_logging,
    fill_parallel,
    fill_schedule,
    fill_window,
    schedule_problems,
)
from rankloom.config.energon import ENERGON, check_virtual_lanes
from rankloom.config.findings import Finding, Topic
from rankloom.config.keys import KEYS, MODEL_CONFIG
from rankloom.config.overlay import Overlay, lay_over
from rankloom.config.schema import (
    SECTIONS,
    CheckpointSection,
    ClusterSection,
    DataSection,
    LoggingSection,
    OptimizerSection,
    ParallelSection,
    ScheduleSection,
    Section,
    TrainSection,
)
from rankloom.config.validate import settle_alternatives, validate_section
from rankloom.config.values import MOST_RANKS
from rankloom.errors import UserError
from rankloom.layout import GTPParallelLayout

__all__ = ["Draft", "Settings"]

T = TypeVar("T")
AnySection = TypeVar("AnySection", bound=Section)
Settings = Mapping[str, object]

GLOBAL, MICRO, EVAL = "train.global_batch_size", "train.micro_batch_size", "train.eval_batch_size"
RAMPUP, LENGTH = "train.rampup_batch_size", "data.max_seq_length"
SOURCE, VIRTUAL_LANES, WINDOW = "data.source", "data.num_virtual_lanes", "data.packing_window"

# What a layout's error may speak of, to say where those numbers came from.
_LAYOUT_KEYS: Mapping[str, str] = {
    "world_size": "cluster.world_size",
    **{name: f"parallel.{name}" for name in ParallelSection.model_fields},
}


@dataclass
class Draft:
    """Sections that could be made, by their class, and everything found wrong.

    ``refused``: keys whose value is not allowed, and sections that are none. Their values in ``sections`` are
    nobody's, so nothing is computed from them.
    """

    overlay: Overlay
    sections: dict[type[Section], Section] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        mapping: Settings,
        *,
        cli: Settings | None,
        defaults: Settings | None,
        origin: str,
        names: Iterable[str] = tuple(SECTIONS),
        spelled: Mapping[str, str] | None = None,
        flags: Iterable[str] = (),
    ) -> Draft:
        """Lays the layers over each other and validates the sections called ``names``."""
        layers: dict[str, Settings] = {"default": defaults or {}, "file": mapping, "cli": cli or {}}
        overlay = lay_over(layers, origin=origin)  # type: ignore[arg-type]
        overlay = settle_alternatives(replace(overlay, spelled=spelled or {}, flags=frozenset(flags)))
        draft = cls(overlay, findings=list(overlay.findings))
        draft.refused = {key for finding in overlay.findings for key in finding.keys if key in SECTIONS}
        for name in names:
            if name in draft.refused:
                continue
            section, findings = validate_section(name, overlay)
            draft.findings += findings
            draft.refused.update(key for finding in findings for key in finding.keys)
            if section is not None:
                draft.sections[type(section)] = section
        return draft

    def get(self, kind: type[AnySection]) -> AnySection | None:
        """The section of this class; None if it could not be made."""
        section = self.sections.get(kind)
        return section if isinstance(section, kind) else None

    def sound(self, *keys: str) -> bool:
        """Whether no value of these keys was refused."""
        return self.refused.isdisjoint(keys)

    def layout(self) -> GTPParallelLayout | None:
        """The layout, or None when it cannot be made; the reason is then among the findings."""
        parallel, cluster = self.get(ParallelSection), self.get(ClusterSection)
        if parallel is None or cluster is None or not self.sound(*_LAYOUT_KEYS.values()):
            return None
        world_size = cluster.world_size
        if world_size is None:
            message = (
                "cluster.world_size is not set: give the number of ranks "
                "(under torchrun it is the number that torchrun starts)"
            )
            self.findings.append(Finding("error", "layout", message, ("cluster.world_size",)))
            return None
        if world_size > MOST_RANKS:
            message = f"cluster.world_size {world_size} is more than {MOST_RANKS}, the most there may be"
            keys = ("cluster.world_size",)
            self.findings.append(Finding("error", "layout", message, keys, self.overlay.where(*keys)))
            return None
        settings = parallel.model_dump()
        return self._attempt(
            lambda: GTPParallelLayout.resolve(world_size=world_size, **settings),
            topic="layout",
            keys=_layout_keys_in,
        )

    def batch(self, layout: GTPParallelLayout) -> BatchArithmetic | None:
        """The batch of a step, or None when it does not divide; an evaluation batch is checked as well."""
        train = self.get(TrainSection)
        if train is None:
            return None
        self._check_virtual_lanes(layout)
        micro, evaluation = train.micro_batch_size, train.eval_batch_size
        if not self.sound(MICRO):
            return None
        if evaluation is not None and self.sound(EVAL):
            self._attempt(
                lambda: check_eval_batch_size(layout, evaluation, micro_batch_size=micro),
                topic="batch",
                keys=lambda _: (EVAL, MICRO),
            )
        batch = self._attempt(
            lambda: BatchArithmetic.compute(
                layout, global_batch_size=train.global_batch_size, micro_batch_size=micro
            ),
            topic="batch",
            keys=lambda _: (GLOBAL, MICRO),
        )
        rampup = train.rampup_batch_size
        if batch is not None and rampup is not None and self.sound(RAMPUP):
            self._attempt(
                lambda: check_rampup(
                    layout, rampup, global_batch_size=train.global_batch_size, micro_batch_size=micro
                ),
                topic="batch",
                keys=lambda _: (RAMPUP, GLOBAL, MICRO),
            )
        return batch

    def _check_virtual_lanes(self, layout: GTPParallelLayout) -> None:
        data = self.get(DataSection)
        if data is not None and data.source == ENERGON and self.sound(SOURCE, VIRTUAL_LANES):
            self._attempt(
                lambda: check_virtual_lanes(data.num_virtual_lanes, layout.batch_parallel_size),
                topic="data",
                keys=lambda _: (VIRTUAL_LANES,),
            )

    def fill(self, layout: GTPParallelLayout | None) -> None:
        """Fills in derived values, and refuses a row length that the layout cannot cut."""
        parallel, data = self.get(ParallelSection), self.get(DataSection)
        if layout is not None and parallel is not None:
            self.sections[ParallelSection] = fill_parallel(parallel, layout)
        if data is not None:
            data = fill_window(data, window_is_set=self.overlay.values.get(WINDOW) is not None)
            self.sections[DataSection] = data
        if layout is not None and data is not None and self.sound(LENGTH):
            data = fill_data(data, layout, length_is_set=self.overlay.values.get(LENGTH) is not None)
            self.sections[DataSection] = data
            self._attempt(
                lambda: check_sequence_length(data.max_seq_length, layout),
                topic="sequence",
                keys=lambda _: (LENGTH,),
            )
        cluster = self.get(ClusterSection)
        if cluster is not None:
            self.sections[ClusterSection] = fill_cluster(cluster)
        logging, checkpoint = self.get(LoggingSection), self.get(CheckpointSection)
        if logging is not None and checkpoint is not None:
            self.sections[LoggingSection] = fill_logging(logging, checkpoint)
        self._fill_schedule()

    def _fill_schedule(self) -> None:
        schedule, train = self.get(ScheduleSection), self.get(TrainSection)
        optimizer = self.get(OptimizerSection)
        if schedule is not None and optimizer is not None:
            for message, keys in schedule_problems(schedule, optimizer):
                if self.sound(*keys):
                    where = self.overlay.where(*keys)
                    self.findings.append(Finding("error", "training", message, keys, where))
        if schedule is not None and train is not None:
            self.sections[ScheduleSection] = fill_schedule(schedule, train)

    def sources(self) -> dict[str, str]:
        """The source of every setting; a null that was filled in counts as derived."""
        result: dict[str, str] = {}
        for key in KEYS:
            section, name = key.split(".")
            if SECTIONS[section] in self.sections:
                value = getattr(self.sections[SECTIONS[section]], name)
                stands = value is None or self.overlay.values.get(key) is not None
                result[key] = self.overlay.sources.get(key, "derived") if stands else "derived"
        inner = {k: s for k, s in self.overlay.sources.items() if k.startswith(f"{MODEL_CONFIG}.")}
        return result | inner

    def raise_findings(self) -> None:
        """Raises UserError with everything found, one a line, if there is anything."""
        if self.findings:
            raise UserError("\n".join(dict.fromkeys(finding.text for finding in self.findings)))

    def _attempt(
        self, make: Callable[[], T], *, topic: Topic, keys: Callable[[str], Iterable[str]]
    ) -> T | None:
        """What ``make`` returns; a refusal becomes a finding, with where its ``keys`` came from."""
        try:
            return make()
        except UserError as error:
            about = tuple(keys(str(error)))
            self.findings.append(Finding("error", topic, str(error), about, self.overlay.where(*about)))
            return None


def _layout_keys_in(message: str) -> list[str]:
    words = dict.fromkeys(re.findall(r"[a-z_]+", message))
    # Unset weight or sequence shards follow TP, so that is then the value somebody wrote.
    words |= dict.fromkeys(["tensor_model_parallel_size"] if any("_num_" in word for word in words) else [])
    return [_LAYOUT_KEYS[word] for word in words if word in _LAYOUT_KEYS]
