"""Predicates and counts of a rule: conditions on a match beyond its pattern, in the closed vocabulary.

A predicate on a fact that the model does not determine is false; `not X` is true where X is not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from onnxfuse.graph.graph import Graph
from onnxfuse.model import schema
from onnxfuse.rules.language.unify import unify
from onnxfuse.rules.language.vocabulary import DTYPES, Value, Values
from onnxfuse.rules.language.vocabulary import TERMS as TERMS
from onnxfuse.rules.language.vocabulary import TESTS as TESTS
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Match
from onnxfuse.rules.pattern import expression
from onnxfuse.rules.pattern.expression import (
    LARGEST,
    SEE,
    Arithmetic,
    Call,
    Combined,
    Compare,
    Each,
    Element,
    ElementAccess,
    Extent,
    Gathered,
    ListLiteral,
    NumberLiteral,
    Tree,
    Word,
)
from onnxfuse.rules.pattern.pattern import NEWEST, Pattern
from onnxfuse.rules.pattern.shapes import SEE as SEE_SHAPES
from onnxfuse.rules.pattern.shapes import ShapeLine, Shapes
from onnxfuse.shapes.types import Dim, differ, is_unknown, shapes_differ
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import RuleError
from onnxfuse.symbolic.integer import Int, IntLike, exact_quotient
from onnxfuse.symbolic.parsing import parsed

RELATIONS: dict[str, Callable[[object, object], bool]] = {
    "==": operator.eq, "!=": operator.ne,
    "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b, "<": lambda a, b: a < b, ">": lambda a, b: a > b,  # type: ignore[operator]  # conditions are checked for what has an order
    "in": operator.eq,
}  # fmt: skip

OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod,
}  # fmt: skip


EXTENT_OPERATORS: dict[str, Callable[[IntLike, IntLike], IntLike]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Predicate:
    """One condition, parsed and checked; equal ones are one object."""

    text: str
    tree: Tree | ShapeLine
    """A condition, or the shape of a value."""
    why: Cause | None = None
    """Message if it does not hold, in place of the values found."""
    axes: tuple[Extent, ...] = ()
    """The named axes that the condition uses."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of values and labels on whose bindings it depends."""
        if isinstance(self.tree, ShapeLine):
            trees = [axis.wanted for axis in self.tree.axes]
            found = dict.fromkeys((self.tree.value, *(run.value for run in self.tree.runs)))
        else:
            trees, found = [self.tree], {}
        for argument in (a for tree in trees for call in expression.calls(tree) for a in call.arguments):
            if isinstance(argument, str):
                found[argument] = None
            else:
                trees.append(argument)
        found.update((extent.value, None) for tree in trees for extent in expression.extents(tree))
        return tuple(found)


_predicate = cache(Predicate)


@dataclass(frozen=True)
class Binding:
    """One entry of `let`: a label, and an arithmetic expression over terms for its value."""

    label: str
    text: str
    trees: tuple[Tree, ...]
    """Expression of one number, or of each element of a list."""
    many: bool
    """Whether the value is a list."""


# ---- parsing


def parse(text: str, pattern: Pattern, place: str, why: Cause | None = None, shapes: Shapes | None = None) -> Predicate:
    """Return the condition in `text`; raises RuleError whose message begins with `place`.

    It may use the axes that `shapes`, those of the pattern's table unless others are given, name.
    """
    axes = (pattern.shapes if shapes is None else shapes).axes
    try:
        tree, calls = _condition(text)
        _check_names(calls, pattern)
        tree = expression.with_axes(tree, axes)
    except RuleError as error:
        raise RuleError(f"{place}: {error}", error.hint) from None
    return _predicate(text, tree, why, tuple(dict.fromkeys(expression.extents(tree))))


def parse_shapes(shapes: Shapes, pattern: Pattern) -> tuple[Predicate, ...]:
    """Return a condition for the shape of each value; raises RuleError."""
    for one in shapes.written:
        if one.value not in pattern.values:
            near = did_you_mean(one.value, pattern.values)
            raise RuleError(f"{one.place}: shapes: '{one.value}' is not a value of the pattern.{near}", SEE_SHAPES)
    return tuple(_predicate(str(line), line) for line in shapes.lines)


