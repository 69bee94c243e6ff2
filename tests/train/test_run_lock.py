"""One run at a time in a folder; the lock ends with whoever holds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankloom.errors import UserError
from rankloom.train import run_local
from rankloom.train.reporting import SilentReporter
from rankloom.train.run_lock import run_lock
from tests.train import runs
from tests.train.processes import ROOT

HOLD = """
import sys, time
from pathlib import Path
from rankloom.train.run_lock import run_lock
from tests.train import runs
with run_lock(runs.config(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_and_a_later_one_is_not(tmp_path: Path) -> None:
    resolved = runs.config(tmp_path)
    with run_lock(resolved):
        with pytest.raises(UserError, match=r"another run is using this folder: .*run; .*checkpoint.dir"):
            run_local(resolved, run=runs.well, reporter=SilentReporter())
        assert not (tmp_path / "run/logs").exists()
    with run_lock(resolved):
        pass


def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="another run"), run_lock(runs.config(tmp_path)):
        pass
    holder.kill()
    holder.communicate()
    with run_lock(runs.config(tmp_path)):
        pass
