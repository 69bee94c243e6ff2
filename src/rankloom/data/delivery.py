"""Rows from a lane's owner to all ranks of the lane.

The owner (tp = context = 0, the first rank of its lane group) reads; everybody else receives the same
integers. With them travel the numbers of the rows, and every rank compares them with the rows it expects for
its lane, so that a rank can never train on another lane's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rankloom.comm import Communicator
from rankloom.data.lanes import LaneMicrobatch
from rankloom.data.stream import GlobalStream, Row
from rankloom.errors import RunError

__all__ = ["Delivery", "check_lanes"]


class Delivery:
    """Hands microbatches of ``micro_batch_size`` rows of ``sequence_length`` tokens to the ranks of this
    lane."""

    def __init__(self, comm: Communicator, *, micro_batch_size: int, sequence_length: int) -> None:
        self._group = comm["lane"]
        self._device = comm.device
        self._shape = (4, micro_batch_size, sequence_length)
        self._where = f"rank {comm.rank} ({comm.layout.coords(comm.rank).describe()})"

    @property
    def is_owner(self) -> bool:
        """Whether this rank reads for its lane."""
        return self._group.index == 0

    def deliver(self, microbatch: LaneMicrobatch | None, expected: Sequence[Row]) -> Tensor:
        """Input ids, labels, positions and document ids, int64 [4, B, S] on the device; ``microbatch`` on the
        owner only. Raises RunError when the rows are not ``expected``."""
        planes = int(np.prod(self._shape))
        payload = torch.empty(planes + self._shape[1], dtype=torch.int32)
        if microbatch is not None:
            arrays = (
                microbatch.input_ids,
                microbatch.labels,
                microbatch.position_ids,
                microbatch.document_ids,
            )
            payload[:planes] = torch.from_numpy(np.stack(arrays)).flatten()
            payload[planes:] = torch.tensor([row.row_id for row in microbatch.rows], dtype=torch.int32)
        payload = payload.to(self._device)
        self._group.broadcast(payload, "rows of the lane").wait()
        arrived, wanted = payload[planes:].tolist(), [row.row_id for row in expected]
        if arrived != wanted:
            raise RunError(f"{self._where} received rows {arrived} where its lane has rows {wanted}")
        return payload[:planes].view(self._shape).long()


def check_lanes(
    comm: Communicator, stream: GlobalStream, mine: Sequence[Row], *, lane: int, step0: int
) -> None:
    """Compares, over all ranks, which rows each is about to train on in step ``step0``: those of a lane must
    agree, and the lanes together must be the global batch. Raises RunError naming the ranks."""
    told = torch.tensor([lane, *(row.row_id for row in mine)], device=comm.device)
    gathered = comm["world"].stack(told, "compare the rows of the lanes").tolist()
    by_rank = dict(zip(comm["world"].ranks, gathered, strict=True))
    first_of_lane: dict[int, int] = {}
    for rank, (its_lane, *rows) in by_rank.items():
        first = first_of_lane.setdefault(its_lane, rank)
        if rows != by_rank[first][1:]:
            raise RunError(
                f"ranks {first} and {rank} are in lane {its_lane} but hold rows {by_rank[first][1:]} "
                f"and {rows}"
            )
    together = sorted(row for rank in first_of_lane.values() for row in by_rank[rank][1:])
    whole = sorted(row.row_id for row in stream.batch(step0))
    if together != whole:
        raise RunError(
            f"the lanes together (first ranks {sorted(first_of_lane.values())}) hold rows {together}, "
            f"the global batch has {whole}"
        )