def parse_let(label: str, text: str, pattern: Pattern, place: str, shapes: Shapes | None = None) -> Binding:
    """Return the binding `label = text`, as in `scale = "1 / value(divisor)"` or `split = "[0, dim(x, 1)]"`.

    Raises RuleError.
    """
    try:
        trees, many, calls = _numbers(text)
        _check_names(calls, pattern)
        axes = (pattern.shapes if shapes is None else shapes).axes
        trees = tuple(expression.with_axes(tree, axes) for tree in trees)
    except RuleError as error:
        raise RuleError(f"{place}: {error}", error.hint) from None
    return Binding(label, text, trees, many)


@cache
def spelling_conditions(pattern: Pattern) -> tuple[Predicate, ...]:
    """Return the conditions of the spellings chosen in `pattern`."""
    shapes = (one for shapes in pattern.spelled for one in parse_shapes(shapes, pattern))
    lines = (parse(line.text, pattern, f"{line.place}: where", shapes=line.shapes) for line in pattern.where)
    return (*shapes, *lines)


@cache
def bound(pattern: Pattern) -> tuple[Binding, ...]:
    """Return the labels bound by the spellings chosen in `pattern`."""
    lets = pattern.let.items()
    return tuple(parse_let(k, line.text, pattern, f"{line.place}: let", line.shapes) for k, line in lets)


@cache
def _condition(text: str) -> tuple[Tree, tuple[Call, ...]]:
    """Return the condition in `text` with its calls, checked; cached, as hundreds of patterns share one."""
    tree = expression.read(text)
    return tree, tuple(_tests(tree))


@cache
def _numbers(text: str) -> tuple[tuple[Tree, ...], bool, tuple[Call, ...]]:
    """Return the same for arithmetic: one number or the elements of a list, and whether it is a list."""
    trees, many = expression.read_values(text)
    return trees, many, tuple(call for tree in trees for call in _terms(tree))


def _tests(tree: Tree) -> Iterator[Call]:
    """Yield the calls used as conditions; rejects unknown words."""
    if isinstance(tree, Combined):
        for part in tree.parts:
            yield from _tests(part)
    elif isinstance(tree, Each):
        yield from _tests(tree.condition)
    elif isinstance(tree, Compare):
        yield from _terms(tree)
        if any(isinstance(side, Call) and side.name == "dtype" for side in (tree.left, *tree.right)):
            words = [side.text for side in (tree.left, *tree.right) if isinstance(side, Word)]
            unknown = next((word for word in words if word not in DTYPES), None)
            if unknown is not None:
                raise RuleError(f"'{unknown}' is not an element type.{did_you_mean(unknown, set(DTYPES))}", SEE)
    elif isinstance(tree, Call) and tree.name in TERMS:
        raise RuleError(f"'{tree.name}' needs a comparison after it, got '{tree}'", SEE)
    elif isinstance(tree, Call):
        _check_word(tree, test=True)
        yield tree


def _terms(tree: Tree) -> Iterator[Call]:
    for call in expression.calls(tree):
        _check_word(call, test=False)
        yield call


def _check_word(call: Call, *, test: bool) -> None:
    name, known = call.name, TESTS if test else TERMS
    if name not in known:
        if name in TESTS:
            raise RuleError(f"'{name}' takes no comparison, got '{call}'", SEE)
        raise RuleError(f"'{name}' is not a predicate.{did_you_mean(name, {*TERMS, *TESTS})}", SEE)
    wanted = _wanted(call)
    if len(wanted) != len(call.arguments):
        raise RuleError(f"{name} takes {len(wanted)} arguments, got {len(call.arguments)}", SEE)
    for kind, argument in zip(wanted, call.arguments, strict=True):
        whole = isinstance(argument, NumberLiteral) and isinstance(argument.value, int)
        if kind == "operator" and schema.find(str(argument), "", NEWEST) is None:
            raise RuleError(f"{name} takes an operator of ONNX, got '{argument}'", SEE)
        if kind == "number" and (isinstance(argument, str) or (isinstance(argument, NumberLiteral) and not whole)):
            raise RuleError(f"{name} takes an integer, got '{argument}'", SEE)


