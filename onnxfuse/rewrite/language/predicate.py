"""The closed vocabulary of `where`: what a rule may ask of a match beyond its shape.

const(w, b)                  dtype(x) in float16, bfloat16, float32
rank(w) == 2                 dim(x, -1) == dim(w, 0)
trailing(axes, x)            value(alpha) == 1
"""

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfuse.model.errors import RuleError
from onnxfuse.model.graph import Graph
from onnxfuse.model.types import is_unknown, shapes_differ
from onnxfuse.rewrite.language.pattern import Pattern, did_you_mean
from onnxfuse.rewrite.match.match import Bound, Match, array_of
from onnxfuse.rewrite.simplify.mask_facts import LOW, covers, diagonal, everywhere
from onnxfuse.rewrite.simplify.shrink_masks import is_finite

Value = int | float | str | None

SEE = "See onnxfuse rules --predicates."

RELATIONS: dict[str, Callable[[object, object], bool]] = {
    "==": operator.eq, "!=": operator.ne,
    "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b, "<": lambda a, b: a < b, ">": lambda a, b: a > b,  # type: ignore[operator]
}  # fmt: skip

OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip

LONGEST, DEEPEST = 1000, 30
"""Characters of an expression, and how deep its operators nest: Python's parser ends at some thousands."""

