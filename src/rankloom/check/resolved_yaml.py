"""A config with everything filled in and the source of each value beside it: valid input for a real run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import yaml

from rankloom.config.examine import Examined
from rankloom.config.foreign.job import ForeignJob
from rankloom.config.schema import SECTIONS
from rankloom.config.values import ELEMENT_BYTES
from rankloom.errors import printable

__all__ = ["resolved_yaml"]

STEPS = re.compile(r"--train-iters (\d+)")
NEEDED = ("model.config", "model.dtype", "data.train", "train.global_batch_size", "train.max_steps")


def resolved_yaml(examined: Examined) -> str:
    """The settings as YAML, each with a comment that says where it came from.

    A comment stands in the place of a value that was refused, or of a section that could not be made. Of
    another program's job only what it says is there, with a comment at the top that names what is missing.
    """
    if examined.foreign is not None:
        return _translation(examined, examined.foreign)
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


def _translation(examined: Examined, foreign: ForeignJob) -> str:
    said = {key: (value, where) for key, value, where in _said(examined, foreign)}
    missing = ", ".join(key for key in NEEDED if key not in said)
    lines = [
        f"# What {json.dumps(foreign.origin)} ({foreign.program}) says, in settings of rankloom.",
        "# It is no whole config: the optimizer and its schedule are not translated.",
        *[f"# A run needs besides: {missing}"] * bool(missing),
    ]
    for name in SECTIONS:
        inside = {key: each for key, each in said.items() if key.startswith(f"{name}.")}
        lines += [f"{name}:"] * bool(inside)
        lines += [
            f"  {key.split('.')[1]}: {_scalar(value)}  # {_comment(where)}"
            for key, (value, where) in inside.items()
        ]
    return "\n".join(lines) + "\n"


def _said(examined: Examined, foreign: ForeignJob) -> Iterator[tuple[str, object, str]]:
    """(key, value, where it was said) of everything that the job or the command line says."""
    for name, kind in SECTIONS.items():
        section = examined.get(kind)
        for key, value in section.model_dump(mode="json").items() if section is not None else ():
            path = f"{name}.{key}"
            if examined.overlay.values.get(path) is not None and path not in examined.refused:
                yield path, value, examined.where(path)
    given = examined.overlay.values
    if foreign.model is not None and "model.config" not in given and "model.path" not in given:
        yield "model.config", dict(foreign.model), foreign.origin
    dtypes = {size: dtype for dtype, size in ELEMENT_BYTES.items()}
    halves = any(re.search(r"\b(fp16|float16)\b", text) for text in foreign.read)
    if foreign.element_size in dtypes and not halves and "model.dtype" not in given:
        yield "model.dtype", dtypes[foreign.element_size], foreign.origin
    steps = next((found[1] for text in foreign.read if (found := STEPS.fullmatch(text))), None)
    if steps is not None and "train.max_steps" not in given:
        yield "train.max_steps", int(steps), f"--train-iters in {foreign.origin}"


def _scalar(value: object) -> str:
    """The value on one line, as YAML that reads back as the same value."""
    if isinstance(value, dict | list) or (isinstance(value, str) and not value.isprintable()):
        return json.dumps(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"))
    return text.removesuffix("\n...\n").removesuffix("\n")


def _comment(text: str) -> str:
    """The text on one line, whatever the name of a file is."""
    return printable(" ".join(text.split()))
