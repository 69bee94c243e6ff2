"""Settings: the schema of the YAML file and the command line, and what they resolve to, with provenance."""

from __future__ import annotations

from rankloom.config.refusals import refuse_for_training
from rankloom.config.resolved import (
    ResolvedConfig,
    ResolvedLayout,
    load,
    load_layout,
    resolve,
    resolve_layout,
)

__all__ = [
    "ResolvedConfig",
    "ResolvedLayout",
    "load",
    "load_layout",
    "refuse_for_training",
    "resolve",
    "resolve_layout",
]
