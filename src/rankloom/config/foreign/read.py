"""Reads a job of another program from a file, standard input or, for Megatron-LM, the shell line itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import yaml

from rankloom.config.foreign.flags import FLAGS
from rankloom.config.foreign.job import ForeignJob
from rankloom.config.foreign.megatron_text import job_of_shell, job_of_yaml, scripts_in
from rankloom.config.foreign.nemo_rl import job_of_settings
from rankloom.config.foreign.nemo_rl_files import (
    LARGEST,
    command_parts,
    merged_config,
    not_too_large,
    read_settings,
    with_overrides,
)
from rankloom.config.foreign.nemo_rl_reader import is_nemo_rl
from rankloom.config.schema import SECTIONS
from rankloom.config.yaml_file import read_value
from rankloom.errors import UserError

__all__ = ["read_foreign"]

_YAML = (".yaml", ".yml")


def read_foreign(program: str, source: str, *, rank_order: str | None = None) -> ForeignJob:
    """The job of another program ("megatron" or "nemo-rl") in our keys; nothing is executed.

    ``source`` is a path, "-" for standard input or, for Megatron-LM, the shell line itself. ``rank_order``
    is the user's choice. Raises UserError when there is no such file or no such job in it; what is wrong
    with the job itself is among its findings.
    """
    reader = _READERS.get(program)
    if reader is None:
        raise UserError(f"--from {program}: the programs that can be read are {' and '.join(_READERS)}")
    if not source.strip():
        raise UserError(f"--from {program}: the name of the job's file is empty")
    try:
        return reader(source, rank_order)
    except RecursionError:
        raise UserError(f"{source[:80]} is nested too deeply to be read") from None


def _megatron(source: str, rank_order: str | None) -> ForeignJob:
    path = Path(source)
    in_file = source == "-" or _is_file(path)
    if not in_file and not any(c.isspace() for c in source) and not source.startswith("-"):
        raise UserError(
            f"{source} does not exist; --from megatron takes a launch script, a file of arguments, or the "
            f"shell line itself in quotes"
        )
    origin = "standard input" if source == "-" else source if in_file else "the command line"
    if in_file and path.suffix.lower() in _YAML:
        return _megatron_yaml(read_settings(path), origin, rank_order)
    text = _text_of(path, source) if in_file else source
    job = job_of_shell(text, origin=origin, in_file=in_file, rank_order=rank_order)
    if job is not None:
        return job
    content = _as_yaml(text)
    if content is not None:
        return _megatron_yaml(not_too_large(content, origin), origin, rank_order)
    hint = "is it a launch script of Megatron-LM, a file of its arguments, or a shell line with them?"
    if started := scripts_in(text):
        hint = f"it starts {' and '.join(started)}: is it the one to read?"
    raise UserError(f"no Megatron-LM argument was found in {origin}; {hint}")


def _megatron_yaml(content: object, origin: str, rank_order: str | None) -> ForeignJob:
    if not isinstance(content, Mapping):
        raise UserError(f"{origin} holds no YAML mapping of Megatron-LM arguments")
    if is_nemo_rl(content):
        raise UserError(f"{origin} is a config of NeMo-RL; use --from nemo-rl")
    _refuse_ours(content, origin)
    job = job_of_yaml(content, origin=origin, rank_order=rank_order)
    if job is None:
        raise UserError(
            f"no Megatron-LM argument was found in {origin}; is it a YAML file of Megatron-LM arguments?"
        )
    return job


def _is_file(path: Path) -> bool:
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder; name the file in it")
        return path.is_file()
    except (OSError, ValueError):  # a shell line that is too long for a path, or has a NUL in it
        return False


def _text_of(path: Path, source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _as_yaml(text: str) -> Mapping[str, object] | None:
    """The mapping in a text; None where it is none, or too large to be a job's."""
    if len(text) > LARGEST:
        return None
    try:
        content = read_value(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return content if isinstance(content, Mapping) else None


def _refuse_ours(content: Mapping[str, object], origin: str) -> None:
    """Raises UserError for a config of rankloom: all its keys are ours."""
    ours = set(content) <= set(SECTIONS) and all(
        isinstance(body, Mapping) and set(body) <= set(SECTIONS[name].model_fields)
        for name, body in content.items()
    )
    if "parallel" in content or (content and ours):
        raise UserError(f"{origin} is a config of rankloom; leave out --from")


def _nemo_rl(source: str, rank_order: str | None) -> ForeignJob:
    name, overrides = source, list[str]()
    if source != "-" and not _is_file(Path(source)) and any(c.isspace() for c in source):
        name, overrides = command_parts(source)
        if not name:
            raise UserError(f"no --config was found in {source!r}; name the YAML file of the NeMo-RL job")
    path = Path(name)
    if name == "-":
        content: object = not_too_large(_as_yaml(sys.stdin.read()), "standard input")
        origin = "standard input"
    else:
        if not _is_file(path):
            raise UserError(f"{name} does not exist; --from nemo-rl takes the YAML file of a job")
        origin, content = name, _nemo_rl_content(path)
    settings, inherited = merged_config(content, origin, path.parent, below=[path.resolve()])
    settings = with_overrides(settings, overrides)
    _refuse_ours(settings, origin)
    if not is_nemo_rl(settings):
        raise UserError(
            f"no NeMo-RL setting was found in {origin}; is it a config of NeMo-RL, with a policy section?"
        )
    read = tuple(f"defaults: {file}" for file in inherited)
    overridden = frozenset(text.lstrip("+").partition("=")[0] for text in overrides)
    return job_of_settings(settings, origin=origin, rank_order=rank_order, read=read, overridden=overridden)


def _nemo_rl_content(path: Path) -> object:
    """The YAML in a file. Raises UserError, for arguments of Megatron-LM too."""
    text = _text_of(path, str(path))
    content = _as_yaml(text)
    flat = set(content or ()) & {name.replace("-", "_") for name in FLAGS}
    if flat or any(f"--{name}" in text for name in ("tensor-model-parallel-size", "micro-batch-size")):
        raise UserError(f"{path} looks like arguments of Megatron-LM; use --from megatron")
    return read_settings(path)


_READERS: Mapping[str, Callable[[str, str | None], ForeignJob]] = MappingProxyType(
    {"megatron": _megatron, "nemo-rl": _nemo_rl}
)
