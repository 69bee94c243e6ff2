"""Looks up settings of NeMo-RL, and keeps account of what was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rankloom.config.findings import Finding
from rankloom.config.foreign.interpolation import Settings, Unresolved

__all__ = ["Reader", "ignored_settings", "is_nemo_rl", "shown"]

_ALGORITHMS = (
    "grpo",
    "distillation",
    "dpo",
    "rm",
    "sft",
)  # a config may inherit the section of a simpler one


def is_nemo_rl(content: Mapping[str, object]) -> bool:
    """Whether a mapping has settings that only NeMo-RL has."""
    policy = content.get("policy")
    ours = {"megatron_cfg", "dtensor_cfg", "train_global_batch_size", "model_name"}
    return isinstance(policy, Mapping) and bool(ours & set(policy))


@dataclass
class Reader:
    """Looks settings up, and remembers which were read and what was wrong with them."""

    settings: Settings
    read: dict[str, object] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)  # keys of ours whose value is not known

    def value(self, path: str, *, key: str = "") -> object:
        """The value at a path; None when it is not there, null or not known, and then a finding says so."""
        if not self.settings.has(path):
            return None
        try:
            value = self.settings.get(path)
        except Unresolved as why:
            self._refuse(f"{path} is not known: {why}", key)
            return None
        self.read[path] = value
        return value

    def integer(self, path: str, *, key: str = "") -> int | None:
        value = self.value(path, key=key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        self._refuse(f"{path} must be a whole number, not {_short(value)}", key)
        return None

    def count(self, path: str, *, key: str) -> int | None:
        """A whole number of 1 or more."""
        value = self.integer(path, key=key)
        if value is None or value > 0:
            return value
        self._refuse(f"{path} must be at least 1, not {value}", key)
        return None

    def switch(self, path: str, *, key: str) -> bool | None:
        value = self.value(path, key=key)
        if value is None or isinstance(value, bool):
            return value
        self._refuse(f"{path} must be true or false, not {_short(value)}", key)
        return None

    def _refuse(self, message: str, key: str) -> None:
        finding = Finding("error", "settings", message, (key,) if key else ())
        if all(found.message != message for found in self.findings):
            self.findings.append(finding)
        self.unknown |= {key} if key else set()

    def on(self, path: str) -> bool:
        return self.value(path) is True

    @property
    def algorithm(self) -> str:
        """The section of what is trained for: "grpo"; "" when there is none that is known."""
        return next((name for name in _ALGORITHMS if self.settings.has(name)), "")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def shown(value: object) -> str:
    """A value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def ignored_settings(content: Mapping[str, object], read: frozenset[str]) -> Iterator[str]:
    """What was not looked at, a section a line with its number of settings: "grpo (34 keys)"."""
    for name, body in content.items():
        if not any(path == name or path.startswith(f"{name}.") for path in read):
            yield _counted(str(name), body)
        elif isinstance(body, Mapping):
            below = frozenset(p.removeprefix(f"{name}.") for p in read if p.startswith(f"{name}."))
            if name == "policy":
                yield from (f"{name}.{line}" for line in ignored_settings(body, below))
            elif left := sum(_leaves(value, str(key), below) for key, value in body.items()):
                yield f"{name} ({left} other key{'s' * (left > 1)})"


def _leaves(value: object, path: str, read: frozenset[str]) -> int:
    if path in read:
        return 0
    if isinstance(value, Mapping) and value:
        return sum(_leaves(v, f"{path}.{k}", read) for k, v in value.items())
    return 1


def _counted(name: str, body: object) -> str:
    count = _leaves(body, "", frozenset())
    return f"{name} ({count} keys)" if isinstance(body, Mapping) and count != 1 else name
