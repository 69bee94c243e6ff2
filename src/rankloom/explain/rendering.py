"""Templates, style and scripts of the pages: found beside this file, put together into one document."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rankloom.plan.amounts import bytes_text

__all__ = ["num_text", "render", "size_text"]

STYLES = ("base", "maps", "sections", "print")


def render(template: str, *, scripts: tuple[str, ...], facts: str, **values: object) -> str:
    """The document made from a template. ``facts`` is JSON that is safe in a script element; everything else
    is escaped."""
    return (
        _environment()
        .get_template(template)
        .render(
            style=Markup("\n".join(_source(f"{name}.css") for name in STYLES)),
            script=Markup("\n".join(_source(f"{name}.js") for name in scripts)),
            facts=Markup(facts),
            **values,
        )
    )


def size_text(num_bytes: int | None) -> str:
    """Bytes for people, a dash where they are not known."""
    return "-" if num_bytes is None else bytes_text(num_bytes)


def num_text(number: int) -> str:
    """A whole number with separators: "16,384"."""
    return f"{number:,}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rankloom.explain", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(bytes=size_text, number=num_text)
    return environment


@cache
def _source(name: str) -> str:
    return files("rankloom.explain").joinpath("templates", name).read_text(encoding="utf-8")
