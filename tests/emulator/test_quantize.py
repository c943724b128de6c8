"""Dynamic quantization, run by the host's compiler: the range of a value and its elements in 8 bits, as
DynamicQuantizeLinear gives them, of inputs and of what rows, products and attention write."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnxfuse import cuda
from onnxfuse.cuda import LaunchPlan
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.arch import A100, H200, SUPPORTED, Arch
from onnxfuse.cuda.templates.quantize.costs import costs_of
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.emulator import emulate
from tests.support.kernels.dynamic import VALUES, alone, attention, drawn, norm, product, reference

SHAPES = [(1,), (3,), (4, 1), (1, 7), (3, 5, 4), (2, 33), (5, 1025), (40, 33, 7), (0, 4)]


def quantizes(op: FusedOp, inputs: list[np.ndarray], aligned: bool, arch: Arch = H200) -> LaunchPlan:
    """Run an op, whose last outputs must be those of DynamicQuantizeLinear of its first one, or of its input.

    Return its plan.
    """
    plan = cuda.plan(op, tuple(a.shape for a in inputs), aligned, arch)
    types = [onnx.helper.tensor_dtype_to_np_dtype(t) for t in op.outputs]
    *others, s, z, y = emulate.run(plan, inputs, types, aligned)
    for got, expected in zip((y, s, z), reference((others or inputs)[0]), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    return plan


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("aligned", [True, False])
def test_a_value(shape: tuple[int, ...], values: str, aligned: bool) -> None:
    """Equal to the last bit, also without an element, with one, and where the range is one point."""
    op, inputs = alone(np.asarray(VALUES[values](drawn(shape)), np.float32))
    assert op.template == "quantize"
    assert len(quantizes(op, inputs, aligned).then) == 1


def test_nan() -> None:
    """An element that is no number makes the scale none, wherever it lies."""
    for place in ((0, 0), (4, 77), (8, 129)):
        x = drawn((9, 130))
        x[place] = np.nan
        op, inputs = alone(x)
        s, *_ = emulate.run(cuda.plan(op, (x.shape,), True, H200), inputs, [np.float32, np.uint8, np.uint8], True)
        assert np.isnan(s)


@pytest.mark.parametrize("columns", [4, 31, 197, 768, 1025, 5000])
@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("aligned", [True, False])
def test_rows(rows: int, columns: int, aligned: bool) -> None:
    """A norm leaves the extremes of its rows, also of several rows of a warp and of rows that blocks share."""
    op, inputs = norm(rows, columns)
    assert op.template == "quantize_output"
    assert len(quantizes(op, inputs, aligned).then) == 1


@pytest.mark.parametrize(("rows", "columns"), [(130, 64), (64, 72), (33, 16), (1, 48)])
@pytest.mark.parametrize("arch", [H200, A100], ids=lambda arch: arch.name)
def test_products(rows: int, columns: int, arch: Arch) -> None:
    """Where the product's kernel is not Hopper's a launch between finds the extremes of what it has written."""
    op, inputs = product(rows, columns)
    assert len(quantizes(op, inputs, arch is A100 and rows > 1, arch).then) == 2


def test_a_variant_is_of_the_kernel_that_computes_the_value() -> None:
    """Tuning measures those of each template, and the plan takes them."""
    for op, inputs in (norm(64, 768), product(1024, 768), attention(2, 64, 64)):
        shapes = tuple(a.shape for a in inputs)
        plans = [cuda.plan(op, shapes, True, H200, variant) for variant in cuda.candidates(op, shapes, H200)[:3]]
        assert len({(p.kernel, p.grid) for p in plans}) == len(plans) > 1
        assert len({p.then[-1].kernel for p in plans}) == 1


@pytest.mark.parametrize(("rows", "columns"), [(1024, 3072), (1024, 768), (200, 320), (4096, 3072)])
def test_hoppers_product_compiles(rows: int, columns: int) -> None:
    """It leaves the extremes of what its warps store, a part of each; tests/gpu runs it."""
    op, inputs = product(rows, columns)
    plan = cuda.plan(op, tuple(a.shape for a in inputs), True, H200)
    assert len(plan.then) == 1
    warps = plan.block[0] // 32 - 4
    assert plan.scratch_bytes >= 8 * plan.grid[0] * warps
    cubin, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    assert cubin
    assert "serialized" not in log
    assert "0 bytes spill stores" in log


@pytest.mark.parametrize("arch", SUPPORTED, ids=lambda arch: arch.name)
def test_the_launches_compile(arch: Arch) -> None:
    op, inputs = alone(drawn((64, 768)))
    plan = cuda.plan(op, tuple(a.shape for a in inputs), True, arch)
    for launch in (plan, *plan.then):
        cubin, log = nvrtc.build(launch.kernel, arch, ("-Xptxas=-v",))
        assert cubin
        assert "0 bytes spill stores" in log


@pytest.mark.parametrize(("queries", "keys"), [(17, 33), (100, 100), (1, 70), (130, 8)])
@pytest.mark.parametrize("arch", [H200, A100], ids=lambda arch: arch.name)
def test_attention(queries: int, keys: int, arch: Arch) -> None:
    """Each warp leaves the extremes of its queries' results, none of queries that there are not."""
    op, inputs = attention(3, queries, keys)
    assert op.template == "quantize_output"
    assert op.library is not None
    assert len(quantizes(op, inputs, True, arch).then) == 1


def test_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """More parts than a block combines by itself become few by a launch of their own."""
    few = replace(costs_of(H200), most_parts=5, combined=3)
    monkeypatch.setattr("onnxfuse.cuda.templates.quantize.plan.costs_of", lambda arch: few)
    op, inputs = norm(90, 64)
    assert len(quantizes(op, inputs, True).then) == 2


def test_values_that_fill_the_gpu_twice_go_by_larger_blocks() -> None:
    for rows, threads in ((540, 256), (541, 512)):
        op, inputs = alone(drawn((rows, 1000)))
        assert quantizes(op, inputs, True).then[-1].block[0] == threads


@pytest.mark.parametrize(("rows", "columns"), [(90, 64), (5, 1025), (3, 768)])
def test_a_block_of_rows_leaves_one_part(rows: int, columns: int) -> None:
    op, inputs = norm(rows, columns)
    plan = quantizes(op, inputs, True)
    assert plan.grid[0] == np.frombuffer(plan.then[-1].parameters, np.uint32)[2]
    assert plan.grid[0] < rows or columns > 64


@pytest.mark.parametrize("arch", [H200, A100], ids=lambda arch: arch.name)
def test_no_launch_of_a_norm_in_two_is_lost(arch: Arch) -> None:
    """Sums of groups, the norm by them, the range, and the elements in 8 bits."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[N,64,64,320] x) => (float[N,64,64,320] n, uint8[N,64,64,320] y, float s, uint8 z)
      <float[320] scale, float[320] bias> {
        f = Transpose <perm = [0,3,1,2]> (x) m = GroupNormalization <num_groups = 32> (f, scale, bias)
        n = Transpose <perm = [0,2,3,1]> (m) y, s, z = DynamicQuantizeLinear (n)
      }""")
    for name in ("scale", "bias"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(320, np.float32), name))
    pipeline.run(model, rule_file.by_default(rule_file.shipped()))
    (op,) = fused_ops(model).values()
    plan = cuda.plan(op, ((8, 64, 64, 320), (320,), (320,)), True, arch)
    assert len(plan.then) == 3
