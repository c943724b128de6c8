"""The expressions of a rule: Python's syntax, parsed once into a small tree that can only compare numbers.

rank(w) == 2 and const(w, b)            dtype(x) in (float16, bfloat16)
1 <= dim(x, -1) <= 1024                 dim(h, 1) * dim(h, 3) == dim(x, 2)
not (dim(x, 1) == 1 and dim(x, 2) == 1) shape(x)[:-1] == shape(y)[:-1]
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

from onnxfuse.cuda.costs import library
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import RuleError
from onnxfuse.support.plurals import plural

SEE = "See onnxfuse rules --predicates."

LONGEST, DEEPEST = 2000, 30
"""Maximum characters and operator nesting of an expression: Python's parser fails at some thousands."""

LARGEST = 2**63
"""Maximum literal, and maximum integer result: no extent or size is larger."""

MEASURED = "measured"
MEASURED_TEXT = (
    "dim(x, -1) <= measured(product_terms): a size from which the library is faster, by name, of section [library] in "
    "onnxfuse/cuda/costs"
)

EACH = "each"
"""The word of a condition that must hold at every index of its lists."""

EACH_TEXT = "each(elements(shape) == 1): the condition holds at every index of the lists in it"
"""Description for `onnxfuse rules --predicates`."""

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.LtE: "<=", ast.GtE: ">=", ast.Lt: "<", ast.Gt: ">", ast.In: "in",
    ast.NotIn: "not in",
}  # fmt: skip

OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip


@dataclass(frozen=True)
class NumberLiteral:
    """A literal number; `inf`, too."""

    value: int | float

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class ListLiteral:
    """Literal whole numbers in brackets, as an order of axes."""

    values: tuple[int, ...]

    def __str__(self) -> str:
        return str([*self.values])


@dataclass(frozen=True)
class Word:
    """A name on one side of a comparison: an element type, a symbolic extent, a string."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Extent:
    """An axis named by `shapes`: the extent of a value of the pattern at an index, counted from the end if negative."""

    name: str
    value: str
    index: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Call:
    """A vocabulary word with its arguments: names of the pattern, or numbers."""

    name: str
    arguments: tuple[str | Tree, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class ElementAccess:
    """One element of a list, or those from `start` to `stop`."""

    of: Call
    start: int | None
    stop: int | None
    one: bool

    def __str__(self) -> str:
        ends = ["" if end is None else str(end) for end in (self.start, self.stop)]
        return f"{self.of}[{ends[0] if self.one else ':'.join(ends)}]"


@dataclass(frozen=True)
class Gathered:
    """The elements of a list at the indices in another one."""

    of: Call
    indices: Call

    def __str__(self) -> str:
        return f"{self.of}[{self.indices}]"


@dataclass(frozen=True)
class Arithmetic:
    """A binary operation on numbers; a sign is 0 - x."""

    left: Tree
    operator: str
    right: Tree
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Compare:
    """A comparison; for `in` the right side has several values."""

    left: Tree
    relation: str
    right: tuple[Tree, ...]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Combined:
    """Conditions joined by `and`, `or`; or one negated by `not`."""

    how: str
    parts: tuple[Tree, ...]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Element:
    """The value of a list at the index for which the condition of an `Each` is evaluated."""

    text: str
    value: object

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Each:
    """A condition over lists of one length that holds at every index."""

    condition: Tree

    def __str__(self) -> str:
        return f"{EACH}({self.condition})"


Tree = (
    NumberLiteral
    | ListLiteral
    | Word
    | Extent
    | Call
    | ElementAccess
    | Gathered
    | Element
    | Arithmetic
    | Compare
    | Combined
    | Each
)


NUMBERS = (NumberLiteral, Arithmetic)

Axes = Mapping[str, Extent]
"""The axes that the `shapes` of a table name."""


@cache
def read(text: str) -> Tree:
    """Return the condition in `text`; raises RuleError. Its words are not checked here."""
    return _condition(_parsed(text))


@cache
def read_values(text: str) -> tuple[tuple[Tree, ...], bool]:
    """Return the number in `text`, or the elements of a list, and whether it is a list; raises RuleError."""
    tree = _parsed(text)
    many = isinstance(tree, ast.List)
    return tuple(_value(one) for one in (tree.elts if isinstance(tree, ast.List) else (tree,))), many


def with_axes(tree: Tree, axes: Axes, *, side: bool = False) -> Tree:
    """Return `tree` with the names of axes resolved; raises RuleError for another name where a number is wanted.

    A `side` of a comparison may be any word, unless it is compared by order, or with a number.
    """
    if isinstance(tree, Word):
        if tree.text in axes:
            return axes[tree.text]
        if side:
            return tree
        allowed = "; it may use + - * / // %, numbers, terms, and axes that `shapes` names."
        raise RuleError(f"'{tree}' is not allowed in an expression{allowed}{did_you_mean(tree.text, set(axes))}", SEE)
    if isinstance(tree, Arithmetic):
        return replace(tree, left=with_axes(tree.left, axes), right=with_axes(tree.right, axes))
    if isinstance(tree, Compare):
        sides = tree.left, *tree.right
        words = tree.relation in ("==", "!=", "in")
        left = with_axes(tree.left, axes, side=words and not any(isinstance(s, NUMBERS) for s in sides))
        right = (with_axes(s, axes, side=words and not isinstance(tree.left, NUMBERS)) for s in tree.right)
        return replace(tree, left=left, right=tuple(right))
    if isinstance(tree, Combined):
        return replace(tree, parts=tuple(with_axes(part, axes) for part in tree.parts))
    if isinstance(tree, Each):
        return Each(with_axes(tree.condition, axes))
    if isinstance(tree, Call):
        return replace(tree, arguments=tuple(a if isinstance(a, str) else with_axes(a, axes) for a in tree.arguments))
    return tree


def extents(tree: Tree) -> Iterator[Extent]:
    """Yield every named axis in `tree`."""
    if isinstance(tree, Extent):
        yield tree
    for part in _inside(tree):
        yield from extents(part)


def calls(tree: Tree) -> Iterator[Call]:
    """Yield every vocabulary call in `tree`."""
    if isinstance(tree, Call):
        yield tree
        for argument in tree.arguments:
            yield from () if isinstance(argument, str) else calls(argument)
    elif isinstance(tree, ElementAccess):
        yield from calls(tree.of)
    else:
        for part in _inside(tree):
            yield from calls(part)


def with_elements(tree: Tree, elements: Mapping[Call | ElementAccess | Gathered, Element]) -> Tree:
    """Return a condition with lists replaced by one element of each."""
    if isinstance(tree, Arithmetic):
        return replace(tree, left=with_elements(tree.left, elements), right=with_elements(tree.right, elements))
    if isinstance(tree, Compare):
        right = tuple(with_elements(side, elements) for side in tree.right)
        return replace(tree, left=with_elements(tree.left, elements), right=right)
    if isinstance(tree, Combined):
        return replace(tree, parts=tuple(with_elements(part, elements) for part in tree.parts))
    return elements.get(tree, tree) if isinstance(tree, Call | ElementAccess | Gathered) else tree


def lists(tree: Tree) -> Iterator[Call | ElementAccess | Gathered]:
    """Yield every term in `tree` that may be a list."""
    if isinstance(tree, Call | ElementAccess | Gathered):
        yield tree
    else:
        for part in _inside(tree):
            yield from lists(part)


def _inside(tree: Tree) -> tuple[Tree, ...]:
    if isinstance(tree, Arithmetic):
        return (tree.left, tree.right)
    if isinstance(tree, Compare):
        return (tree.left, *tree.right)
    if isinstance(tree, Gathered):
        return (tree.of, tree.indices)
    if isinstance(tree, Each):
        return (tree.condition,)
    return tree.parts if isinstance(tree, Combined) else ()


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return the expression with a pattern's values and labels renamed."""
    others = tuple((name, names[name]) for name in sorted(_arguments(text)) if names.get(name, name) != name)
    return _renamed(text, others) if others else text


