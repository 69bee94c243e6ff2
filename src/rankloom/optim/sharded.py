"""AdamW over sharded parameters: every element of the model is updated by exactly one rank, except that small
parameters which TP does not cut are updated alike by every TP rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rankloom.comm import Communicator
from rankloom.optim.pieces import OwnedPart, OwnedPiece
from rankloom.plan import Placement
from rankloom.weights import SmallUnit, WeightUnit

__all__ = ["ShardedAdamW"]

_CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class ShardedAdamW:
    """torch.optim.AdamW on this rank's pieces. ``decays(placement)`` says which parameters decay.

    Gradients arrive as plain sums; 1 / N and the clip factor are applied together, once, just before the
    update."""

    def __init__(
        self,
        units: Sequence[WeightUnit],
        small: SmallUnit,
        comm: Communicator,
        *,
        decays: Callable[[Placement], bool],
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        clip_grad: float,
    ) -> None:
        self._comm = comm
        self._clip_grad = clip_grad
        self._small = small
        self.num_updates = 0
        self._weight_pieces = {unit.name: OwnedPiece(unit, comm["replica"]) for unit in units}
        self._small_piece = OwnedPiece(small, comm["gtp_remat_replica"])
        self.pieces = [*self._weight_pieces.values(), self._small_piece]
        groups: dict[bool, list[Tensor]] = {True: [], False: []}
        for piece in self.pieces:
            for placement, master, gradient in piece.parameters():
                master.grad = gradient
                groups[decays(placement)].append(master)
        self.adamw = torch.optim.AdamW(
            [
                {"params": params, "weight_decay": weight_decay if decayed else 0.0}
                for decayed, params in groups.items()
                if params
            ],
            betas=betas,
            eps=eps,
            fused=True,
        )

    def reload(self) -> None:
        """Takes over parameters that were filled in after construction."""
        for piece in self.pieces:
            piece.reload()

    def launch_reduction(self, unit: WeightUnit) -> None:
        """Starts the sum over replicas of a unit whose gradient over gtp_remat is complete."""
        self._weight_pieces[unit.name].launch_reduction()

    def finish_reductions(self) -> None:
        """Sums the small parameters' gradients and waits for all sums."""
        self._small.sum_partial()
        self._small_piece.launch_reduction()
        for piece in self.pieces:
            piece.await_reduction()

    def gradient_norm(self, num_tokens: int) -> float:
        """The norm of the whole model's gradient after 1 / ``num_tokens``, each element counted once, summed
        in fp64."""
        return self.norm_and_wishes(num_tokens, wish=False)[0]

    def norm_and_wishes(self, num_tokens: int, *, wish: bool) -> tuple[float, int]:
        """The norm, and on how many ranks ``wish`` is set: all ranks learn it in the one collective of a step
        in which all of them meet."""
        total = torch.zeros(2, dtype=torch.float64, device=self._comm.device)
        total[1] = wish
        for piece in self.pieces:
            for placement, _, gradient in piece.parameters():
                if placement.tp_dim is not None or self._comm["tp"].index == 0:
                    total[0] += torch.linalg.vector_norm(gradient, dtype=torch.float64).square()
        squares, wishes = self._comm["world"].sum_small(total, "gradient norm").tolist()
        return math.sqrt(squares) / num_tokens, int(wishes)

    def step(self, *, lr: float, num_tokens: int, norm: float) -> None:
        """Updates this rank's pieces with gradient / num_tokens, clipped to ``clip_grad`` by ``norm`` (of the
        divided gradient), and starts sending them to the ranks that store copies."""
        clip = min(1.0, self._clip_grad / (norm + _CLIP_EPSILON)) if self._clip_grad > 0 else 1.0
        for piece in self.pieces:
            piece.gradient.mul_(clip / num_tokens)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()
        self.num_updates += 1
        self.publish()

    def moments(self, part: OwnedPart) -> tuple[Tensor, Tensor]:
        """First and second moment of a part, fp32 and flat like its master; only after a first update."""
        state = self.adamw.state[part.master]
        return state["exp_avg"], state["exp_avg_sq"]

    def restart(self, num_updates: int) -> None:
        """Continues as after that many updates: with moments of zero, to be filled in; after none, without
        any, as a new optimizer."""
        self.num_updates = num_updates
        self.adamw.state.clear()
        for part in (part for piece in self.pieces for part in piece.parts if num_updates):
            self.adamw.state[part.master] = {
                "step": torch.tensor(float(num_updates), dtype=torch.float32, device=part.master.device),
                "exp_avg": torch.zeros_like(part.master),
                "exp_avg_sq": torch.zeros_like(part.master),
            }

    def publish(self) -> None:
        """Sends this rank's masters to the ranks that store copies, as after an update. A collective."""
        for piece in self.pieces:
            piece.publish()
