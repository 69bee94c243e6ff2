"""Where the rows of a run go besides the display: the metrics file, TensorBoard, Weights & Biases.

All are written by the first rank alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rankloom.config import ResolvedConfig
from rankloom.config.findings import Finding
from rankloom.errors import RunError
from rankloom.plan.exported import folders_of_export, model_folder
from rankloom.train.metrics import MetricsFile

__all__ = ["Sink", "TensorBoardSink", "WandbSink", "check_sinks", "open_sinks"]

PACKAGES = (("logging.tensorboard", "tensorboardX", "logging"), ("logging.wandb", "wandb", "wandb"))


class Sink(Protocol):
    """Takes the row of each step, with the keys of ``METRICS_KEYS``."""

    def write(self, row: Mapping[str, object]) -> None: ...

    def sync(self) -> None:
        """What was written so far outlives this machine, as far as that can be had."""

    def close(self) -> None:
        """What was written is complete after this."""


def check_sinks(resolved: ResolvedConfig) -> Iterator[Finding]:
    """Settings whose package is not installed, with the extra that brings it; TensorBoard files that the
    trained model would replace."""
    for key, package, extra in PACKAGES:
        if resolved.value(key) is not None and find_spec(package) is None:
            message = f"{key} needs {package}, which is not installed: pip install 'rankloom[{extra}]'"
            yield Finding("error", "outputs", message, (key,), resolved.where(key))
    board, key = resolved.logging.tensorboard, "logging.tensorboard"
    for folder in folders_of_export(model_folder(resolved.checkpoint.dir)):
        if board is not None and Path(board).resolve().is_relative_to(folder.resolve()):
            message = (
                f"{key}: {board} lies in {folder}, which the trained model replaces; set it to another folder"
            )
            yield Finding("error", "outputs", message, (key,), resolved.where(key))


def open_sinks(resolved: ResolvedConfig, *, through_step: int = 0) -> list[Sink]:
    """All that the config asks for; the metrics file comes first. Of an earlier run, steps after
    ``through_step`` are taken away. The first rank alone opens them."""
    sinks: list[Sink] = [MetricsFile(str(resolved.logging.metrics), keep_through_step=through_step)]
    if resolved.logging.tensorboard is not None:
        sinks.append(TensorBoardSink(Path(resolved.logging.tensorboard), first_step=through_step + 1))
    if resolved.logging.wandb is not None:
        sinks.append(WandbSink(resolved))
    return sinks


def _numbers(row: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """The numbers of a row; those of a mapping in it as "comm_bytes/tp"."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}/{name}", number) for name, number in value.items())
        elif isinstance(value, int | float):
            yield key, value


class TensorBoardSink:
    """Event files in ``folder``. Those of an earlier run there stay, hidden from ``first_step`` on:
    TensorBoard shows the run that wrote a step last."""

    def __init__(self, folder: Path, *, first_step: int = 1) -> None:
        from tensorboardX import SummaryWriter

        self._folder = folder
        try:
            self._writer: Any = SummaryWriter(str(folder), purge_step=first_step, flush_secs=10)
        except OSError as error:
            raise self._not_writable(error) from error

    def write(self, row: Mapping[str, object]) -> None:
        try:
            for name, number in _numbers(row):
                if name != "step":
                    self._writer.add_scalar(name, number, row["step"])
        except OSError as error:
            raise self._not_writable(error) from error

    def sync(self) -> None:
        try:
            self._writer.flush()
        except OSError as error:
            raise self._not_writable(error) from error

    def close(self) -> None:
        try:
            self._writer.close()
        except OSError as error:
            raise self._not_writable(error) from error

    def _not_writable(self, error: OSError) -> RunError:
        return RunError(f"TensorBoard files cannot be written to {self._folder}: {error.strerror or error}")


class WandbSink:
    """A run of Weights & Biases: offline in ``<checkpoint.dir>/wandb``, for ``wandb sync`` to send."""

    def __init__(self, resolved: ResolvedConfig) -> None:
        import wandb

        section = resolved.logging.wandb
        assert section is not None
        try:
            self._run: Any = wandb.init(
                project=section.project,
                name=section.name,
                mode=section.mode,
                dir=resolved.checkpoint.dir,
                config=resolved.to_mapping(),
                settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, save_code=False),
            )
        except (wandb.Error, OSError) as error:
            raise RunError(f"logging.wandb: the run cannot be started: {_one_line(error)}") from error

    def write(self, row: Mapping[str, object]) -> None:
        self._run.log(dict(_numbers(row)), step=row["step"])

    def sync(self) -> None:
        """Its own process writes it, row by row."""

    def close(self) -> None:
        self._run.finish()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
