"""rankloom: one set of ranks, two views. Weights are cut one way, tokens another, and everything follows from
the layout."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