@cache
def _renamed(text: str, names: tuple[tuple[str, str], ...]) -> str:
    tree, others = _parsed(text), dict(names)
    for argument in _names(tree):
        argument.id = others.get(argument.id, argument.id)
    return ast.unparse(tree)


@cache
def _arguments(text: str) -> frozenset[str]:
    """Return the names of values and labels that an expression uses."""
    return frozenset(name.id for name in _names(_parsed(text)))


def _names(tree: ast.expr) -> list[ast.Name]:
    return [a for node in ast.walk(tree) if isinstance(node, ast.Call) for a in node.args if isinstance(a, ast.Name)]


class _Measured(ast.NodeTransformer):
    """Replaces `measured(NAME)` by the size of that name, a number like any other one from then on."""

    def visit_Call(self, node: ast.Call) -> ast.expr:  # ast's name
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or node.func.id != MEASURED:
            return node
        names, sizes = [a.id for a in node.args if isinstance(a, ast.Name)], library.measured()
        if len(node.args) != 1 or node.keywords or not names or names[0] not in sizes:
            near = did_you_mean(names[0], sizes) if names else ""
            raise RuleError(f"'{ast.unparse(node)}' is not one of the measured sizes.{near}", SEE)
        return ast.copy_location(ast.Constant(sizes[names[0]]), node)


