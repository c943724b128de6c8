"""The general kernel: of every body that a template takes it computes the values, by one program for all shapes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases import attentions, moved, ops, rows
from bench.cases.ops import FLOAT, HALF
from onnxfuse.cuda import Arch
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.dispatch import dispatch
from onnxfuse.cuda.launch_programs.family import Family
from onnxfuse.cuda.launch_programs.tape import written
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic.recording import DecisionNode
from tests.emulator import emulate
from tests.emulator.test_whole_kernels import H200
from tests.support.kernels import generals, programs
from tests.support.kernels.generals import ATTENTIONS, Shapes
from tests.support.kernels.tape_evaluator import Tape

CASES = generals.cases()
ALL = {**CASES, **{name: (case.op(), case.shapes()) for name, case in ATTENTIONS.items()}}
EMULATED = sorted(
    set(CASES) - set(moved.small(HALF)) - set(rows.TEMPLATES)
    | {"rope", "packed heads", "window reverse", "channel shuffle", "depth to space, odd", "space to depth"}
    | {"pad + mul, odd", "slice + mul, odd", "upsample + concat", "concat + act 7x7", "to nchw, 3"}
    | {
        "causal softmax",
        "group norm of NHWC + silu",
        "batch statistics",
        "arg max over channels",
        "max over the last two",
    }
    | {"embeddings of odd width + layer norm", "norm in float", "layer norm of merged patches"}
)
"""Others are made of the same steps."""


def run(op: FusedOp, shapes: Shapes, inputs: list[np.ndarray], over: int | None = None) -> list[np.ndarray]:
    """Return the outputs by the host's compiler, from pointers that are aligned to nothing but their elements."""
    plan = dispatch.general(op, shapes, Arch("sm_80", 2))
    return emulate.run(plan, inputs, [ops.NUMPY[t] for t in op.outputs], False, over)


@pytest.mark.parametrize("name", EMULATED)
def test_it_computes_the_body(name: str) -> None:
    """Within the error budget: twice the error of the plain nodes, each element written once, nothing read beside."""
    op, shapes = CASES[name]
    inputs = generals.inputs(op, shapes, np.random.default_rng(0))
    ops.within_budget(op, inputs, run(op, shapes, inputs))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_it_computes_attention(name: str) -> None:
    case = ATTENTIONS[name]
    inputs = case.inputs(np.random.default_rng(0))
    (got,) = run(case.op(), case.shapes(), inputs)
    attentions.within_budget(case, inputs, got)


def test_long_sums_keep_their_digits() -> None:
    """Of 200,000 numbers alike a sum in float32, one after the other, is off in its third digit."""
    op = ops.op("(x) => (y) { y = ReduceSum(x) }", (FLOAT,), (FLOAT,), "row")
    x = np.full((1, 200_000), 0.1, np.float32)
    (got,) = run(op, (x.shape,), [x])
    np.testing.assert_allclose(got, x.astype(np.float64).sum(keepdims=True), rtol=2**-23)
    op = ops.op("(a, b) => (y) { y = MatMul(a, b) }", (FLOAT,) * 2, (FLOAT,), "gemm")
    (got,) = run(op, ((1, 20_000), (20_000, 1)), [x[:, :20_000], np.ones((20_000, 1), np.float32)])
    np.testing.assert_allclose(got, [[np.float64(np.float32(0.1)) * 20_000]], rtol=(64 + 20_000 / 64) * 2**-24)


def test_an_output_may_lie_over_an_input() -> None:
    """One of several outputs, too: all of the input is read before any of them is written."""
    for name in ("elementwise", "softmax over channels", "a running sum"):
        op, shapes = CASES[name]
        shapes = ((3, 5, 33), (5, 33), ()) if name == "elementwise" else shapes
        inputs = generals.inputs(op, shapes, np.random.default_rng(0))
        ops.within_budget(op, inputs, run(op, shapes, inputs, over=0))


# ---- one program for all shapes


def leaves(node: DecisionNode) -> int:
    """Return how many launches a tree ends in."""
    return 1 if node.answer is not None else sum(map(leaves, node.children.values()))


def planned(op: FusedOp, shapes: Shapes) -> LaunchPlan | None:
    """Return the plan, None where the op does not take such inputs."""
    try:
        return dispatch.general(op, shapes, H200)
    except KernelError:
        return None


