"""Eliminate movements from a program: express the axes of every value in one common iteration space.

GroupNormalization reshapes [2, 320, 64, 64] to [2, 32, 40960] and back. In the space (2, 32, 10, 64, 64) nothing is
reshaped: the reduction runs over the last three axes, and a per-channel weight is (32, 10, 1, 1). The same holds for
Transposes that cancel, squeezed reductions, and vectors broadcast along the channels.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from onnxfuse.codegen.program.movement import (
    Alike,
    Channelled,
    Flattened,
    Grouped,
    LookedUp,
    Reshaped,
    Squeezed,
    Transposed,
    Unsqueezed,
)
from onnxfuse.codegen.program.program import (
    Apply,
    BodyProgram,
    Constant,
    Input,
    Move,
    Output,
    Reduce,
    Shape,
    Value,
    arguments,
)
from onnxfuse.ops.scalar import Function
from onnxfuse.symbolic.element_types import UnsupportedError

LOOKED_UP = Function("looked_up")
"""The element of a table at a computed row."""

Axis = tuple[int, ...]
"""Axes of the common space that one axis of a value spans, outermost first; none if its extent is 1."""

TAKEN = (Transposed, Reshaped, Alike, Channelled, Grouped, Flattened, Squeezed, Unsqueezed, LookedUp)
"""Movements that keep every element's location in the common space; a table row is addressed by its index."""


@dataclass(frozen=True)
class Lookup:
    """A table input of which only one row is read, by an index in another input."""

    number: int
    """The input that holds the indices."""
    rows: int
    """Rows of the table; indices from -rows to -1 count from the end."""
    length: int
    """Elements per row."""


@dataclass(frozen=True)
class BroadcastProgram:
    """A program without moves, on inputs that broadcast over one space."""

    program: BodyProgram
    input_shapes: tuple[Shape, ...]
    """Shape of each input, all of one rank; for a table that of one row."""
    lookups: dict[int, Lookup] = field(default_factory=dict)
    """Lookups by table input."""
    orders: dict[str, Axis] = field(default_factory=dict)
    """Memory order of the axes, outermost first, for operands stored in another order; `in0` is an input, `out0` an
    output.
    """


def check(program: BodyProgram) -> None:
    """Raise `UnsupportedError` if the program has a movement that is not expressible in a common space."""
    live = program.live()
    for index in live:
        value = program.values[index]
        if isinstance(value, Move) and not isinstance(value.how, TAKEN):
            raise UnsupportedError(f"data {type(value.how).__name__.lower()} beside a reduction")
        if isinstance(value, Move) and isinstance(value.how, LookedUp):
            _check_lookup(program, value, live)


def _check_lookup(program: BodyProgram, move: Move, live: frozenset[int]) -> None:
    """Require both operands to be inputs of the op, and the table to have no other reader."""
    if not all(isinstance(program.values[a], Input) for a in move.args):
        raise UnsupportedError("Gather of a computed table, or by numbers computed inside")
    readers = [v for i, v in enumerate(program.values) if i in live and move.args[0] in arguments(v)]
    if readers != [move]:
        raise UnsupportedError("a table that is read in two ways")


def broadcast_program(program: BodyProgram, input_shapes: tuple[Shape, ...]) -> BroadcastProgram:
    """Return the program without moves; unchanged if it has none.

    Raises `UnsupportedError` if it moves an element within the space.
    """
    if not program.moves():
        return BroadcastProgram(program, input_shapes)
    return _Space(program, input_shapes).unified()


