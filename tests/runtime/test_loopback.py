"""The bytes we count are the bytes that travel: compared with the loopback interface's own counter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime import loopback

ALONE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]


def _can_be_alone() -> bool:
    try:
        return subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not _can_be_alone(), reason="needs a network namespace, so that nobody else is counted")
def test_counted_bytes_are_those_of_the_loopback_interface(tmp_path: Path) -> None:
    command = [*ALONE, sys.executable, "-m", "tests.runtime.loopback", str(tmp_path / "store")]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    bytes_of = json.loads(done.stdout)
    per_member = loopback.TIMES * 2 * (loopback.RANKS - 1) * loopback.NUMEL * 4
    assert bytes_of["counted"] == loopback.RANKS * per_member
    assert bytes_of["counted"] <= bytes_of["seen"] <= 1.03 * bytes_of["counted"]  # headers, acknowledgements
