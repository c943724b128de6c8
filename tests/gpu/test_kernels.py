"""Fused kernels on a real GPU, through CuPy alone: every template, shape class and alignment against float64."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BOOL, BRAIN, DOUBLE, FLOAT, HALF
from bench.kernels.launching import launcher
from onnxfuse import cuda
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.model.fused import FusedOp
from tests.emulator.test_whole_kernels import CHAIN, LAYER_NORM, POINTWISE_SHAPES, SOFTMAX, SOFTMAX_SHAPES

cupy = pytest.importorskip("cupy", reason="needs CuPy")


def _gpu() -> str | None:
    try:
        return None if cupy.cuda.runtime.getDeviceCount() else "needs an NVIDIA GPU: there is none"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"needs an NVIDIA GPU: {error}"


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

GUARD = 256  # bytes; poison before and behind each buffer


class DeviceBuffer:
    """An array on the GPU between two guards, on a 16-byte boundary or one element off it."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, aligned: bool, content: np.ndarray | None = None) -> None:
        self.dtype, self.shape = np.dtype(dtype), shape
        self.size = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self.start = GUARD + (0 if aligned else self.dtype.itemsize)
        # Filled on the host: copies need none of CuPy's own kernels, nor the CUDA headers that those are compiled with.
        memory = np.full(self.start + self.size + GUARD, 0xFF, np.uint8)
        if content is not None:
            memory[self.start : self.start + self.size] = np.frombuffer(content.tobytes(), np.uint8)
        self.memory = cupy.asarray(memory)

    @property
    def address(self) -> int:
        return self.memory.data.ptr + self.start

    def read(self) -> np.ndarray:
        host = self.memory.get()
        assert (host[: self.start] == 0xFF).all(), "written before the buffer"
        assert (host[self.start + self.size :] == 0xFF).all(), "written behind the buffer"
        return host[self.start : self.start + self.size].view(self.dtype).reshape(self.shape)


def launch(plan: LaunchPlan, pointers: Sequence[int]) -> None:
    launcher(plan, pointers)()


def check(
    fused: FusedOp,
    shapes: Sequence[tuple[int, ...]],
    aligned: bool = True,
    seed: int = 0,
    over: int | None = None,
    made: Callable[..., np.ndarray] = ops.random,
) -> None:
    rng = np.random.default_rng(seed)
    inputs = [made(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    plan = cuda.plan(fused, tuple(shapes), aligned, cuda.arch_of(0))
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, fused.outputs, strict=True)]
    if over is not None:
        results[0] = sources[over]
    if plan.grid[0]:
        launch(plan, [b.address for b in (*sources, *results)])
        cupy.cuda.Device(0).synchronize()
    ops.within_budget(fused, inputs, [r.read() for r in results])
    for n, (source, given) in enumerate(zip(sources, inputs, strict=True)):
        assert n == over or source.read().tobytes() == given.tobytes(), "an input was changed"


@pytest.mark.parametrize("shapes", POINTWISE_SHAPES.values(), ids=POINTWISE_SHAPES)
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT, DOUBLE])
def test_pointwise(shapes: list[tuple[int, ...]], aligned: bool, dtype: int) -> None:
    """Every broadcast kind, tail, alignment and float type gives the body's values."""
    check(ops.op(CHAIN, (dtype,) * 3, (dtype,)), shapes, aligned)


@pytest.mark.parametrize("shapes", [[(64, 128, 33, 31), (128, 1, 1), (64, 1, 33, 1)], [(4096, 1025), (1025,), (1,)]])
def test_pointwise_of_many_waves(shapes: list[tuple[int, ...]]) -> None:
    """Large enough for several vectors per thread."""
    check(ops.op(CHAIN, (HALF,) * 3, (HALF,)), shapes)


def test_pointwise_mixed_element_sizes() -> None:
    text = "(m, x, z) => (y, k) { w = Where(m, x, z) y = Cast <to = 1> (w) h = Abs(y) k = Greater(h, y) }"
    check(ops.op(text, (BOOL, HALF, HALF), (FLOAT, BOOL)), [(1237, 37), (1237, 37), (37,)])


