"""``rankloom checkpoint``: what a run has saved; is it whole; what may go."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from rankloom.checkpoint.folders import Found, find_checkpoint, find_latest, list_checkpoints, prune, verify
from rankloom.checkpoint.manifest import Manifest, read_manifest
from rankloom.errors import UserError
from rankloom.plan.amounts import bytes_text


class Action(StrEnum):
    """What to do."""

    LIST = "list"
    SHOW = "show"
    VERIFY = "verify"
    PRUNE = "prune"


def command(
    action: Annotated[Action, typer.Argument(help="What to do.", show_default=False)],
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The folder of a run's checkpoints (checkpoint.dir) or, for show and verify, one of them.",
            show_default=False,
        ),
    ],
    keep: Annotated[
        int | None, typer.Option(min=1, help="prune: so many of the latest checkpoints stay; left out: all.")
    ] = None,
    keep_every: Annotated[
        int | None, typer.Option(min=1, help="prune: those of steps that this number divides stay, too.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="prune: only say what would go.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="list, show: print JSON, for machines.")] = False,
) -> None:
    """List the checkpoints of a run, show one, verify their checksums, or remove old ones and leftovers."""
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder")
    if action is Action.LIST:
        _list(directory, as_json=as_json)
    elif action is Action.SHOW:
        _show(find_checkpoint(directory), as_json=as_json)
    elif action is Action.VERIFY:
        _verify(directory)
    else:
        _prune(directory, keep=keep, keep_every=keep_every, dry_run=dry_run)


def _list(directory: Path, *, as_json: bool) -> None:
    found, latest = list_checkpoints(directory), find_latest(directory)
    if as_json:
        typer.echo(json.dumps([_facts(one, latest) for one in found]))
        return
    if not found:
        typer.echo(f"no checkpoints in {directory}")
        return
    rows = [("name", "step", "size", "samples", "saved on", "")]
    for one in found:
        facts = _facts(one, latest)
        whole = "latest" if facts["latest"] else "complete"
        samples = facts["consumed_samples"]
        rows.append(
            (
                facts["name"],
                str(one.step),
                bytes_text(facts["bytes"]),
                "" if samples is None else f"{samples:,}",
                facts["layout"] or "",
                f"incomplete: {one.reason}" if one.reason else whole,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, step, size, samples, layout, state in rows:  # as long as they are: nothing is cut or wrapped
        right = (step.rjust(widths[1]), size.rjust(widths[2]), samples.rjust(widths[3]))
        typer.echo("  ".join((name.ljust(widths[0]), *right, layout.ljust(widths[4]), state)).rstrip())


def _facts(found: Found, latest: Path | None) -> dict[str, Any]:
    manifest = found.manifest
    return {
        "name": found.path.name,
        "step": found.step,
        "complete": found.complete,
        "reason": found.reason,
        "latest": found.path == latest,
        "bytes": found.num_bytes,
        "consumed_samples": manifest.state.get("consumed_samples") if manifest else None,
        "layout": manifest.layout.describe() if manifest else None,
    }


def _show(folder: Path, *, as_json: bool) -> None:
    manifest = read_manifest(folder)
    facts = _all_facts(folder, manifest)
    if as_json:
        typer.echo(json.dumps({**facts, "state": manifest.state, "config": manifest.config}))
        return
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<18}{f'{value:,}' if isinstance(value, int) else value}")
    typer.echo("state")
    for line in json.dumps(manifest.state, indent=2).splitlines():
        typer.echo(f"  {line}")


def _all_facts(folder: Path, manifest: Manifest) -> dict[str, Any]:
    spec = manifest.model.spec
    kinds = sorted({name.split("/")[0] for name in manifest.tensors})
    return {
        "checkpoint": str(folder),
        "step": manifest.step,
        "num_updates": manifest.num_updates,
        "saved_on": manifest.layout.describe(),
        "model": f"{spec.family}, {spec.num_parameters:,} parameters, {manifest.model.dtype}"
        + (", tied" if manifest.model.tied else ""),
        "tensors": f"{len(manifest.tensors):,} ({', '.join(kinds)})",
        "files": f"{len(manifest.files):,}, {bytes_text(manifest.num_bytes)}",
        "rankloom_version": manifest.rankloom_version,
    }


def _verify(directory: Path) -> None:
    """All complete ones of a folder; leftovers of interrupted saves are named and are no damage."""
    listed = list_checkpoints(directory)
    folders = [found.path for found in listed if not found.leftover] or [find_checkpoint(directory)]
    damaged = []
    for folder in folders:
        try:
            manifest = verify(folder)
        except UserError as error:
            damaged.append(str(error))
            continue
        files = f"{len(manifest.files):,} file{'s' * (len(manifest.files) != 1)}"
        size = bytes_text(manifest.num_bytes)
        typer.echo(f"{folder.name}: whole ({files}, {size}, every checksum is right)")
    for found in listed:
        if found.leftover:
            typer.echo(f"{found.path.name}: left over ({found.reason}); the next save or prune removes it")
    if damaged:
        raise UserError("\n".join(damaged))


def _prune(directory: Path, *, keep: int | None, keep_every: int | None, dry_run: bool) -> None:
    with _no_run_in(directory):
        gone = prune(directory, keep=keep, keep_every=keep_every, dry_run=dry_run)
    for path in gone:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {path}")
    if not gone:
        typer.echo("nothing to remove")


@contextmanager
def _no_run_in(directory: Path) -> Iterator[None]:
    """A run holds the lock of its folder; the checkpoint it is writing looks like a leftover."""
    lock = directory / ".lock"
    if not lock.is_file():
        yield
        return
    with lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"a run is using this folder: {directory}; wait for its end") from None
        yield
