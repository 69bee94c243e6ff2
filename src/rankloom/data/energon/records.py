"""The chats of a data set one after the other, as a tokenizer is trained on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_val_dataset

from rankloom.data.energon.library import hushed
from rankloom.data.energon.samples import told
from rankloom.data.energon.task import CHAT_COOKER, raise_error, record_of, unread_line
from rankloom.records import ChatRecord
from rankloom.records.energon import EnergonData
from rankloom.records.record import BadRecordError

__all__ = ["EnergonRecords"]


def _pass_over_what_is_no_json(error: Exception, sample: Any, sources: Sequence[Any] | None = None) -> None:
    unread_line(error, sample, sources)


class _Chats(DefaultTaskEncoder):
    cookers = (CHAT_COOKER,)
    decoder = None


@dataclass(frozen=True)
class EnergonRecords:
    """All chats of a data set in the order they lie in, from the beginning each time; bad ones are passed
    over, and dealt with when they are trained on."""

    data: EnergonData

    def __iter__(self) -> Iterator[ChatRecord]:
        """Raises UserError where Energon cannot read a sample."""
        config = WorkerConfig(
            rank=0,
            world_size=1,
            num_workers=0,
            global_error_handler=_pass_over_what_is_no_json,
            restore_error_handler=raise_error,
        )
        with hushed():
            dataset = get_val_dataset(
                self.data.path,
                split_part="train",
                worker_config=config,
                batch_size=None,
                task_encoder=_Chats(),
            )
            loader = get_savable_loader(dataset, watchdog_timeout_seconds=None, gc_collect_every_n_steps=0)
            loader.pin_memory = False
            samples = iter(loader)
        while True:
            sample = told(self.data, lambda: next(samples, None))
            if sample is None:
                return
            try:
                yield record_of(sample)
            except BadRecordError:
                continue
