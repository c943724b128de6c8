"""Lower data movement: rewrite a program with moves as a program over reads, each an input through an index map.

Every output element is computed from elements of the inputs, and their offsets follow by composing the movements in
between. A value that is read at two indices (RoPE: at i and at i + 32) becomes two values of the lowered program.
"""

import math
from dataclasses import dataclass, field, replace

from onnx import TensorProto

from onnxfuse.codegen.emit import expressions
from onnxfuse.codegen.program.builder import Builder, Term
from onnxfuse.codegen.program.index_map import Bound, Dimensions, Index, Space, linear, merged
from onnxfuse.codegen.program.movement import LookedUp, Padded
from onnxfuse.codegen.program.movement_maps import broadcast, pieces
from onnxfuse.codegen.program.program import Apply, BodyProgram, Constant, Input, Move, Output, Reduce, Value
from onnxfuse.ops import scalar
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.branching import remembered
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

MAX_CASES = 16
"""Maximum cases of one read: each costs a comparison and an address per vector. Beyond that, several reads are used."""

SEVERAL = range(3, 33)
"""Maximum concatenated inputs of one read: a comparison and a pointer each per vector. With separate reads, each also
occupies a vector of registers, and needs a select per element.
"""

MAX_PLACES = 2048
"""Maximum values with indices of their own: each time a value is concatenated with itself they double."""

MAX_CONDITIONS = 256
"""Maximum conditions under which one value is needed: beyond that the text would take too long to compile."""

Bounds = tuple[Bound, ...]


@dataclass(frozen=True)
class ConditionalRead:
    """An element's offset, valid while all bounds hold."""

    bounds: Bounds
    input: int
    """Input index of the op."""
    position: Index
    """Row-major offset in the input, in elements."""


