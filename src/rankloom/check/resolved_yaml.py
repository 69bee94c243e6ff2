"""A config with everything filled in and the source of each value beside it: valid input for a real run."""

from __future__ import annotations

import json

import yaml

from rankloom.config.examine import Examined
from rankloom.config.schema import SECTIONS

__all__ = ["resolved_yaml"]


def resolved_yaml(examined: Examined) -> str:
    """The settings as YAML, each with a comment that says where it came from.

    Sections in which a value was refused are left out; a comment stands in their place.
    """
    lines: list[str] = []
    for name, kind in SECTIONS.items():
        section = examined.get(kind)
        if section is None:
            lines.append(f"# {name}: cannot be resolved")
            continue
        lines.append(f"{name}:")
        for key, value in section.model_dump(mode="json").items():
            source = examined.place(f"{name}.{key}").source
            lines.append(f"  {key}: {_scalar(value)}  # {source}")
    return "\n".join(lines) + "\n"


def _scalar(value: object) -> str:
    """The value on one line, as YAML that reads back as the same value."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"))
    return text.removesuffix("\n...\n").removesuffix("\n")