ACTIVATIONS = [
    "Gelu", 'Gelu <approximate = "tanh">', "Mish", "Sigmoid", "Tanh", "Softplus", "HardSwish", "Elu", "Selu", "Erf",
    "Exp", "LeakyRelu", "Celu", "Softsign",
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
def test_activations(activation: str, dtype: int) -> None:
    """The GPU's own approximations (2^x, 1/x, 16-bit forms) stay within the budget, too."""
    check(ops.op(f"(x, b) => (y) {{ s = Add(x, b) y = {activation} (s) }}", (dtype,) * 2, (dtype,)), [(257, 64), (64,)])


@pytest.mark.parametrize(
    "columns", [1, 2, 7, 8, 31, 33, 64, 197, 768, 1024, 1025, 3072, 4096, 8191, 16384, 17000, 40000, 40001]
)
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_layer_norm_of_any_row_length(columns: int, aligned: bool, dtype: int) -> None:
    """Part of a warp, a warp, a block, a block that walks along the row."""
    shapes = [(13, columns), (13, columns), (columns,), (columns,)]
    check(ops.op(LAYER_NORM, (dtype,) * 4, (dtype,) * 2, "row"), shapes, aligned)


@pytest.mark.parametrize("columns", [33, 49, 77, 197, 1025, 2049])
@pytest.mark.parametrize("rows", [1, 2, 3, 1000])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
def test_rows_that_begin_and_end_inside_vectors(columns: int, rows: int, aligned: bool, dtype: int) -> None:
    """Odd lengths, any number of rows: softmax alone, and with a mask per pair; normalization; also in place."""
    row = (rows, columns)
    softmax = ops.op("(x) => (y) { y = Softmax <axis = -1> (x) }", (dtype,), (dtype,), "row")
    check(softmax, [row], aligned)
    check(softmax, [row], aligned, over=0)
    check(ops.op(SOFTMAX, (dtype,) * 2, (dtype,), "row"), [(2, *row), row], aligned)
    check(ops.op(LAYER_NORM, (dtype,) * 4, (dtype,) * 2, "row"), [row, row, (columns,), (columns,)], aligned)


@pytest.mark.parametrize("columns", [45, 1025, 40001])
def test_shifted_rows_of_mixed_element_sizes(columns: int) -> None:
    text = """(k, x, m) => (y, t) { z = Where(k, x, m) c = Cast <to = 1> (z)
      y = Softmax <axis = -1> (c) t = Greater(x, m) }"""
    fused = ops.op(text, (BOOL, HALF, HALF), (FLOAT, BOOL), "row")
    check(fused, [(5, 3, columns), (5, 3, columns), (5, 1, columns)])


@pytest.mark.parametrize("columns", [8200, 12288, 16384])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_long_rows_that_fetch_scale_and_bias_late(columns: int, dtype: int) -> None:
    """Two blocks share a multiprocessor; more rows than the GPU takes at once."""
    check(ops.op(LAYER_NORM, (dtype,) * 4, (dtype,) * 2, "row"), [(600, columns)] * 2 + [(columns,)] * 2)


def test_an_epilogue_may_have_more_rows_than_the_reduction() -> None:
    fused = ops.op("(x, e) => (y) { s = Softmax <axis = -1> (x) y = Add(s, e) }", (FLOAT,) * 2, (FLOAT,), "row")
    for x, e in (((1, 4), (5, 4)), ((4,), (500, 4)), ((1, 13), (2, 300, 13)), ((3, 1, 40), (200, 40))):
        check(fused, [x, e])


@pytest.mark.parametrize("shapes", SOFTMAX_SHAPES.values(), ids=SOFTMAX_SHAPES)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT, DOUBLE])
def test_softmax(shapes: list[tuple[int, ...]], dtype: int) -> None:
    check(ops.op(SOFTMAX, (dtype,) * 2, (dtype,), "row"), shapes)


def test_an_output_may_lie_over_an_input() -> None:
    check(ops.op(CHAIN, (HALF,) * 3, (HALF,)), [(4096, 1025), (1025,), (4096, 1)], over=0)
    text = "(x, g) => (y) { y = RMSNormalization <axis = -1> (x, g) }"
    for columns in (40, 1000, 5000, 5001, 20000, 40000, 40001):
        check(ops.op(text, (HALF, HALF), (HALF,), "row"), [(9, columns), (columns,)], over=0)


def test_more_than_2_to_the_31_elements() -> None:
    """64-bit indices; the last elements are the ones that a 32-bit index would miss."""
    rows, columns = 2**21 + 3, 1024
    fused = ops.op("(x, b) => (y) { y = Add(x, b) }", (HALF,) * 2, (HALF,))
    bias = np.arange(columns).astype(np.float16)
    x, b = cupy.asarray(np.ones((rows, columns), np.float16)), cupy.asarray(bias)
    y = cupy.empty((rows, columns), np.float16)
    y.data.memset(0xFF, y.nbytes)
    launch(cuda.plan(fused, ((rows, columns), (columns,)), True, cuda.arch_of(0)), [a.data.ptr for a in (x, b, y)])
    for first in (0, 2**20 - 2, 2**21 - 2, rows - 4):
        np.testing.assert_array_equal(y[first : first + 4].get(), np.broadcast_to(bias + 1, (4, columns)))
