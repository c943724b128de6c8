"""Text of integer expressions: what a file names an extent by. `symbolic/parsing.py` reads it back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from onnxfuse.symbolic.operations import CEILING, EXACT, FLOOR, MAX, MIN, MOD, NAME
from onnxfuse.symbolic.terms import Monomial, Terms, common_factors, divided

if TYPE_CHECKING:
    from onnxfuse.symbolic.integer import Atom, IntLike

LONGEST_CALL = 60
"""Maximum length of the text of an operation that files do not know; a longer one ends in a hash of its operands."""


def is_word(text: str) -> bool:
    """Return whether a name can be written in an expression without parentheses."""
    return text.isidentifier()


def of_sum(terms: Terms) -> str:
    """Return the text of an integer."""
    return _written(terms)[0]


def of_operation(op: str, args: tuple[Any, ...]) -> str:
    """Return the text of an atom."""
    if op in WRITTEN:
        return WRITTEN[op](*args)
    operands = ",".join(map(str, args))
    if len(operands) > LONGEST_CALL:
        operands = f"#{hashlib.blake2b(operands.encode(), digest_size=8).hexdigest()}"
    return f"{op}({operands})"


def _written(terms: Terms) -> tuple[str, bool]:
    """Return the text of an expression, and whether it can be an operand of a division without parentheses."""
    if len(terms) == 1:
        return _written_product(*terms[0])
    common, lead = common_factors(terms), abs(terms[0][1])
    number = lead if all(c % lead == 0 for _, c in terms) else 1
    if common or number > 1:
        parts = sorted([_written_sum(divided(terms, common, number)), *map(_factor, common)])
        return "*".join(parts if number == 1 else [str(number), *parts]), False
    return _written_sum(terms), True


def _written_product(monomial: Monomial, coefficient: int) -> tuple[str, bool]:
    if coefficient == 1 and len(monomial) == 1:
        only = monomial[0]
        return only.text, is_word(only.text) if only.op == NAME else only.op in _ENCLOSED
    sign, number = "-" if coefficient < 0 else "", abs(coefficient)
    parts = sorted(map(_factor, monomial))
    return sign + "*".join(parts if number == 1 else [str(number), *parts]), False


def _written_sum(terms: Terms) -> str:
    """Return a sum in parentheses, positive terms before negative ones."""
    text = ""
    for monomial, coefficient in sorted(terms, key=lambda term: term[1] < 0):
        number, parts = abs(coefficient), sorted(map(_factor, monomial))
        if number > 1 or not monomial:
            parts = [str(number), *parts]
        elif coefficient > 0 and len(monomial) == 1 and monomial[0].op in _ENCLOSED:
            parts = [parts[0][1:-1]]  # a quotient binds closer than a sum
        text += ("-" if coefficient < 0 else "+" if text else "") + "*".join(parts)
    return f"({text})"


_ENCLOSED = (FLOOR, EXACT, MOD)
"""Kinds of atoms that are written in parentheses."""


def _factor(atom: Atom) -> str:
    return atom.text if atom.op != NAME or is_word(atom.text) else f"({atom.text})"


def _operand(value: IntLike) -> str:
    if isinstance(value, int):
        return str(value) if value >= 0 else f"({value})"
    text, alone = _written(value.terms)
    return text if alone else f"({text})"


WRITTEN: Mapping[str, Callable[..., str]] = {
    NAME: lambda text: text,
    FLOOR: lambda a, b: f"({_operand(a)}//{_operand(b)})",
    CEILING: lambda a, b: f"ceil({_operand(a)}/{_operand(b)})",
    EXACT: lambda a, b: f"({_operand(a)}/{_operand(b)})",
    MOD: lambda a, b: f"({_operand(a)}%{_operand(b)})",
    MIN: lambda *args: f"min({','.join(map(str, args))})",
    MAX: lambda *args: f"max({','.join(map(str, args))})",
}
"""Text of the atoms that files know."""
