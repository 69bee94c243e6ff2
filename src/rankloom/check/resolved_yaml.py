"""A config with everything filled in and the source of each value beside it: valid input for a real run."""

from __future__ import annotations

import json

import yaml

from rankloom.config.examine import Examined
from rankloom.config.schema import SECTIONS

__all__ = ["resolved_yaml"]


def resolved_yaml(examined: Examined) -> str:
    """The settings as YAML, each with a comment that says where it came from.

    A comment stands in the place of a value that was refused, or of a section that could not be made.
    """
    lines: list[str] = []
    for name, kind in SECTIONS.items():
        section = examined.get(kind)
        if section is None:
            lines.append(f"# {name}: cannot be resolved")
            continue
        lines.append(f"{name}:")
        for key, value in section.model_dump(mode="json").items():
            path = f"{name}.{key}"
            written = f"  {key}: {_scalar(value)}  # {examined.place(path).source}"
            lines.append(f"  # {key}: refused" if path in examined.refused else written)
    return "\n".join(lines) + "\n"


def _scalar(value: object) -> str:
    """The value on one line, as YAML that reads back as the same value."""
    if isinstance(value, dict | list) or (isinstance(value, str) and not value.isprintable()):
        return json.dumps(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"))
    return text.removesuffix("\n...\n").removesuffix("\n")
