"""Assign integers to a model's symbolic extents: a value for each name, from which derived extents are computed."""

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping

from onnxfuse.shapes.types import INVENTED, Dim

Numbers = Callable[[str], int]
"""The integer for a name; the empty name is an unknown extent."""

OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip
FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min, "max": max, "Min": min, "Max": max, "ceil": math.ceil, "ceiling": math.ceil, "floor": math.floor,
}  # fmt: skip
"""Functions in the extent expressions of exporters, ONNX's inference and `dims`."""


MOST = 2.0**63
"""Upper bound of extents: int64."""


def extent_value(dim: Dim, numbers: Numbers) -> int | None:
    """Return the integer for an extent; None if its expression does not evaluate to a non-negative integer.

    >>> extent_value("4*((height-1)//2+1)", lambda name: 7)
    16
    """
    if isinstance(dim, int):
        return dim
    if dim is None:
        return numbers("")
    found = 1.0
    for factor in _factors(dim):
        value = _computed(factor, numbers)
        if value is None:
            return None
        try:
            found *= value
        except OverflowError:  # beyond float
            return None
    return int(found) if 0 <= found < MOST and found == int(found) else None


def _factors(dim: str) -> Iterator[str]:
    """Yield the factors of a product: an invented name encodes its origin, in any characters."""
    depth, start = 0, 0
    for i, letter in enumerate(dim):
        depth += (letter == "(") - (letter == ")")
        if letter == "*" and depth == 0:
            yield dim[start:i]
            start = i + 1
    yield dim[start:]


def _computed(text: str, numbers: Numbers) -> float | None:
    """Return the value of a factor: of an expression, or of a name in any characters."""
    if text.startswith(INVENTED):
        return numbers(text)
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: too deeply nested
        return numbers(text)
    if not all(isinstance(n, KNOWN) for n in ast.walk(tree)):
        return numbers(text)
    try:
        return _value(tree, numbers)
    except (ArithmeticError, KeyError, TypeError, ValueError, RecursionError):  # such as a division by zero
        return None


KNOWN = (ast.BinOp, ast.UnaryOp, ast.USub, ast.Call, ast.Constant, ast.Name, ast.Load, *OPERATORS)


def _value(tree: ast.expr, numbers: Numbers) -> float:
    match tree:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            return numbers(name)
        case ast.UnaryOp(operand=operand):
            return -_value(operand, numbers)
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](_value(left, numbers), _value(right, numbers))
        case ast.Call(func=ast.Name(id=name), args=args):
            return FUNCTIONS[name](*(_value(a, numbers) for a in args))
    raise TypeError(ast.dump(tree))
