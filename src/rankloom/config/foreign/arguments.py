"""The words after ``pretrain_gpt.py`` as arguments with values, and what argparse would say about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from rankloom.config.findings import Finding, Severity
from rankloom.config.foreign.flags import EXPERT_FLAGS, FLAGS, KEYS, REPLACED, Kind, name_of
from rankloom.config.foreign.shell_marks import is_computed, is_mark, unknowns, why_unknown, without_marks
from rankloom.config.foreign.shell_values import Field

__all__ = ["Argument", "Arguments", "Given", "read_arguments", "read_given"]

_MATTERS = frozenset({*KEYS, *EXPERT_FLAGS})


@dataclass(frozen=True)
class Given:
    """An argument as it stands: name with hyphens, how it is spelled, the texts after it, and where."""

    name: str
    spelled: str
    texts: tuple[str, ...]
    where: str


@dataclass(frozen=True)
class Argument:
    """An argument that is understood. ``value`` is None when it is not known, and a finding says why."""

    spelled: str
    value: object
    where: str
    shown: str  # "--seq-length 4096"


@dataclass(frozen=True)
class Arguments:
    """All that were given: understood ones by name, and the names of the others."""

    known: Mapping[str, Argument]
    ignored: tuple[str, ...]
    findings: tuple[Finding, ...]

    def has(self, name: str) -> bool:
        return name in self.known

    def integer(self, name: str) -> int | None:
        """The value, or None when it is not given or not known."""
        value = self.known[name].value if name in self.known else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, name: str) -> float | None:
        value = self.known[name].value if name in self.known else None
        return float(value) if isinstance(value, int | float) else None

    def on(self, name: str) -> bool:
        """Whether a switch is given."""
        return name in self.known and self.known[name].value is True

    def text(self, name: str) -> str:
        value = self.known[name].value if name in self.known else None
        return without_marks(value) if isinstance(value, str) else ""

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.known[name].value if name in self.known else None
        return value if isinstance(value, tuple) and all(isinstance(v, int) for v in value) else ()

    def unknown(self, *names: str) -> list[str]:
        """Those that are given and not known."""
        return [name for name in names if name in self.known and self.known[name].value is None]

    def spell(self, name: str) -> str:
        """The argument's name as this job has it; as Megatron-LM has it where it is not given."""
        return self.known[name].spelled if name in self.known else f"--{name}"

    def where(self, *names: str) -> str:
        """Where arguments are given: "train.sh:12, train.sh:14"."""
        return ", ".join(dict.fromkeys(self.known[n].where for n in names if n in self.known))


def read_arguments(words: Sequence[Field], *, where: Callable[[Field], str], origin: str) -> Arguments:
    """``where`` says in words where a word of the command stands."""
    given, loose = _given(words, where)
    arguments = read_given(given, origin=origin)
    notes = tuple(_loose_findings(loose, origin))
    return Arguments(arguments.known, arguments.ignored, (*arguments.findings, *notes))


def read_given(given: Sequence[Given], *, origin: str) -> Arguments:
    """The same for arguments that are already name and texts, as in a YAML file."""
    known: dict[str, Argument] = {}
    ignored: dict[str, None] = {}
    findings: list[Finding] = []
    for one in given:
        kind = FLAGS.get(one.name)
        if kind is None:
            ignored[one.spelled] = None
            findings += _unknown(one)
            continue
        value, problems = _value(one, kind, origin)
        findings += problems
        before = known.get(one.name)
        if before is not None and before.value != value:
            findings.append(_twice(before, one))
        shown = " ".join([one.spelled, *map(without_marks, one.texts)])
        known[one.name] = Argument(one.spelled, value, one.where, shown)
        if "_" in one.spelled and one.spelled.startswith("--"):
            findings.append(_underscores(one))
    return Arguments(MappingProxyType(known), tuple(ignored), tuple(findings))


def _given(words: Sequence[Field], where: Callable[[Field], str]) -> tuple[list[Given], list[Field]]:
    """Names with the words up to the next name, and words that stand where a name should."""
    given: list[Given] = []
    loose: list[Field] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        name = name_of(word.text)
        if not name:
            loose.append(word)
            continue
        spelled, equals, value = word.text.partition("=")
        texts = [value] if equals else []
        most = {"switch": 0, "texts": 999, "integers": 999}.get(FLAGS.get(name, "texts"), 1)
        while at < len(words) and len(texts) < most and not equals and not name_of(words[at].text):
            if texts and is_mark(words[at].text):  # a variable beside the values: it may hold arguments
                break
            texts.append(words[at].text)
            at += 1
        if FLAGS.get(name) == "switch" and at < len(words) and words[at].text.lower() in _BOOLEANS:
            texts.append(words[at].text)  # of another parser, read all the same
            at += 1
        given.append(Given(name, spelled, tuple(texts), where(word)))
    return given, loose


