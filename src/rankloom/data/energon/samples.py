"""The samples of a data set as they lie in it, by their place: for looking at one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from megatron.energon import WorkerConfig, load_dataset

from rankloom.data.energon.library import hushed, reason_of
from rankloom.data.energon.task import RawChat, raw_chat
from rankloom.errors import RankloomError, UserError
from rankloom.records.energon import EnergonData

__all__ = ["Samples", "split_of", "told"]

T = TypeVar("T")


def split_of(data: EnergonData) -> list[Any]:
    """Energon's factories of what is trained on: of a folder, its split "train".

    Raises UserError where Energon cannot read what was prepared.
    """
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)

    def read() -> list[Any]:
        found = load_dataset(data.path).get_datasets(training=True, split_part="train", worker_config=config)
        return [part.dataset for part in found.datasets]

    return told(data, read)


class Samples:
    """Raises UserError naming the data set where Energon cannot read it."""

    def __init__(self, data: EnergonData) -> None:
        self._data = data
        (factory,) = split_of(data)
        self._length = len(factory)
        self._reader = told(data, lambda: factory.build().dataset)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> RawChat:
        """Sample ``number``, from 0 to the length - 1, before anything was made of it. Raises UserError where
        it has no chat, or is left out of the split."""
        assert 0 <= number < self._length
        found = self._read(number)
        if found is None:
            raise UserError(f"{self._data.name}, sample {number}: its split leaves it out")
        chat = raw_chat(found)
        if self._data.kind == "jsonl":  # Energon reads the JSON of these itself
            with suppress(ValueError, RecursionError):  # what is wrong with it is said when a record is made
                chat.content = json.loads(found["json"])
        return chat

    def find(self, key: str, *, shard: str | None = None) -> int | None:
        """The number of the first sample of this key, in the tar file (or JSON Lines file) of that name."""
        for number in range(self._length):
            found = self._read(number)
            if found is not None and found["__key__"] == key and shard in (None, found["__shard__"]):
                return number
        return None

    def _read(self, number: int) -> Mapping[str, Any] | None:
        def read() -> Mapping[str, Any] | None:
            (found,) = self._reader.restore_sample(("Webdataset", number)).data
            return found  # type: ignore[no-any-return]

        return told(self._data, read)


def told(data: EnergonData, call: Callable[[], T]) -> T:
    """What Energon gives. Raises UserError naming the data set where it cannot."""
    try:
        with hushed():
            return call()
    except RankloomError:
        raise
    except Exception as error:
        raise UserError(f"{data.name}: Energon cannot read it: {reason_of(error)}") from error
