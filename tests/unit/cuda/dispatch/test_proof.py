"""A fused op is proven by planning it for every GPU; shapes that its body refuses prove nothing and cost nothing."""

from dataclasses import replace
from typing import Any

import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT
from onnxfuse import cuda
from onnxfuse.cuda.dispatch import dispatch, proof
from onnxfuse.cuda.dispatch.proof import takes, unplanned
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic.element_types import DisagreeingError, UnsupportedError

NEGATE = ops.op("(x) => (y) { y = Neg(x) }", (FLOAT,), (FLOAT,), "pointwise")
SUM = ops.op("(x, z) => (y) { y = Add(x, z) }", (FLOAT, FLOAT), (FLOAT,), "pointwise")
RESHAPED = "(x) => (y) { s = Constant <value = int64[2] {2, 8}> () r = Reshape(x, s) y = Neg(r) }"
RESHAPE = ops.op(RESHAPED, (FLOAT,), (FLOAT,), "pointwise")
EVERY = [(arch, aligned) for arch in cuda.SUPPORTED for aligned in (True, False)]


def test_what_has_a_plan_everywhere_is_proven() -> None:
    """On every GPU, with aligned pointers and without."""
    assert unplanned(NEGATE, ((5, 7),), EVERY) is None
    assert unplanned(SUM, ((5, 7), (7,)), EVERY) is None


def failing(error: Exception, on: str = "") -> Any:
    """Return a planner that fails on a GPU, or on all."""

    def plan(op: Any, shapes: Any, aligned: bool, arch: Any) -> None:
        if not on or arch.name == on:
            raise KernelError("no plan") from error

    return plan


def test_the_first_gpu_without_a_plan_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the sizes for which there is none; one GPU is enough."""
    last = cuda.SUPPORTED[-1].name
    monkeypatch.setattr(proof, "plan", failing(UnsupportedError("too wide"), last))
    told = f"{proof.SERVES_ALL}, and for inputs of 5x7, scalar there is no kernel on {last}: too wide"
    assert unplanned(SUM, ((5, 7), ()), EVERY) == told
    assert unplanned(SUM, ((5, 7), ()), [c for c in EVERY if c[0].name != last]) is None


def test_shapes_that_the_body_refuses_need_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do more elements than an index of 32 bits reaches."""
    monkeypatch.setattr(proof, "plan", failing(UnsupportedError("none")))
    assert unplanned(SUM, ((5, 7), (6,)), EVERY) is None
    assert unplanned(NEGATE, ((2**31,),), EVERY) is None
    assert unplanned(NEGATE, ((2**31 - 1,),), EVERY) is not None


def test_a_planner_that_disagrees_with_the_body_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised, as no rule may hide it; where the body refuses the shapes as well they agree."""
    monkeypatch.setattr(proof, "plan", failing(DisagreeingError("another shape", 6, 7)))
    with pytest.raises(DisagreeingError, match="another shape"):
        unplanned(SUM, ((5, 7), (7,)), EVERY)
    assert unplanned(SUM, ((5, 7), (6,)), EVERY) is None


def test_where_the_body_or_the_library_works_no_plan_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template may refuse a GPU, which then runs the nodes, or leave it to the library's op if there is one."""
    monkeypatch.setattr(proof, "plan", failing(UnsupportedError("none")))
    planner = dispatch.planner_of(NEGATE)
    refusing = replace(planner, refuses=lambda op, arch: "too old", fits=None)
    monkeypatch.setattr(proof, "planner_of", lambda op: refusing)
    assert unplanned(NEGATE, ((5,),), EVERY) is None
    unfit = replace(planner, refuses=None, fits=lambda op, shapes, arch: "the library is faster")
    monkeypatch.setattr(proof, "planner_of", lambda op: unfit)
    assert unplanned(NEGATE, ((5,),), EVERY) is not None, "without a library's op there is nothing else"
    assert unplanned(replace(NEGATE, library=NEGATE.body), ((5,),), EVERY) is None


@pytest.mark.parametrize(
    ("op", "shapes", "so"),
    [
        (SUM, ((5, 7), (7,)), True),
        (SUM, ((5, 7), (6,)), False),
        (RESHAPE, ((4, 4),), True),
        (RESHAPE, ((16,),), True),
        (RESHAPE, ((4, 5),), False),
    ],
)
def test_a_body_takes_what_onnx_infers(op: FusedOp, shapes: tuple[tuple[int, ...], ...], so: bool) -> None:
    """And what a Reshape to a fixed target keeps the number of elements of, which inference does not check."""
    assert takes(op, shapes) is so
