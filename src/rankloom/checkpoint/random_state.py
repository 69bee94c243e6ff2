"""The random streams of a rank: kept where the layout is the same, else started anew by a rule.

The rule: rank r of a run that continues after step s with seed n draws from the first 8 bytes of
sha256("n:s:r"), so that no two ranks, and no two steps, share a stream.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

__all__ = ["capture", "reseed", "restore"]


def capture(device: torch.device) -> dict[str, Tensor]:
    """The states of torch (of the CPU and of a GPU), numpy and Python."""
    _, ints, python_gauss = random.getstate()
    _, keys, position, has_gauss, numpy_gauss = np.random.get_state()
    states = {
        "random/python": torch.tensor(ints, dtype=torch.int64),
        "random/numpy": torch.tensor([*map(int, keys), position, has_gauss], dtype=torch.int64),
        "random/gauss": torch.tensor(
            [math.nan if python_gauss is None else python_gauss, numpy_gauss], dtype=torch.float64
        ),
        "random/torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["random/cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Continues the streams of `capture`; that of a GPU only where this rank has one and had one."""
    python_gauss, numpy_gauss = states["random/gauss"].tolist()
    *ints, position, has_gauss = states["random/numpy"].tolist()
    random.setstate(
        (3, tuple(states["random/python"].tolist()), None if math.isnan(python_gauss) else python_gauss)
    )
    np.random.set_state(("MT19937", np.array(ints, dtype=np.uint32), position, has_gauss, numpy_gauss))
    torch.set_rng_state(states["random/torch"])
    if device.type == "cuda" and "random/cuda" in states:
        torch.cuda.set_rng_state(states["random/cuda"], device)


def reseed(*, seed: int, step: int, rank: int) -> None:
    """Starts all streams of a rank by the rule."""
    digest = hashlib.sha256(f"{seed}:{step}:{rank}".encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number >> 1)
