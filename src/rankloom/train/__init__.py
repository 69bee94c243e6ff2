"""Training: what starts the ranks and watches over them, what one rank does, and what a run tells about
itself.

Importing this package or its engines imports no torch; ``loop`` and what it needs do.
"""

from __future__ import annotations

from rankloom.train.display import ConsoleReporter
from rankloom.train.local import run_local
from rankloom.train.reporting import Reporter
from rankloom.train.torchrun import TorchrunEnvironment, run_torchrun

__all__ = ["ConsoleReporter", "Reporter", "TorchrunEnvironment", "run_local", "run_torchrun"]
