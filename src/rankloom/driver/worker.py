"""What a controller calls on the process of each rank: the calls of a training run.

A rank's part of the run is a ``Session``, as in every engine; here it is told what to do call by call, and
gets the rows of a step by reference. Torch is imported when a worker connects, so that a controller, which
needs the declarations alone, does without.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankloom.config import ResolvedConfig, resolve
from rankloom.driver.calls import WITHIN_LANE, call
from rankloom.driver.envelopes import Envelope
from rankloom.errors import RunError
from rankloom.layout import DRIVER_AXES
from rankloom.train.reporting import Event, ForwardingReporter, Reporter, SilentReporter
from rankloom.train.stopping import Deadline, StopFile, Stopping

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rankloom.comm import Communicator
    from rankloom.data.delivery import Delivery
    from rankloom.driver.feed import FetchedBatches, Store
    from rankloom.models import SequenceScore
    from rankloom.train.batches import Batches
    from rankloom.train.evaluator import Evaluation
    from rankloom.train.session import Session
    from rankloom.train.worker import Deliver

__all__ = ["RankView", "Started", "Stepped", "TrainWorker"]

LANES = "data_parallel"


@dataclass(frozen=True)
class RankView:
    """A rank's own view of the layout: its fingerprint and sizes, and where the rank stands in it."""

    rank: int
    fingerprint: str
    sizes: Mapping[str, int]
    coords: Mapping[str, int]


@dataclass(frozen=True)
class Started:
    """A run in place: the steps to take (from 1; none where the first is past the last), and what the first
    rank has to tell the user."""

    first_step: int
    max_steps: int
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Stepped:
    """A step done. ``stopped``: why the run ends after it, or ""; ``events``: of the first rank."""

    step: int
    stopped: str
    events: tuple[Event, ...]


