"""How commands end: messages, exit codes, tracebacks, missing extras; and that help imports nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import typer

import rankloom.cli
from rankloom import __version__
from rankloom.cli import COMMANDS, Command, main
from rankloom.errors import RunError, UserError


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code if isinstance(ended.value.code, int) else 0


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command ``probe`` that exists for one test; the test sets its function ``command``."""
    module = ModuleType("probe_command")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(rankloom.cli.COMMANDS, "probe", Command(module.__name__, "A probe."))
    return module


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("no such file: a.yaml"), 2, "no such file: a.yaml"),
        (RunError("rank 3 died"), 1, "rank 3 died"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (TypeError("boom"), 1, "internal error, TypeError: boom (add --debug to see where)"),
        (
            ModuleNotFoundError("No module named 'ray.util'", name="ray.util"),
            2,
            "this command needs ray, which the 'ray' extra brings: pip install 'rankloom[ray]'",
        ),
        (ModuleNotFoundError("no 'foo'", name="foo"), 2, "a Python module is missing: no 'foo'"),
    ],
)  # fmt: skip
def test_errors(
    probe: ModuleType, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    def command() -> None:
        raise error

    probe.command = command  # type: ignore[attr-defined]
    assert run(["probe"]) == code
    assert capsys.readouterr().err == f"rankloom probe: {message}\n"
    assert run(["probe", "--debug"]) == code
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_a_command_like_ctrl_c(probe: ModuleType, number: signal.Signals) -> None:
    def command() -> None:
        signal.raise_signal(number)
        time.sleep(10)

    before = signal.getsignal(number)
    probe.command = command  # type: ignore[attr-defined]
    assert run(["probe"]) == 130
    assert signal.getsignal(number) is before


def test_an_ignored_hangup_stays_ignored(probe: ModuleType) -> None:
    probe.command = lambda: signal.raise_signal(signal.SIGHUP)  # type: ignore[attr-defined]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(["probe"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_typer_exits_pass_through(probe: ModuleType) -> None:
    def command() -> None:
        raise typer.Exit(7)

    probe.command = command  # type: ignore[attr-defined]
    assert run(["probe"]) == 7


def test_a_missing_extra_is_named_before_the_command_runs(
    probe: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probe.command = lambda: None  # type: ignore[attr-defined]
    row = Command(probe.__name__, "A probe.", extra="train", packages=("json", "no_such_package"))
    monkeypatch.setitem(rankloom.cli.COMMANDS, "probe", row)
    assert run(["probe"]) == 2
    assert capsys.readouterr().err == (
        "rankloom probe: this command needs no_such_package, which the 'train' extra brings:"
        " pip install 'rankloom[train]'\n"
    )


def test_override_arguments_reach_the_command(probe: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def command(ctx: typer.Context, config: str) -> None:
        seen.extend([config, *ctx.args])

    probe.command = command  # type: ignore[attr-defined]
    command.__annotations__.update(ctx=typer.Context, config=str)
    monkeypatch.setitem(rankloom.cli.COMMANDS, "probe", Command(probe.__name__, "A probe.", overrides=True))
    assert run(["probe", "a.yaml", "--train.max_steps", "3", "--optimizer.lr=-1", "--x.y", "-2", "word"]) == 0
    assert seen == ["a.yaml", "--train.max_steps", "3", "--optimizer.lr=-1", "--x.y", "-2", "word"]


@pytest.mark.parametrize(
    "arguments",
    [["layout", "--world-size", "8"], ["check", "--world-size", "8", "--json"], ["check", "--help"]],
)
def test_a_full_disk_ends_a_command_with_a_message(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rankloom", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (
        1,
        f"rankloom {arguments[0]}: the output cannot be written: No space left on device\n",
    )


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("before", [[], ["b.yaml"], ["b.yaml", "--train.max_steps", "3"]])
def test_help_may_stand_behind_the_config(capsys: pytest.CaptureFixture[str], before: list[str]) -> None:
    assert run(["train", *before, "--help"]) == 0
    assert "Train the model of a config file" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"rankloom {__version__}\n"


def test_unknown_commands_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trian"]) == 2
    assert "No such command 'trian'" in capsys.readouterr().err


def test_a_command_whose_module_lacks_a_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "probe_of_ray.py").write_text("import ray.no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(rankloom.cli.COMMANDS, "probe", Command("probe_of_ray", "A probe."))
    assert run(["probe"]) == 2
    assert capsys.readouterr().err == (
        "rankloom probe: this command needs ray, which the 'ray' extra brings: pip install 'rankloom[ray]'\n"
    )


def test_help_shows_whole_option_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layout", "--help"]) == 0
    assert "--tensor-parallel-num-sequence-shards" in capsys.readouterr().out
