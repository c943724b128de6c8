"""Read integer expressions from the text by which a file names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache

from onnxfuse.symbolic.integer import Int, IntLike, ceiling, exact_division, largest, smallest
from onnxfuse.symbolic.text import is_word

LONGEST = 1000
"""Maximum length of a text that is read as an expression."""

DEEPEST = 40
"""Maximum depth of parentheses."""

MOST_POWER = 8
"""Maximum exponent: one factor for each axis of a tensor."""

LARGEST = 2**63
"""First integer that is no extent."""

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d{1,4})?)|([^\W\d]\w*)|(//|\*\*|[-+*/%(),]))", re.UNICODE)

_Quotient = tuple[IntLike, IntLike]
"""Numerator and denominator."""


class _NotAnExpressionError(Exception):
    """The text is a name in characters of its own."""


@lru_cache(4096)
def parsed(text: str) -> IntLike:
    """Return the integer that a text names: a number, an expression in other names, or else one name as it stands.

    Exporters write `+ - * / // % **`, and calls of min, max, floor and ceil. A name in other characters, an unknown
    function, or a constant that is no extent makes the whole text one name.
    """
    if len(text) <= LONGEST:
        try:
            value = _Parser(text).value()
        except (_NotAnExpressionError, ArithmeticError, ValueError):
            return Int.name(text)
        if isinstance(value, Int) or 0 <= value < LARGEST:
            return value
    return Int.name(text)


class _Parser:
    """Recursive descent over a text."""

    def __init__(self, text: str, depth: int = 0) -> None:
        self.text, self.at, self.depth = text, 0, depth
        if depth > DEEPEST:
            raise ValueError("parentheses too deep")

    def value(self) -> IntLike:
        """Return the value of the whole text."""
        quotient = self._sum()
        if self.text[self.at :].strip():
            raise _NotAnExpressionError
        return exact_division(*quotient)

    def _next(self, *wanted: str) -> str:
        """Return the next operator and move past it; the empty text if it is none of these."""
        token = _TOKEN.match(self.text, self.at)
        if token is None or token[3] not in wanted:
            return ""
        self.at = token.end()
        return token[3]

    def _sum(self) -> _Quotient:
        total = self._product()
        while sign := self._next("+", "-"):
            (a, b), (c, d) = total, self._product()
            total = (a * d + c * b if sign == "+" else a * d - c * b), b * d
        return total

    def _product(self) -> _Quotient:
        result = self._signed()
        while op := self._next("*", "/", "//", "%"):
            result = _BINARY[op](*result, *self._signed())
        return result

    def _signed(self) -> _Quotient:
        if self._next("-"):
            above, below = self._signed()
            return -above, below
        return self._signed() if self._next("+") else self._power()

    def _power(self) -> _Quotient:
        above, below = self._primary()
        if not self._next("**"):
            return above, below
        exponent, one = self._signed()
        if not isinstance(exponent, int) or one != 1 or not 0 <= exponent <= MOST_POWER:
            raise _NotAnExpressionError
        return above**exponent, below**exponent

    def _primary(self) -> _Quotient:
        token = _TOKEN.match(self.text, self.at)
        if token is None:
            raise _NotAnExpressionError
        self.at = token.end()
        number, word, sign = token.groups()
        if number is not None:
            return Fraction(number).as_integer_ratio()
        if word is not None:
            if self._next("("):
                return self._call(word)
            if not is_word(word):
                raise _NotAnExpressionError
            return Int.name(word), 1
        if sign != "(":
            raise _NotAnExpressionError
        return self._group()

    def _group(self) -> _Quotient:
        """Return the content of parentheses: an expression, or a name with characters that expressions do not have."""
        end, depth = self.at, 1
        while depth:
            if end == len(self.text):
                raise _NotAnExpressionError
            depth += (self.text[end] == "(") - (self.text[end] == ")")
            end += 1
        inner, self.at = self.text[self.at : end - 1], end
        part = _Parser(inner, self.depth + 1)
        try:
            result = part._sum()
            if inner[part.at :].strip():
                raise _NotAnExpressionError
        except _NotAnExpressionError:
            if not inner.strip() or "," in inner:
                raise
            return Int.name(inner), 1
        return result

    def _call(self, function: str) -> _Quotient:
        if function not in _FUNCTIONS:
            raise _NotAnExpressionError
        if self.depth > DEEPEST:
            raise ValueError("calls too deep")
        self.depth += 1
        args = [self._sum()]
        while self._next(","):
            args.append(self._sum())
        self.depth -= 1
        if not self._next(")"):
            raise _NotAnExpressionError
        return _FUNCTIONS[function](*args)


def _modulo(a: IntLike, b: IntLike, c: IntLike, d: IntLike) -> _Quotient:
    if b != 1 or d != 1:
        raise _NotAnExpressionError
    return a % c, 1


_BINARY: Mapping[str, Callable[[IntLike, IntLike, IntLike, IntLike], _Quotient]] = {
    "*": lambda a, b, c, d: (a * c, b * d),
    "/": lambda a, b, c, d: (a * d, b * c),
    "//": lambda a, b, c, d: ((a * d) // (b * c), 1),
    "%": _modulo,
}


def _chosen(choose: Callable[..., IntLike]) -> Callable[..., _Quotient]:
    def chosen(*args: _Quotient) -> _Quotient:
        if any(below != 1 for _, below in args):
            raise _NotAnExpressionError
        return choose(*(above for above, _ in args)), 1

    return chosen


def _rounds(by: Callable[[IntLike, IntLike], IntLike]) -> Callable[..., _Quotient]:
    def rounded(*args: _Quotient) -> _Quotient:
        if len(args) != 1:
            raise _NotAnExpressionError
        return by(*args[0]), 1

    return rounded


_FUNCTIONS: Mapping[str, Callable[..., _Quotient]] = {
    "min": _chosen(smallest), "Min": _chosen(smallest), "max": _chosen(largest), "Max": _chosen(largest),
    "floor": _rounds(lambda a, b: a // b), "ceil": _rounds(ceiling), "ceiling": _rounds(ceiling),
}  # fmt: skip
