"""A config of NeMo-RL with the files it inherits from (``defaults``) and overrides of a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from rankloom.config.foreign.shell import follow
from rankloom.config.yaml_file import read_value, read_yaml
from rankloom.errors import UserError

__all__ = ["LARGEST", "command_parts", "merged_config", "not_too_large", "read_settings", "with_overrides"]

LARGEST = 1_000_000  # bytes of a file
_MOST_FILES, _MOST_SETTINGS = 40, 20_000
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)\Z", re.DOTALL)


def read_settings(path: Path) -> object:
    """The content of a YAML file. Raises UserError for one that is larger than any job's settings."""
    if path.stat().st_size > LARGEST:
        raise UserError(f"{path} has {path.stat().st_size:,} bytes, and at most {LARGEST:,} are read")
    return not_too_large(read_yaml(path), str(path))


def not_too_large(content: object, origin: str) -> object:
    """The content of a YAML file again. Raises UserError where aliases make it larger than it looks."""
    waiting, count = [content], 0
    while waiting:
        node = waiting.pop()
        inner = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
        waiting += inner
        count += len(inner)
        if count > _MOST_SETTINGS:
            raise UserError(f"{origin} holds more than {_MOST_SETTINGS:,} settings")
    return content


def merged_config(
    content: object, origin: str, folder: Path, *, below: Sequence[Path] = ()
) -> tuple[dict[str, object], list[str]]:
    """(settings, files inherited from): later files win, the config itself over all of them.

    ``folder``: what ``defaults`` is relative to. Raises UserError for a file that is not there or inherits
    from itself.
    """
    if not isinstance(content, Mapping):
        raise UserError(f"{origin} holds no YAML mapping of settings")
    settings, files = dict(content), list[str]()
    parents = settings.pop("defaults", None)
    base: dict[str, object] = {}
    for name in [parents] if isinstance(parents, str) else parents or []:
        path = folder / str(name)
        if path.resolve() in below:
            raise UserError(f"defaults of {origin}: {name} inherits from itself")
        if not path.is_file():
            raise UserError(f"defaults of {origin}: {path} does not exist")
        if len(below) + len(files) > _MOST_FILES:
            raise UserError(f"defaults of {origin}: more than {_MOST_FILES} files are inherited")
        parent, more = merged_config(
            read_settings(path), str(path), path.parent, below=[*below, path.resolve()]
        )
        base = _over(base, parent)
        files += [*more, str(path)]
    return (_over(base, settings) if parents else settings), files


def _over(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """One mapping laid over another, key by key; ``_override_: true`` in a section replaces it whole."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if not isinstance(value, Mapping):
            merged[key] = value
            continue
        body = {k: v for k, v in value.items() if k != "_override_"}
        whole = bool(value.get("_override_", False)) or not isinstance(under, Mapping)
        merged[key] = _over({}, body) if whole else _over(under, body) if isinstance(under, Mapping) else body
    return merged


def command_parts(line: str) -> tuple[str, list[str]]:
    """(config file, overrides) of "uv run examples/run_sft.py --config sft.yaml cluster.num_nodes=2"."""
    invocations = follow(line).invocations
    words = [word.text for word in invocations[-1].words] if invocations else []
    config = ""
    for i, word in enumerate(words):
        if word in ("--config", "-c") and i + 1 < len(words):
            config = words[i + 1]
        elif word.startswith("--config="):
            config = word.removeprefix("--config=")
    return config, [word for word in words if not word.startswith("-") and _OVERRIDE.match(word)]


def with_overrides(settings: Mapping[str, object], overrides: Sequence[str]) -> dict[str, object]:
    """Hydra's ``a.b=value`` laid over the settings."""
    changed = _over({}, settings)
    for text in overrides:
        match = _OVERRIDE.match(text)
        assert match is not None
        value: object = match[2] if "${" in match[2] else _value(text, match[2])
        for part in reversed(match[1].split(".")):
            value = {part: value}
        assert isinstance(value, dict)
        changed = _over(changed, value)
    return changed


def _value(override: str, text: str) -> object:
    try:
        return read_value(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(f"{override[:80]}: the value is not valid YAML") from None
