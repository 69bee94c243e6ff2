"""Launches a stand-in run as the command line would: python -m tests.train.launch ENGINE RUN FOLDER."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rankloom.cli.ending import ending_well
from rankloom.train import ConsoleReporter, TorchrunEnvironment, run_local, run_torchrun
from rankloom.train.local import end_forkserver
from tests.train import runs

TIMEOUT_S = 3.0


def launch(engine: str, run: str, folder: str) -> None:
    function = getattr(runs, run)
    if engine == "local":
        with ConsoleReporter() as reporter:
            try:
                run_local(runs.config(Path(folder)), run=function, reporter=reporter)
            finally:
                end_forkserver()
        return
    environment = TorchrunEnvironment.read(os.environ)
    assert environment is not None
    resolved = runs.config(Path(folder), world_size=environment.world_size, **{"comm.timeout_s": TIMEOUT_S})
    run_torchrun(resolved, environment=environment, reporter=ConsoleReporter(), run=function)


if __name__ == "__main__":
    import typer

    try:
        ending_well(launch, name="train", extra="", packages=(), debug=False)(*sys.argv[1:])
    except typer.Exit as end:
        sys.exit(end.exit_code)