_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def _value(given: Given, kind: Kind, origin: str) -> tuple[object, list[Finding]]:
    missing = [name for text in given.texts for name in unknowns(text)]
    if missing and kind not in ("text", "texts"):
        return None, [_not_set(given, missing, origin)]
    try:
        return _converted(given.texts, kind), []
    except ValueError:
        wanted = {"integer": "a whole number", "integers": "whole numbers", "number": "a number"}
        text = " ".join(given.texts)
        text = text if len(text) <= 80 else f"{text[:80]}..."
        problem = f"not {text!r}" if text else "and none follows"
        what = wanted.get(kind, "one value" if kind == "text" else "given alone")
        message = f"{given.spelled} must be {what}, {problem}"
        keys = (KEYS[given.name],) if given.name in KEYS else ()
        return None, [Finding("error", "settings", message, keys, given.where)]


def _converted(texts: tuple[str, ...], kind: Kind) -> object:
    """Raises ValueError."""
    if kind == "switch":
        if not texts:
            return True
        if texts[0].lower() not in _BOOLEANS:
            raise ValueError
        return _BOOLEANS[texts[0].lower()]
    if kind == "texts":
        return texts
    if kind == "integers":
        return tuple(int(part) for text in texts for part in text.replace(",", " ").split())
    if not texts:
        raise ValueError
    if kind == "integer":
        return int(texts[0])
    return float(texts[0]) if kind == "number" else texts[0]


def _not_set(given: Given, missing: list[str], origin: str) -> Finding:
    """A warning where the value matters: the script may be right; an error where it is empty for sure."""
    text = " ".join(map(without_marks, given.texts))
    unset = [name for name in missing if not is_computed(name) and not name.startswith("$")]
    remedy = f"; set it there, for example {unset[-1]}=8" if unset else ""
    severity: Severity = "note" if given.name not in _MATTERS else "error" if unset else "warning"
    message = f"{given.spelled} {text}: {why_unknown(missing, origin)}{remedy}"
    keys = (KEYS[given.name],) if given.name in KEYS else ()
    return Finding(severity, "settings", message, keys, given.where)


def _twice(before: Argument, given: Given) -> Finding:
    shown = " ".join([given.spelled, *map(without_marks, given.texts)])
    message = f"{before.shown} ({before.where}) is given again: {shown} holds, because the last one does"
    keys = (KEYS[given.name],) if given.name in KEYS else ()
    return Finding("note", "settings", message, keys, given.where)


def _underscores(given: Given) -> Finding:
    message = (
        f"Megatron-LM knows no {given.spelled}, only --{given.name} with hyphens, and stops there; "
        f"it was read as --{given.name}"
    )
    return Finding("warning", "settings", message, (), given.where)


def _unknown(given: Given) -> Iterator[Finding]:
    if not given.spelled.startswith("--"):
        return
    if given.name in REPLACED:
        message = f"Megatron-LM stops at {given.spelled}; use --{REPLACED[given.name]} instead"
        yield Finding("error", "settings", message, (), given.where)
        return
    longer = [name for name in FLAGS if name.startswith(given.name) and given.name.count("-") >= 1]
    close = longer or get_close_matches(given.name, [n for n in FLAGS if n in _MATTERS], n=1, cutoff=0.93)
    if not close:
        return
    reason = "Megatron-LM takes no shortened names and stops there" if longer else "it is not read"
    names = " or ".join(f"--{name}" for name in close[:3])
    message = f"{given.spelled} is no argument that is known here, and {reason}; did you mean {names}?"
    yield Finding("error" if longer else "warning", "settings", message, (), given.where)


def _loose_findings(loose: Sequence[Field], origin: str) -> Iterator[Finding]:
    """Words that are no argument: variables that are not set may add arguments nobody sees here."""
    names = dict.fromkeys(name for word in loose for name in unknowns(word.text))
    for name in names:
        shown = name if name.startswith(("$", "`")) else f"${name}"
        message = f"{shown} is not known in {origin}: arguments that it would add are not seen here"
        yield Finding("note", "settings", message)
