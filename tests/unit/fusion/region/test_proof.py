"""No fused op without a plan: it is planned for every GPU before it is made, else its place is left to the next way."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx
import pytest

from bench.cases import ops
from bench.cases.ops import HALF
from onnxfuse import cuda
from onnxfuse.cuda import SUPPORTED
from onnxfuse.cuda.dispatch import dispatch as launching
from onnxfuse.cuda.dispatch import proof
from onnxfuse.cuda.dispatch.proof import SERVES_ALL
from onnxfuse.cuda.planning.arch import A100, Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.fusion.region import proof as proving
from onnxfuse.graph import concrete_shapes
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.shapes.types import ValueType
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.integer import Int
from tests.support.arches import on
from tests.support.shared_input import products
from tests.support.small import assert_same_numbers, fuses, parse
from tests.support.small import ops as operators


def optimized(model: onnx.ModelProto) -> tuple[onnx.ModelProto, OptimizeReport]:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made, pipeline.run(made)


def plan_everywhere(model: onnx.ModelProto, **sizes: int) -> None:
    """Plan every fused op of `model` at these sizes for each GPU that does not leave it to the body."""
    types = concrete_shapes.every_type(
        onnx.shape_inference.infer_shapes(concrete_shapes.with_sizes(model, sizes)[0]).graph
    )
    for name, nodes in concrete_shapes.fused_nodes(model.graph).items():
        op = fused_ops(model)[name]
        for shapes in {concrete_shapes.input_shapes(node, types) for node in nodes}:
            assert shapes is not None
            for arch in SUPPORTED:
                if cuda.supports(op, on(arch)) is None:
                    assert cuda.plan(op, shapes, True, arch).grid[0]
                    assert cuda.plan(op, shapes, False, arch).grid[0]


@pytest.mark.parametrize(("count", "launches"), [(3, [3]), (11, [11]), (12, [6, 6]), (25, [9, 8, 8])])
def test_products_of_one_input_are_as_many_launches_as_they_need(count: int, launches: list[int]) -> None:
    """12 products of one input, as DeBERTa-v2 has them, are more than one launch takes; each takes its bias along."""
    model = products(count)
    made, report = optimized(model)
    assert [len(a.outputs) for a in report.applied if a.rule == "gemm"] == launches
    assert operators(made)[0] == "{LayerNormalization}"
    assert len(operators(made)) == 1 + len(launches)
    plan_everywhere(made, positions=33)
    assert_same_numbers(model, made)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 9])
def test_products_of_one_output_are_made_in_the_best_way_that_has_a_kernel(count: int) -> None:
    """Five and more in one body have none anywhere: other ways take their place, and what stopped the first is told."""
    model = products(count, summed=True)
    made, report = optimized(model)
    plan_everywhere(made, positions=33)
    assert_same_numbers(model, made)
    stops = {
        5: f"{SERVES_ALL}, and for inputs of {_sizes(5)} there is no kernel on sm_80: 5 products in one body",
        9: "9 anchors: Add s1 combines MatMul product0 and MatMul product1",
    }
    reasons = [s.reason for a in report.applied for s in a.stops]
    told = [r for r in reasons if f": {count} products in one body" in r or r.startswith(f"{count} anchors: Add ")]
    assert told == ([stops[count]] if count in stops else [])


def _sizes(count: int) -> str:
    return ", ".join(["168x64", *["64x64, 64"] * count])


CHAIN = "g (float16[N,M] x, float16[N,M] r) => (float16[N,M] y) { s = Add (x, r) t = Tanh (s) y = Neg (t) }"


def without_plans(monkeypatch: pytest.MonkeyPatch, refuse: Callable[..., Any]) -> None:
    """Let the pointwise template have no plan where `refuse` (shapes, arch) says so."""
    template = launching.TEMPLATES["pointwise"]
    own = template.planner
    assert own is not None

    def plan(
        op: FusedOp, shapes: tuple[tuple[int, ...], ...], aligned: bool, arch: Arch, tuning: Variant | None
    ) -> LaunchPlan:
        if refuse(shapes, arch):
            raise UnsupportedError("too much for it")
        return own.plan(op, shapes, aligned, arch, tuning)

    monkeypatch.setitem(launching.TEMPLATES, "pointwise", replace(template, planner=replace(own, plan=plan)))


@pytest.mark.parametrize(
    ("refuse", "where"),
    [
        (lambda shapes, arch: arch.name == "sm_120", "168x168, 168x168 there is no kernel on sm_120"),
        (lambda shapes, arch: shapes[0][0] % 2 and shapes[0][0] > 1, "3x5, 3x5 there is no kernel on sm_86"),
        (lambda shapes, arch: shapes[0] == (1, 1), "1x1, 1x1 there is no kernel on sm_90a"),
        (lambda shapes, arch: shapes[0][0] * shapes[0][1] > 2**25, "65520x840, 65520x840 there is no kernel on"),
    ],
    ids=["one GPU", "odd sizes", "one element", "large sizes"],
)
def test_what_has_no_plan_on_one_gpu_at_one_size_is_not_made(
    monkeypatch: pytest.MonkeyPatch, refuse: Callable[..., Any], where: str
) -> None:
    """The nodes stay, and the report says at which size, on which GPU and why."""
    without_plans(monkeypatch, refuse)
    from onnxfuse.fusion.region import proof

    proof._unproven.cache_clear()
    model = parse(CHAIN)
    made, report = optimized(model)
    proof._unproven.cache_clear()
    assert operators(made) == ["Add", "Tanh", "Neg"]
    (reason,) = {n.refusal.reason for n in report.near if n.rule == "pointwise"}
    assert reason.startswith(f"{SERVES_ALL}, and for inputs of {where}")
    assert reason.endswith(": too much for it")


def test_a_name_has_one_number_in_all_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that could never meet ask for nothing: 'N' of one input is that of the other."""
    seen = set()
    without_plans(monkeypatch, lambda shapes, arch: seen.add(shapes))
    text = "g (float16[N,M] x, float16[M] b, float16[N,1] c) => (float16[N,M] y) { s = Add (x, b) y = Mul (s, c) }"
    assert fuses(text, "pointwise") == ["{Add Mul}"]
    assert {((3, 5), (5,), (3, 1)), ((1, 1), (1,), (1, 1)), ((65520, 840), (840,), (65520, 1))} <= seen
    assert all(x == (c[0], b[0]) for x, b, c in seen)


