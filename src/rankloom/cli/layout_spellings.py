"""The older flags ``--gtp-remat-fold-cp`` and ``--fold-whole-cp``, turned into today's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from rankloom.config.findings import Finding
from rankloom.errors import UserError
from rankloom.layout import Translation, from_fold_whole_cp, from_gtp_remat_fold_cp
from rankloom.layout.arithmetic import CP, SP, TP, Q, W
from rankloom.layout.provenance import dotted


def translate(
    given: Mapping[str, object], *, whole: bool, both: bool, source: str | None
) -> tuple[dict[str, object], Finding | None]:
    """The settings with their older meaning of CP translated away, and a note that says into what.

    ``given`` has dotted keys. ``whole`` tells ``--fold-whole-cp`` from ``--gtp-remat-fold-cp``. Raises
    UserError where the two are given together, or beside a config file or Q, which say the same thing in
    another way.
    """
    flag = "--fold-whole-cp" if whole else "--gtp-remat-fold-cp"
    if both:
        raise UserError("--gtp-remat-fold-cp and --fold-whole-cp exclude each other; give one of them")
    if source is not None:
        raise UserError(f"{flag} translates flags, not a config file; give the settings of {source} as flags")
    if dotted(Q) in given:
        raise UserError(f"{Q} follows from {flag}; leave one of the two out")
    translation = _translation(given, whole=whole)
    if translation is None:
        return dict(given), None
    settings = {dotted(name): value for name, value in translation.settings.items()}
    note = Finding("note", "layout", translation.describe(), tuple(settings))
    return {**given, **settings}, note


def _translation(given: Mapping[str, object], *, whole: bool) -> Translation | None:
    tp, degree = given.get(dotted(TP), 1), given.get(dotted(CP), 1)
    weight_shards = given.get(dotted(W), tp)
    if not (_is_count(tp) and _is_count(degree) and _is_count(weight_shards)) or weight_shards % tp:
        return None  # the layout itself refuses this, with a better message
    shared: dict[str, Any] = {
        "gtp_remat_size": weight_shards // tp,
        "tensor_model_parallel_size": tp,
        "sequence_parallel": given.get(dotted(SP)),
    }
    if whole:
        return from_fold_whole_cp(context_parallel_size=degree, **shared)
    return from_gtp_remat_fold_cp(runtime_context_parallel_size=degree, **shared)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
