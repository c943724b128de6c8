"""Shapes of a pattern's values: a line of axes for each, whose names stand for the same extents in all of them.

    q = "B H S D"    k = "B H T D"    mask = "B|1 H|1 S|1 T"    y = "B S H*D"    bias = "... D"    x y = "L... C"

An axis is a name, a number, an expression of both by + - * // %, or `_`, which is any extent. `D|1` is D or 1. `...`,
once in a line, is any number of axes, and `L...` any number that is the same wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from onnxfuse.rules.pattern import expression
from onnxfuse.rules.pattern.expression import Arithmetic, Extent, NumberLiteral, Tree, Word
from onnxfuse.shapes.types import Dim
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import RuleError

ANY, REST, OR_ONE = "_", "...", "|1"

TEXTS = (
    'shapes = { q = "B H S D", mask = "B|1 _ 1 T", "x y" = "L... H*D" }: the axes of values; a name is one extent',
    "H % 8 == 0, D <= 256: an axis that `shapes` names, as dim(q, 1)",
)
"""Description for `onnxfuse rules --predicates`."""

SEE = "See onnxfuse docs rule-language, 'Shapes'."


@dataclass(frozen=True)
class Axis:
    """An axis whose extent is determined by others or by a number."""

    text: str
    """As written, without `|1`."""
    index: int
    """Counted from the end, as a negative number, for one behind `...`."""
    wanted: Tree
    or_one: bool
    """Whether an extent of 1 fits, too."""


@dataclass(frozen=True)
class AxisRun:
    """The axes of a value for which `L...` stands."""

    name: str
    value: str
    before: int
    """Number of axes before it."""
    behind: int

    def of(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return its extents in the shape of the value."""
        return shape[self.before : len(shape) - self.behind]


@dataclass(frozen=True)
class ShapeLine:
    """The shape of one value."""

    value: str
    text: str
    rank: int
    """Number of axes, without those of `...`."""
    open: bool
    """Whether there may be more: the line has `...`."""
    axes: tuple[Axis, ...]
    """Those that are compared: `_` and an axis that gives a name its extent fit always."""
    runs: tuple[AxisRun, ...] = ()
    """A run of this value and the one of another value to which it is equal; empty if there is none."""

    def __str__(self) -> str:
        return f"{self.value} = [{self.text}]"


@dataclass(frozen=True)
class WrittenShape:
    """A line of `shapes` as the file has it."""

    value: str
    text: str
    place: str
    """File and line, the prefix of every error."""


@dataclass(frozen=True, eq=False)
class Shapes:
    """The `shapes` of one table, whose names are of that table alone."""

    written: tuple[WrittenShape, ...] = ()
    lines: tuple[ShapeLine, ...] = ()
    axes: expression.Axes = field(default_factory=dict)
    """Each name, with the first axis for which it stands alone."""

    def renamed(self, names: Mapping[str, str]) -> Shapes:
        """Return the same shapes of values with other names."""
        return read(tuple(replace(one, value=names.get(one.value, one.value)) for one in self.written))


NO_SHAPES = Shapes()


@cache
def read(written: tuple[WrittenShape, ...]) -> Shapes:
    """Return the shapes in these lines; raises RuleError. The names of values are not checked here."""
    axes: dict[str, Extent] = {}
    runs: dict[str, AxisRun] = {}
    for one in written:
        for index, token in _indexed(one):
            if token.isidentifier() and token != ANY:
                axes.setdefault(token, Extent(token, one.value, index))
        for run in _runs(one):
            runs.setdefault(run.name, run)
    return Shapes(written, tuple(_line(one, axes, runs) for one in written), axes)


def _indexed(one: WrittenShape) -> list[tuple[int, str]]:
    """Return the axes of a line with their indices, negative behind `...`."""
    tokens = one.text.split()
    behind = next((i for i, token in enumerate(tokens) if token.endswith(REST)), len(tokens))
    indexed = enumerate(tokens)
    return [(i if i < behind else i - len(tokens), token) for i, token in indexed if not token.endswith(REST)]


def _runs(one: WrittenShape) -> list[AxisRun]:
    """Return the named runs of a line."""
    tokens = one.text.split()
    named = [(i, token.removesuffix(REST)) for i, token in enumerate(tokens) if token.endswith(REST) and token != REST]
    return [AxisRun(name, one.value, i, len(tokens) - i - 1) for i, name in named]


def _line(one: WrittenShape, names: expression.Axes, runs: Mapping[str, AxisRun]) -> ShapeLine:
    tokens, own = one.text.split(), _runs(one)
    several = [token for token in tokens if token.endswith(REST)]
    try:
        odd = next((run.name for run in own if not run.name.isidentifier() or run.name in {ANY, *names}), None)
        if odd is not None:
            raise RuleError(f"'{odd}{REST}' is not a run of axes: a name that no single axis has, and '{REST}'", SEE)
        if len(several) > 1:
            raise RuleError(f"'{one.text}' has '{REST}' twice: the axes between have no place", SEE)
        axes = [_axis(index, token, names) for index, token in _indexed(one) if token != ANY]
    except RuleError as error:
        raise RuleError(f"{one.place}: shape of {one.value}: {error}", error.hint) from None
    compared = tuple(a for a in axes if a.or_one or a.wanted != Extent(a.text, one.value, a.index))
    equal = tuple(pair for run in own if (other := runs[run.name]) != run for pair in (run, other))
    return ShapeLine(one.value, " ".join(tokens), len(tokens) - len(several), bool(several), compared, equal)


def _axis(index: int, token: str, names: expression.Axes) -> Axis:
    text = token.removesuffix(OR_ONE)
    try:
        trees, many = expression.read_values(text)
    except RuleError:
        trees, many = (), True
    if many or not _is_extent(trees[0]):
        raise RuleError(
            f"'{token}' is not an axis: a name, a whole number, an expression of both, NAME|1, '{ANY}' or '{REST}'", SEE
        )
    tree = trees[0]
    unbound = sorted(_names(tree) - set(names))
    if unbound:
        near = did_you_mean(unbound[0], names)
        raise RuleError(
            f"'{token}' compares with '{unbound[0]}', to which no axis gives an extent.{near}",
            f"Write '{unbound[0]}' alone for an axis of some value.",
        )
    return Axis(text, index, expression.with_axes(tree, names), text != token)


def _is_extent(tree: Tree) -> bool:
    if isinstance(tree, NumberLiteral):
        return isinstance(tree.value, int) and tree.value >= 0
    if isinstance(tree, Arithmetic):
        return tree.operator != "/" and _is_extent(tree.left) and _is_extent(tree.right)
    return isinstance(tree, Word)


def _names(tree: Tree) -> set[str]:
    if isinstance(tree, Arithmetic):
        return _names(tree.left) | _names(tree.right)
    return {tree.text} if isinstance(tree, Word) else set()
