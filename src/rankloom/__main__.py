"""``python -m rankloom``: the same as the ``rankloom`` command."""

from __future__ import annotations

from rankloom.cli import main

main()