class TrainWorker:
    """One rank of a run. All calls but `introduce` and `load_batch` are collectives of all ranks.

    `start` comes first, then steps, each with its envelopes, and between them any other call; `finish` ends
    the run.

    Args:
        resolved: the run. Tokenizer, data and model are made from it, here.
        rank: of its layout.
        connect: joins the other ranks; a collective.
        store: where batches are put and fetched.
        deadline: when the run has to have ended.
        arm: what is to be done here once steps begin, as of `Stopping`.
    """

    def __init__(
        self,
        resolved: ResolvedConfig,
        rank: int,
        *,
        connect: Callable[[], Communicator],
        store: Store,
        deadline: Deadline | None = None,
        arm: Callable[[], None] | None = None,
    ) -> None:
        self._resolved = resolved
        self._rank = rank
        self._connect = connect
        self._store = store
        is_first = rank == resolved.layout.rank_offset
        file = StopFile.of_run(resolved)
        self._stopping = Stopping(
            asked=lambda: self._wish or (file.asked() if is_first else ""), deadline=deadline, arm=arm
        )
        self._wish = ""
        self._events: list[Event] = []
        self._reporter: Reporter = ForwardingReporter(self._events.append) if is_first else SilentReporter()
        self._comm: Communicator | None = None
        self._session: Session | None = None
        self._batches: FetchedBatches | None = None

    @call(replicate=DRIVER_AXES, collect="all", collective=False)
    def introduce(self) -> RankView:
        """What this rank makes of the config it was given, for the controller to compare."""
        layout = self._resolved.layout
        coords = {name: value for name, value in asdict(layout.coords(self._rank)).items() if name != "rank"}
        return RankView(self._rank, layout.fingerprint(), layout.sizes, coords)

    @call(replicate=DRIVER_AXES)
    def start(self) -> Started:
        """Joins the other ranks and puts everything in place, up to the first step. Raises what `connect` and
        `Session.start` raise."""
        if self._comm is None:
            since = time.monotonic()
            self._comm = self._connect()
            self._reporter.phase("connect the ranks", time.monotonic() - since)
        return self._begin(self._resolved)

    @call(replicate=DRIVER_AXES)
    def load(self, folder: str) -> Started:
        """Starts anew where a checkpoint ends, with model, optimizer and data; rows that were loaded before
        are not trained on. Raises UserError as a resuming run does."""
        self._open_session.settle()
        self._open_session.close()
        changed = resolve(
            self._resolved.to_mapping(), cli={"checkpoint.resume": folder}, origin=self._resolved.origin
        )
        return self._begin(changed)

    @call(shard=LANES, leader_only=WITHIN_LANE, collective=False, takes_pieces=False)
    def load_batch(self, step: int) -> Envelope:
        """On the owner of each lane: the rows of step ``step`` (from 1), put into the store. Any number of
        times; what was loaded and never trained on is in no checkpoint."""
        return self._fetched.load(step - 1)

    @call(shard=LANES, replicate=WITHIN_LANE)
    def train(self, envelope: Envelope, step: int, *, wish: str = "") -> Stepped:
        """Takes step ``step`` on the rows of this rank's lane, with what belongs to it: evaluation, metrics,
        checkpoints. ``wish``: why the run is to end after it, or "". Raises RunError."""
        session = self._open_session
        self._fetched.accept(envelope, step - 1)
        self._wish = wish
        session.advance(step)
        return Stepped(step, session.stopped, self._told())

    @call(replicate=DRIVER_AXES)
    def evaluate(self) -> Evaluation:
        """The loss on the validation data as the model is now. Raises UserError where there is none."""
        return self._open_session.evaluate()

    @call(shard=LANES, replicate=WITHIN_LANE)
    def get_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """Of each sequence (token ids) of the lane the log-probability of every token given those before it:
        see `sequence_log_probabilities`."""
        from rankloom.models import sequence_log_probabilities

        return sequence_log_probabilities(
            self._open_session.worker.model,
            sequences,
            micro_batch_size=self._resolved.train.micro_batch_size,
        )

    @call(shard=LANES, replicate=WITHIN_LANE)
    def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[bool] | None]]) -> list[SequenceScore]:
        """Of each sequence of the lane its log-likelihood, over the tokens that count (None: all): see
        `sequence_score`."""
        from rankloom.models import sequence_score

        found = self.get_logprobs([ids for ids, _ in sequences])
        return [sequence_score(one, counted) for one, (_, counted) in zip(found, sequences, strict=True)]

    @call(replicate=DRIVER_AXES)
    def save(self) -> str:
        """Saves a checkpoint of the run after the last step taken; its folder, once it is complete."""
        return str(self._open_session.save())

    @call(replicate=DRIVER_AXES)
    def export(self, folder: str) -> None:
        """Writes the model as a Hugging Face folder."""
        self._open_session.worker.export(Path(folder))

    @call(replicate=DRIVER_AXES)
    def finish(self) -> tuple[Mapping[str, object], tuple[Event, ...]]:
        """Ends the run: the exported model unless it ended early, the last checkpoint. The summary, and what
        there is to tell."""
        session = self._open_session
        summary = session.finish()
        session.close()
        return summary, self._told()

    def _begin(self, resolved: ResolvedConfig) -> Started:
        from rankloom.train.session import Session

        assert self._comm is not None
        session = Session.start(
            resolved, self._comm, reporter=self._reporter, stopping=self._stopping, feed=self._feed
        )
        self._session = session
        if session.first_step <= session.max_steps:
            session.begin()
        return Started(session.first_step, session.max_steps, self._told())

    def _feed(self, batches: Batches, delivery: Delivery) -> tuple[Batches, Deliver]:
        from rankloom.driver.feed import FetchedBatches

        assert self._comm is not None
        self._batches = FetchedBatches(batches, delivery, self._comm, store=self._store)
        return self._batches, self._batches.deliver

    @property
    def _open_session(self) -> Session:
        if self._session is None:
            raise RunError(f"rank {self._rank} was called before start")
        return self._session

    @property
    def _fetched(self) -> FetchedBatches:
        assert self._batches is not None, "called before start"
        return self._batches

    def _told(self) -> tuple[Event, ...]:
        """What has been told since the last time."""
        told = tuple(self._events)
        self._events.clear()
        return told
