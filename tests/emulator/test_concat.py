"""The concat template: several kernels, each of which writes its channels of one output."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda import Arch, LaunchPlan
from onnxfuse.cuda.planning.launch_plan import in_sequence
from onnxfuse.cuda.templates.concat import plan as concat
from onnxfuse.support.errors import KernelError
from tests.emulator import emulate
from tests.emulator.test_whole_kernels import H200
from tests.support.kernels import joined

A100 = Arch("sm_80", 108)


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_the_parts_write_the_whole_output_once(dtype: int) -> None:
    """By the kernels of sm_80 and later, which all have a twin on the host."""
    op, shapes = joined.case(dtype)
    given = joined.inputs(op, shapes, np.random.default_rng(0))
    plan = cuda.plan(op, tuple(shapes), True, A100)
    files = [[s.file for s in p.kernel.sections][-2] for p in (plan, *plan.then)]
    assert files == ["gemm/sm80.cu", "gemm/sm80.cu", "conv/stencil.cu", "conv/stencil.cu", "conv/direct.cu"]
    assert plan.output_shapes == ((2, 7, 6, 112),) == cuda.output_shapes(op, tuple(shapes))
    cuts = 144 // 8 if dtype == FLOAT else 0
    ops.within_budget(op, given, emulate.run(plan, given, [ops.NUMPY[dtype]]), cuts)


def test_the_copy_engine_is_told_where_a_parts_channels_lie() -> None:
    """On Hopper: the rows of the whole output, from the part's first channel on."""
    op, shapes = joined.case(HALF)
    plan = cuda.plan(op, tuple(shapes), True, H200)
    put = [p.tensor_maps[-1] for p in (plan, plan.then[0])]
    assert [(m.extents[0], m.strides, m.offset) for m in put] == [(24, (224,), 0), (40, (224,), 48)]


def test_groups_of_many_channels_lie_in_a_part() -> None:
    """Each group's columns beside the one before; of few channels the template direct writes them."""
    op, shapes = joined.case(HALF, 1, (3, 4), 64)
    given = joined.inputs(op, shapes, np.random.default_rng(0))
    plan = cuda.plan(op, tuple(shapes), True, A100)
    assert plan.then[-1].kernel.sections[-2].file == "gemm/sm80.cu"
    ops.within_budget(op, given, emulate.run(plan, given, [np.float16]))
    put = cuda.plan(op, tuple(shapes), True, H200).then[-1].tensor_maps[-1]
    whole = 24 + 40 + 64 + 64 + 16
    assert (put.extents, put.strides, put.offset) == ((8, 12, 2), (2 * whole, 16), 2 * (whole - 16))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(x, w) => (y) { y = MatMul(x, w) }", "does not end in a Concat of channels"),
        ("(x, w) => (y) { m = MatMul(x, w) y = Concat <axis = 1> (m, x) }", "does not end in a Concat of channels"),
        ("(x, w) => (y) { m = Relu(x) y = Concat <axis = 3> (m, x) }", "no matrix product in the body"),
    ],
)
def test_what_has_no_parts_is_refused_with_the_reason(text: str, reason: str) -> None:
    assert reason in str(cuda.supports(ops.op(text, (HALF,) * 2, (HALF,), "concat")))


def test_a_gpu_without_a_kernel_for_a_part_keeps_the_body() -> None:
    op, _ = joined.case(HALF)
    assert cuda.supports(op, lambda: H200) is None
    assert "sm_75" in str(cuda.supports(op, lambda: Arch("sm_75", 40)))


def test_parts_of_other_sizes_are_refused() -> None:
    text = "(x, w, z) => (y) { m = MatMul(x, w) y = Concat <axis = 3> (m, z) }"
    op = ops.op(text, (HALF,) * 3, (HALF,), "concat")
    for z in ((2, 7, 5, 8), (2, 7, 6, 4)):
        with pytest.raises(KernelError, match="parts of shapes"):
            cuda.plan(op, ((2, 7, 6, 16), (16, 8), z), True, H200)


def test_every_launch_of_a_part_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that its template computes in two launches adds both."""
    op, shapes = joined.case(HALF)
    writers = concat._writers()
    direct = writers["direct"]

    def twice(*request: Any) -> LaunchPlan:
        return in_sequence((direct.plan(*request), direct.plan(*request)), ())

    monkeypatch.setattr(concat, "_writers", lambda: {**writers, "direct": replace(direct, plan=twice)})
    plan = concat.plan(op, tuple(shapes), True, A100)
    files = [[s.file for s in p.kernel.sections][-2] for p in (plan, *plan.then)]
    assert files[-3:] == ["conv/stencil.cu", "conv/direct.cu", "conv/direct.cu"]
    assert {p.output_shapes for p in (plan, *plan.then)} == {((2, 7, 6, 112),)}
