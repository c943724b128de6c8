"""Index maps by their meaning: each output element reads the elements that the body moves to its place."""

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from bench.cases import ops
from bench.cases.ops import FLOAT, INT64
from onnxfuse import cuda
from onnxfuse.codegen.emit.lower_movement import Guard, Read, lower
from onnxfuse.codegen.program import movement_maps
from onnxfuse.codegen.program.index_map import Bound, Index, Space, SpaceDigit, reshaped
from onnxfuse.codegen.program.movement import Concatenated, SliceRange
from onnxfuse.codegen.program.program import Apply, Constant, Input
from onnxfuse.cuda import Arch
from onnxfuse.cuda.templates.memory_bound import schedule
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic.recording import DecisionNode, Recording, recorded
from tests.support.kernels.chains import chains

H200 = Arch("sm_90a", 132)


def holds(bounds: Any, place: Any) -> bool:
    return all(b.low <= b.index.at(place) < b.high for b in bounds)


def interpreted(lowered: Any, inputs: Sequence[np.ndarray], places: Iterable[tuple[int, ...]]) -> list[Any]:
    """Return the first output at these places: the plain program, one element after the other."""
    apply: dict[str, Callable[..., Any]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "where": lambda c, a, b: a if c else b,
    }
    results = []
    for place in places:
        values: dict[int, Any] = {}
        for number, value in enumerate(lowered.program.values):
            match value:
                case Input(index=index) if index not in lowered.sources:
                    pass  # no output depends on it
                case Input(index=index):
                    source = lowered.sources[index]
                    if isinstance(source, Guard):
                        values[number] = holds(source.bounds, place)
                    else:
                        case = next((c for c in source.cases if holds(c.bounds, place)), None)
                        if case is None:
                            values[number] = 0
                            continue
                        flat, at = inputs[case.input].reshape(-1), case.position.at(place)
                        assert 0 <= at < flat.size, "read beside the input"
                        values[number] = flat[at]
                case Constant(value=constant):
                    values[number] = constant
                case Apply(op=op, args=args):
                    if all(a in values for a in args):
                        values[number] = apply[op](*(values[a] for a in args))
        results.append(values[lowered.program.outputs[0].value])
    return results


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(chains())
def test_a_chain_of_movements_is_its_index_map(drawn: tuple[FusedOp, tuple[tuple[int, ...], ...]]) -> None:
    """At every place that is looked at: the element that onnx.reference moves there; never one beside an input."""
    fused, shapes = drawn
    inputs = [np.arange(np.prod(s), dtype=np.int64).reshape(s) + 10**6 * i for i, s in enumerate(shapes)]
    (truth,) = ops.truth(fused, inputs)
    refused = cuda.supports(fused)
    if refused is not None:
        assert "runs, expected" in refused
        return
    assert cuda.output_shapes(fused, shapes) == (truth.shape,)
    lowered = lower(schedule.program(fused), shapes)
    assert np.prod(lowered.extents) == truth.size
    places = list(itertools.product(*(range(n) for n in lowered.extents)))
    chosen = range(0, len(places), max(1, len(places) // 97))
    assert interpreted(lowered, inputs, [places[i] for i in chosen]) == [truth.reshape(-1)[i] for i in chosen]


def test_strides_fold_to_nothing_where_nothing_moves() -> None:
    """Reshapes and transposes that undo each other leave one dimension and one stride."""
    text = """(x) => (y) { s = Constant <value_ints = [2, 6, 4, 5]> () t = Transpose <perm = [0, 2, 3, 1]> (x)
      u = Transpose <perm = [0, 3, 1, 2]> (t) r = Reshape (u, s) y = Neg (r) }"""
    lowered = lower(schedule.program(ops.op(text, (FLOAT,), (FLOAT,))), ((2, 3, 8, 5),))
    (source,) = lowered.sources.values()
    assert lowered.extents == (240,)
    assert isinstance(source, Read)
    assert [c.position for c in source.cases] == [Index.digit(0)]


def test_channel_shuffle_is_strides_alone() -> None:
    """Reshape, Transpose, Reshape: three dimensions, no quotient."""
    text = """(x) => (y) { s = Constant <value_ints = [0, 2, 8, 7, 7]> () o = Constant <value_ints = [0, -1, 7, 7]> ()
      r = Reshape (x, s) t = Transpose <perm = [0, 2, 1, 3, 4]> (r) y = Reshape (t, o) }"""
    lowered = lower(schedule.program(ops.op(text, (FLOAT,), (FLOAT,))), ((3, 16, 7, 7),))
    (source,) = lowered.sources.values()
    assert lowered.extents == (3, 8, 2, 49)
    assert isinstance(source, Read)
    assert source.cases[0].position == Index(
        ((SpaceDigit(0), 784), (SpaceDigit(1), 49), (SpaceDigit(2), 392), (SpaceDigit(3), 1))
    )


def test_a_roll_is_one_read_of_two_places() -> None:
    text = """(x) => (y) { z = Constant <value_ints = [0]> () a = Constant <value_ints = [3]> ()
      e = Constant <value_ints = [99]> () p = Slice (x, a, e, z) q = Slice (x, z, a, z)
      y = Concat <axis = 0> (p, q) }"""
    lowered = lower(schedule.program(ops.op(text, (FLOAT,), (FLOAT,))), ((8, 5),))
    (source,) = lowered.sources.values()
    assert lowered.extents == (40,)
    place = Index.digit(0)
    assert isinstance(source, Read)
    assert [(c.bounds, c.position) for c in source.cases] == [
        ((Bound(place, 0, 25),), place + 15), ((Bound(place, 25, 40),), place + -25)
    ]  # fmt: skip


def test_inputs_side_by_side_are_one_read() -> None:
    """A dense layer's Concat, bias and ReLU: a vector of the output is fetched once, from the input that it lies in."""
    text = "(a, b, c, k) => (y) { j = Concat <axis = 1> (a, b, c) s = Add (j, k) y = Relu (s) }"
    lowered = lower(schedule.program(ops.op(text, (FLOAT,) * 4, (FLOAT,))), ((6, 8), (6, 4), (6, 4), (16,)))
    joined, bias = lowered.sources.values()
    row, column = (Index.digit(n) for n in (0, 1))
    assert isinstance(joined, Read)
    assert isinstance(bias, Read)
    assert [(c.bounds, c.input, c.position) for c in joined.cases] == [
        ((Bound(column, 0, 8),), 0, row * 8 + column), ((Bound(column, 8, 12),), 1, row * 4 + column + -8),
        ((Bound(column, 12, 16),), 2, row * 4 + column + -12),
    ]  # fmt: skip
    assert bias.inputs == (3,)


def test_digits_that_do_not_come_out_even_are_divided() -> None:
    """(5, 4) seen as (4, 5): no digit of one is a digit of the other."""
    space = Space()
    places = tuple(space.axis(n) for n in (4, 5))
    found = tuple(space.resolved(i) for i in reshaped(space, places, (4, 5), (5, 4)))
    for a, b in itertools.product(range(4), range(5)):
        flat = 5 * a + b
        assert [i.at((a, b)) for i in found] == [flat // 4, flat % 4]


REFUSED = {
    "a computed shape": ("(x, s) => (y) { y = Reshape (x, s) }", (FLOAT, INT64), "not a constant of the body"),
    "linear": (
        '(x) => (y) { s = Constant <value_floats = [2.0, 2.0]> () y = Resize <mode = "linear"> (x, , s) }', (FLOAT,),
        "Resize by linear",
    ),
    "fractions": (
        "(x) => (y) { s = Constant <value_floats = [1.5, 1.0]> () y = Resize (x, , s) }", (FLOAT,), "whole numbers",
    ),
    "cut at one end, mirrored at the other": (
        '(x) => (y) { p = Constant <value_ints = [-1, 1]> () y = Pad <mode = "reflect"> (x, p) }', (FLOAT,),
        "Pad by reflect with [-1, 1]",
    ),
    "scattered": (
        "(x) => (y) { i = Constant <value_ints = [0,9,2,7,1,8,2,8,1,8,2,8,4,5,9,0,4]> () y = Gather (x, i) }", (FLOAT,),
        "runs, expected at most 8",
    ),
    "mixed": ("(x, z) => (y) { y = Concat <axis = 0> (x, z) }", (FLOAT, INT64), "moved together"),
    "a row": (
        """(x) => (y) { a = Constant <value_ints = [0]> () e = Constant <value_ints = [9]> ()
        t = Slice (x, a, e) y = ReduceMax (t, a) }""", (FLOAT,), "data sliced beside a reduction",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_give_the_reason(name: str) -> None:
    text, inputs, reason = REFUSED[name]
    template = "row" if name == "a row" else "pointwise"
    assert reason in str(cuda.supports(ops.op(text, inputs, (FLOAT,), template)))


def test_errors_of_shapes_name_them() -> None:
    """What only the shapes tell is told when a plan is asked for."""
    split = ops.op(
        "(x) => (y, z) { s = Constant <value_ints = [1, 2]> () y, z = Split <axis = 0> (x, s) }", (FLOAT,), (FLOAT,) * 2
    )
    with pytest.raises(KernelError, match=r"outputs of shapes \(1, 4\) and \(2, 4\)"):
        cuda.plan(split, ((3, 4),), True, H200)
    with pytest.raises(KernelError, match=r"Split of 5 into \[1, 2\]"):
        cuda.plan(split, ((5, 4),), True, H200)


def test_moved_data_is_never_written_in_place() -> None:
    """Another thread may still have to read what lies there."""
    assert cuda.inplace(ops.op("(x) => (y) { t = Transpose (x) y = Neg (t) }", (FLOAT,), (FLOAT,))) == ()


def _refused(text: str, *shapes: tuple[int, ...]) -> str:
    with pytest.raises(KernelError) as refused:
        cuda.plan(ops.op(text, (FLOAT,) * len(shapes), (FLOAT,)), shapes, True, H200)
    return str(refused.value)


def test_no_constant_names_an_element_that_is_not_there() -> None:
    """Indices, starts, axes and extents that a body names are held against the shapes: nothing beside an input."""
    five, two = "i = Constant <value_int = 5> ()", "i = Constant <value_int = -4> ()"
    assert "element 5 of axis 1, which has 3" in _refused(
        f"(x) => (y) {{ {five} g = Gather <axis = 1> (x, i) m = Mul (g, g) y = Sigmoid (m) }}", (2, 3)
    )
    assert "element -4 of axis 1, which has 3" in _refused(
        f"(x) => (y) {{ {two} y = Gather <axis = 1> (x, i) }}", (2, 3)
    )
    lists = "i = Constant <value_ints = [0, 3]> ()"
    assert "beyond the 3 elements" in _refused(f"(x) => (y) {{ {lists} y = Gather <axis = 1> (x, i) }}", (2, 3))


@pytest.mark.parametrize(
    ("constants", "node", "says"),
    [
        ({"s": (0, 0), "e": (1, 1), "a": (1, -1)}, "Slice (x, s, e, a)", "along axes [1, -1]"),
        ({"s": (0,), "e": (1,), "a": (1,), "t": (0,)}, "Slice (x, s, e, a, t)", "steps of 0"),
        ({"s": (0, 1), "e": (1,), "a": (1,)}, "Slice (x, s, e, a)", "2 starts, 1 end"),
        ({"a": (1, 1)}, "Unsqueeze (x, a)", "along axes [1, 1]"),
        ({"a": (2, 3)}, "Expand (x, a)", "Expand of (2, 6)"),
        ({"a": (-1, 6)}, "Expand (x, a)", "Expand of (2, 6)"),
        ({"p": (1, 1, 1, 1), "n": (), "a": (1, -1)}, "Pad (x, p, , a)", "along axes [1, -1]"),
        ({"p": (1, 1, 1)}, "Pad (x, p)", "Pad by 3 numbers"),
        ({}, "Flatten <axis = 5> (x)", "axis 5"),
        ({}, "DepthToSpace <blocksize = 0> (x)", "rank 2"),
    ],
)  # fmt: skip
def test_what_is_no_movement_has_no_plan(constants: dict[str, tuple[int, ...]], node: str, says: str) -> None:
    """Numbers that ONNX does not allow are refused in one line, not planned and not a traceback."""
    known = " ".join(f"{n} = Constant <value_ints = {list(v)}> ()" for n, v in constants.items() if v)
    assert says in _refused(f"(x) => (y) {{ {known} y = {node} }}", (2, 6))


def test_a_map_that_strays_is_refused_whatever_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The places themselves are held against the operand: a slip in the meaning of an op ends here, not in memory."""
    text = """(x) => (y) { s = Constant <value_ints = [1]> () e = Constant <value_ints = [3]> ()
      y = Slice (x, s, e, s) }"""
    remembered: Any = movement_maps.shape
    remembered.cache_clear()
    monkeypatch.setattr(SliceRange, "part", lambda cut, of: (cut.start + 1, cut.end - cut.start))
    try:
        assert "sliced: elements 2 to 3 of axis 1, which has 3" in _refused(text, (2, 3))
    finally:
        remembered.cache_clear()


def test_the_cost_of_a_concat_is_that_of_its_operands() -> None:
    """Each is looked at once: 20,000 of them, which a file of 100 kB can hold, are no minute of planning."""
    many = ((1,),) * 20_000
    start = time.process_time()
    assert movement_maps.shape(Concatenated(0), many) == (20_000,)
    assert time.process_time() - start < 5


def test_one_program_is_lowered_once_for_all_gpus() -> None:
    """Its cost and its plans on every GPU are of the same map; only while decisions are recorded it is made anew."""
    fused = ops.op("(x) => (y) { t = Transpose <perm = [1,0]> (x) y = Relu (t) }", (FLOAT,), (FLOAT,))
    program, shapes = schedule.program(fused), ((3, 5),)
    first = lower(program, shapes)
    assert lower(program, shapes) is first
    assert lower(program, ((5, 3),)) is not first
    with recorded(Recording({}, DecisionNode(), [])):
        assert lower(program, shapes) is not first
