"""A launch script followed line by line: which commands it would start, with which arguments.

Nothing is run. Of an ``if`` whose condition the script itself decides, that branch is taken; of one it does
not, the first. Either way it is noted when another branch sets a variable differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import takewhile

from rankloom.config.foreign.shell_builtins import (
    BUILTINS,
    DECLARING,
    TESTS,
    declare,
    declared_in,
    set_arguments,
)
from rankloom.config.foreign.shell_choices import (
    LEAVING,
    Choice,
    Invocation,
    Script,
    changed_names,
    differences,
    inner_script,
    may_leave,
    never_runs,
    reason,
    value_shown,
)
from rankloom.config.foreign.shell_marks import mark, unknowns, without_marks
from rankloom.config.foreign.shell_nodes import AndOr, Branch, Case, Command, Function, Group, Loop, Node
from rankloom.config.foreign.shell_tests import truth_of
from rankloom.config.foreign.shell_tree import parse
from rankloom.config.foreign.shell_values import Field, Scope, is_assignment
from rankloom.config.foreign.shell_words import Word
from rankloom.errors import UserError

__all__ = ["Choice", "Invocation", "Script", "follow"]

_DEEPEST = 12  # functions that call each other, shells inside shells
_MOST_ROUNDS = 100  # of a loop
_LARGEST = 1_000_000  # characters of a script


def follow(text: str, *, variables: dict[str, str] | None = None) -> Script:
    """Reads a script. ``variables``: what its surroundings set (those of a batch system).

    Raises UserError for one that is too large, or nested too deeply.
    """
    if len(text) > _LARGEST:
        raise UserError(
            f"the script has {len(text):,} characters, and at most {_LARGEST:,} are read; "
            f"name the training command itself"
        )
    walk = _Walk(Scope({name: (Field(value, 0),) for name, value in (variables or {}).items()}))
    try:
        walk.nodes(parse(text))
    except RecursionError:
        raise UserError("the script is nested too deeply to be read") from None
    return Script(tuple(walk.invocations), walk.scope, tuple(walk.choices), tuple(walk.sourced))


@dataclass
class _Walk:
    scope: Scope
    depth: int = 0
    invocations: list[Invocation] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    sourced: list[str] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    outside: list[dict[str, tuple[Field, ...] | None]] = field(default_factory=list)  # of each function
    left: str = ""  # "exit", "return", ...: what follows is not reached

    def nodes(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if self.left:
                return
            self.scope.spend(20)
            if isinstance(node, Command):
                self._command(node)
            elif isinstance(node, Function):
                self.functions[node.name] = node
            elif isinstance(node, Loop):
                self._loop(node)
            elif isinstance(node, Branch):
                self._branch(node)
            elif isinstance(node, AndOr):
                self._and_or(node)
            elif isinstance(node, Group):
                self._group(node)
            else:
                self._case(node)

    def _group(self, group: Group) -> None:
        before = self.scope
        if group.apart:
            self.scope = before.copy()
        self.nodes(group.body)
        if group.apart:
            self.scope, self.left = before, ""

    def _command(self, command: Command) -> None:
        words = command.words
        if words and words[0].pieces and words[0].pieces[0].text == "((":
            self.scope.arithmetic(words[0].pieces[-1].text, command.line)
            return
        settings = list(takewhile(is_assignment, words))
        rest = words[len(settings) :]
        if not rest:
            for word in settings:
                self.scope.assign(word)
        elif rest[0].plain in DECLARING:
            if self.outside and rest[0].plain in ("local", "declare", "typeset"):
                for name in declared_in(rest[1:]):  # it has its old value again after the function
                    self.outside[-1].setdefault(name, self.scope.variables.get(name))
            declare(self.scope, rest[1:], command.line)
        else:
            arguments = tuple(f for word in rest for f in self.scope.fields(word))
            if arguments:
                self._with(settings, arguments, command.line)

    def _with(self, settings: list[Word], arguments: tuple[Field, ...], line: int) -> None:
        """Starts a command, with variables that hold inside this one command only."""
        inside: dict[str, tuple[Field, ...] | None] = {}
        for word in settings:
            name = declared_in([word])[0]
            inside.setdefault(name, self.scope.variables.get(name))
            self.scope.assign(word)
        self._start(arguments, line)
        self.scope.restore(inside)

    def _start(self, arguments: tuple[Field, ...], line: int) -> None:
        name = arguments[0].text
        if name in self.functions:
            if self.depth < _DEEPEST:
                self._call(self.functions[name], arguments)
        elif name in BUILTINS:
            BUILTINS[name](self.scope, arguments[1:])
        elif name in LEAVING:
            self.left = name
        elif name in ("source", "."):
            self.sourced += [without_marks(a.text) for a in arguments[1:2]]
        elif self.depth < _DEEPEST and (inner := inner_script(arguments)):
            self.depth += 1
            self._inner(*inner, apart=name != "eval")
            self.depth -= 1
        elif name not in TESTS:
            self.invocations.append(Invocation(arguments, line))

    def _call(self, function: Function, arguments: tuple[Field, ...]) -> None:
        given = [name for name in self.scope.variables if name.isdigit() or name in "@*#"]
        outside = {name: self.scope.variables[name] for name in given}
        set_arguments(self.scope, arguments[1:])
        self.scope.spend(500)
        self.depth += 1
        self.outside.append({})
        self.nodes(function.body)
        self.scope.restore(self.outside.pop())
        self.left = self.left.replace("return", "")
        self.depth -= 1
        set_arguments(self.scope, ())
        self.scope.restore({**dict.fromkeys("@*#"), **outside})

    def _inner(self, inner: Field, in_front: tuple[Field, ...], *, apart: bool) -> None:
        """``srun ... bash -c "torchrun ..."``: the words in front belong to each command inside."""
        started, before = len(self.invocations), self.scope
        if apart:
            self.scope = before.copy()
        self.nodes(parse(inner.text))
        if apart:
            self.scope, self.left = before, ""
        for i in range(started, len(self.invocations)):
            words = self.invocations[i].words
            moved = tuple(Field(w.text, inner.line, w.names | inner.names) for w in words)
            self.invocations[i] = Invocation((*in_front, *moved), inner.line)

    def _loop(self, loop: Loop) -> None:
        items = [f for word in loop.items for f in self.scope.fields(word)]
        self.nodes(loop.condition)
        if loop.items and not items:
            return
        if loop.word in ("while", "until") and never_runs(truth_of(loop.condition, self.scope)[0], loop.word):
            return
        before = self.scope.copy()
        if loop.name:
            item = items[0] if items else Field(mark(f"$({loop.word} {loop.name})"), loop.line)
            self.scope.variables[loop.name] = (item,)
        self.nodes(loop.body)
        self.left = self.left if self.left == "exit" and loop.word == "for" else ""
        if loop.word == "for" and loop.name and len(items) == 1 and not unknowns(items[0].text):
            return
        names = changed_names(before, self.scope) | ({loop.name} if loop.name else set())
        if loop.word == "for" and loop.name and self._whole(loop, items):
            shown = " ".join(without_marks(i.text) for i in items)
            text = f"of the loop over {loop.name} in {shown}, the first round was read"
        else:
            self.scope.forget(names, f"$({loop.word} ...)", loop.line)
            text = f"of the {loop.word} loop, one round was read, and what it sets is not known after it"
        self.choices.append(Choice(loop.line, frozenset(names), text, ()))

    def _whole(self, loop: Loop, items: list[Field]) -> bool:
        """Follows the other rounds, for what they set; False where that cannot be known."""
        known = len(items) <= _MOST_ROUNDS and not any(unknowns(i.text) for i in items)
        if not items or not known or may_leave(loop.body):
            return False
        rest = _Walk(self.scope, self.depth, functions=self.functions, outside=self.outside)
        for item in items[1:]:
            self.scope.variables[loop.name] = (item,)
            rest.nodes(loop.body)
        return True

    def _branch(self, branch: Branch) -> None:
        taken, why, truth = None, "", None
        unset: list[str] = []
        for i, clause in enumerate(branch.clauses):
            self.nodes(clause.condition)
            truth, missing = (True, ()) if not clause.text else truth_of(clause.condition, self.scope)
            unset += [name for name in missing if name not in unset]
            if truth or truth is None:
                taken = i
                break
        why = reason(unset, known=truth is not None)
        texts = [
            f"{'elif' if i else 'if'} {c.text}" if c.text else "else" for i, c in enumerate(branch.clauses)
        ]
        bodies = [c.body for c in branch.clauses]
        if why and branch.clauses[-1].text:  # nothing is done where no condition holds
            texts, bodies = [*texts, "else"], [*bodies, ()]
        self._choose(branch.line, texts, bodies, taken, why)

    def _and_or(self, node: AndOr) -> None:
        """``A && B || C``: a command is taken to succeed, unless it is a test that says otherwise."""
        status, unset, text = True, list[str](), ""
        known = True
        for part in node.parts:
            runs = not part.joint or (status if part.joint == "&&" else not status)
            if part.joint and (unset or not known or not runs):
                why = reason(unset, known=known)
                bodies = ((part.node,), ())[: 1 + bool(why)]
                self._choose(node.line, [f"{text} {part.joint}", "else"], bodies, 0 if runs else None, why)
            elif runs:
                self.nodes([part.node])
            text = " ".join([text, part.joint, part.text]).strip()
            if runs:
                truth, missing = truth_of((part.node,), self.scope)
                status, known = truth is not False, truth is not None
                unset += missing

    def _case(self, case: Case) -> None:
        subject = self.scope.joined(case.subject)
        unset, taken = unknowns(subject.text), None
        for i, clause in enumerate(case.clauses):
            unset = unset or unknowns(clause.text)
            if unset:
                break
            if any(fnmatchcase(subject.text, pattern) for pattern in clause.text.split("|")):
                taken = i
                break
        shown = without_marks(subject.text)
        why = reason(unset, known=True)
        texts = [f"case {shown} in {without_marks(c.text)}" for c in case.clauses]
        self._choose(case.line, texts, [c.body for c in case.clauses], taken, why)

    def _choose(
        self, line: int, texts: Sequence[str], bodies: Sequence[tuple[Node, ...]], taken: int | None, why: str
    ) -> None:
        """Follows one branch, and beside it the others, to see what they would have set."""
        before = self.scope.copy()
        others: list[tuple[str, _Walk]] = []
        for i, body in enumerate(bodies):
            if i != taken:
                other = _Walk(
                    before.copy(), self.depth + 1, functions=dict(self.functions), outside=[*self.outside, {}]
                )
                if self.depth < _DEEPEST:
                    other.nodes(body)
                others.append((texts[i], other))
        if taken is not None:
            self.nodes(bodies[taken])
            self.left = "" if why else self.left
        names = {
            name
            for _, other in others
            for name in changed_names(before, other.scope) | changed_names(before, self.scope)
            if value_shown(other.scope, name) != value_shown(self.scope, name)
        }
        hidden = tuple(i for _, other in others for i in other.invocations)
        if names or hidden:
            branch = "no branch" if taken is None else "that" if not taken else f"the branch '{texts[taken]}'"
            text = f"{texts[0]}: {why}{branch} was taken"
            text += differences(names, self.scope, [o.scope for _, o in others])
            self.choices.append(Choice(line, frozenset(names), text, hidden))
