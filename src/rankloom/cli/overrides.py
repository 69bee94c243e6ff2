"""``--key.sub VALUE`` arguments: settings of the config given on the command line."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import yaml

from rankloom.errors import UserError

_KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")

_WORD = re.compile(r"--[\w.-]*\w")

_YAML_SIGNS = "*&!%@`|>"  # alias, anchor, tag, directive, reserved, block text


def split_settings(args: Sequence[str], *, options: Collection[str]) -> tuple[list[str], list[str]]:
    """The arguments that are a command's own, and the ``--key.sub VALUE`` among them, wherever they stand.

    ``options``: its options. Another ``--word`` counts as a setting, for `parse_overrides` to refuse.

    >>> split_settings(["--train.seed", "3", "run.yaml", "--json"], options=["--json"])
    (['run.yaml', '--json'], ['--train.seed', '3'])
    """
    own: list[str] = []
    settings: list[str] = []
    remaining = list(args)
    while remaining:
        argument = remaining.pop(0)
        name, has_value, _ = argument.partition("=")
        is_shell_line = "." not in name and bool(re.search(r"\s", argument))
        if name in options or is_shell_line or not _WORD.fullmatch(name):
            own.append(argument)
            continue
        settings.append(argument)
        if "." in name and not has_value and remaining and not remaining[0].startswith("--"):
            settings.append(remaining.pop(0))
    return own, settings


def parse_overrides(args: Sequence[str]) -> dict[str, object]:
    """Dotted keys and their values, parsed as YAML, from ``--key.sub VALUE`` and ``--key.sub=VALUE``.

    Hyphens in a key count as underscores, and the last of several values for one key wins. YAML 1.1 reads
    ``3e-4`` as a string; the schema turns it into a number where one is wanted. An empty value is an empty
    text. Raises UserError for a word without a key, a key without a value, a key without a section, or a
    value that is not YAML.

    >>> parse_overrides(["--train.max_steps", "20", "--optimizer.betas=[0.9, 0.99]"])
    {'train.max_steps': 20, 'optimizer.betas': [0.9, 0.99]}
    """
    overrides: dict[str, object] = {}
    remaining = list(args)
    while remaining:
        argument = remaining.pop(0)
        if not argument.startswith("--") or argument == "--":
            raise UserError(f"{argument!r} does not belong to any --key.sub; write --key.sub VALUE")
        key, has_value, text = argument[2:].partition("=")
        key = _checked_key(key)
        if not has_value:
            # A value may start with one hyphen (a negative number) but not with two: that is the next key.
            if not remaining or remaining[0].startswith("--"):
                raise UserError(f"--{key} has no value; write --{key} VALUE")
            text = remaining.pop(0)
        overrides[key] = _value(key, text)
    return overrides


def _checked_key(key: str) -> str:
    typed, key = key, key.replace("-", "_")
    if not _KEY.fullmatch(key):
        raise UserError(
            f"--{typed} is not an option of this command; a setting is written with its section,"
            f" as in --train.max_steps 20"
        )
    return key


def _value(key: str, text: str) -> object:
    if not text.strip():
        return text  # YAML reads nothing as null, which would quietly mean the default
    if text[0] in _YAML_SIGNS:
        raise UserError(
            f"the value of --{key} starts with {text[0]}, which means something else in YAML; quote it: "
            f"'\"{text}\"', or as an entry of a list '[\"{text}\"]'"
        )
    from rankloom.config.shown import shown  # not before a command needs them
    from rankloom.config.yaml_file import read_value

    try:
        return read_value(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = getattr(error, "problem", None) or str(error)[:100]
        raise UserError(f"the value of --{key} is not valid YAML: {shown(text)} ({reason})") from error
