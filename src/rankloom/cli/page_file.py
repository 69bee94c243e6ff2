"""Writing an HTML page where the user wants it."""

from __future__ import annotations

from pathlib import Path

import typer

from rankloom.errors import UserError

__all__ = ["write_page"]


def write_page(path: Path, html: str) -> None:
    """Write a page, taking the place of an earlier one, and say where it is.

    Raises UserError where it cannot be written, or would take the place of a file that is no page.
    """
    if str(path) in (".", "-") or path.is_dir():
        named = {".": "no file", "-": "standard output"}.get(str(path), f"the folder {path}")
        raise UserError(f"-o names {named}; name a file for the page, as in -o page.html")
    try:
        if path.is_file() and path.stat().st_size and not _is_page(path):
            raise UserError(f"{path} is not an HTML page, and is left as it is; name another file")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UserError(f"the page {path} cannot be written: {error.strerror or error}") from error
    typer.echo(f"wrote {path} ({len(html.encode()) / 1000:,.0f} kB); open it in a browser")


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip().lower().startswith(b"<!doctype html")