LARGEST = 2**63
"""The largest number in an expression, and the largest integer that it may come to: beyond is no extent and no size."""

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
    values: tuple[Value, ...] = ()
    """The numbers or words on the right side."""
    terms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The terms on the right side, as (name, arguments): the relation holds where it holds for one of them."""
    sides: tuple[ast.expr, ast.expr] | None = None
    """Both sides where they are arithmetic over terms; `name` is then empty."""
    unless: tuple["Predicate", ...] = ()
    """A refusal where all of these are known to hold; `name` is then empty, and `text` the reason."""
    either: tuple["Predicate", ...] = ()
    """Whole relations of which one must hold; `name` is then empty."""


def _const(graph: Graph, match: Match, *names: str) -> str | None:
    for name in names:
        value = match.values[name]
        if isinstance(value, str) and value and not graph.is_constant(value):
            maker = graph.producer(value)
            quantized = maker is not None and maker.op == "DequantizeLinear"
            return f"'{value}' is not a constant{': it is quantized' if quantized else ''}"
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


def _nonzero(graph: Graph, match: Match, name: str) -> str | None:
    array = array_of(graph, match.values[name])
    if array is None:
        return f"{_shown(match, name)} is not a constant"
    return None if array.all() else f"{_shown(match, name)} holds a 0"


def _extents(graph: Graph, match: Match, label: str, of: str) -> str | None:
    found, shape = match.labels[label], _shape(graph, match.values[of])
    if not isinstance(found, list):
        return f"the attribute that the rule calls {label} is not written"
    if shape is None or list(shape[len(shape) - len(found) :]) != found:
        return f"{found} are not known to be the last extents of {_shown(match, of)}"
    return None


def _lowest(graph: Graph, match: Match, name: str) -> str | None:
    array = array_of(graph, match.values[name])
    if array is None or array.size != 1:
        return f"{_shown(match, name)} is not one constant number"
    number = float(array.reshape(-1)[0])
    return None if number == -np.inf else f"{_shown(match, name)} is {number:g}, the rule wants minus infinity"


def _causal(graph: Graph, match: Match, name: str) -> str | None:
    value = match.values[name]
    seen = diagonal(graph, value) if isinstance(value, str) else None
    if seen is not None and seen.before == 0 and seen.after <= LOW:
        return None
    return f"{_shown(match, name)} is not known to be the causal mask"


def _lower(graph: Graph, match: Match, name: str, *, after: float = 0) -> str | None:
    value = match.values[name]
    seen = diagonal(graph, value) if isinstance(value, str) else None
    if seen is not None and (seen.before, seen.after) == (1 - after, after):
        return None
    return f"{_shown(match, name)} is not known to tell keys after their query from the others"


def _upper(graph: Graph, match: Match, name: str) -> str | None:
    return _lower(graph, match, name, after=1)


def _covers(graph: Graph, match: Match, mask: str, scores: str) -> str | None:
    values = match.values[mask], match.values[scores]
    if all(isinstance(v, str) for v in values) and covers(graph, str(values[0]), str(values[1])):
        return None
    return f"{_shown(match, mask)} is not known to have an element for each of {_shown(match, scores)}"


def _zeros(graph: Graph, match: Match, name: str, *, number: float = 0) -> str | None:
    value = match.values[name]
    seen = everywhere(graph, value) if isinstance(value, str) else None
    return None if seen == number else f"{_shown(match, name)} is not known to be {number:g} everywhere"


def _finite(graph: Graph, match: Match, name: str) -> str | None:
    value = match.values[name]
    known = isinstance(value, str) and is_finite(graph, value)
    return None if known else f"{_shown(match, name)} is not known to be finite"


def _ones(graph: Graph, match: Match, name: str) -> str | None:
    return _zeros(graph, match, name, number=1)


def _alike(graph: Graph, match: Match, first: str, second: str) -> str | None:
    a, b = _shape(graph, match.values[first]), _shape(graph, match.values[second])
    if not shapes_differ(a, b):
        return None
    return f"{_shown(match, first)} and {_shown(match, second)} have different shapes"


def _leading(graph: Graph, match: Match, first: str, second: str) -> str | None:
    a, b = _shape(graph, match.values[first]), _shape(graph, match.values[second])
    if a is not None and b is not None and a[:-1] == b[:-1] and None not in a[:-1]:
        return None
    shown = (f"{_shown(match, name)} of shape {list(shape or ())}" for name, shape in ((first, a), (second, b)))
    return f"{' and '.join(shown)} are not known to have the same rows"


def _same(graph: Graph, match: Match, first: str, second: str) -> str | None:
    a, b = _shape(graph, match.values[first]), _shape(graph, match.values[second])
    if a is not None and a == b and not any(is_unknown(d) for d in a):
        return None
    return f"the shapes of {_shown(match, first)} and {_shown(match, second)} are not known to be the same"


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
        found = graph.constant(found) if graph.element_count(found) == 1 else None
    if isinstance(found, np.ndarray):
        return float(found.reshape(-1)[0]) if found.size == 1 else None
    return found if isinstance(found, int | float | str) else None


@dataclass(frozen=True)
class Word:
    """One word of the vocabulary."""

    meaning: Callable[..., Any]
    """Called with the graph, the match and the arguments."""
    arguments: tuple[str, ...]
    """What each argument is: a `value` of the pattern, a `label`, a `name` (either), a `number`; "..." repeats."""
    text: str
    """What `onnxfuse rules --predicates` says of it."""


TESTS: dict[str, Word] = {
    "const": Word(_const, ("value", "..."), "const(a, b, ...): each is a weight or a constant"),
    "trailing": Word(
        _trailing,
        ("name", "value"),
        "trailing(axes, x): the constant or attribute `axes` names the last axes of x, one or several",
    ),
    "fixes_last": Word(
        _fixes_last, ("label",), "fixes_last(perm): the permutation of a Transpose leaves the last axis in place"
    ),
    "nonzero": Word(
        _nonzero, ("value",), "nonzero(shape): a constant without a 0, as the target of a Reshape that copies no extent"
    ),
    "channels": Word(_channels, ("value", "value"), "channels(m, c): broadcast to c, m varies along axis 1 alone"),
    "extents": Word(
        _extents, ("label", "value"), "extents(kernel, w): the attribute lists the last extents of w, one or several"
    ),
    "lowest": Word(_lowest, ("value",), "lowest(c): the constant c is minus infinity"),
    "causal": Word(
        _causal, ("value",), "causal(mask): it is known to be 0 up to the diagonal and too low for any score after it"
    ),
    "lower": Word(_lower, ("value",), "lower(keep): a condition known to hold up to the diagonal and not after it"),
    "upper": Word(_upper, ("value",), "upper(hide): a condition known to hold after the diagonal and not up to it"),
    "covers": Word(
        _covers,
        ("value", "value"),
        "covers(mask, s): the mask is not repeated along the last two axes of s",
    ),
    "zeros": Word(_zeros, ("value",), "zeros(mask): it is known to be 0 everywhere"),
    "ones": Word(_ones, ("value",), "ones(keep): a condition known to hold everywhere"),
    "finite": Word(_finite, ("value",), "finite(mask): its elements are known to be numbers, none of them infinite"),
    "leading": Word(_leading, ("value", "value"), "leading(x, y): x and y are known to agree in all axes but the last"),
    "same": Word(_same, ("value", "value"), "same(x, y): the shapes of x and y are known, and the same"),
    "alike": Word(_alike, ("value", "value"), "alike(x, y): the shapes of x and y are not known to be different"),
}
"""Bare predicates: the meaning returns the reason why it does not hold, or None."""

TERMS: dict[str, Word] = {
    "rank": Word(_rank, ("value",), "rank(x) == 2: the number of dimensions"),
    "dim": Word(_dim, ("value", "number"), "dim(x, -1) == 768: one extent, or its name; also against other dim(...)"),
    "dtype": Word(_dtype, ("value",), "dtype(x) in float16, bfloat16, float: the element type"),
    "size": Word(_size, ("value",), "size(b) == 1: the number of elements, where the whole shape is known"),
    "value": Word(_value, ("name",), "value(alpha) == 1: an attribute bound to a label, or a constant of one element"),
}
"""What a relation can compare: the meaning returns None where the model does not tell."""

UNLESS = "unless "
"""How a line begins that refuses where something is known to hold."""

_TERM = r"(\w+)\(([^()]*)\)"

_SUMS = re.compile(r"^(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+)$")

_RELATION = re.compile(r"==|!=|<=|>=|<|>|\bin\b")

_LINE = re.compile(r"^\s*(\w+)\(([^()]*)\)\s*(?:(==|!=|<=|>=|<|>|in\b)\s*(.+?))?\s*$")


def parse(text: str, pattern: Pattern, place: str) -> Predicate:
    """Return the predicate in `text`; raises RuleError that begins with `place`."""
    if text.startswith(UNLESS):
        conditions, _, reason = text.removeprefix(UNLESS).partition(": ")
        parsed = tuple(parse(line.strip(), pattern, place) for line in conditions.split(" and "))
        return Predicate(reason or text, "", (), "", unless=parsed)
    alternatives = text.split(" or ")
    if len(alternatives) > 1 and all(map(_RELATION.search, alternatives)):
        return Predicate(text, "", (), "", either=tuple(parse(line, pattern, place) for line in alternatives))
    found = _LINE.match(text)
    if found is not None and "(" in (found[4] or "") and not all(map(_term, found[4].split(" or "))):
        found = None  # the right side is arithmetic
    relation_of_sums = _SUMS.match(text) if found is None else None
    if relation_of_sums is not None:
        left, relation, right = relation_of_sums.groups()
        sides = (_arithmetic(left, pattern, place), _arithmetic(right, pattern, place))
        return Predicate(text, "", (), relation, sides=sides)
    if found is None:
        raise RuleError(f"{place}: '{text}' is not of the form name(arguments) or name(arguments) == value", SEE)
    name, arguments, relation, right = found[1], _words(found[2]), found[3] or "", found[4] or ""
    if name not in (TERMS if relation else TESTS):
        if name in TERMS or name in TESTS:
            want = "a comparison after it" if name in TERMS else "no comparison"
            raise RuleError(f"{place}: '{name}' wants {want}, got '{text}'", SEE)
        raise RuleError(f"{place}: '{name}' is not a predicate.{did_you_mean(name, {*TERMS, *TESTS})}", SEE)
    terms = tuple((t[1], _words(t[2])) for side in right.split(" or ") if (t := _term(side)))
    for word, _ in terms:
        if word not in TERMS:
            raise RuleError(f"{place}: '{word}' is not a term.{did_you_mean(word, set(TERMS))}", SEE)
    _check_arguments(name, arguments, pattern, place)
    for word, words in terms:
        _check_arguments(word, words, pattern, place)
    if terms:
        return Predicate(text, name, arguments, relation, terms=terms)
    values = tuple(_literal(w) for w in _words(right))
    if name == "dtype":
        unknown = next((v for v in values if str(v) not in DTYPES), None)
        if unknown is not None:
            raise RuleError(
                f"{place}: '{unknown}' is not an element type.{did_you_mean(str(unknown), set(DTYPES))}", SEE
            )
    return Predicate(text, name, arguments, relation, values)


def _term(text: str) -> re.Match[str] | None:
    return re.fullmatch(_TERM, text.strip())


def _check_arguments(name: str, arguments: tuple[str, ...], pattern: Pattern, place: str) -> None:
    wanted = {**TESTS, **TERMS}[name].arguments
    if "..." in wanted:
        wanted = wanted[:1] * max(len(arguments), 1)
    if len(wanted) != len(arguments):
        raise RuleError(f"{place}: {name} wants {len(wanted)} arguments, got {len(arguments)}", SEE)
    known = {
        "value": pattern.values,
        "label": pattern.labels,
        "name": pattern.values | pattern.labels,
        "number": frozenset[str](),
    }
    for kind, argument in zip(wanted, arguments, strict=True):
        if kind == "number" and not re.fullmatch(r"-?\d+", argument):
            raise RuleError(f"{place}: {name} wants a number, got '{argument}'", SEE)
        if kind != "number" and argument not in known[kind]:
            near = did_you_mean(argument, known[kind])
            what = "label" if kind == "label" else "name"
            raise RuleError(f"{place}: '{argument}' is not a {what} of the pattern.{near}", SEE)


def holds(predicate: Predicate, graph: Graph, match: Match) -> str | None:
    """Return None where `predicate` holds for `match`, else the reason with the values seen."""
    if predicate.unless:
        return predicate.text if all(holds(p, graph, match) is None for p in predicate.unless) else None
    if predicate.either:
        reasons = [holds(p, graph, match) for p in predicate.either]
        return None if None in reasons else " and ".join(map(str, reasons))
    if not predicate.relation:
        reason: str | None = TESTS[predicate.name].meaning(graph, match, *predicate.arguments)
        return reason
    if predicate.sides is not None:
        first, second = (_evaluate(side, graph, match) for side in predicate.sides)
        if first is None or second is None:
            return f"{predicate.text} is not known to hold"
        if RELATIONS[predicate.relation](first, second):
            return None
        numbers = zip(predicate.sides, (first, second), strict=True)
        seen = [f"{ast.unparse(side)} is {number:g}" for side, number in numbers if not isinstance(side, ast.Constant)]
        return f"{' and '.join(seen)}; the rule wants {predicate.text}"
    left = TERMS[predicate.name].meaning(graph, match, *predicate.arguments)
    values = predicate.values or tuple(TERMS[name].meaning(graph, match, *words) for name, words in predicate.terms)
    if left is None or all(v is None for v in values):
        return f"{predicate.name}({', '.join(predicate.arguments)}) is not known; the rule wants {predicate.text}"
    if predicate.relation in ("<", "<=", ">", ">=") and any(isinstance(v, str) for v in (left, *values)):
        return f"{predicate.name}({', '.join(predicate.arguments)}) is {left}; the rule wants {predicate.text}"
    if predicate.name == "dtype":
        left, values = DTYPES[str(left)], tuple(DTYPES[str(v)] for v in values)
    if predicate.relation == "in" and left in values:
        return None
    if predicate.relation != "in" and any(v is not None and RELATIONS[predicate.relation](left, v) for v in values):
        return None
    shown = TensorProto.DataType.Name(int(left)).lower() if predicate.name == "dtype" else left
    return f"{predicate.name}({', '.join(predicate.arguments)}) is {shown}; the rule wants {predicate.text}"


@dataclass(frozen=True)
class Binding:
    """One entry of `let`: a label, and the arithmetic over terms that gives its value."""

    label: str
    text: str
    trees: tuple[ast.expr, ...]
    """One number, or the elements of a list."""
    many: bool
    """It is a list."""


def parse_let(label: str, text: str, pattern: Pattern, place: str) -> Binding:
    """Return the binding `label = text`, as in `scale = "1 / value(divisor)"` or `split = "[0, dim(x, 1)]"`.

    Raises RuleError.
    """
    tree = _expression(text, place)
    many = isinstance(tree, ast.List)
    trees = tuple(tree.elts) if isinstance(tree, ast.List) else (tree,)
    for one in trees:
        _check_arithmetic(one, text, pattern, place)
    return Binding(label, text, trees, many)


def _arithmetic(text: str, pattern: Pattern, place: str) -> ast.expr:
    tree = _expression(text, place)
    _check_arithmetic(tree, text, pattern, place)
    return tree


def _expression(text: str, place: str) -> ast.expr:
    if len(text) > LONGEST:
        raise RuleError(f"{place}: an expression of {len(text)} characters, at most {LONGEST} are read", SEE)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):  # ValueError: a NUL character
        raise RuleError(f"{place}: '{text}' is not arithmetic over terms", SEE) from None
    level, depth = [tree], 0
    while level:
        level, depth = [c for t in level for c in ast.iter_child_nodes(t) if isinstance(c, ast.expr)], depth + 1
    if depth > DEEPEST:
        raise RuleError(f"{place}: an expression {depth} operators deep, at most {DEEPEST} are read", SEE)
    return tree


def _check_arithmetic(tree: ast.expr, text: str, pattern: Pattern, place: str) -> None:
    if isinstance(tree, ast.Call):
        name = ast.unparse(tree.func)
        if name not in TERMS or tree.keywords:
            raise RuleError(f"{place}: '{name}' is not a predicate.{did_you_mean(name, set(TERMS))}", SEE)
        _check_arguments(name, tuple(ast.unparse(a) for a in tree.args), pattern, place)
    elif isinstance(tree, ast.BinOp) and type(tree.op) in OPERATORS:
        _check_arithmetic(tree.left, text, pattern, place)
        _check_arithmetic(tree.right, text, pattern, place)
    elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        _check_arithmetic(tree.operand, text, pattern, place)
    elif not (_is_number(tree)):
        raise RuleError(
            f"{place}: '{ast.unparse(tree)}' has no place in '{text}'; it may use + - * / // %, numbers and terms",
            SEE,
        )


def _is_number(tree: ast.expr) -> bool:
    value = tree.value if isinstance(tree, ast.Constant) else None
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


@cache
def asked(pattern: Pattern) -> tuple[Predicate, ...]:
    """Return what the spellings chosen in `pattern` ask of a match."""
    return tuple(parse(line.text, pattern, f"{line.place}: where") for line in pattern.where)


@cache
def bound(pattern: Pattern) -> tuple[Binding, ...]:
    """Return the labels that the spellings chosen in `pattern` bind."""
    return tuple(parse_let(k, line.text, pattern, f"{line.place}: let") for k, line in pattern.let.items())


def bind(binding: Binding, graph: Graph, match: Match) -> float | list[float] | str:
    """Return the value of a binding for `match`, or the reason why it has none."""
    values = [_evaluate(tree, graph, match) for tree in binding.trees]
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return f"{binding.label} = {binding.text} is not known"
    return known if binding.many else known[0]


def _evaluate(tree: ast.expr, graph: Graph, match: Match) -> int | float | None:
    value: object = None
    if isinstance(tree, ast.Constant):
        value = tree.value
    elif isinstance(tree, ast.UnaryOp):
        inner = _evaluate(tree.operand, graph, match)
        value = None if inner is None else -inner
    elif isinstance(tree, ast.BinOp):
        left, right = _evaluate(tree.left, graph, match), _evaluate(tree.right, graph, match)
        divides = isinstance(tree.op, ast.Div | ast.FloorDiv | ast.Mod)
        if left is not None and right is not None and not (divides and right == 0):
            value = OPERATORS[type(tree.op)](left, right)
            value = None if isinstance(value, int) and abs(value) > LARGEST else value
    elif isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        value = TERMS[tree.func.id].meaning(graph, match, *(ast.unparse(a) for a in tree.args))
        value = DTYPES.get(value) if tree.func.id == "dtype" and isinstance(value, str) else value
    return value if isinstance(value, int | float) else None


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
