"""Reading YAML as people expect it: no key twice, ``3e-4`` is a number, and errors with file and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from pathlib import Path

import yaml

from rankloom.errors import UserError

MOST_NESTED = 50
MOST_ENTRIES = 10**6

__all__ = ["as_number", "read_value", "read_yaml"]

# YAML 1.1, which PyYAML reads, wants a dot and a signed exponent; YAML 1.2 and everybody write 3e-4 and 1e6.
_EXPONENT_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")


class _Values(yaml.SafeLoader):
    """SafeLoader without sexagesimal numbers: 18:30 is a time of day and not 1110."""


def _as_number_or_written(kind: str) -> Callable[[yaml.SafeLoader, yaml.ScalarNode], object]:
    read = getattr(yaml.SafeLoader, f"construct_yaml_{kind}")

    def construct(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> object:
        return node.value if ":" in node.value else read(loader, node)

    return construct


for _kind in ("int", "float"):
    _Values.add_constructor(f"tag:yaml.org,2002:{_kind}", _as_number_or_written(_kind))


class _Loader(_Values):
    """Also refuses duplicate keys, reads exponents, and leaves dates as the text they are."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.deep_construct = True  # an alias inside what it stands for is then refused

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        first_lines: dict[str, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                continue
            line = key_node.start_mark.line + 1
            if key_node.value in first_lines:
                problem = f"{key_node.value} is set twice, first in line {first_lines[key_node.value]}"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            first_lines[key_node.value] = line
        return super().construct_mapping(node, deep=deep)


def _as_written(loader: _Loader, node: yaml.Node) -> str:
    assert isinstance(node, yaml.ScalarNode)
    return str(loader.construct_scalar(node))


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT_FLOAT, list("-+.0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _as_written)


def read_value(text: str) -> object:
    """The value that a text is in YAML 1.1. Raises yaml.YAMLError, ValueError or RecursionError."""
    loader = _Values(text)
    loader.deep_construct = True
    value: object = loader.get_single_data()
    _refuse_huge(value)
    return value


def _measure(value: object, seen: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """How deep lists and mappings are nested, and the number of entries with those of aliases written out."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not inner:
        return 0, 1
    if id(value) not in seen:
        measures = [_measure(entry, seen) for entry in inner]
        seen[id(value)] = 1 + max(depth for depth, _ in measures), 1 + sum(size for _, size in measures)
    return seen[id(value)]


class _HugeError(ValueError):
    """More than anybody writes."""


def _refuse_huge(value: object) -> None:
    """Raises _HugeError for what is nested deeper, or has more entries, than anybody writes."""
    depth, entries = _measure(value, {})
    if depth > MOST_NESTED:
        raise _HugeError("its lists and mappings are nested too deeply")
    if entries > MOST_ENTRIES:
        raise _HugeError(f"it has more than {MOST_ENTRIES} entries")


def as_number(value: object) -> object:
    """A text that is a number with an exponent, as YAML 1.1 readers leave it, becomes the number."""
    return float(value) if isinstance(value, str) and _EXPONENT_FLOAT.match(value) else value


def read_yaml(path: Path) -> object:
    """The content of a YAML file. Raises UserError with file and line when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"config file {path} does not exist") from None
    except IsADirectoryError:
        raise UserError(f"config file {path} is a folder; name the file in it") from None
    except UnicodeDecodeError as error:
        where = f"byte 0x{error.object[error.start]:02x} at {error.start}"
        raise UserError(f"config file {path} is not UTF-8 text ({where}); is it a YAML file?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"config file {path} cannot be read: {reason}") from None
    try:
        content: object = yaml.load(text, Loader=_Loader)
        _refuse_huge(content)
        return content
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = error.problem or "not valid YAML"
        if "recursive" in problem:
            problem = "an alias stands inside what it stands for"
        raise UserError(f"{path}{line}: {problem}") from None
    except _HugeError as error:
        raise UserError(f"{path}: {error}") from None
    except RecursionError:
        raise UserError(f"{path}: its lists and mappings are nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not valid YAML: {str(error)[:200]}") from None
