"""The divisions behind a layout, and what to say when one of them does not come out even.

    G = W / TP      S = Q / SP degree      B = G / S      D = world / (W * CP * PP)

with W weight shards and Q sequence shards; the SP degree is TP with sequence parallelism on, else 1.
``first_problem`` finds the first equation that fails; ``check`` turns it into a message with the nearest
values that work: values with which the *whole* layout resolves, the other settings kept, or, where no such
value exists, values that satisfy this one equation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import isqrt
from operator import index

from rankloom.errors import UserError
from rankloom.layout.provenance import Provenance

WORLD = "world_size"
TP = "tensor_model_parallel_size"
SP = "sequence_parallel"
W = "tensor_parallel_num_weight_shards"
Q = "tensor_parallel_num_sequence_shards"
CP = "context_parallel_size"
PP = "pipeline_model_parallel_size"


@dataclass(frozen=True)
class Settings:
    """The settings of a layout, named as users write them. W and SP are filled in; Q unset means S = 1."""

    world_size: int
    tensor_model_parallel_size: int
    sequence_parallel: bool
    tensor_parallel_num_weight_shards: int
    tensor_parallel_num_sequence_shards: int | None
    context_parallel_size: int
    pipeline_model_parallel_size: int

    @property
    def sequence_parallel_degree(self) -> int:
        return self.tensor_model_parallel_size if self.sequence_parallel else 1

    @property
    def sequence_shards(self) -> int:
        """Q, counted including SP; unset means that only SP cuts the sequence."""
        if self.tensor_parallel_num_sequence_shards is None:
            return self.sequence_parallel_degree
        return self.tensor_parallel_num_sequence_shards

    @property
    def ranks_per_replica_set(self) -> int:
        """W * CP * PP (= TP * G * CP * PP): the ranks that one data-parallel index takes."""
        return (
            self.tensor_parallel_num_weight_shards
            * self.context_parallel_size
            * self.pipeline_model_parallel_size
        )


# Everything that a layout is made from, as it is written in settings.
LAYOUT_SETTINGS = (*Settings.__dataclass_fields__, "rank_order")


@dataclass(frozen=True)
class Problem:
    """One equation that fails: its text, the settings in it, and how to find values for some of them."""

    equation: str
    settings: tuple[str, ...]
    remedies: tuple[str, ...]
    holds: Callable[[Settings], bool]
    note: str = ""


def positive(setting: str, value: object, *, where: Provenance) -> int:
    """The value as an int of at least 1. Raises UserError naming the setting."""
    try:
        number = 0 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1:
        raise UserError(
            f"{setting} must be a whole number of at least 1, not {value!r}{where.clause(setting)}"
        )
    return number


def check(settings: Settings, *, where: Provenance, shards_follow: bool = False) -> None:
    """Raises UserError for the first equation that fails: its numbers, values that work, their origin.

    ``shards_follow``: nobody set W, so it follows TP, and TP is what can be changed.
    """
    problem = first_problem(settings)
    if problem is None:
        return
    if shards_follow and WORLD in problem.remedies:
        problem = _with_tp_for_w(problem)
    values = _nearest_values(settings, problem, works=lambda changed: first_problem(changed) is None)
    if not any(values.values()):
        values = _nearest_values(settings, problem, works=problem.holds)
    tries = [f"{name} {' or '.join(map(str, found))}" for name, found in values.items() if found]
    if len(problem.remedies) == 1:  # the equation begins with this very setting: the numbers are enough
        tries = [text.removeprefix(f"{problem.remedies[0]} ") for text in tries]
    remedy = f"; try {', or '.join(tries)}" if tries else ""
    if problem.note:
        remedy = f"; {problem.note}" + f", or {problem.remedies[0]} {tries[0]}" * bool(tries)
    raise UserError(f"{problem.equation}{remedy}{where.clause(*problem.settings)}")


def _with_tp_for_w(problem: Problem) -> Problem:
    """The same problem where W follows TP, which is then what somebody wrote."""
    settings, remedies = (
        tuple(TP if name == W else name for name in names) for names in (problem.settings, problem.remedies)
    )
    equation = problem.equation.replace(f"{W} ", f"{TP} ")
    return replace(problem, equation=equation, settings=settings, remedies=remedies)


def first_problem(settings: Settings) -> Problem | None:
    """The first equation that does not hold, in the order the sizes are computed in; None if all hold."""
    for find in (_weight_problem, _sequence_problem, _remat_problem, _world_problem):
        problem = find(settings)
        if problem is not None:
            return problem
    return None


def nearest(value: int, candidates: list[int]) -> list[int]:
    """The candidates next to a value, at most one on each side, ascending.

    >>> nearest(10, [4, 8, 12, 16])
    [8, 12]
    """
    below = [candidate for candidate in candidates if candidate < value]
    above = [candidate for candidate in candidates if candidate > value]
    return ([max(below)] if below else []) + ([min(above)] if above else [])


def _weight_problem(s: Settings) -> Problem | None:
    def holds(t: Settings) -> bool:
        return t.tensor_parallel_num_weight_shards % t.tensor_model_parallel_size == 0

    text = (
        f"{W} {s.tensor_parallel_num_weight_shards} is not a multiple of {TP} {s.tensor_model_parallel_size}"
    )
    return None if holds(s) else Problem(text, (W, TP), (W,), holds)


def _sequence_problem(s: Settings) -> Problem | None:
    def holds(t: Settings) -> bool:
        return t.sequence_shards % t.sequence_parallel_degree == 0

    if not holds(s):
        text = (
            f"{Q} {s.sequence_shards} is not a multiple of the sequence-parallel degree"
            f" {s.sequence_parallel_degree} ({TP} {s.tensor_model_parallel_size} with {SP} true)"
        )
        return Problem(text, (Q, TP, SP), (Q,), holds)
    if s.tensor_model_parallel_size > 1 and not s.sequence_parallel and s.sequence_shards > 1:
        return _needs_sequence_parallel(s)
    return None


def _needs_sequence_parallel(s: Settings) -> Problem:
    text = (
        f"{Q} {s.sequence_shards} with {TP} {s.tensor_model_parallel_size} needs {SP} true, and it is false"
    )

    def holds(t: Settings) -> bool:
        return t.sequence_shards == 1

    return Problem(text, (Q, TP, SP), (Q,), holds, note=f"set {SP} true ({Q} then counts the TP ranks too)")


def _remat_problem(s: Settings) -> Problem | None:
    def holds(t: Settings) -> bool:
        sequence, left_over = divmod(t.sequence_shards, t.sequence_parallel_degree)
        if left_over:
            return False
        return t.tensor_parallel_num_weight_shards % (t.tensor_model_parallel_size * sequence) == 0

    if holds(s):
        return None
    degree, tp = s.sequence_parallel_degree, s.tensor_model_parallel_size
    text = (
        f"{W} {s.tensor_parallel_num_weight_shards} / {TP} {tp} = {s.tensor_parallel_num_weight_shards // tp}"
        f" is not a multiple of {Q} {s.sequence_shards} / sequence-parallel degree {degree}"
        f" = {s.sequence_shards // degree}"
    )
    return Problem(text, (Q, W, TP), (Q, W), holds)


def _world_problem(s: Settings) -> Problem | None:
    def holds(t: Settings) -> bool:
        return t.world_size % t.ranks_per_replica_set == 0

    if holds(s):
        return None
    text = (
        f"{WORLD} {s.world_size} is not a multiple of {s.ranks_per_replica_set} = {W}"
        f" {s.tensor_parallel_num_weight_shards} x {CP} {s.context_parallel_size}"
        f" x {PP} {s.pipeline_model_parallel_size}"
    )
    changeable = tuple(name for name in (W, CP, PP) if getattr(s, name) > 1)
    return Problem(text, (WORLD, W, CP, PP), (WORLD, *changeable), holds)


def _nearest_values(
    settings: Settings, problem: Problem, *, works: Callable[[Settings], bool]
) -> dict[str, list[int]]:
    """For each setting that may be changed the values next to its present one that work, the others kept."""
    return {
        name: nearest(
            _value(settings, name),
            [value for value in _candidates(settings, name) if works(_with(settings, name, value))],
        )
        for name in problem.remedies
    }


def _with(settings: Settings, setting: str, value: int) -> Settings:
    """The settings with another value; another TP takes W along, being a remedy only where W follows it."""
    changes = {setting: value} | ({W: value} if setting == TP else {})
    return Settings(**(asdict(settings) | changes))


def _value(settings: Settings, setting: str) -> int:
    return settings.sequence_shards if setting == Q else int(getattr(settings, setting))


def _candidates(settings: Settings, setting: str) -> list[int]:
    """Values worth trying: the divisors of the world, as every size is one, and the nearest multiples."""
    if setting == WORLD:
        step = settings.ranks_per_replica_set
        below = settings.world_size // step * step
        return [v for v in (below, below + step) if v > 0]
    value = _value(settings, setting)
    step = {W: settings.tensor_model_parallel_size, Q: settings.sequence_parallel_degree}.get(setting, 1)
    values = {*_multiples_near(value, step), *divisors(settings.world_size)}
    if setting == Q:  # a sequence shard for every divisor of GTP_remat
        remat = settings.tensor_parallel_num_weight_shards // settings.tensor_model_parallel_size
        values |= {step * shards for shards in divisors(remat)}
    if setting == W:  # GTP_remat as a multiple of the sequence shards
        shards = max(settings.sequence_shards // settings.sequence_parallel_degree, 1)
        values |= _multiples_near(value, step * shards)
    return sorted(values)


def _multiples_near(value: int, step: int) -> set[int]:
    below = value // step * step
    return {v for v in (below - step, below, below + step) if v > 0}


def divisors(number: int) -> list[int]:
    """All of them, in no order.

    >>> sorted(divisors(12))
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in small]
