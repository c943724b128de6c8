"""Time and memory limits of a verification."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import onnx

from onnxfuse import ops
from onnxfuse.files.external import without_data
from onnxfuse.files.io import memory_left, without_weights
from onnxfuse.graph.graph import captured
from onnxfuse.model.overridable import required_inputs
from onnxfuse.ops.flops import NodeShapes
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types
from onnxfuse.shapes.value_facts import attribute
from onnxfuse.verification.reference.float64_reference import with_shapes

SECONDS = 300.0
"""Default time limit for the cases of one verification, in seconds."""
SHARE = 0.5
"""Default memory limit, as a share of the memory that is free at the start."""
UNKNOWN_MEMORY = 4 << 30
"""Memory limit in bytes if the system does not report free memory."""
EVALUATIONS = 3
"""Original, fused model and reference each hold the values of a case."""


@dataclass(frozen=True)
class Limits:
    """Time limit in seconds, memory limit in bytes, and the start time."""

    seconds: float = SECONDS
    memory: int = field(default_factory=lambda: int(SHARE * (memory_left() or UNKNOWN_MEMORY)))
    began: float = field(default_factory=time.perf_counter)
    whole: float | None = None
    """The limit in seconds that the user knows, if this is what is left of it."""

    @property
    def over(self) -> bool:
        """Whether the time limit has passed."""
        return self.spent > self.seconds

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.began

    @property
    def ends(self) -> float:
        """When the time limit passes, by `time.perf_counter`."""
        return self.began + self.seconds

    @property
    def used_up(self) -> str:
        """Note for a case that was omitted because the time limit had passed."""
        return f"the time of {self.seconds if self.whole is None else self.whole:g} s is used up (--time)"

    def at_most(self, seconds: float) -> "Limits":
        """Return the limits of a part that starts now and takes at most so many of the remaining seconds."""
        whole = self.seconds if self.whole is None else self.whole
        return Limits(max(min(seconds, self.seconds - self.spent), 0.0), self.memory, whole=whole)

    def restarted(self) -> "Limits":
        """Return the same limits, starting now."""
        return Limits(self.seconds, self.memory, whole=self.whole)


def peak(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], float_bytes: int = 0) -> int:
    """Estimate the peak bytes of live values in the main graph for a run on inputs of `shapes`.

    Each value is live from its producer to its last reader. Unknown extents count as 1. `float_bytes` overrides the
    size of floats.
    """
    return _peak(model, infer(with_shapes(model, shapes)), float_bytes)


def _peak(model: onnx.ModelProto, typed: onnx.ModelProto, float_bytes: int = 0) -> int:
    sizes = {}
    for name, type_ in value_types(typed.graph).items():
        extents = [d if isinstance(d, int) else 1 for d in type_.shape or ()]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(type_.dtype or onnx.TensorProto.FLOAT)
        sizes[name] = math.prod(extents) * (float_bytes if float_bytes and dtype.kind in "fV" else dtype.itemsize)
    nodes = list(typed.graph.node)
    last = {name: n for n, node in enumerate(nodes) for name in (*node.input, *captured(node))}
    last |= {o.name: len(nodes) for o in typed.graph.output}
    live = {i.name: sizes.get(i.name, 0) for i in required_inputs(model.graph)}
    peak_bytes = live_bytes = sum(live.values())
    for n, node in enumerate(nodes):
        for name in node.output:
            live[name] = sizes.get(name, 0)
            live_bytes += live[name]
        peak_bytes = max(peak_bytes, live_bytes)
        for name in {*node.input, *node.output}:
            if last.get(name, n) <= n:
                live_bytes -= live.pop(name, 0)
    return peak_bytes


def operations(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Estimate the work of a run on inputs of `shapes`: arithmetic, and one operation per element read or written.

    Depends on nothing but the model and the shapes. Unknown extents count as 1, values of unknown rank and bodies of If
    and Loop as nothing.
    """
    return _operations(infer(with_shapes(model, shapes)))


def _operations(typed: onnx.ModelProto) -> int:
    extents = {
        name: tuple(d if isinstance(d, int) else 1 for d in type_.shape)
        for name, type_ in value_types(typed.graph).items()
        if type_.shape is not None
    }
    total = 0
    for node in typed.graph.node:
        entry = ops.operator(node.op_type, node.domain)
        output, *inputs = (extents.get(v) for v in (node.output[0], *node.input))
        if entry is not None and entry.flops is not None:
            total += entry.flops(NodeShapes(output, inputs, [*map(bool, node.input)], partial(attribute, node))) or 0
        total += sum(math.prod(extents[v]) for v in {*node.input, *node.output} if v in extents)
    return total


class CaseCosts:
    """Estimates of what a case costs, from the model and the shapes alone: equal on every machine and in every run."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._light = without_weights(model, without_data)
        self._known: dict[tuple[tuple[str, tuple[int, ...]], ...], tuple[int, int]] = {}

    def operations(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the operations of one run."""
        return self._of(shapes)[0]

    def memory(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the peak bytes of a case, without the weights."""
        return EVALUATIONS * self._of(shapes)[1]

    def _of(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        """Return both: types at these shapes are inferred once."""
        key = tuple(sorted(shapes.items()))
        if key not in self._known:
            typed = infer(with_shapes(self._light, shapes))
            self._known[key] = _operations(typed), _peak(self._light, typed)
        return self._known[key]


def gigabytes(size: float) -> str:
    """Format a number of bytes for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