@pytest.mark.parametrize(
    ("text", "shapes", "taken"),
    [
        ("(x, b) => (y) { y = Add(x, b) }", ((2, 3), (3,)), True),
        ("(x, b) => (y) { y = Add(x, b) }", ((2, 3), (4,)), False),
        ("(x) => (y) { s = Constant <value_ints = [3, 2]> () y = Reshape(x, s) }", ((2, 3),), True),
        ("(x) => (y) { s = Constant <value_ints = [4, 2]> () y = Reshape(x, s) }", ((2, 3),), False),
        ("(x) => (y) { s = Constant <value_ints = [-1, 4]> () y = Reshape(x, s) }", ((2, 3),), False),
        ("(x, z) => (y) { s = Shape(z) y = Reshape(x, s) }", ((2, 3), (6,)), True),
        ("(x, z) => (y) { s = Shape(z) y = Reshape(x, s) }", ((2, 3), (7,)), False),
    ],
)
def test_the_body_says_which_shapes_it_takes(text: str, shapes: tuple[tuple[int, ...], ...], taken: bool) -> None:
    fused = ops.op(text, (HALF,) * len(shapes), (HALF,))
    assert proof.takes(fused, shapes) == taken


def test_shapes_that_the_body_does_not_take_need_no_plan() -> None:
    fused = ops.op("(x, b) => (y) { y = Add(x, b) }", (HALF, HALF), (HALF,))
    assert cuda.unplanned(fused, ((2, 3), (4,)), [(A100, True)]) is None


def test_each_supported_gpu_is_planned_for_before_an_op_is_made() -> None:
    """A GPU is a row of SUPPORTED: whichever there are, an op has a plan on each, on some with unaligned pointers."""
    from onnxfuse.fusion.region import proof

    assert [arch for arch, _ in proof.FIRST[0]] == list(SUPPORTED)
    assert {aligned for _, aligned in proof.FIRST[0]} == {True, False}
    assert proof.SMALLEST.shared_bytes <= min(arch.shared_bytes for arch in SUPPORTED)
    assert proof.RICHEST.name == "sm_90a"


def test_the_extremes_of_gpus_and_alignments_are_planned_at_other_sizes() -> None:
    """Once each at an op's first location, where the first sizes have all GPUs; at further ones aligned alone."""
    ends = [(arch, aligned) for arch in (proving.SMALLEST, proving.RICHEST) for aligned in (True, False)]
    assert {arch for arch, _ in proving.FIRST[0]} == set(SUPPORTED)
    assert sorted((c for row in proving.FIRST[1:] for c in row), key=ends.index) == ends
    assert [c for row in proving.LATER for c in row] == [(proving.SMALLEST, True), (proving.RICHEST, True)]


FLOATS = onnx.TensorProto.FLOAT


@pytest.mark.parametrize(
    ("shapes", "known", "of_a_step"),
    [
        (((2, 3), (3,)), ((2, 3), (3,)), ((2, 3), (3,))),
        (((2, 3), ()), ((2, 3), ()), ((2, 3), ())),
        (((Int.name("n"), 3), (3,)), None, ((1, 3), (3,))),
        (((2, 3), None), None, None),
        (((2, Int.name("n")), (Int.name("n"),)), None, ((2, 1), (1,))),
    ],
)
def test_launches_are_counted_where_sizes_are_known(shapes: Any, known: Any, of_a_step: Any) -> None:
    """In a graph that decodes a name is one token; what has no name is not known there either."""
    types = [ValueType(FLOATS, shape) for shape in shapes]
    assert proving._known(types) == known
    assert proving._sized(types, {}) == of_a_step