@dataclass(frozen=True)
class Read:
    """An input element, by the first case that holds; if none holds, nothing is read and the value is 0."""

    cases: tuple[ConditionalRead, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The op's inputs that it selects from."""
        return tuple(dict.fromkeys(c.input for c in self.cases))

    @property
    def indices(self) -> tuple[Index, ...]:
        """Every index of its cases."""
        return tuple(i for c in self.cases for i in (c.position, *(b.index for b in c.bounds)))


@dataclass(frozen=True)
class Guard:
    """Whether all bounds hold."""

    bounds: Bounds

    @property
    def indices(self) -> tuple[Index, ...]:
        """The indices of its bounds."""
        return tuple(b.index for b in self.bounds)


Source = Read | Guard


@dataclass(frozen=True)
class LoweredProgram:
    """The op over an iteration space of minimal rank, in which all its outputs are dense."""

    program: BodyProgram
    """The program without movement; its inputs are the sources."""
    sources: dict[int, Source]
    """Source of each input of `program`; dead ones are removed."""
    extents: Shape
    """Extents of the dimensions, outermost first, at least one."""

    @property
    def space(self) -> Space:
        """The dimensions as digits, for range queries."""
        return Space(dict(enumerate(self.extents)))


def check(program: BodyProgram) -> None:
    """Raise `UnsupportedError` if a movement is not an index map."""
    if any(isinstance(v, Move) and isinstance(v.how, LookedUp) for v in program.values):
        raise UnsupportedError("Gather by computed numbers, which only a kernel that reduces rows does by the way")


# Growth asks for a cost, and the proof for a plan on each GPU, at the same shapes.
@remembered(64)
def lower(program: BodyProgram, input_shapes: tuple[Shape, ...]) -> LoweredProgram:
    """Return `program` on inputs of these shapes with its movements as index maps; no extent may be 0.

    Raises `UnsupportedError` if the outputs have different shapes.
    """
    shapes = program.shapes(input_shapes)
    full = shapes[program.outputs[0].value]
    for output in program.outputs:
        if shapes[output.value] != full:
            raise UnsupportedError(f"outputs of shapes {full} and {shapes[output.value]} beside data movement")
    space = Space()
    axes = tuple(space.axis(n) for n in full)
    while True:
        cuts = len(space.cuts)
        walk = _Walk(program, shapes, space)
        coordinates = tuple(space.resolved(a) for a in axes)
        try:
            outputs = tuple(Output(walk.at(o.value, coordinates).index, o.dtype) for o in program.outputs)
        except RecursionError:
            raise UnsupportedError(f"a chain of movements through {plural(program.values, 'value')}") from None
        if len(space.cuts) == cuts:
            return _finished(walk, outputs)
        # A Reshape split a digit: indices in terms of it are rewritten.


@dataclass
class _Walk:
    """Traversal from the outputs to the inputs, visiting each value once per index."""

    program: BodyProgram
    shapes: tuple[Shape, ...]
    space: Space
    builder: Builder = field(default_factory=Builder)
    sources: list[Source] = field(default_factory=list)
    numbers: dict[Source, int] = field(default_factory=dict)
    """Index of each source in `sources`."""
    types: list[int] = field(default_factory=list)
    choices: dict[int, tuple[Bounds, Bounds]] = field(default_factory=dict)
    """For each select, by its index in the plain program: the bounds under which its second and third operands are
    needed.
    """
    terms: dict[tuple[int, tuple[Index, ...]], Term] = field(default_factory=dict)

    def at(self, value: int, coordinates: tuple[Index, ...]) -> Term:
        """Return the term for a value at these coordinates."""
        key = (value, coordinates)
        term = self.terms.get(key)
        if term is None:
            if len(self.terms) >= MAX_PLACES:
                raise UnsupportedError(f"values wanted at more than {MAX_PLACES} places")
            term = self.terms[key] = self._at(self.program.values[value], self.shapes[value], coordinates)
        return term

    def _at(self, value: Value, shape: Shape, coordinates: tuple[Index, ...]) -> Term:
        match value:
            case Input(index=index, dtype=dtype):
                return self.source(Read((ConditionalRead((), index, linear(coordinates, shape)),)), dtype)
            case Constant(value=number, dtype=dtype):
                return self.builder.constant(number, dtype)
            case Apply(op=op, args=args, dtype=dtype):
                terms = (self.at(a, broadcast(coordinates, self.shapes[a])) for a in args)
                return self.builder.term(Apply(op, tuple(t.index for t in terms), dtype))
            case Move():
                return self.moved(value, coordinates)
            case Reduce():
                raise UnsupportedError("a reduction beside data movement")
            case _:
                raise AssertionError(f"{value}, which `refuse_cores` keeps out")

    def source(self, source: Source, dtype: int) -> Term:
        """Return the term for a source, a new one only if no equal one exists."""
        number = self.numbers.setdefault(source, len(self.sources))
        if number == len(self.sources):
            self.sources.append(source)
            self.types.append(dtype)
        return self.builder.term(Input(number, dtype))

    def moved(self, move: Move, coordinates: tuple[Index, ...]) -> Term:
        """Return the term for a moved value: the piece whose bounds hold."""
        shapes = tuple(self.shapes[a] for a in move.args)
        cases: list[tuple[Bounds, Term]] = []
        for piece in pieces(move.how, self.space, coordinates, shapes):
            bounds = self.open(piece.bounds)
            if bounds is not None:
                cases.append((bounds, self.at(move.args[piece.operand], piece.coordinates)))
        if isinstance(move.how, Padded):
            return self.padded(cases, self.at(move.args[1], (Index(),) * len(shapes[1])))
        if not cases:
            # The bounds are contradictory: no element is ever read here.
            return self.builder.constant(0, move.dtype)
        one = self.together(cases) or self.but_for_one_step(cases)
        return one or self.chosen(cases[:-1], cases[-1][1], cases[-1][0])

    def open(self, bounds: Bounds) -> Bounds | None:
        """Return the bounds that are not always true; None if one is always false."""
        open_bounds = []
        for bound in bounds:
            holds = self.space.holds(replace(bound, index=self.space.resolved(bound.index)))
            if holds is False:
                return None
            if holds is None:
                open_bounds.append(bound)
        return tuple(open_bounds)

    def padded(self, cases: list[tuple[Bounds, Term]], number: Term) -> Term:
        """Return the single piece, with `number` where its bounds do not hold."""
        if not cases:
            return number
        ((bounds, term),) = cases
        # Elements that are not read are 0 anyway.
        zero = number.constant is not None and number.constant.value == 0
        positive = number.constant is not None and math.copysign(1, number.constant.value) > 0
        if zero and positive and (read := self.one_read(cases)) is not None:
            return read
        return self.chosen([(bounds, term)], number, ()) if bounds else term

    def together(self, cases: list[tuple[Bounds, Term]]) -> Term | None:
        """Return the pieces as one computation on a read with several cases, None if they differ in structure.

        A bias and its input on both sides of a Concat are added once, at the requested index.
        """
        values = [self.builder.values[t.index] for _, t in cases]
        if all(v == values[0] for v in values) and not isinstance(values[0], Input):
            return cases[0][1]
        if all(isinstance(v, Input) for v in values):
            return self.one_read(cases)
        applied = [v for v in values if isinstance(v, Apply)]
        first = applied[0] if len(applied) == len(values) else None
        if first is None or any(
            (v.op, v.dtype, len(v.args)) != (first.op, first.dtype, len(first.args)) for v in applied
        ):
            return None
        args = []
        for position in range(len(first.args)):
            parts = [(b, Term(self.builder, v.args[position])) for (b, _), v in zip(cases, applied, strict=True)]
            arg = self.together(parts)
            if arg is None:
                return None
            args.append(arg.index)
        return self.builder.term(Apply(first.op, tuple(args), first.dtype))

    def but_for_one_step(self, cases: list[tuple[Bounds, Term]]) -> Term | None:
        """Return two pieces that differ in one extra operation: -a and b of RoPE become a single read."""
        if len(cases) != 2:
            return None
        for number, (bounds, term) in enumerate(cases):
            value = self.builder.values[term.index]
            if isinstance(value, Apply) and len(value.args) == 1:
                inside = [*cases[:number], (bounds, Term(self.builder, value.args[0])), *cases[number + 1 :]]
                if self.builder.values[value.args[0]].dtype != value.dtype:
                    continue
                both = self.together(inside)
                if both is not None:
                    done = self.builder.term(Apply(value.op, (both.index,), value.dtype))
                    return self.chosen([(bounds, done)], both, cases[1 - number][0])
        return None

    def one_read(self, cases: list[tuple[Bounds, Term]]) -> Term | None:
        """Return the pieces as one read, None if they are more than reads."""
        reads = [r for _, term in cases if (r := self.read(term)) is not None]
        if len(reads) < len(cases):
            return None
        one = Read(
            tuple(
                ConditionalRead((*bounds, *case.bounds), case.input, case.position)
                for (bounds, _), r in zip(cases, reads, strict=True)
                for case in r.cases
            )
        )
        within = len(one.cases) <= MAX_CASES if len(one.inputs) == 1 else self.side_by_side(one)
        return self.source(one, cases[0][1].dtype) if within else None

    def side_by_side(self, read: Read) -> bool:
        """Return whether a read may select among its inputs: few, one index each, adjacent elements contiguous."""
        inner = next(reversed(self.space.extents), -1)
        together = all(self.space.resolved(c.position).factor(inner) == 1 for c in read.cases)
        return together and len(read.cases) in SEVERAL

    def read(self, term: Term) -> Read | None:
        """Return the read of a term, if it is one."""
        value = self.builder.values[term.index]
        source = self.sources[value.index] if isinstance(value, Input) else None
        return source if isinstance(source, Read) else None

    def chosen(self, cases: list[tuple[Bounds, Term]], otherwise: Term, rest: Bounds) -> Term:
        """Return the first piece whose bounds hold, else `otherwise`, which is needed only within `rest`."""
        result = otherwise
        for bounds, term in reversed(cases):
            guard = self.source(Guard(bounds), TensorProto.BOOL)
            result = self.builder.apply(scalar.where, guard, term, result)
            before = self.choices.get(result.index, (bounds, rest))
            self.choices[result.index] = (bounds, rest if before[1] == rest else ())
            rest = ()
        return result


def _finished(walk: _Walk, outputs: tuple[Output, ...]) -> LoweredProgram:
    """Return the plain program over merged dimensions, with each read restricted to where it is needed."""
    plain = BodyProgram(tuple(walk.builder.values), outputs, tuple(walk.types))
    sources: dict[int, Source] = {}
    values = list(plain.values)
    for value, where in _wanted(plain, walk.choices).items():
        read = plain.values[value]
        if isinstance(read, Input):
            source = walk.sources[read.index]
            sources[read.index] = _within(source, where) if isinstance(source, Read) else source
            if sources[read.index] == Read(()):  # no element is needed, such as all but a class token
                del sources[read.index]
                values[value] = Constant(element_types.as_python(0, read.dtype), read.dtype, ())
    plain = replace(plain, values=tuple(values))
    assert set(expressions.live_inputs(plain)) == set(sources)
    bounds = [b for s in sources.values() for b in _bounds(s)]
    positions = [walk.space.offset, *(c.position for s in sources.values() if isinstance(s, Read) for c in s.cases)]
    dimensions = merged(walk.space, positions, bounds)
    return LoweredProgram(plain, {n: _in_dimensions(s, dimensions) for n, s in sources.items()}, dimensions.extents)


def _bounds(source: Source) -> Bounds:
    return source.bounds if isinstance(source, Guard) else tuple(b for c in source.cases for b in c.bounds)


def _in_dimensions(source: Source, dimensions: Dimensions) -> Source:
    def bounds(those: Bounds) -> Bounds:
        return tuple(dimensions.bound(b) for b in those)

    if isinstance(source, Guard):
        return Guard(bounds(source.bounds))
    return Read(tuple(ConditionalRead(bounds(c.bounds), c.input, dimensions.of(c.position)) for c in source.cases))


Wanted = frozenset[frozenset[Bound]]
"""A disjunction of conditions; each is a conjunction of bounds."""


def _wanted(plain: BodyProgram, choices: dict[int, tuple[Bounds, Bounds]]) -> dict[int, Wanted]:
    """Return for each live value where it is needed."""
    wanted: dict[int, Wanted] = {o.value: frozenset({frozenset()}) for o in plain.outputs}
    for index in reversed(range(len(plain.values))):
        value = plain.values[index]
        if index not in wanted or not isinstance(value, Apply):
            continue
        limits: tuple[Bounds, ...] = ((),) * len(value.args)
        if index in choices:
            limits = ((), *choices[index])
        for arg, limit in zip(value.args, limits, strict=True):
            more = {within for w in wanted[index] if (within := _and(w, limit)) is not None}
            wanted[arg] = _simplest(wanted.get(arg, frozenset()) | more)
    return wanted


def _and(one: frozenset[Bound], other: Bounds) -> frozenset[Bound] | None:
    """Return the conjunction; None if it is contradictory."""
    both = one | frozenset(other)
    return None if any(a.excludes(b) for a in one for b in other) else both


def _simplest(conditions: frozenset[frozenset[Bound]]) -> Wanted:
    """Return the conditions without those implied by another one."""
    least = frozenset(c for c in conditions if not any(d < c for d in conditions))
    if len(least) > MAX_CONDITIONS:
        raise UnsupportedError(f"a value wanted under {plural(least, 'condition')}, expected at most {MAX_CONDITIONS}")
    return least


def _within(read: Read, wanted: Wanted) -> Read:
    """Return the read restricted to where it is needed."""
    cases: list[ConditionalRead] = []
    for case in read.cases:
        limits = {both for w in wanted if (both := _and(frozenset(case.bounds), tuple(w))) is not None}
        cases.extend(
            ConditionalRead(_in_order(limit, case.bounds), case.input, case.position)
            for limit in _ordered(_simplest(frozenset(limits)))
        )
    if len(cases) > MAX_CONDITIONS:
        raise UnsupportedError(f"a read at {plural(cases, 'place')}, expected at most {MAX_CONDITIONS}")
    return Read(tuple(cases))


def _ordered(conditions: Wanted) -> list[frozenset[Bound]]:
    return sorted(conditions, key=lambda c: sorted(map(repr, c))) if len(conditions) > 1 else list(conditions)


def _in_order(bounds: frozenset[Bound], first: Bounds) -> Bounds:
    """Return the bounds in an order independent of hashes, so that an op always gives the same text."""
    rest = bounds - set(first)
    return (*dict.fromkeys(first), *(sorted(rest, key=repr) if len(rest) > 1 else rest))
