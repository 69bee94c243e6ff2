"""Process groups of one rank, counted collectives over gloo and NCCL, and the watchdog over them."""

from __future__ import annotations

from rankloom.comm.activity import Activity
from rankloom.comm.communicator import Communicator
from rankloom.comm.group import Group, Pending
from rankloom.comm.texts import tell_all

__all__ = ["Activity", "Communicator", "Group", "Pending", "tell_all"]
