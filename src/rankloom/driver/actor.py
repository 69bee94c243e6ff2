"""The process of one rank with Ray: where it prints, what it knows, and the worker whose methods are called.

Every failure inside leaves as a ``RankFailed`` with a record, made of text alone, so that it always arrives.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import cloudpickle

from rankloom.driver.places import RankPlace
from rankloom.driver.ports import Rendezvous, interface_of
from rankloom.driver.processes import Process, pid_file
from rankloom.errors import RankloomError, UserError
from rankloom.train.failures import FailureKind, FailureRecord
from rankloom.train.rank_files import PhaseFile, RankFiles
from rankloom.train.rank_main import last_user_frame
from rankloom.train.torchrun import TorchrunEnvironment

__all__ = ["RankActor", "RankContext", "RankFailed", "RankStart", "WorkerFactory", "rank_class"]


class RankFailed(Exception):  # noqa: N818  (not for users: the gang turns it into one that is)
    """A rank's own words on why it failed."""

    def __init__(self, record: FailureRecord) -> None:
        super().__init__(record)
        self.record = record


@dataclass(frozen=True)
class RankStart:
    """Everything the process of a rank is started with. ``folder``: on its node, of this gang alone;
    ``log_folder`` and ``working_folder`` are absolute. ``appends``: to the log of an earlier gang."""

    place: RankPlace
    world_size: int
    folder: str
    log_folder: str
    working_folder: str
    appends: bool = False

    @property
    def files(self) -> RankFiles:
        return RankFiles(Path(self.folder), Path(self.log_folder), self.place.rank)


@dataclass(frozen=True)
class RankContext:
    """What a worker is built with.

    Attributes:
        rank, world_size: of the layout's global ranks.
        place: node, device and NVLink domain.
        rendezvous: the store through which the ranks meet; None in a gang without one. The environment is
            set for ``init_process_group(init_method="env://")``.
        on_phase: to be told what the rank does ("step 3: forward"); it is known also of a rank that was
            killed. For ``Activity(on_phase=...)``.
        on_hang: to be told the watchdog's report, before the process ends. For ``Watchdog(on_failure=...)``.
    """

    rank: int
    world_size: int
    place: RankPlace
    rendezvous: Rendezvous | None
    on_phase: Callable[[str], None]
    on_hang: Callable[[str], None]

    @property
    def environment(self) -> TorchrunEnvironment:
        """As torchrun would tell this rank. Raises ValueError in a gang without a rendezvous."""
        if self.rendezvous is None:
            raise ValueError("this gang was started without a rendezvous")
        return self.rendezvous.environment(self.rank, world_size=self.world_size)


WorkerFactory = Callable[..., Any]  # (context: RankContext, *args) -> worker; at the top level of a module


class RankActor:
    """Holds the worker of one rank. Every method gives the seconds it took, and its result."""

    def __init__(self, start: RankStart) -> None:
        self._start = start
        self._files = start.files
        self._factory: WorkerFactory | None = None
        self._args: tuple[Any, ...] = ()
        self._worker: Any = None

    def prepare(self, payload: bytes) -> tuple[float, None]:
        """Settles into the process, then imports what the factory needs (``payload``: it and its arguments,
        pickled: torch must not be imported before the environment is set)."""
        with self._told() as clock:
            self._settle()
            self._factory, self._args = cloudpickle.loads(payload)
        return clock.seconds, None

    def build(self, rendezvous: Rendezvous | None) -> tuple[float, None]:
        """Makes the worker."""
        with self._told() as clock:
            assert self._factory is not None
            rank, world_size = self._start.place.rank, self._start.world_size
            if rendezvous is not None:
                os.environ.update(rendezvous.variables(rank, world_size=world_size))
            context = RankContext(
                rank,
                world_size,
                self._start.place,
                rendezvous,
                on_phase=self._phase_file.write,
                on_hang=self._write_hang,
            )
            self._worker = self._factory(context, *self._args)
        return clock.seconds, None

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> tuple[float, Any]:
        """Runs a method of the worker."""
        with self._told() as clock:
            result = getattr(self._worker, method)(*args, **kwargs)
        return clock.seconds, result

    def _settle(self) -> None:
        _die_with_parent()
        self._print_to_log()
        _work_in(self._start)
        self._files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._phase_file = PhaseFile(self._files.phase)
        Process.current().write(pid_file(self._files))
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        if interface := interface_of(self._start.place.node.address):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)  # or gloo asks what the host's name means

    def _print_to_log(self) -> None:
        """All that this process prints, also from C++; crashes print their Python stack."""
        self._files.log_folder.mkdir(parents=True, exist_ok=True)
        how = os.O_APPEND if self._start.appends else os.O_TRUNC
        log = os.open(self._files.log, os.O_WRONLY | os.O_CREAT | how, 0o644)
        sys.stdout.flush()
        sys.stderr.flush()
        for number in (1, 2):
            os.dup2(log, number)
        os.close(log)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  (stays open as long as it lives)
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        faulthandler.enable(sys.stderr)

    def _write_hang(self, report: str) -> None:
        phase = PhaseFile.read(self._files.phase)
        rank = self._start.place.rank
        FailureRecord(rank, FailureKind.RUN, phase, report).write(self._files.failure)

    @contextlib.contextmanager
    def _told(self) -> Iterator[_Clock]:
        """Whatever is raised inside becomes a record."""
        clock = _Clock()
        try:
            yield clock
        except BaseException as error:  # also what derives from BaseException, as some of torch's does
            phase = PhaseFile.read(self._files.phase)
            place = "" if isinstance(error, RankloomError) else last_user_frame(error)
            record = FailureRecord.of(error, rank=self._start.place.rank, phase=phase, place=place)
            if not isinstance(error, RankloomError):
                traceback.print_exception(error)
            sys.stderr.flush()
            raise RankFailed(record) from None
        finally:
            clock.stop()


class _Clock:
    """Seconds from its making to its stop."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self.seconds = 0.0

    def stop(self) -> None:
        self.seconds = time.perf_counter() - self._since


def rank_class(rank: int) -> type[RankActor]:
    """A class for each rank: Ray shows the class in the title of the process, ``ray::Rank3.train``."""
    return type(f"Rank{rank}", (RankActor,), {})


def _work_in(start: RankStart) -> None:
    """Paths of the config are relative to where the driver was started."""
    try:
        os.chdir(start.working_folder)
    except OSError as error:
        raise UserError(
            f"node {start.place.node.name} has no folder {start.working_folder} ({error.strerror}), in which "
            "this run was started; start it in a folder that all nodes share"
        ) from error


def _die_with_parent() -> None:
    """The kernel ends this process with Ray's daemon on this node, even if it is stopped."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
