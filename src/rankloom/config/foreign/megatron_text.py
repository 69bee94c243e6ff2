"""Finds the training command in a shell line or script, and its arguments in a YAML file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rankloom.config.findings import Finding
from rankloom.config.foreign.arguments import Arguments, Given, read_arguments, read_given
from rankloom.config.foreign.flags import FLAGS, name_of
from rankloom.config.foreign.job import ForeignJob
from rankloom.config.foreign.launcher import (
    Launch,
    batch_options,
    batch_variables,
    read_launch,
    read_world_size,
    without_launch,
)
from rankloom.config.foreign.megatron import job_of
from rankloom.config.foreign.shell import Invocation, Script, follow
from rankloom.config.foreign.shell_marks import mark, split_blanks, without_marks
from rankloom.config.foreign.shell_values import Field

__all__ = ["job_of_shell", "job_of_yaml", "scripts_in"]

_PRINTING = frozenset({"echo", "printf", "cat", "tee", "logger"})
_YAML_NAMES = {
    "num-moe-experts": "num-experts",
    "sequence-length": "seq-length",
    "layernorm-epsilon": "norm-epsilon",
    "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
    "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
    "gated-linear-unit": "swiglu",
}
_YAML_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?\Z")


@dataclass(frozen=True)
class _Training:
    """The training command: the words in front of the script, the arguments after it."""

    in_front: tuple[Field, ...]
    arguments: tuple[Field, ...]


def job_of_shell(text: str, *, origin: str, in_file: bool, rank_order: str | None) -> ForeignJob | None:
    """The job of a shell line or script; None when no Megatron-LM argument is in it."""
    batch = batch_options(text)
    script = follow(text, variables=batch_variables(batch))
    found = list(_trainings(script))
    findings: list[Finding] = []
    training = max(found, key=lambda one: _count(one[1].arguments))[1] if found else _unused(script)
    if training is None:
        return None
    if len(found) > 1:
        lines = " and ".join(str(invocation.line) for invocation, _ in found)
        read = next(i.line for i, t in found if t is training)
        message = (
            f"{origin} has {len(found)} training commands, in lines {lines}; that of line {read} is read"
        )
        findings.append(Finding("note", "settings", message))
    elif not found:
        message = "no command was found that uses the arguments; all that are set in the file are read"
        findings.append(Finding("note", "settings", message))

    def where(word: Field) -> str:
        return f"{origin}:{word.line}" if in_file else origin

    arguments = read_arguments(training.arguments, where=where, origin=origin)
    launch = read_launch(training.in_front, batch, origin=origin)
    findings += _choices(script, training, origin=origin, in_file=in_file)
    findings += _sourced(script, (*arguments.findings, *launch.findings))
    return job_of(arguments, launch, origin=origin, rank_order=rank_order, findings=tuple(findings))


def scripts_in(text: str) -> tuple[str, ...]:
    """The scripts that a script starts: the arguments may be in one of them."""
    words = (w.text for i in follow(text).invocations for w in i.words)
    return tuple(dict.fromkeys(without_marks(w) for w in words if w.endswith(".sh")))


def _count(words: Sequence[Field]) -> int:
    return sum(name_of(w.text) in FLAGS for w in words)


def _trainings(script: Script) -> Iterator[tuple[Invocation, _Training]]:
    """Commands with arguments of Megatron-LM. Lines that are nothing but arguments belong together."""
    loose: list[Field] = []
    first: Invocation | None = None
    for invocation in script.invocations:
        words = invocation.words
        if words[0].text in _PRINTING:
            continue
        if words[0].text.startswith("-"):
            first = first or invocation
            loose += words
        elif _count(words):
            yield invocation, _split(words)
    if first is not None and _count(loose):
        yield first, _Training(tuple(loose), without_launch(loose))


def _split(words: tuple[Field, ...]) -> _Training:
    first = next(i for i, w in enumerate(words) if name_of(w.text) in FLAGS)
    scripts = [i for i, w in enumerate(words[:first]) if w.text.endswith(".py")]
    at = scripts[-1] + 1 if scripts else first
    return _Training(words[:at], words[at:])


def _unused(script: Script) -> _Training | None:
    """The arguments in arrays and strings of a file whose training command is elsewhere."""
    words: list[Field] = []
    for stored in script.scope.variables.values():
        texts = [Field(part, f.line, f.names) for f in stored for part in split_blanks(f.text)]
        if _count(texts) or any("nproc" in f.text for f in texts):
            words += texts
    if not _count(words):
        return None
    return _Training(tuple(words), tuple(words))


def _choices(script: Script, training: _Training, *, origin: str, in_file: bool) -> Iterator[Finding]:
    """The branches that had a part in the training command, each with the one that was taken."""
    used = frozenset[str]().union(*(w.names for w in (*training.in_front, *training.arguments)))
    for choice in script.choices:
        if choice.names & used or any(_count(i.words) for i in choice.hidden):
            where = f"{origin}:{choice.line}" if in_file else origin
            yield Finding("note", "settings", choice.text, (), where)


def _sourced(script: Script, findings: Sequence[Finding]) -> Iterator[Finding]:
    if script.sourced and any(" not set in " in f.message for f in findings):
        files = ", ".join(dict.fromkeys(script.sourced))
        yield Finding("note", "settings", f"settings that the script reads from {files} are not looked at")


def job_of_yaml(content: Mapping[str, object], *, origin: str, rank_order: str | None) -> ForeignJob | None:
    """The job of a YAML file of arguments, flat or in sections; None when it has none."""
    given = list(_given(content, ""))
    if not any(one.name in FLAGS for one in given):
        return None
    world, others = _taken(given, "world-size")
    arguments = read_given([_with_where(one, origin) for one in others], origin=origin)
    groups = {"num-query-groups": "group-query-attention"}
    arguments = _implied(arguments, groups)
    launch = Launch()
    if world is not None and world.texts:
        launch = read_world_size(world.spelled, world.texts[0], origin=origin)
    return job_of(arguments, launch, origin=origin, rank_order=rank_order)


def _taken(given: Sequence[Given], name: str) -> tuple[Given | None, list[Given]]:
    return (
        next((one for one in given if one.name == name), None),
        [one for one in given if one.name != name],
    )


def _with_where(given: Given, origin: str) -> Given:
    return Given(given.name, given.spelled, given.texts, origin)


def _implied(arguments: Arguments, flags: Mapping[str, str]) -> Arguments:
    """In sections, a number of query groups says by itself that there are groups."""
    known = dict(arguments.known)
    for name, switch in flags.items():
        if name in known and "." in known[name].spelled and switch not in known:
            groups = known[name]
            known[switch] = type(groups)(groups.spelled, True, groups.where, groups.shown)
    return Arguments(known, arguments.ignored, arguments.findings)


def _given(content: Mapping[str, object], prefix: str) -> Iterator[Given]:
    for key, value in content.items():
        spelled = f"{prefix}{key}"
        name = str(key).removeprefix("--").replace("_", "-")
        name = _YAML_NAMES.get(name, name)
        if isinstance(value, Mapping):
            yield from _given(value, f"{spelled}.")
        elif name == "add-bias-linear":
            yield Given("disable-bias-linear", spelled, (str(not value).lower(),), "")
        elif name == "share-embeddings-and-output-weights":
            yield Given("untie-embeddings-and-output-weights", spelled, (str(not value).lower(),), "")
        elif value is not None:
            yield Given(name, spelled, _texts(value), "")


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (str(value).lower(),)
    if isinstance(value, list):
        return tuple(text for part in value for text in _texts(part))
    return (_YAML_VARIABLE.sub(lambda m: mark(m[1]), str(value)),)
