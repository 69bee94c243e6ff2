"""Where a run stands in an Energon data set: each virtual lane on its own, so any number of lanes goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rankloom.data.rows import Counts
from rankloom.errors import UserError

__all__ = ["EnergonState"]

FORMAT = 1


@dataclass(frozen=True)
class EnergonState:
    """All of it.

    Attributes:
        step: optimizer steps done.
        consumed: what was trained on since the first step of the run; its rows are the place in the run.
        settings: everything that decides which rows come, in which order: settings by their keys, and what
            else there is, in words.
        virtual_lanes: the state of each, by number, as `VirtualLanes.state` gives it.
    """

    step: int
    consumed: Counts
    settings: Mapping[str, object]
    virtual_lanes: Mapping[int, Mapping[str, Any]]

    @classmethod
    def of(
        cls,
        parts: Iterable[Mapping[int, Mapping[str, Any]]],
        *,
        step: int,
        consumed: Counts,
        settings: Mapping[str, object],
    ) -> EnergonState:
        """From what the owner of each lane tells. Raises ValueError where a virtual lane is missing or there
        twice."""
        told = sorted((number, state) for part in parts for number, state in part.items())
        expected = list(range(_number(settings)))
        if [number for number, _ in told] != expected:
            missing = sorted(set(expected) - {number for number, _ in told})
            raise ValueError(f"each of {len(expected)} virtual lanes is needed once; missing are {missing}")
        return cls(step, consumed, dict(settings), dict(told))

    def check(self, settings: Mapping[str, object]) -> None:
        """Raises UserError naming every setting of a run that resumes which differs, with both values.

        Energon itself goes on without a word under another number of parts or another packing, with other
        samples.
        """
        differences = list(_differences(self.settings, settings))
        if differences:
            raise UserError(
                f"the run cannot continue in its data: {'; '.join(differences)}. Set it back to continue "
                "exactly"
            )

    @staticmethod
    def shared_json(*, step: int, consumed: Counts, settings: Mapping[str, object]) -> dict[str, Any]:
        """What is the same for all virtual lanes, as plain values."""
        return {
            "format": FORMAT,
            "source": "energon",
            "step": step,
            "consumed": consumed._asdict(),
            "settings": dict(settings),
        }

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``."""
        lanes = {str(number): dict(state) for number, state in self.virtual_lanes.items()}
        shared = self.shared_json(step=self.step, consumed=self.consumed, settings=self.settings)
        return {**shared, "virtual_lanes": lanes}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EnergonState:
        """Raises UserError for content that `to_json` did not make."""
        try:
            if content["format"] != FORMAT or content["source"] != "energon":
                raise UserError(
                    f"a data state of source {content['source']} and format {content['format']!r}; this "
                    f"version reads energon, {FORMAT}"
                )
            return cls.of(
                [{int(number): state for number, state in content["virtual_lanes"].items()}],
                step=content["step"],
                consumed=Counts(**content["consumed"]),
                settings=content["settings"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"this is not the state of an Energon data set, or it is damaged: {error}"
            ) from error


def _number(settings: Mapping[str, object]) -> int:
    number = settings["data.num_virtual_lanes"]
    if not isinstance(number, int):
        raise ValueError(f"data.num_virtual_lanes is {number}")
    return number


def _differences(saved: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    for key in dict.fromkeys([*saved, *now]):
        if saved.get(key) != now.get(key):
            yield f"{key} was {saved.get(key)}, now it is {now.get(key)}"