def _wanted(call: Call) -> tuple[str, ...]:
    """Return the expected kind of each argument."""
    wanted = tuple((TESTS.get(call.name) or TERMS[call.name]).arguments)
    return wanted[:1] * max(len(call.arguments), 1) if "..." in wanted else wanted


def _check_names(calls: tuple[Call, ...], pattern: Pattern) -> None:
    names = {"value": pattern.values, "name": pattern.values | pattern.labels}
    for call in calls:
        for kind, argument in zip(_wanted(call), call.arguments, strict=True):
            if kind in names and (not isinstance(argument, str) or argument not in names[kind]):
                near = did_you_mean(str(argument), names[kind])
                raise RuleError(f"'{argument}' is not a name of the pattern.{near}", SEE)


# ---- evaluation


def holds(predicate: Predicate, graph: Graph, match: Match) -> Cause | None:
    """Return None if `predicate` holds for `match`, else the cause, with the values found."""
    if isinstance(predicate.tree, ShapeLine):
        return unify(predicate.tree, graph, match, lambda tree: _evaluate(tree, graph, match))
    cause = _holds(predicate.tree, graph, match)
    if cause is None:
        return None
    return predicate.why or (cause._replace(axes=predicate.axes) if predicate.axes else cause)


class Outcomes:
    """The outcomes of predicates for the matches of one attempt, each evaluated once for the same bindings.

    The spellings of a pattern's parts multiply its matches: of 54 of one attention most differ in other bindings than
    those that a condition mentions.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Predicate | str | int, ...], tuple[Cause | None, object]] = {}
        self._failed: dict[Predicate, None] = {}

    def holds(self, predicate: Predicate, graph: Graph, match: Match) -> Cause | None:
        """Return the same as `holds`."""
        key, bindings = _bindings(predicate, match)
        known = self._known.get(key)
        if known is None:
            # The bindings are kept alive, as arrays are known by their identity.
            known = self._known[key] = holds(predicate, graph, match), bindings
            if known[0] is not None:
                self._failed[predicate] = None
        return known[0]

    def most(self, predicates: Sequence[Predicate], match: Match) -> int:
        """Return how many predicates hold at most before one does not, by the known outcomes: all if none is known."""
        for predicate in self._failed:
            known = self._known.get(_bindings(predicate, match)[0]) if predicate in predicates else None
            if known is not None and known[0] is not None:
                return predicates.index(predicate)
        return len(predicates)


def _bindings(predicate: Predicate, match: Match) -> tuple[tuple[Predicate | str | int, ...], list[object]]:
    """Return the key of the bindings that a predicate depends on, and these: arrays by identity, as they have no hash.

    A loop, as 5,000 nodes ask for a hundred thousand.
    """
    key, bindings = list[Predicate | str | int]((predicate,)), list[object]()
    for name in predicate.names:
        found: object = match.values.get(name)
        if found is None:
            found = match.labels.get(name, ...)
        bindings.append(found)
        key.append(found if isinstance(found, str) else id(found))
    return tuple(key), bindings


def bind(binding: Binding, graph: Graph, match: Match) -> float | list[float] | Cause:
    """Return the value of a binding for `match`, or the reason why it has none."""
    listed = None if binding.many else _evaluate(binding.trees[0], graph, match)
    if isinstance(listed, tuple):
        values = [v if isinstance(v, int | float) else None for v in listed]
    else:
        values = [_number(tree, graph, match) for tree in binding.trees]
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return Cause("label", f"{binding.label} = {binding.text}")
    return known if binding.many or isinstance(listed, tuple) else known[0]


def _holds(tree: Tree, graph: Graph, match: Match) -> Cause | None:
    if isinstance(tree, Compare):
        return _compare(tree, graph, match)
    if isinstance(tree, Call):
        cause: Cause | None = TESTS[tree.name].meaning(graph, match, *tree.arguments)
        return cause
    if isinstance(tree, Each):
        return _each(tree, graph, match)
    assert isinstance(tree, Combined), tree
    causes = (_holds(part, graph, match) for part in tree.parts)
    if tree.how == "and":
        return next((c for c in causes if c is not None), None)
    if tree.how == "not":
        return Cause("excluded", str(tree.parts[0])) if next(causes) is None else None
    found = list[Cause]()
    for cause in causes:
        if cause is None:
            return None
        found.append(cause)
    return Cause("none of", wanted=str(tree), parts=tuple(found))


def _each(tree: Each, graph: Graph, match: Match) -> Cause | None:
    """Return the cause at the first index at which the condition does not hold; its lists must be of one length."""
    values = {term: _evaluate(term, graph, match) for term in expression.lists(tree.condition)}
    listed = {term: value for term, value in values.items() if isinstance(value, tuple)}
    lengths = {len(value) for value in listed.values()}
    if len(lengths) != 1:
        unknown = next((term for term in values if term not in listed), tree)
        return Cause("unknown", str(unknown), wanted=str(tree))
    for index in range(*lengths):
        elements = {term: Element(f"{term}[{index}]", value[index]) for term, value in listed.items()}
        cause = _holds(expression.with_elements(tree.condition, elements), graph, match)
        if cause is not None:
            return cause
    return None


def _compare(tree: Compare, graph: Graph, match: Match) -> Cause | None:
    """Compare the values of both sides; with several on the right any may satisfy."""
    left, right = _side(tree.left, graph, match), list[Values]()
    for side in tree.right:
        value = _side(side, graph, match)
        if left is not None and value is not None and _related(left, tree.relation, value):
            return None
        right.append(value)
    left, right = _decided(tree.left, left), [_decided(*side) for side in zip(tree.right, right, strict=True)]
    known = [r for r in right if r is not None]
    asked = next((side for side in (tree.left, *tree.right) if isinstance(side, Call)), tree.left)
    if left is None or not known:
        of_mask = isinstance(asked, Call) and asked.name in ("everywhere", "until", "after")
        unknown = tree.left if left is None else tree.right[0]
        return Cause("mask" if of_mask else "unknown", str(unknown), wanted=str(tree))
    sides = zip((tree.left, *tree.right), (left, *right), strict=True)
    seen = " and ".join(
        f"{s} is {_shown(v)}" for s, v in sides if not isinstance(s, NumberLiteral | ListLiteral | Word)
    )
    if isinstance(asked, Call) and asked.name == "dtype" and all(isinstance(side, Word) for side in tree.right):
        types = " or ".join(map(str, tree.right)) if tree.relation in ("in", "==") else ""
        return Cause("type", str(asked), seen, str(tree), of=types)
    divided = tree.left if isinstance(tree.left, Arithmetic) and tree.left.operator == "%" else None
    if divided is not None and isinstance(divided.right, NumberLiteral) and tree.relation == "==" and right == [0]:
        return Cause("multiple", str(divided.left), seen, str(tree), of=str(divided.right))
    return Cause("relation", str(tree.left), seen, str(tree))


def _decided(side: Tree, value: Values) -> Values:
    """Return a side's value in a comparison that does not hold; None for arithmetic on symbolic extents."""
    return None if isinstance(side, Arithmetic) and isinstance(value, Int) else value


