"""Where a run stands in its data, as a few numbers: for every lane, and for the stream that the lanes share.

The stream's position alone decides how a run goes on, so it continues exactly under another number of lanes,
of loader processes, or of rows in a microbatch or a global batch: with the first row that no lane has trained
on. Nothing continues on other data or in another order of it, unless that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rankloom.data.dataset_identity import DatasetIdentity
from rankloom.data.dealing import Dealer
from rankloom.data.rows import Counts, Position
from rankloom.data.stream import GlobalStream
from rankloom.errors import UserError

__all__ = ["DataState", "LaneState", "Restored"]

FORMAT = 1


@dataclass(frozen=True)
class LaneState:
    """What one lane has done by step ``step``; its owner tells it. ``last_row``: number in the run of the
    last row that the lane trained on since the run was started or resumed, None where there was none."""

    lane: int
    num_lanes: int
    micro_batch_size: int
    step: int
    last_row: int | None

    @classmethod
    def of(cls, stream: GlobalStream, dealer: Dealer, *, lane: int, step: int) -> LaneState:
        """After ``step`` steps of the run."""
        last_row = None
        for step0 in range(step - 1, stream.origin.step - 1, -1):
            dealt = dealer.lane(stream.batch(step0), lane)
            rows = [row.row_id for microbatch in dealt for row in microbatch if not row.is_filler]
            if rows:
                last_row = max(rows)
                break
        return cls(lane, dealer.num_lanes, dealer.micro_batch_size, step, last_row)


@dataclass(frozen=True)
class Restored:
    """A stream that goes on where a state ends, and what is to be said about it before the first step."""

    stream: GlobalStream
    notes: tuple[str, ...]


@dataclass(frozen=True)
class DataState:
    """All of it.

    Attributes:
        position: in the stream.
        consumed: what was trained on since the first step of the run.
        dataset: the training records.
        order: settings that, with the records, decide the rows and their order; by their keys.
        batches: settings that decide how rows are cut into global batches; by their keys.
        lanes: the state of each lane.
    """

    position: Position
    consumed: Counts
    dataset: DatasetIdentity
    order: Mapping[str, object]
    batches: Mapping[str, object]
    lanes: tuple[LaneState, ...]

    @classmethod
    def of(
        cls, stream: GlobalStream, *, step: int, consumed: Counts, lanes: Sequence[LaneState]
    ) -> DataState:
        """After ``step`` steps of the run, from what each lane tells.

        Raises ValueError where these are not the states of all lanes after that step.
        """
        position = stream.origin if step == stream.origin.step else stream.position_after(step - 1)
        _refuse_other_lanes(lanes, step=step)
        trained = [lane.last_row for lane in lanes if lane.last_row is not None]
        if trained and max(trained) + 1 != position.rows:
            raise ValueError(
                f"the lanes have trained on rows up to {max(trained)}, the stream is at {position}"
            )
        if consumed.rows != position.rows:
            raise ValueError(f"{consumed.rows} rows are counted as consumed, the stream is at {position}")
        return cls(
            position=position,
            consumed=consumed,
            dataset=stream.dataset_identity,
            order=stream.order(),
            batches=stream.batches(),
            lanes=tuple(sorted(lanes, key=lambda state: state.lane)),
        )

    def restore(self, stream: GlobalStream, *, num_lanes: int, restart: bool = False) -> Restored:
        """``stream``, made from the settings of a run that resumes, from this position on.

        With ``restart``, other data or another order is begun from the start of its next epoch; the counts of
        the run go on.

        Raises:
            UserError: the data or its order is another, and ``restart`` is off.
        """
        differences = self._other(stream)
        notes = [
            f"{text}; rows are cut so from here on"
            for text in _differences(self.batches, stream.batches()).values()
        ]
        if len(self.lanes) != num_lanes:
            saved, now = _lanes(len(self.lanes)), _lanes(num_lanes)
            notes.append(f"the data was saved with {saved}, now there are {now}: rows are dealt anew")
        if not differences:
            return Restored(stream.continued_from(self.position), tuple(notes))
        if not restart:
            raise UserError(
                f"the run cannot continue in its data: {'; '.join(differences.values())}. Set it back to "
                f"continue exactly, or name {', '.join(differences)} in checkpoint.allow_changes to begin "
                "the data anew"
            )
        epoch = self.position.epoch + (self.position.row > 0)
        origin = Position(step=self.position.step, epoch=epoch, row=0, rows=self.position.rows)
        told = f"the data is started anew with epoch {epoch}: {'; '.join(differences.values())}"
        return Restored(stream.continued_from(origin), (told, *notes))

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``."""
        return {
            "format": FORMAT,
            "position": self.position._asdict(),
            "consumed": self.consumed._asdict(),
            "dataset": asdict(self.dataset),
            "order": dict(self.order),
            "batches": dict(self.batches),
            "lanes": [asdict(lane) for lane in self.lanes],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> DataState:
        """Raises UserError for content that `to_json` did not make."""
        try:
            if content["format"] != FORMAT:
                raise UserError(f"a data state of format {content['format']!r}; this version reads {FORMAT}")
            state = cls(
                position=Position(**content["position"]),
                consumed=Counts(**content["consumed"]),
                dataset=DatasetIdentity(**content["dataset"]),
                order=dict(content["order"]),
                batches=dict(content["batches"]),
                lanes=tuple(LaneState(**lane) for lane in content["lanes"]),
            )
            _refuse_other_lanes(state.lanes, step=state.position.step)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"this is not a data state, or it is damaged: {error}") from error
        return state

    def changed_keys(self, stream: GlobalStream) -> list[str]:
        """Settings for which `restore` asks for a restart: "data.train" stands for the records."""
        return list(self._other(stream))

    def _other(self, stream: GlobalStream) -> dict[str, str]:
        """What is another data set or another order of it, by the setting to blame, in words."""
        now, found = stream.dataset_identity, {}
        if now.fingerprint != self.dataset.fingerprint:
            found["data.train"] = f"it was saved with the data {self.dataset}, now it is {now}"
            if (now.source, now.num_records) == (self.dataset.source, self.dataset.num_records):
                found["data.train"] += " of another content, tokenizer or template"
        return found | _differences(self.order, stream.order())


def _refuse_other_lanes(lanes: Sequence[LaneState], *, step: int) -> None:
    found = sorted(state.lane for state in lanes)
    wrong = [state for state in lanes if state.num_lanes != len(lanes) or state.step != step]
    if not lanes or found != list(range(len(lanes))) or wrong:
        told = ", ".join(f"lane {s.lane} of {s.num_lanes} after step {s.step}" for s in lanes) or "no lane"
        raise ValueError(f"after step {step} each lane is needed once, not {told}")


def _differences(saved: Mapping[str, object], now: Mapping[str, object]) -> dict[str, str]:
    return {
        key: f"{key} was {saved.get(key)}, now it is {now.get(key)}"
        for key in dict.fromkeys([*saved, *now])
        if saved.get(key) != now.get(key)
    }


def _lanes(number: int) -> str:
    return f"{number} lane{'s' * (number != 1)}"