def recorded(op: FusedOp, shapes: Shapes) -> Family:
    """Return the family of all inputs of these ranks, recorded once: for these shapes."""
    made = dispatch.general_family(op, programs.any_extents(shapes), H200)
    made.record(shapes)
    assert (leaves(made.root), len(made.kernels), made.pins) == (1, 1, {})
    return made


def answers(made: Family, op: FusedOp, shapes: Shapes) -> None:
    """Assert that the program answers for shapes that it never saw, or that nobody answers for them."""
    expected, by_tree = planned(op, shapes), made.answer(shapes)
    words = [] if expected is None else np.frombuffer(expected.parameters, np.int64).tolist()
    wide = any(math.prod(n for n in shape if n) >= 2**62 for shape in shapes)
    if by_tree is None and (expected is None or wide or any(n >= 2**40 for n in words)):
        return  # some step on the way would pass 64 bits, or may: no GPU holds such a tensor
    assert by_tree == expected, programs.difference(by_tree, expected)
    assert Tape(written(made) or b"").answer(shapes, made.kernels) == expected


@pytest.mark.parametrize("name", ALL)
def test_one_program_and_one_kernel_answer_for_all_shapes(name: str) -> None:
    """Odd, none and huge: whatever it was recorded for."""
    op, shapes = ALL[name]
    made = recorded(op, shapes)
    for now in (shapes, *programs.others(shapes, 12)):
        answers(made, op, now)


SIZES = st.one_of(st.integers(0, 9), st.sampled_from([33, 197, 1025, 65537, 1_000_003, 2**31 + 1]))
RECORDED = {name: recorded(*ALL[name]) for name in ("elementwise", "causal softmax", "batched, odd", "attention")}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(RECORDED)), st.data())
def test_any_sizes_are_answered(name: str, data: st.DataObject) -> None:
    """Each name of a dimension is one number everywhere, or 1 where it is broadcast."""
    op, shapes = ALL[name]
    to = {n: data.draw(SIZES) for n in sorted({n for s in shapes for n in s})}
    answers(RECORDED[name], op, tuple(tuple(to[n] for n in s) for s in shapes))


@pytest.mark.parametrize("name", ALL)
def test_no_extent_is_in_the_text(name: str) -> None:
    """Of two shapes that an op takes the kernel is the same, however its output is shaped."""
    op, shapes = ALL[name]
    text = dispatch.general(op, shapes, H200).kernel.text
    found = [p for s in programs.others(shapes, 12) if (p := planned(op, s)) is not None]
    assert all(p.kernel.text == text for p in found)


@pytest.mark.parametrize("name", ALL)
def test_its_outputs_have_the_shapes_of_the_templates(name: str) -> None:
    op, shapes = ALL[name]
    for now in (tuple(shapes), *programs.others(shapes, 8)):
        made, expected = planned(op, now), programs.plan(op, now, True, H200)
        assert expected is None or (made is not None and made.output_shapes == expected.output_shapes), now


def test_shapes_that_the_body_does_not_take_have_no_plan() -> None:
    """They would read beside the inputs."""
    for name, wrong in (
        ("elementwise", ((3, 1, 33), (5, 34), ())), ("batched", ((2, 20, 40), (3, 40, 24), (24,))),
        ("convolution", ((2, 9, 8, 5), (7, 3, 5, 4), (7,), (1,))), ("rope", ((2, 3, 5, 64), (5, 63), (5, 64))),
        ("parts side by side", ((2, 7, 6, 16), (17, 24), *ALL["parts side by side"][1][2:])),
    ):  # fmt: skip
        with pytest.raises(KernelError, match="no kernel for input shapes"):
            dispatch.general(ALL[name][0], wrong, H200)


COMPILED = (
    "elementwise", "rope", "channel shuffle", "group norm of NHWC + silu", "arg max over channels", "a running sum",
    "embeddings + layer norm", "written head by head", "in groups", "greatest, beyond the end", "resized, half_pixel",
    "attention with a bias, heads first", "softmax in double",
)  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_it_compiles(name: str) -> None:
    op, shapes = ALL[name]
    assert nvrtc.build(dispatch.general(op, shapes, H200).kernel, H200)