def _related(left: Values, relation: str, right: Values) -> bool:
    """Return whether the comparison is known to hold for two known values."""
    if isinstance(left, Int) or isinstance(right, Int):
        return _extents_related(left, relation, right)
    if isinstance(left, tuple) and isinstance(right, tuple):
        if relation == "!=":
            return shapes_differ(left, right)  # type: ignore[arg-type]  # extents, or numbers of a label
        return relation in ("==", "in") and left == right and None not in left
    if relation in ("==", "!=", "in"):
        return RELATIONS[relation](left, right)
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    return numbers and RELATIONS[relation](left, right)


def _extents_related(left: Values, relation: str, right: Values) -> bool:
    """Return whether two extents are known to be equal, or to differ; a word names one. No order is decided."""
    one, other = (parsed(side) if isinstance(side, str) else side for side in (left, right))
    if not isinstance(one, int | Int) or not isinstance(other, int | Int):
        return relation == "!="
    return differ(one, other) if relation == "!=" else relation in ("==", "in") and one == other


def _side(tree: Tree, graph: Graph, match: Match) -> Values:
    """Return the value of a comparison's side: a number, word or list; None if the model does not determine it."""
    return _word(tree.text) if isinstance(tree, Word) else _evaluate(tree, graph, match)


@cache
def _word(text: str) -> str:
    """Return a word, or the first name of the element type that it names."""
    return next(name for name, element in DTYPES.items() if element == DTYPES[text]) if text in DTYPES else text


