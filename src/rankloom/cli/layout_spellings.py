"""The older flags ``--gtp-remat-fold-cp`` and ``--fold-whole-cp``, turned into today's settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rankloom.errors import UserError
from rankloom.layout import Translation, from_fold_whole_cp, from_gtp_remat_fold_cp
from rankloom.layout.arithmetic import CP, SP, TP, Q, W


def translate(
    given: Mapping[str, object], *, whole: bool, both: bool, config: Path | None
) -> tuple[dict[str, object], str]:
    """The flags with their older meaning of CP translated away, and a sentence that says into what.

    ``whole`` tells ``--fold-whole-cp`` from ``--gtp-remat-fold-cp``. Raises UserError where the two are given
    together, or beside a config file or Q, which say the same thing in another way.
    """
    flag = "--fold-whole-cp" if whole else "--gtp-remat-fold-cp"
    if both:
        raise UserError("--gtp-remat-fold-cp and --fold-whole-cp exclude each other; give one of them")
    if config is not None:
        raise UserError(f"{flag} translates flags, not a config file; give the settings of {config} as flags")
    if Q in given:
        raise UserError(f"{Q} follows from {flag}; leave one of the two out")
    translation = _translation(given, whole=whole)
    if translation is None:
        return dict(given), ""
    return {**given, **translation.settings}, translation.describe()


def _translation(given: Mapping[str, object], *, whole: bool) -> Translation | None:
    tp, degree = cast(int, given.get(TP, 1)), cast(int, given.get(CP, 1))
    weight_shards = cast(int, given.get(W, tp))
    if tp < 1 or weight_shards % tp:
        return None  # the layout itself refuses this, with a better message
    shared: dict[str, Any] = {
        "gtp_remat_size": weight_shards // tp,
        "tensor_model_parallel_size": tp,
        "sequence_parallel": given.get(SP),
    }
    if whole:
        return from_fold_whole_cp(context_parallel_size=degree, **shared)
    return from_gtp_remat_fold_cp(runtime_context_parallel_size=degree, **shared)
