"""Reductions on a real GPU: every family, along neighbours and across them, shared by threads, blocks and clusters."""

from dataclasses import replace

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BRAIN, DOUBLE, FLOAT, HALF, INT64
from bench.cases.rows import TEMPLATES, axes
from onnxfuse import cuda
from onnxfuse.cuda.templates.reduction import group
from tests.gpu.test_kernels import DeviceBuffer, check, cupy, launch, pytestmark

__all__ = ["pytestmark"]

MEDIUM = 2**20
"""Elements: enough for several waves of blocks, few enough for the truth in float64."""


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT, DOUBLE])
@pytest.mark.parametrize("aligned", [True, False])
def test_families(name: str, dtype: int, aligned: bool) -> None:
    check(TEMPLATES[name].op(dtype), TEMPLATES[name].small, aligned)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_families_of_many_blocks(name: str, dtype: int) -> None:
    shapes = TEMPLATES[name].large(MEDIUM)
    if not all(all(s) for s in shapes):
        shapes = TEMPLATES[name].large(8 * MEDIUM)
    check(TEMPLATES[name].op(dtype), shapes)


@pytest.mark.parametrize("way", ["kept", "read twice"])
@pytest.mark.parametrize("name", ["group norm of NHWC + silu", "embedding + group norm of NHWC + silu"])
@pytest.mark.parametrize(
    "shape", [(4, 17, 19, 320), (1, 33, 31, 960), (3, 45, 44, 64), (2, 30, 31, 100), (1, 64, 64, 320)], ids=str
)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
def test_norms_of_channels_last_images(
    name: str, shape: tuple[int, int, int, int], dtype: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept by clusters, the last blocks with fewer places; two launches, one early behind the other; all widths."""
    if way == "read twice":
        monkeypatch.setattr(group, "_resident", lambda norm: None)
    family, channels = TEMPLATES[name], shape[-1:]
    groups = "num_groups = 4" if channels[0] % 32 else "num_groups = 32"
    fused = replace(family, text=family.text.replace("num_groups = 32", groups)).op(dtype)
    more = [channels, (shape[0], 1, 1, *channels)] if len(family.inputs) == 5 else []
    shapes = (shape, *more, channels, channels)
    assert len(cuda.plan(fused, shapes, True, cuda.arch_of(0)).then) == (0 if way == "kept" else 1)
    check(fused, shapes)


@pytest.mark.parametrize("over", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("shape", [(3, 7, 40), (1000, 3, 8), (5, 3001, 33), (2, 40, 50000), (70000, 1, 2)], ids=str)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_any_axes(over: tuple[int, ...], shape: tuple[int, int, int], dtype: int) -> None:
    """The maximum is exact, however the work is shared out; and it is what all elements are compared with."""
    text = f"(x) => (k, y) {{ {axes(*over)} k = ReduceMax <keepdims = 0> (x, a) m = ReduceMax (x, a) y = Sub (x, m) }}"
    check(ops.op(text, (dtype,), (dtype,) * 2, "row"), [shape])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(3000, 40), (40, 70001), (200000, 8)], ids=str)
def test_positions(axis: int, shape: tuple[int, int]) -> None:
    """Of equals the first, whichever thread, warp or block has found it."""
    fused = ops.op(f"(x) => (y) {{ y = ArgMax <axis = {axis}, keepdims = 0> (x) }}", (FLOAT,), (INT64,), "row")
    x = np.random.default_rng(0).integers(0, 50, shape).astype(np.float32)
    plan = cuda.plan(fused, (shape,), True, cuda.arch_of(0))
    source, result = DeviceBuffer(shape, np.float32, True, x), DeviceBuffer(plan.output_shapes[0], np.int64, True)
    launch(plan, [source.address, result.address])
    cupy.cuda.Device(0).synchronize()
    np.testing.assert_array_equal(result.read(), x.argmax(axis))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(5000, 64), (64, 100000)], ids=str)
def test_the_same_inputs_give_the_same_bits(axis: int, shape: tuple[int, int]) -> None:
    """Sums are taken in an order that never changes."""
    fused = ops.op(f"(x) => (y) {{ {axes(axis)} y = ReduceSum (x, a) }}", (FLOAT,), (FLOAT,), "row")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    plan = cuda.plan(fused, (shape,), True, cuda.arch_of(0))
    source, results = DeviceBuffer(shape, np.float32, True, x), []
    for _ in range(20):
        result = DeviceBuffer(plan.output_shapes[0], np.float32, True)
        launch(plan, [source.address, result.address])
        cupy.cuda.Device(0).synchronize()
        results.append(result.read().tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("norm", ["LayerNormalization(p, s)", "LogSoftmax(p)"])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT, DOUBLE])
def test_of_one_element_nothing_is_left(norm: str, dtype: int) -> None:
    """A product less its own rounded value is 0, where one fma would leave what the rounding lost."""
    text = f"(x, k, s) => (y, z) {{ p = Mul(x, k) y = {norm} z = Mul(p, s) }}"
    check(ops.op(text, (dtype,) * 3, (dtype,) * 2, "row"), [(1000, 1), (1000, 1), (1,)])