def _evaluate(tree: Tree, graph: Graph, match: Match) -> Values:
    if isinstance(tree, NumberLiteral):
        return tree.value
    if isinstance(tree, Extent):
        extent: Values = TERMS["dim"].meaning(graph, match, tree.value, tree.index)
        return extent
    if isinstance(tree, ListLiteral):
        return tree.values
    if isinstance(tree, Element):
        return tree.value  # type: ignore[return-value]  # one of those that a list has
    if isinstance(tree, Call):
        arguments = [a if isinstance(a, str) else _number(a, graph, match) for a in tree.arguments]
        value: Values = None if None in arguments else TERMS[tree.name].meaning(graph, match, *arguments)
        return value
    if isinstance(tree, ElementAccess):
        whole = _evaluate(tree.of, graph, match)
        if not isinstance(whole, tuple):
            return None
        if not tree.one:
            return whole[tree.start : tree.stop]
        assert tree.start is not None
        return whole[tree.start] if -len(whole) <= tree.start < len(whole) else None
    if isinstance(tree, Gathered):
        whole, indices = _evaluate(tree.of, graph, match), _evaluate(tree.indices, graph, match)
        if not isinstance(whole, tuple) or not isinstance(indices, tuple):
            return None
        inside = [i for i in indices if isinstance(i, int) and -len(whole) <= i < len(whole)]
        return tuple(whole[i] for i in inside) if len(inside) == len(indices) else None
    assert isinstance(tree, Arithmetic), tree
    left, right = _operand(tree.left, graph, match), _operand(tree.right, graph, match)
    divides = tree.operator in ("/", "//", "%")
    if left is None or right is None or (divides and right == 0):
        return None
    if isinstance(left, Int) or isinstance(right, Int):
        return _extent(left, tree.operator, right)
    number = OPERATORS[tree.operator](left, right)
    return None if isinstance(number, int) and abs(number) > LARGEST else number


def _extent(left: IntLike | float, operation: str, right: IntLike | float) -> Dim:
    """Return the result of arithmetic on symbolic extents; None if it is no integer, or an expression too large."""
    if isinstance(left, float) or isinstance(right, float):
        return None
    try:
        return exact_quotient(left, right) if operation == "/" else EXTENT_OPERATORS[operation](left, right)
    except OverflowError:
        return None


def _operand(tree: Tree, graph: Graph, match: Match) -> IntLike | float | None:
    """Return an operand of arithmetic: a number, or an extent."""
    value = _evaluate(tree, graph, match)
    return value if isinstance(value, Int) else _number(tree, graph, match)


def _number(tree: Tree, graph: Graph, match: Match) -> int | float | None:
    value: Value | Values = _evaluate(tree, graph, match)
    if isinstance(tree, Call) and tree.name == "dtype" and isinstance(value, str):
        value = DTYPES.get(value)  # `let` binds an element type as ONNX's integer
    return value if isinstance(value, int | float) else None


def _shown(value: Values) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join('?' if isinstance(v, Int | None) and is_unknown(v) else _shown(v) for v in value)}]"
    return f"{value:g}" if isinstance(value, float) else "unknown" if value is None else str(value)