@dataclass
class _Space:
    """Axes found so far. They are split and unified while the program is traversed."""

    program: BodyProgram
    input_shapes: tuple[Shape, ...]
    extents: list[int] = field(default_factory=list)
    became: dict[int, Axis] = field(default_factory=dict)
    """Axes that were split, or unified with others."""

    def unified(self) -> BroadcastProgram:
        shapes = self.program.shapes(self.input_shapes)
        axes: list[tuple[Axis, ...]] = []
        reduced: dict[int, Axis] = {}
        for index, value in enumerate(self.program.values):
            axes.append(self._axes_of(index, value, axes, shapes))
            if isinstance(value, Reduce):
                reduced[index] = tuple(a for d in _positions(value, len(axes[value.arg])) for a in axes[value.arg][d])
        self._in_step(axes, reduced)
        # A table row's axes are inside those of its index.
        rows = [i for i, v in enumerate(self.program.values) if isinstance(v, Move) and isinstance(v.how, LookedUp)]
        dense = [axes[i] for i in (*self._inputs(), *rows, *(o.value for o in self.program.outputs))]
        order = self._ordered([self._flat(a) for a in dense])
        result = self._rewritten(order, axes, reduced)
        names = [f"in{v.index}" for i in self._inputs() if isinstance(v := self.program.values[i], Input)]
        where = [*self._inputs(), *(o.value for o in self.program.outputs)]
        positions = {a: d for d, a in enumerate(order)}
        orders = {
            name: tuple(positions[a] for a in self._flat(axes[i]))
            for name, i in zip((*names, *(f"out{n}" for n in range(len(self.program.outputs)))), where, strict=True)
        }
        return replace(result, orders={name: axes for name, axes in orders.items() if list(axes) != sorted(axes)})

    # ---- axes of each value

    def _axes_of(
        self, index: int, value: Value, axes: list[tuple[Axis, ...]], shapes: tuple[Shape, ...]
    ) -> tuple[Axis, ...]:
        match value:
            case Input(index=position):
                table = position in dict(self._lookups())
                extents = self.input_shapes[position]
                return tuple(() if table and d == 0 else self._fresh(n) for d, n in enumerate(extents))
            case Constant(shape=shape):
                return ((),) * len(shape)
            case Apply(args=args):
                return self._broadcast([axes[a] for a in args])
            case Reduce(arg=arg):
                gone = _positions(value, len(axes[arg]))
                return tuple(() if d in gone else a for d, a in enumerate(axes[arg]))
            case Move(how=LookedUp(), args=(table, numbers)):
                return (*axes[numbers], *axes[table][1:])
            case Move(args=args):
                return self._seen(value, axes[args[0]], shapes[args[0]], shapes[index])
            case _:
                raise AssertionError(f"{value}, which `refuse_cores` keeps out")

    def _seen(self, move: Move, axes: tuple[Axis, ...], shape: Shape, target: Shape) -> tuple[Axis, ...]:
        match move.how:
            case Transposed(perm=perm):
                return tuple(axes[d] for d in (perm or range(len(axes))[::-1]))
            case Reshaped() | Alike() | Grouped() | Flattened():
                return tuple(self._chunks(self._flat(axes), target))
            case Squeezed() | Unsqueezed() | Channelled():
                # Unit axes are added or removed.
                rest = iter(a for a, n in zip(axes, shape, strict=True) if n != 1)
                return tuple(() if n == 1 else next(rest) for n in target)
            case how:
                raise AssertionError(how)

    def _fresh(self, extent: int) -> Axis:
        if extent == 1:
            return ()
        self.extents.append(extent)
        return (len(self.extents) - 1,)

    def _flat(self, axes: tuple[Axis, ...]) -> Axis:
        return tuple(self._current(tuple(a for axis in axes for a in axis)))

    def _current(self, axis: Axis) -> Iterator[int]:
        for a in axis:
            if a in self.became:
                yield from self._current(self.became[a])
            else:
                yield a

    def _broadcast(self, operands: list[tuple[Axis, ...]]) -> tuple[Axis, ...]:
        """Return the axes of a broadcast: an axis shared by several operands is unified."""
        rank = max(len(o) for o in operands)
        result: list[Axis] = []
        for d in range(-rank, 0):
            there = [o[d] for o in operands if len(o) >= -d and o[d]]
            for other in there[1:]:
                self._unite(there[0], other)
            result.append(there[0] if there else ())
        return tuple(result)

    def _unite(self, one: Axis, other: Axis) -> None:
        first, second = list(self._current(one)), list(self._current(other))
        while first and second:
            a, b = first.pop(0), second.pop(0)
            if a == b:
                continue
            if self.extents[a] == self.extents[b]:
                if a in second or b in first:
                    raise UnsupportedError("an axis that meets itself elsewhere")
                self.became[b] = (a,)
                continue
            if self.extents[a] > self.extents[b]:
                first = [*self._split(a, self.extents[b]), *first]
                second = [b, *second]
            else:
                second = [*self._split(b, self.extents[a]), *second]
                first = [a, *first]

    def _in_step(self, axes: list[tuple[Axis, ...]], reduced: dict[int, Axis]) -> None:
        """Unify the axes of independent reductions into a shared loop: the sum of masked rows and of their mask.

        Nothing states that their axes are the same, and they need not be: with equal extents, one loop covers both. A
        value that has both axes is a table of pairs, which no such loop traverses.
        """
        live = self.program.live()
        along = [axis for index, axis in reduced.items() if index in live]
        longest = max(along, key=self._count, default=())
        for other in along:
            one, two = self._flat((longest,)), self._flat((other,))
            mine, theirs = tuple(a for a in one if a not in two), tuple(a for a in two if a not in one)
            if not theirs or self._count(mine) != self._count(theirs):
                continue
            if not any({*mine} & {*there} and {*theirs} & {*there} for there in map(self._flat, axes)):
                self._unite(mine, theirs)

    def _count(self, axis: Axis) -> int:
        return math.prod(self.extents[a] for a in self._current(axis))

    def _split(self, axis: int, outer: int, inner: int = 0) -> Axis:
        """Split an axis into one of extent `outer` and the rest, or into the rest and one of extent `inner`."""
        extent = self.extents[axis]
        if extent % (outer or inner):
            raise UnsupportedError(f"axes of {extent} and {outer or inner} that do not divide each other")
        outer = outer or extent // inner
        self.became[axis] = (*self._fresh(outer), *self._fresh(extent // outer))
        return self.became[axis]

    def _chunks(self, axes: Axis, target: Shape) -> Iterator[Axis]:
        """Distribute the axes over the extents of `target`; an axis across a boundary is split there."""
        rest = list(axes)
        for extent in target:
            chunk: list[int] = []
            missing = extent
            while missing > 1:
                a = rest.pop(0)
                if self.extents[a] > missing:
                    a, *more = self._split(a, missing)
                    rest = [*more, *rest]
                if missing % self.extents[a]:
                    raise UnsupportedError(f"axes of {self.extents[a]} and {missing} that do not divide each other")
                missing //= self.extents[a]
                chunk.append(a)
            yield tuple(chunk)

    # ---- the common space, and the program in it

    def _lookups(self) -> Iterator[tuple[int, Lookup]]:
        """Return the tables, and their lookups."""
        for value in self.program.values:
            if isinstance(value, Move) and isinstance(value.how, LookedUp):
                table, numbers = (self.program.values[a] for a in value.args)
                assert isinstance(table, Input)
                assert isinstance(numbers, Input)
                rows, *of_row = self.input_shapes[table.index]
                yield table.index, Lookup(numbers.index, rows, math.prod(of_row))

    def _inputs(self) -> list[int]:
        live = self.program.live()
        return [i for i, v in enumerate(self.program.values) if isinstance(v, Input) and i in live]

    def _ordered(self, operands: list[Axis]) -> Axis:
        """Return the axes in memory order: of every operand, or, where those differ, of the largest output."""
        if any(len(set(axes)) < len(axes) for axes in operands):
            raise UnsupportedError("an axis that meets itself elsewhere")
        waiting = sorted({a for axes in operands for a in axes})
        order: list[int] = []
        while waiting:
            blocked = {b for axes in operands for n, b in enumerate(axes) if any(a in waiting for a in axes[:n])}
            free = next((a for a in waiting if a not in blocked), None)
            if free is None:
                outputs = operands[len(operands) - len(self.program.outputs) :]
                largest = max(reversed(outputs), key=lambda axes: math.prod(self.extents[a] for a in axes))
                return (*(a for a in sorted({a for o in operands for a in o}) if a not in largest), *largest)
            waiting.remove(free)
            order.append(free)
        return tuple(order)

    def _rewritten(self, order: Axis, axes: list[tuple[Axis, ...]], reduced: dict[int, Axis]) -> BroadcastProgram:
        sets = {i: frozenset(self._current(a)) & frozenset(order) for i, a in reduced.items()}
        # Reductions over unit axes only get one axis to iterate over.
        lonely = not any(sets.values())
        rank = len(order) + lonely
        position = {a: d for d, a in enumerate(order)}

        def extents(value: tuple[Axis, ...]) -> Shape:
            mine = frozenset(self._flat(value))
            return tuple(self.extents[a] if a in mine else 1 for a in order) + (1,) * lonely

        values: list[Value] = []
        moved: list[int] = []
        for index, value in enumerate(self.program.values):
            match value:
                case Move(how=LookedUp(), args=args):
                    value = Apply(LOOKED_UP, tuple(moved[a] for a in args), value.dtype)
                case Move(args=args):
                    moved.append(moved[args[0]])
                    continue
                case Reduce(arg=arg):
                    over = tuple(sorted(position[a] for a in sets[index])) or ((rank - 1,) if lonely else ())
                    if not over and value.kind.startswith("arg"):
                        raise UnsupportedError("an arg max over axes of extent 1 beside a reduction over others")
                    if not over:
                        # The sum, mean or maximum of one element is that element.
                        moved.append(moved[arg])
                        continue
                    value = replace(value, arg=moved[arg], axes=over, onward=False)
                case Apply(args=args):
                    value = replace(value, args=tuple(moved[a] for a in args))
                case Constant():
                    value = replace(value, shape=())
            moved.append(len(values))
            values.append(value)
        shapes: list[Shape] = [()] * len(self.input_shapes)
        for i in self._inputs():
            value = self.program.values[i]
            assert isinstance(value, Input)
            shapes[value.index] = extents(axes[i])
        outputs = tuple(Output(moved[o.value], o.dtype) for o in self.program.outputs)
        return BroadcastProgram(
            BodyProgram(tuple(values), outputs, self.program.inputs), tuple(shapes), dict(self._lookups())
        )


def _positions(reduce: Reduce, rank: int) -> frozenset[int]:
    first = reduce.axes[0] % max(rank, 1)
    return frozenset(range(first, rank)) if reduce.onward else frozenset(a % max(rank, 1) for a in reduce.axes if rank)
