"""A launch script followed line by line: which commands it would start, with which arguments.

Nothing is run. Of an ``if`` whose condition the script itself decides, that branch is taken; of one it does
not, the first. Either way it is noted when another branch sets a variable differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from rankloom.config.foreign.shell_tests import truth_of
from rankloom.config.foreign.shell_tree import Branch, Case, Command, Function, Loop, Node, parse
from rankloom.config.foreign.shell_values import Field, Scope, mark, unknowns, without_marks

__all__ = ["Choice", "Invocation", "Script", "follow"]

_DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
_DEEPEST = 12  # functions that call each other, shells inside shells


@dataclass(frozen=True)
class Invocation:
    """A command that would be started."""

    words: tuple[Field, ...]
    line: int


@dataclass(frozen=True)
class Choice:
    """An ``if`` or ``case`` whose branches set variables differently. ``text`` says which was taken."""

    line: int
    names: frozenset[str]
    text: str
    hidden: tuple[Invocation, ...]  # what branches that were not taken would start


@dataclass(frozen=True)
class Script:
    """What a script comes to. ``sourced``: files it reads settings from, which are not looked at."""

    invocations: tuple[Invocation, ...]
    scope: Scope
    choices: tuple[Choice, ...]
    sourced: tuple[str, ...]


def follow(text: str, *, variables: dict[str, str] | None = None) -> Script:
    """Reads a script. ``variables``: what its surroundings set (those of a batch system)."""
    scope = Scope({name: (Field(value, 0),) for name, value in (variables or {}).items()})
    walk = _Walk(scope)
    walk.nodes(parse(text))
    return Script(tuple(walk.invocations), walk.scope, tuple(walk.choices), tuple(walk.sourced))


@dataclass
class _Walk:
    scope: Scope
    depth: int = 0
    invocations: list[Invocation] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    sourced: list[str] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)

    def nodes(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if isinstance(node, Command):
                self._command(node)
            elif isinstance(node, Function):
                self.functions[node.name] = node
            elif isinstance(node, Loop):
                self._loop(node)
            elif isinstance(node, Branch):
                self._branch(node)
            else:
                self._case(node)

    def _command(self, command: Command) -> None:
        words = list(command.words)
        assigned = self.scope.copy()
        while words and assigned.assign(words[0]):
            words.pop(0)
        if not words:
            self.scope = assigned
            return  # else they hold inside this one command only
        if words[0].plain in _DECLARING:
            for word in words[1:]:
                self.scope.assign(word)
            return
        arguments = tuple(f for word in words for f in self.scope.fields(word))
        if arguments:
            self._start(arguments, command.line)

    def _start(self, arguments: tuple[Field, ...], line: int) -> None:
        name = arguments[0].text
        if name in ("source", "."):
            self.sourced += [without_marks(a.text) for a in arguments[1:2]]
        elif name in self.functions and self.depth < _DEEPEST:
            self._call(self.functions[name], arguments)
        elif self.depth < _DEEPEST and (inner := _inner_script(arguments)):
            self.depth += 1
            self._inner(*inner)
            self.depth -= 1
        else:
            self.invocations.append(Invocation(arguments, line))

    def _call(self, function: Function, arguments: tuple[Field, ...]) -> None:
        given = {str(i): (a,) for i, a in enumerate(arguments) if i}
        outside = {name: self.scope.variables.get(name) for name in [*given, "@", "*"]}
        self.scope.variables |= given | {"@": arguments[1:], "*": arguments[1:]}
        self.depth += 1
        self.nodes(function.body)
        self.depth -= 1
        for name, value in outside.items():
            if value is None:
                self.scope.variables.pop(name, None)
            else:
                self.scope.variables[name] = value

    def _inner(self, inner: Field, in_front: tuple[Field, ...]) -> None:
        """``srun ... bash -c "torchrun ..."``: the words in front belong to each command inside."""
        started = len(self.invocations)
        self.nodes(parse(inner.text))
        for i in range(started, len(self.invocations)):
            words = self.invocations[i].words
            moved = tuple(Field(w.text, inner.line, w.names | inner.names) for w in words)
            self.invocations[i] = Invocation((*in_front, *moved), inner.line)

    def _loop(self, loop: Loop) -> None:
        items = [f for word in loop.items for f in self.scope.fields(word)]
        if loop.name and items:
            self.scope.variables[loop.name] = (items[0],)
        elif loop.name:
            self.scope.variables[loop.name] = (Field(mark(loop.name), loop.line),)
        before = self.scope.copy()
        self.nodes(loop.body)
        if loop.name and len(items) > 1:
            names = _changed(before, self.scope) | {loop.name}
            shown = " ".join(without_marks(i.text) for i in items)
            text = f"of the loop over {loop.name} in {shown}, the first round was read"
            self.choices.append(Choice(loop.line, frozenset(names), text, ()))

    def _branch(self, branch: Branch) -> None:
        taken, why, truth = None, "", None
        unset: list[str] = []
        for i, clause in enumerate(branch.clauses):
            truth, missing = (True, ()) if not clause.text else truth_of(clause.condition, self.scope)
            unset += [name for name in missing if name not in unset]
            if truth or truth is None:
                taken = i
                break
        if unset:
            why = f"{' and '.join(unset)} {'are' if len(unset) > 1 else 'is'} not set, so "
        elif truth is None:
            why = "whether it holds cannot be known here; "
        texts = [
            f"{'elif' if i else 'if'} {c.text}" if c.text else "else" for i, c in enumerate(branch.clauses)
        ]
        self._choose(branch.line, texts, [c.body for c in branch.clauses], taken, why)

    def _case(self, case: Case) -> None:
        subject = self.scope.joined(case.subject)
        unset = unknowns(subject.text)
        taken = None
        if not unset:
            for i, clause in enumerate(case.clauses):
                if any(fnmatchcase(subject.text, pattern) for pattern in clause.text.split("|")):
                    taken = i
                    break
        shown = without_marks(subject.text)
        why = f"{' and '.join(unset)} is not set, so " if unset else ""
        texts = [f"case {shown} in {c.text}" for c in case.clauses]
        self._choose(case.line, texts, [c.body for c in case.clauses], taken, why)

    def _choose(
        self, line: int, texts: list[str], bodies: list[tuple[Node, ...]], taken: int | None, why: str
    ) -> None:
        """Follows one branch, and beside it the others, to see what they would have set."""
        before = self.scope.copy()
        others: list[tuple[str, _Walk]] = []
        for i, body in enumerate(bodies):
            if i != taken:
                other = _Walk(before.copy(), self.depth + 1, functions=dict(self.functions))
                if self.depth < _DEEPEST:
                    other.nodes(body)
                others.append((texts[i], other))
        if taken is not None:
            self.nodes(bodies[taken])
        names = {
            name
            for _, other in others
            for name in _changed(before, other.scope) | _changed(before, self.scope)
            if _shown(other.scope, name) != _shown(self.scope, name)
        }
        hidden = tuple(i for _, other in others for i in other.invocations)
        if names or hidden:
            branch = "no branch" if taken is None else "that" if not taken else f"the branch '{texts[taken]}'"
            text = f"{texts[0]}: {why}{branch} was taken"
            text += _differences(names, self.scope, [o for _, o in others])
            self.choices.append(Choice(line, frozenset(names), text, hidden))


def _inner_script(arguments: tuple[Field, ...]) -> tuple[Field, tuple[Field, ...]] | None:
    """The script inside ``bash -c SCRIPT`` or ``eval WORDS``, and the words in front of it."""
    texts = [a.text for a in arguments]
    if texts[0] == "eval":
        names = frozenset[str]().union(*(a.names for a in arguments))
        return Field(" ".join(texts[1:]), arguments[0].line, names), ()
    for i, text in enumerate(texts[:-2]):
        if text.rpartition("/")[2] in ("bash", "sh") and re.fullmatch(r"-[a-z]*c", texts[i + 1]):
            return arguments[i + 2], arguments[:i]
    return None


def _shown(scope: Scope, name: str) -> str | None:
    stored = scope.variables.get(name)
    return None if stored is None else " ".join(without_marks(f.text) for f in stored)


def _changed(before: Scope, after: Scope) -> set[str]:
    return {name for name in after.variables if _shown(before, name) != _shown(after, name)}


def _differences(names: set[str], scope: Scope, others: list[_Walk]) -> str:
    """ ": NUM_LAYERS=32 (another branch: NUM_LAYERS=80)"."""
    texts = []
    for name in sorted(names)[:3]:
        here = _shown(scope, name)
        there = dict.fromkeys(_shown(o.scope, name) for o in others)
        elsewhere = " or ".join(f"{name}={t}" for t in there if t and t != here) or "nothing"
        texts.append(f"{name}={here}" if here else f"{name} is not set")
        texts[-1] += f" (another branch: {elsewhere})"
    more = len(names) - len(texts)
    return "".join([": " if texts else "", ", ".join(texts), f" and {more} more" * (more > 0)])
