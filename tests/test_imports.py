"""The describing half and ``rankloom --help`` load no training library: they work where none is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

DEMO = str(Path(__file__).resolve().parents[1] / "examples/demo/demo.yaml")
HEAVY = ("torch", "transformers", "tokenizers", "safetensors", "ray")
DESCRIBING = ("errors", "layout", "config", "plan", "records", "explain", "check", "cli")

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
    if module.name not in {skipped!r}:
        importlib.import_module(module.name)
"""
RUN = """
import sys
from rankloom.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert not ended.code, ended.code
"""
REPORT = f"""
print("loaded:", *[name for name in {HEAVY!r} if name in sys.modules])
"""
# Commands of the running half: they are imported when used.
RUNNING_COMMANDS = ("rankloom.cli.train",)


def loaded_by(code: str, *arguments: str) -> str:
    """The heavy packages loaded by a fresh interpreter that runs this code."""
    done = subprocess.run(
        [sys.executable, "-c", code + REPORT, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].removeprefix("loaded:").strip()


@pytest.mark.parametrize(
    "package", [f"rankloom.{name}" for name in DESCRIBING if find_spec(f"rankloom.{name}")]
)
def test_describing_half_is_light(package: str) -> None:
    assert loaded_by(IMPORT_ALL.format(skipped=RUNNING_COMMANDS), package) == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("layout", "--help"),
        ("layout", "--world-size", "8"),
        ("layout", "--world-size", "8", "--json"),
        ("layout", DEMO),
        ("check", DEMO),
        ("check", DEMO, "--json"),
        ("check", DEMO, "--resolved"),
        ("explain", DEMO),
        ("compare", DEMO, "--parallel.context_parallel_size", "1"),
    ],
    ids=lambda arguments: " ".join(Path(word).name for word in arguments),
)
def test_commands_that_describe_are_light(arguments: tuple[str, ...]) -> None:
    assert loaded_by(RUN, *arguments) == ""


def test_running_as_a_module() -> None:
    command = [sys.executable, "-m", "rankloom", "layout", "--world-size", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    message = (
        "cluster.world_size must be an integer of at least 1, or null, not 0 (given on the command line)"
    )
    assert done.stderr == f"rankloom layout: {message}\n"
