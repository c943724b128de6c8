"""Peak rates of the device, measured on the spot: bytes per second of a copy, FLOPs per second of a matrix product."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.measure.profile.traffic import ModelTraffic
from onnxfuse.measure.timing.binding import REFUSALS, bind, opened, ort_values, outputs_of
from onnxfuse.measure.timing.settings import DEFAULT, Setting
from onnxfuse.measure.timing.stopwatch import interleaved, warm
from onnxfuse.verification.run.sessions import CUDA

TYPES: Mapping[str, Any] = {
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64
}  # fmt: skip
"""Element types of products, by name."""

EDGE = {True: 8192, False: 1024}
"""Rows and columns of the timed product, on CUDA and on the CPU: 1.1 TFLOP and 2.1 GFLOP."""
COPIED = {True: 1 << 30, False: 1 << 27}
"""Bytes copied: far more than the caches hold."""
REPEATS = 10
"""Timed runs."""


@dataclass(frozen=True)
class Ceilings:
    """Peak rates of one device, at one setting of ONNX Runtime."""

    bytes_per_second: float
    """Read plus write bandwidth of a copy."""
    flops_per_second: Mapping[str, float]
    """Rate of a large matrix product, by element type."""

    def floor(self, traffic: ModelTraffic) -> float:
        """Return a lower bound in microseconds for running these nodes, each at its own ceiling.

        Actual times may be lower if data stays in a cache between nodes.
        """
        return sum(
            max(n.work.bytes / self.bytes_per_second, n.work.flops / self.flops_per_second.get(n.element, np.inf))
            for n in traffic.nodes
        ) * 1e6  # fmt: skip

    def peak(self, traffic: ModelTraffic) -> float | None:
        """Return the FLOPs per second of the element type of most products; None without products."""
        sums: dict[str, int] = {}
        for node in traffic.nodes:
            if node.element in self.flops_per_second:
                sums[node.element] = sums.get(node.element, 0) + node.work.flops
        return self.flops_per_second[max(sums, key=lambda t: sums[t])] if sums else None


def measured(types: Collection[str], providers: Sequence[str], setting: Setting = DEFAULT) -> Ceilings:
    """Measure the ceilings of the first of `providers`, for products of these element types as far as supported."""
    on_cuda = CUDA in providers
    rates = {}
    for name in TYPES:
        rate = _product(name, providers, EDGE[on_cuda], setting) if name in types else None
        if rate is not None:
            rates[name] = rate
    return Ceilings(_copy_on_cuda() if on_cuda else _copy_on_cpu(providers), rates)


def _product(element: str, providers: Sequence[str], edge: int, setting: Setting) -> float | None:
    """Return the FLOPs per second of ONNX Runtime's own MatMul; None if it does not support this type."""
    element_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[element]))
    model = _one_node(ops.MatMul, element_type, ("a", "b"), (edge, edge))
    few = np.random.default_rng(0).standard_normal(1 << 18).astype(TYPES[element])
    inputs = ort_values({name: np.resize(few, (edge, edge)) for name in ("a", "b")})
    try:
        session = opened(model, setting, providers, fused=False)
    except REFUSALS:
        return None
    return 2 * edge**3 / _seconds(bind(session, inputs, outputs_of(session, inputs, "measured")).run)


def _copy_on_cpu(providers: Sequence[str]) -> float:
    """Return the bytes per second of ONNX Runtime's Neg, which uses all threads; NumPy's copy uses one."""
    size = COPIED[False]
    model = _one_node(ops.Neg, TensorProto.FLOAT, ("a",), (size // 4,))
    inputs = ort_values({"a": np.ones(size // 4, np.float32)})
    session = opened(model, DEFAULT, providers, fused=False)
    return 2 * size / _seconds(bind(session, inputs, outputs_of(session, inputs, "measured")).run)


def _copy_on_cuda() -> float:
    import cupy

    size = COPIED[True]
    buffers = [cupy.empty(size, cupy.uint8) for _ in range(2)]

    def copy() -> None:
        buffers[1].data.copy_from_device(buffers[0].data, size)
        cupy.cuda.runtime.deviceSynchronize()

    rate = 2 * size / _seconds(copy)
    buffers.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    return rate


def _one_node(op: str, element: int, names: tuple[str, ...], shape: tuple[int, ...]) -> onnx.ModelProto:
    values = [onnx.helper.make_tensor_value_info(n, element, shape) for n in (*names, "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node(op, names, ["y"])], op, values[:-1], values[-1:])
    return onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])


def _seconds(run: Callable[[], None]) -> float:
    """Return the median of some runs after a warm-up."""
    warm([run], 2)
    (times,) = interleaved([run], 1, REPEATS)
    return median(times)
