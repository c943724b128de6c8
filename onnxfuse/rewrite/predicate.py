"""The closed vocabulary of `where`: what a rule may ask of a match beyond its shape.

const(w, b)                  dtype(x) in float16, bfloat16, float32
rank(w) == 2                 dim(x, -1) == dim(w, 0)
trailing(axes, x)            value(alpha) == 1
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxfuse.model.errors import RuleError
from onnxfuse.model.graph import Graph
from onnxfuse.rewrite.match import Bound, Match
from onnxfuse.rewrite.pattern import Pattern, did_you_mean

Value = int | float | str | None

RELATIONS: dict[str, Callable[[object, object], bool]] = {
    "==": operator.eq, "!=": operator.ne,
    "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b, "<": lambda a, b: a < b, ">": lambda a, b: a > b,  # type: ignore[operator]
}  # fmt: skip

DTYPES = {name.lower(): int(value) for name, value in TensorProto.DataType.items()}
DTYPES["float32"], DTYPES["float64"] = DTYPES["float"], DTYPES["double"]


@dataclass(frozen=True)
class Predicate:
    """One line of `where`, parsed."""

    text: str
    name: str
    arguments: tuple[str, ...]
    relation: str
    """"" for a test such as `const(w)`; else one of ==, !=, <, <=, >, >=, in."""
    right: tuple[Value, ...] | tuple[str, tuple[str, ...]]
    """The numbers or words on the right side, or another term as (name, arguments)."""


def _const(graph: Graph, match: Match, *names: str) -> str | None:
    for name in names:
        value = match.values[name]
        if isinstance(value, str) and value and not graph.is_constant(value):
            return f"'{value}' is not a constant"
    return None


def _trailing(graph: Graph, match: Match, axes: str, of: str) -> str | None:
    rank = _rank(graph, match, of)
    if rank is None:
        return f"the rank of {_shown(match, of)} is not known"
    found = match.values.get(axes, match.labels.get(axes))
    array = graph.constant(found) if isinstance(found, str) else found
    if array is None:
        return f"the axes are {'computed by the graph' if found else 'all'}, the rule wants the last ones"
    numbers = sorted(int(a) % rank for a in np.asarray(array).reshape(-1))
    if numbers != list(range(rank - len(numbers), rank)) or not numbers:
        return f"the axes are {numbers} of {rank}, the rule wants the last ones"
    return None


def _fixes_last(graph: Graph, match: Match, label: str) -> str | None:
    perm = match.labels[label]
    if not isinstance(perm, list):
        return "the permutation reverses all axes"
    return None if perm[-1] == len(perm) - 1 else f"the permutation {perm} moves the last axis"


def _channels(graph: Graph, match: Match, constant: str, of: str) -> str | None:
    shape = _shape(graph, match.values[constant])
    rank = _rank(graph, match, of)
    if shape is None or rank is None:
        return f"the shapes of {_shown(match, constant)} and {_shown(match, of)} are not both known"
    full = (1,) * (rank - len(shape)) + tuple(shape)
    if len(full) != rank or any(extent != 1 for axis, extent in enumerate(full) if axis != 1):
        return f"{_shown(match, constant)} of shape {list(shape)} varies along another axis than the channels"
    channels = _dim(graph, match, of, "1")
    if full[1:2] not in ((1,), (channels,)):
        return f"{_shown(match, constant)} of shape {list(shape)} makes more of the {channels or 'unknown'} channels"
    return None


def _rank(graph: Graph, match: Match, name: str) -> int | None:
    shape = _shape(graph, match.values[name])
    return None if shape is None else len(shape)


def _dim(graph: Graph, match: Match, name: str, index: str) -> Value:
    shape = _shape(graph, match.values[name])
    if shape is None or not -len(shape) <= int(index) < len(shape):
        return None
    return shape[int(index)]


def _dtype(graph: Graph, match: Match, name: str) -> Value:
    value = match.values[name]
    number = graph.type(value).dtype if isinstance(value, str) else 0
    return TensorProto.DataType.Name(number).lower().replace("undefined", "") or None


def _size(graph: Graph, match: Match, name: str) -> Value:
    shape = _shape(graph, match.values[name])
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return int(np.prod([int(d or 0) for d in shape], dtype=np.int64))


def _value(graph: Graph, match: Match, label: str) -> Value:
    found = match.labels.get(label, match.values.get(label))
    if isinstance(found, bytes):
        return found.decode(errors="replace")
    if isinstance(found, str) and label in match.values:
        array = graph.constant(found) if graph.element_count(found) == 1 else None
        return None if array is None else float(array.reshape(-1)[0])
    return found if isinstance(found, int | float | str) else None


TESTS: dict[str, tuple[Callable[..., str | None], str]] = {
    "const": (_const, "const(a, b, ...): each is a weight or a constant"),
    "trailing": (
        _trailing,
        "trailing(axes, x): the constant or attribute `axes` names the last axes of x, one or several",
    ),
    "fixes_last": (_fixes_last, "fixes_last(perm): the permutation of a Transpose leaves the last axis in place"),
    "channels": (_channels, "channels(m, c): broadcast to c, m varies along axis 1 alone"),
}
"""Bare predicates: the function returns the reason why it does not hold, or None."""

TERMS: dict[str, tuple[Callable[..., Value], str]] = {
    "rank": (_rank, "rank(x) == 2: the number of dimensions"),
    "dim": (_dim, "dim(x, -1) == 768: one extent, or its name; also against another dim(...)"),
    "dtype": (_dtype, "dtype(x) in float16, bfloat16, float: the element type"),
    "size": (_size, "size(b) == 1: the number of elements, where the whole shape is known"),
    "value": (_value, "value(alpha) == 1: an attribute bound to a label, or a constant of one element"),
}
"""What a relation can compare: the function returns None where the model does not tell."""

_LINE = re.compile(r"^\s*(\w+)\(([^()]*)\)\s*(?:(==|!=|<=|>=|<|>|in\b)\s*(.+?))?\s*$")


def parse(text: str, pattern: Pattern, place: str) -> Predicate:
    """Return the predicate in `text`; raises RuleError that begins with `place`."""
    see = "See onnxfuse rules --predicates."
    found = _LINE.match(text)
    if found is None:
        raise RuleError(f"{place}: '{text}' is not of the form name(arguments) or name(arguments) == value", see)
    name, arguments, relation, right = found[1], _words(found[2]), found[3] or "", found[4] or ""
    if name not in (TERMS if relation else TESTS):
        if name in TERMS or name in TESTS:
            want = "a comparison after it" if name in TERMS else "no comparison"
            raise RuleError(f"{place}: '{name}' wants {want}, got '{text}'", see)
        raise RuleError(f"{place}: '{name}' is not a predicate.{did_you_mean(name, {*TERMS, *TESTS})}", see)
    other = re.fullmatch(r"(\w+)\(([^()]*)\)", right)
    if other is not None and other[1] not in TERMS:
        raise RuleError(f"{place}: '{other[1]}' is not a term.{did_you_mean(other[1], set(TERMS))}", see)
    for argument in (*arguments, *(_words(other[2]) if other else ())):
        known = pattern.values | pattern.labels
        if argument not in known and not re.fullmatch(r"-?\d+", argument):
            raise RuleError(f"{place}: '{argument}' is not a name of the pattern.{did_you_mean(argument, known)}", see)
    if other is not None:
        return Predicate(text, name, arguments, relation, (other[1], _words(other[2])))
    values = tuple(_literal(w) for w in _words(right))
    if name == "dtype":
        unknown = next((v for v in values if str(v) not in DTYPES), None)
        if unknown is not None:
            raise RuleError(
                f"{place}: '{unknown}' is not an element type.{did_you_mean(str(unknown), set(DTYPES))}", see
            )
    return Predicate(text, name, arguments, relation, values)


def holds(predicate: Predicate, graph: Graph, match: Match) -> str | None:
    """Return None where `predicate` holds for `match`, else the reason with the values seen."""
    if not predicate.relation:
        return TESTS[predicate.name][0](graph, match, *predicate.arguments)
    left = TERMS[predicate.name][0](graph, match, *predicate.arguments)
    right = predicate.right
    if len(right) == 2 and isinstance(right[1], tuple):
        values: tuple[Value, ...] = (TERMS[str(right[0])][0](graph, match, *right[1]),)
    else:
        values = tuple(v for v in right if not isinstance(v, tuple))
    if left is None or None in values:
        return f"{predicate.name}({', '.join(predicate.arguments)}) is not known; the rule wants {predicate.text}"
    if predicate.name == "dtype":
        left, values = DTYPES[str(left)], tuple(DTYPES[str(v)] for v in values)
    if predicate.relation == "in" and left in values:
        return None
    if predicate.relation != "in" and RELATIONS[predicate.relation](left, values[0]):
        return None
    seen = TensorProto.DataType.Name(int(left)).lower() if predicate.name == "dtype" else left
    return f"{predicate.name}({', '.join(predicate.arguments)}) is {seen}; the rule wants {predicate.text}"


def _shape(graph: Graph, value: Bound) -> tuple[int | str | None, ...] | None:
    return graph.type(value).shape if isinstance(value, str) else value.shape


def _shown(match: Match, name: str) -> str:
    value = match.values[name]
    return f"'{value}'" if isinstance(value, str) else name


def _words(text: str) -> tuple[str, ...]:
    return tuple(w.strip() for w in text.split(",") if w.strip())


def _literal(word: str) -> Value:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
