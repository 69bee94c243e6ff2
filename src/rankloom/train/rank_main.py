"""What the process of one rank does around the training itself: watchdog, phases, failure records, its end.

Imported by the launcher too, which needs ``RankTask`` and ``local_rank_main`` by name; so torch is imported
inside.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from rankloom.config import ResolvedConfig
from rankloom.errors import RankloomError
from rankloom.train.failures import FailureKind, FailureRecord
from rankloom.train.rank_files import PhaseFile, RankFiles
from rankloom.train.reporting import ForwardingReporter, Reporter, SilentReporter
from rankloom.train.stopping import STOP_SIGNALS, Deadline, StopFile, Stopping

if TYPE_CHECKING:
    from torch.distributed import Store

    from rankloom.comm.activity import Activity

__all__ = ["RankTask", "RunFunction", "last_user_frame", "local_rank_main", "run_watched", "train"]


_WORTH_TELLING_S = 0.1


class RunFunction(Protocol):
    """Trains as one rank of ``resolved.layout``: joins the process group at ``init_method``, returns a
    summary.

    The summary (of rank 0) has the keys of ``rankloom.train.display.SUMMARY_KEYS``; the caller reports it.
    ``activity`` is to be told phases, launches and waits; ``stopping`` is looked at in every step.
    """

    def __call__(
        self,
        resolved: ResolvedConfig,
        *,
        rank: int,
        local_rank: int,
        world_size: int,
        init_method: str,
        reporter: Reporter,
        activity: Activity,
        stopping: Stopping,
    ) -> Mapping[str, object]: ...


def train(
    resolved: ResolvedConfig,
    *,
    rank: int,
    local_rank: int,
    world_size: int,
    init_method: str,
    reporter: Reporter,
    activity: Activity,
    stopping: Stopping,
) -> Mapping[str, object]:
    """The RunFunction of real runs."""
    started = time.monotonic()
    from rankloom.train.loop import run_rank

    import_s = time.monotonic() - started
    if import_s > _WORTH_TELLING_S:  # not where ranks are forked from a process that has it
        reporter.phase("import the libraries", import_s)
    return run_rank(
        resolved,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        init_method=init_method,
        reporter=reporter,
        activity=activity,
        stopping=stopping,
    )


@dataclass(frozen=True)
class RankTask:
    """Everything a local rank is started with. ``launched_at`` is seconds since 1970; ``deadline``: when the
    run has to have ended."""

    resolved: ResolvedConfig
    rank: int
    world_size: int
    files: RankFiles
    run: RunFunction
    num_threads: int
    launched_at: float
    deadline: Deadline | None = None


def local_rank_main(task: RankTask, events: Connection | None) -> None:
    """The process of one rank of the local engine; ``events`` is rank 0's way to the display."""
    from setproctitle import setproctitle

    setproctitle(f"rankloom rank {task.rank}")  # for ps, top and py-spy
    _die_with_launcher()
    _print_to(task)
    try:
        _run_local_rank(task, events)
    except BaseException as error:
        _end_badly(error, task)


def run_watched(
    resolved: ResolvedConfig,
    *,
    run: RunFunction,
    rank: int,
    local_rank: int,
    init_method: str,
    reporter: Reporter,
    activity: Activity,
    stopping: Stopping,
    connect: Callable[[], Store],
    on_hang: Callable[[str], None],
) -> None:
    """``run`` under the watchdog, then its summary to the reporter. Same for every engine."""
    from rankloom.comm.watchdog import Watchdog

    layout = resolved.layout
    watchdog = Watchdog(
        activity, connect, layout, rank=rank, timeout_s=resolved.comm.timeout_s, on_failure=on_hang
    )
    watchdog.start()
    summary = run(
        resolved,
        rank=rank,
        local_rank=local_rank,
        world_size=layout.world_size,
        init_method=init_method,
        reporter=reporter,
        activity=activity,
        stopping=stopping,
    )
    watchdog.stop()
    reporter.finish(summary)


def last_user_frame(error: BaseException) -> str:
    """ "file:line in function" of the innermost frame that is not a library's."""
    from rankloom.comm.activity import user_frame

    frames = traceback.extract_tb(error.__traceback__)
    return user_frame((frame.filename, frame.lineno or 0, frame.name) for frame in frames)


def _run_local_rank(task: RankTask, events: Connection | None) -> None:
    import torch
    from torch.distributed import FileStore

    from rankloom.comm.activity import Activity

    torch.set_num_threads(task.num_threads)
    reporter: Reporter = SilentReporter() if events is None else ForwardingReporter(events.send)
    reporter.phase("start the ranks", time.time() - task.launched_at)
    rendezvous = task.files.folder / "rendezvous"
    run_watched(
        task.resolved,
        run=task.run,
        rank=task.rank,
        local_rank=task.rank,
        init_method=f"file://{rendezvous}",
        reporter=reporter,
        activity=Activity(on_phase=PhaseFile(task.files.phase).write),
        stopping=Stopping(
            asked=StopFile(task.files.stop).asked,
            deadline=task.deadline,
            arm=_leave_signals_to_launcher if task.resolved.checkpoint.saves else None,
        ),
        connect=lambda: FileStore(f"{rendezvous}.watchdog", task.world_size),
        on_hang=lambda report: _write_hang(report, task),
    )


def _write_hang(report: str, task: RankTask) -> None:
    phase = PhaseFile.read(task.files.phase)
    FailureRecord(task.rank, FailureKind.RUN, phase, report).write(task.files.failure)


def _end_badly(error: BaseException, task: RankTask) -> NoReturn:
    """Leave a record and go at once, so that the other ranks notice; nothing here is worth closing."""
    phase = PhaseFile.read(task.files.phase)
    record = FailureRecord.of(error, rank=task.rank, phase=phase, place=last_user_frame(error))
    record.write(task.files.failure)
    if not isinstance(error, RankloomError):
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(error.exit_code if isinstance(error, RankloomError) else 1)


def _leave_signals_to_launcher() -> None:
    """A scheduler may send its signal to every process of a job."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _die_with_launcher() -> None:
    """End when the launcher does, however it ends; Ctrl-C is for the launcher alone to act on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_wait_for_launcher, name="launcher-watch", daemon=True).start()
    if sys.platform == "linux":
        _die_with_forkserver()


def _wait_for_launcher() -> None:
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    wait([launcher.sentinel])
    os._exit(1)


def _die_with_forkserver() -> None:
    """Reach a rank that is stopped or never lets a thread run: the kernel kills it when its parent ends.

    The parent is the forkserver, which ends when the launcher does, once no rank holds the other end of its
    pipe.
    """
    import ctypes

    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


def _print_to(task: RankTask) -> None:
    """Send all this process prints, also from C++, to the rank's log; crashes print their Python stack."""
    log = os.open(task.files.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        os.dup2(log, number)
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.close(log)
    faulthandler.enable()
    _use_loopback()


def _use_loopback() -> None:
    """All ranks are on this machine: gloo need not ask what the host's name resolves to."""
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
