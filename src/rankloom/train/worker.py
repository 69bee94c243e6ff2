"""What one rank of a run can do, whatever started it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from rankloom.checkpoint import Checkpointer, load
from rankloom.comm import Activity, Communicator
from rankloom.config import ResolvedConfig
from rankloom.data import Counts, LaneMicrobatch, Row
from rankloom.data.delivery import Delivery
from rankloom.data.prepare import RunData
from rankloom.errors import RunError, UserError
from rankloom.models import Rows, ShardedModel, export, verify_copies
from rankloom.optim import ShardedAdamW
from rankloom.train.assemble import build_batches
from rankloom.train.batches import Batches

__all__ = ["NOTHING", "Deliver", "Feed", "Restored", "StepOutcome", "Worker"]

NOTHING = Counts(0, 0, 0, 0)
# Input ids, labels, positions and document ids of a microbatch, int64 [4, B, S], on every rank of its lane.
Deliver = Callable[[LaneMicrobatch | None, Sequence[Row]], torch.Tensor]
# From the usual way of rows, the lane's owner reads and sends, to another one.
Feed = Callable[[Batches, Delivery], tuple[Batches, Deliver]]


@dataclass(frozen=True)
class StepOutcome:
    """One optimizer step, equal on all ranks but for ``loader_wait_s``: seconds that this rank waited for its
    lane's rows to be read. ``loss`` is before the update, ``grad_norm`` before clipping; where one of them is
    not finite nothing was updated and ``bad_lanes`` names the lanes whose own loss is not. ``stops``: a rank
    wished the run to end after this step."""

    loss: float
    grad_norm: float
    valid_tokens: int
    bad_lanes: tuple[int, ...] = ()
    loader_wait_s: float = 0.0
    stops: bool = False

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass(frozen=True)
class Restored:
    """A run as it was loaded: after ``step`` steps, in which ``consumed`` was trained on. ``notes``: what is
    not as it was saved, in words."""

    step: int
    consumed: Counts
    notes: tuple[str, ...] = ()


class Worker:
    """Model, optimizer and lane of one rank. Every method is a collective of all ranks."""

    def __init__(
        self,
        resolved: ResolvedConfig,
        comm: Communicator,
        data: RunData,
        *,
        model: ShardedModel,
        optimizer: ShardedAdamW,
        activity: Activity,
        tell: Callable[[str], None] = lambda _: None,
        feed: Feed | None = None,
    ) -> None:
        self._resolved = resolved
        self._tell = tell
        self._comm = comm
        self._data = data
        self._model = model
        self._optimizer = optimizer
        self._activity = activity
        self.delivery = Delivery(
            comm,
            micro_batch_size=resolved.train.micro_batch_size,
            sequence_length=resolved.data.max_seq_length,
        )
        self.batches = build_batches(resolved, comm, data, is_owner=self.delivery.is_owner)
        self._deliver: Deliver = self.delivery.deliver
        if feed is not None:
            self.batches, self._deliver = feed(self.batches, self.delivery)

    @cached_property
    def _checkpointer(self) -> Checkpointer:
        section = self._resolved.checkpoint
        return Checkpointer(
            self._model,
            self._optimizer,
            section.dir,
            keep=section.keep,
            keep_every=section.keep_every,
            background=section.background,
            config=self._resolved.to_mapping(),
            tokenizer=self._data.tokenizer,
            tell=self._tell,
            patience_s=self._resolved.comm.timeout_s,
        )

    @property
    def model(self) -> ShardedModel:
        return self._model

    @property
    def model_config(self) -> Mapping[str, Any]:
        """The model's own settings, as config.json has them, with those that have their default."""
        return dict(self._model.module.config.to_dict())

    def close(self) -> None:
        """Ends reading ahead."""
        self.batches.close()

    def verify_data(self, step0: int) -> None:
        """Compares the data's fingerprint and what is in the rows of the first step over all ranks. Raises
        RunError."""
        mine = torch.tensor([int(self._data.fingerprint[:15], 16)], device=self._comm.device)
        told = self._comm["world"].stack(mine, "compare the data").flatten().tolist()
        for rank, fingerprint in zip(self._comm["world"].ranks, told, strict=True):
            if fingerprint != told[0]:
                raise RunError(
                    f"rank {rank} ({self._comm.layout.coords(rank).describe()}) has other data than rank "
                    f"{self._comm['world'].ranks[0]}: file, tokenizer or data settings differ between them"
                )
        self.batches.verify(step0)

    def step(self, step0: int, *, lr: float, wish: Callable[[], bool] = lambda: False) -> StepOutcome:
        """Trains on the global batch of step ``step0`` (from 0). ``wish``: whether this rank wants the run to
        end after it; asked when nearly all of the step is done."""
        sums, wait_s = self._accumulate(step0)
        self._activity.phase = f"step {step0 + 1}: reducing gradients"
        total = self._comm["gtp_remat_replica"].sum_small(sums, "loss")
        loss, num_tokens = total[0].item(), int(total[1].item())
        if num_tokens != (planned := self.batches.facts(step0).counts.valid_tokens):
            raise RunError(f"step {step0 + 1} trained on {num_tokens} tokens, its rows have {planned}")
        divisor = max(1, num_tokens)
        self._optimizer.finish_reductions()
        norm, wishes = self._optimizer.norm_and_wishes(divisor, wish=wish())
        outcome = StepOutcome(loss / divisor, norm, num_tokens, loader_wait_s=wait_s, stops=wishes > 0)
        if not outcome.finite:
            return replace(outcome, bad_lanes=self._lanes_not_finite(sums))
        self._activity.phase = f"step {step0 + 1}: updating parameters"
        self._optimizer.step(lr=lr, num_tokens=divisor, norm=norm)
        return outcome

    def _accumulate(self, step0: int) -> tuple[torch.Tensor, float]:
        """Forward and backward of all microbatches; this rank's loss sum and number of trained tokens, fp64
        [2], and the seconds that reading held it up."""
        self._activity.phase = f"step {step0 + 1}: waiting for the rows of lane {self.batches.lane}"
        expected = self.batches.rows(step0)
        read, wait_s = self.batches.read(step0)
        sums = torch.zeros(2, dtype=torch.float64, device=self._comm.device)
        for m, (microbatch, rows) in enumerate(zip(read, expected, strict=True)):
            self._activity.phase = f"step {step0 + 1}: microbatch {m + 1} of {len(expected)}"
            tokens = Rows(*self._deliver(microbatch, rows))
            loss, valid = self._model.forward_backward(tokens, first=m == 0, last=m == len(expected) - 1)
            sums += torch.stack([loss, valid.double()])
        return sums, wait_s

    def _lanes_not_finite(self, sums: torch.Tensor) -> tuple[int, ...]:
        flags = self._comm["world"].stack(sums[:1], "which lane is not finite").flatten().tolist()
        layout = self._comm.layout
        ranks = zip(self._comm["world"].ranks, flags, strict=True)
        return tuple(sorted({layout.lane(rank) for rank, loss in ranks if not math.isfinite(loss)}))

    def meet(self, what: str) -> None:
        """Returns once all ranks have come here."""
        self._comm["world"].stack(torch.zeros(1, device=self._comm.device), what)

    def verify_copies(self) -> None:
        """Compares all copies of all parameters. Raises RunError naming a parameter and two ranks that
        differ."""
        self._activity.phase = "comparing copies of parameters"
        verify_copies(self._model)

    # -- checkpoints --

    def save(self, step: int, consumed: Counts) -> None:
        """Saves the run as it is after ``step`` steps, in which ``consumed`` was trained on; returns once a
        copy is made. Raises RunError, also for the save before: see `Checkpointer.save`."""
        state: dict[str, Any] = {}
        if self._comm["world"].index == 0:
            state = {
                "consumed_samples": consumed.rows,
                "consumed_chats": consumed.chats,
                "consumed_tokens": consumed.tokens,
                "valid_tokens": consumed.valid_tokens,
                "data": self.batches.state(step, consumed),
            }
        self._checkpointer.save(step, state=state, rank_state=self.batches.lane_state(step))

    def poll_save(self) -> Path | None:
        """For every step, no collective: see `Checkpointer.poll`."""
        return self._checkpointer.poll()

    def wait_saved(self) -> None:
        """Returns once the save under way is complete: see `Checkpointer.wait`."""
        self._checkpointer.wait()

    def load(self, folder: Path) -> Restored:
        """Puts everything in the place it had when the checkpoint was saved.

        Raises UserError, on every rank, for one that is damaged or of another model (see `load`), and where
        the run cannot go on in its data.
        """
        loaded = load(self._model, self._optimizer, folder, seed=self._resolved.train.seed)
        data, consumed = loaded.state.get("data"), NOTHING
        notes = list(loaded.notes)
        if data is not None:
            self._activity.phase = "going on in the data"
            lanes = [lane for _, lane in sorted(loaded.manifest.rank_state.items())]
            allowed = self._resolved.checkpoint.allow_changes
            notes += self.batches.restore(data, lanes, allowed=allowed)
            consumed = Counts(**data["consumed"])
        elif loaded.step:
            raise UserError(
                f"the checkpoint {folder} is of step {loaded.step} and does not say where its run stood in "
                "the data; start a new run from its weights with model.path"
            )
        return Restored(loaded.step, consumed, tuple(notes))

    def export(self, folder: Path) -> None:
        """Writes the model as a Hugging Face folder from the first rank."""
        self._activity.phase = "exporting the model"
        export(self._model, folder, tokenizer=self._data.tokenizer)