def _parsed(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise RuleError(f"an expression of {plural(text, 'character')}, at most {LONGEST} are read", SEE)
    try:
        tree = ast.parse(" ".join(text.split()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a NUL; the last two: thousands of signs
        raise RuleError(f"'{text}' is not an expression", SEE) from None
    level, depth = [tree], 0
    while level:
        level, depth = [c for t in level for c in ast.iter_child_nodes(t) if isinstance(c, ast.expr)], depth + 1
    if depth > DEEPEST:
        raise RuleError(f"an expression {plural(depth, 'operator')} deep, at most {DEEPEST} are read", SEE)
    return cast(ast.expr, _Measured().visit(tree))


def _condition(tree: ast.expr) -> Tree:
    if isinstance(tree, ast.BoolOp):
        how = "and" if isinstance(tree.op, ast.And) else "or"
        return Combined(how, tuple(_condition(v) for v in tree.values), ast.unparse(tree))
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        return Combined("not", (_condition(tree.operand),), ast.unparse(tree))
    if isinstance(tree, ast.Tuple) and tree.elts and isinstance(tree.elts[0], ast.Compare):
        # dtype(x) in float16, bfloat16: the tuple belongs to `in`
        first = tree.elts[0]
        listed = ast.Tuple([first.comparators[-1], *tree.elts[1:]], ast.Load())
        return _condition(ast.Compare(first.left, first.ops, [*first.comparators[:-1], listed]))
    if isinstance(tree, ast.Compare):
        sides = [tree.left, *tree.comparators]
        links = [_link(a, type(op), b) for a, op, b in zip(sides, tree.ops, sides[1:], strict=False)]
        return links[0] if len(links) == 1 else Combined("and", tuple(links), ast.unparse(tree))
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == EACH and len(tree.args) == 1:
        return Each(_condition(tree.args[0]))
    if isinstance(tree, ast.Call):
        return _call(tree)
    raise RuleError(f"'{ast.unparse(tree)}' is not a condition: it is neither a comparison nor a predicate", SEE)


def _link(left: ast.expr, relation: type[ast.cmpop], right: ast.expr) -> Tree:
    shown = COMPARISONS.get(relation)
    if shown is None:
        raise RuleError(
            f"'{ast.unparse(left)}' and '{ast.unparse(right)}' are compared by none of ==, !=, <, <=, >, >=, in", SEE
        )
    several = right.elts if isinstance(right, ast.Tuple | ast.List) and shown.endswith("in") else [right]
    text = f"{ast.unparse(left)} {shown} {ast.unparse(right)}"
    if shown == "not in":
        one = _side(left)
        return Combined("and", tuple(Compare(one, "!=", (_side(r),), text) for r in several), text)
    return Compare(_side(left), shown, tuple(_side(r) for r in several), text)


def _side(tree: ast.expr) -> Tree:
    """One side of a comparison, where a bare word is allowed."""
    if isinstance(tree, ast.Name) and tree.id != "inf":
        return Word(tree.id)
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        return Word(tree.value)
    if isinstance(tree, ast.List):
        listed = [_value(one) for one in tree.elts]
        whole = [n.value for n in listed if isinstance(n, NumberLiteral) and isinstance(n.value, int)]
        if len(whole) == len(listed):
            return ListLiteral(tuple(whole))
    return _value(tree)


def _value(tree: ast.expr) -> Tree:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float) and _fits(tree.value):
        return NumberLiteral(tree.value)
    if isinstance(tree, ast.Name):
        return NumberLiteral(float("inf")) if tree.id == "inf" else Word(tree.id)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        inner = _value(tree.operand)
        if isinstance(inner, NumberLiteral):
            return NumberLiteral(-inner.value)
        return Arithmetic(NumberLiteral(0), "-", inner, ast.unparse(tree))
    if isinstance(tree, ast.BinOp) and type(tree.op) in OPERATORS:
        return Arithmetic(_value(tree.left), OPERATORS[type(tree.op)], _value(tree.right), ast.unparse(tree))
    if isinstance(tree, ast.Call):
        return _call(tree)
    if isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Call):
        return _part(tree, _call(tree.value))
    raise RuleError(
        f"'{ast.unparse(tree)}' is not allowed in an expression; it may use + - * / // %, numbers and terms", SEE
    )


def _call(tree: ast.Call) -> Call:
    if not isinstance(tree.func, ast.Name) or tree.keywords:
        raise RuleError(f"'{ast.unparse(tree)}' is not a term with its arguments", SEE)
    return Call(tree.func.id, tuple(a.id if isinstance(a, ast.Name) else _value(a) for a in tree.args))


def _part(tree: ast.Subscript, of: Call) -> ElementAccess | Gathered:
    if isinstance(tree.slice, ast.Call):
        return Gathered(of, _call(tree.slice))
    ends = [tree.slice.lower, tree.slice.upper, tree.slice.step] if isinstance(tree.slice, ast.Slice) else [tree.slice]
    numbers = [None if end is None else _value(end) for end in ends]
    whole = [n.value if isinstance(n, NumberLiteral) and isinstance(n.value, int) else None for n in numbers]
    if any(n is not None and w is None for n, w in zip(numbers, whole, strict=True)) or (len(whole) == 3 and whole[2]):
        raise RuleError(f"'{ast.unparse(tree)}' is not an element or a range between two whole numbers", SEE)
    return ElementAccess(of, whole[0], whole[1] if len(whole) > 1 else None, one=len(whole) == 1)


def _fits(value: float) -> bool:
    return not isinstance(value, bool) and abs(value) <= LARGEST
