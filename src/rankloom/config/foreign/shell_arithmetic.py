"""Integer arithmetic of a shell, in 64 bits; everything it does not know is refused."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

__all__ = ["assigned_in", "calculate"]

_LARGEST = 2**63
_LONGEST = 1000  # characters of an expression
_ASSIGNED = re.compile(
    r"(?<![\w$])([A-Za-z_]\w*)(?:\[[^]]*\])?\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))"
    r"|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)


def assigned_in(expression: str) -> frozenset[str]:
    """The variables that an expression sets: {"N"} of "N *= 2" and of "N++"."""
    return frozenset(match[1] or match[2] for match in _ASSIGNED.finditer(expression))


def _quotient(a: int, b: int) -> int:
    """Rounded towards zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _shift(a: int, b: int) -> int:
    if not 0 <= b < 64:
        raise ValueError("a shift by more than there are bits")
    return a << b


_OPERATIONS: Mapping[type[ast.AST], Callable[[int, int], int]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: _quotient,
        ast.Mod: lambda a, b: a - b * _quotient(a, b),
        ast.LShift: _shift,
        ast.RShift: lambda a, b: a // _shift(1, b),
    }
)
_COMPARISONS: Mapping[type[ast.AST], Callable[[int, int], bool]] = MappingProxyType(
    {
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
    }
)


def calculate(text: str) -> int:
    """The value of a shell's integer expression. Raises ValueError for anything else."""
    text = " ".join(text.split())
    if len(text) > _LONGEST or "#" in text:
        raise ValueError("not an expression that is known here")
    try:
        tree = ast.parse(text.replace("&&", " and ").replace("||", " or "), mode="eval")
        return _calculated(tree.body)
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None


def _calculated(node: ast.expr) -> int:
    value = _unbounded(node)
    if not -_LARGEST <= value < _LARGEST:
        raise ValueError("more than 64 bits")
    return value


def _unbounded(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_calculated(node.left), _calculated(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _calculated(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        compare = _COMPARISONS[type(node.ops[0])]
        return int(compare(_calculated(node.left), _calculated(node.comparators[0])))
    if isinstance(node, ast.BoolOp):
        values: Iterable[int] = [_calculated(v) for v in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.IfExp):
        return _calculated(node.body if _calculated(node.test) else node.orelse)
    raise ValueError("not an integer expression")
