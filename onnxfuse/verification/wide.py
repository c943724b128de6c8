"""What a half type hides: the fused model in float32, where no value is rounded, beside what rounding the weights does.

In float16 a bias that is wrong by one percent can move an output of few elements by two roundings, of which the
original makes as many. In float32 it stands alone: there the fused model differs from the truth only because weights
that were computed from others were rounded once more. What that may do is what it does to the original: its own weights
are moved by up to half a rounding step, each by itself.

Where a sound file stays below a fifth of what is allowed, the weights of a small network times 1.01 are twice and more
(`tests/verification/scaled.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from onnxfuse.model.io import without_weights
from onnxfuse.model.nested import nodes_of
from onnxfuse.verification.budget import rounding_step
from onnxfuse.verification.floats import float_type
from onnxfuse.verification.precision import NARROWER
from onnxfuse.verification.truth import in_float32

Arrays = Mapping[str, npt.NDArray[np.generic]]

MOVES = 3
"""Times that the original's weights are moved: in three the root mean square of outputs that hang together is known
well enough."""
DEVIATIONS = 4.0
"""How many times as far as moved weights bring the original the fused model may be: both are sums of many small errors,
and four standard deviations of one are beyond luck."""
HIDDEN = 1 / 16
"""A difference of this part of a rounding step is none, whatever the weights do."""
MOSTLY = 0.5
"""A difference that shows in no more than this share of the cases is that of a threshold, which one number crossed."""


@dataclass(frozen=True)
class Difference:
    """One output in one case, in float32."""

    output: str
    error: float
    """Root mean square of what the fused model is away from the truth."""
    allowed: float
    """The error up to which the rounding of weights explains it."""


class Wide:
    """Both models in float32, and how they differed in the cases so far. Raises ModelError where they do not open."""

    def __init__(self, original: onnx.ModelProto, fused: onnx.ModelProto) -> None:
        self.eps = _eps(original)
        self.fused = in_float32(fused)
        self.moved = [in_float32(with_moved_weights(original, seed)) for seed in range(MOVES)]
        self.found: list[Difference] = []

    def add(self, inputs: dict[str, npt.NDArray[np.generic]], truth: Arrays) -> Arrays:
        """Take one more case; return what the fused model gives in float32.

        Raises what ONNX Runtime raises where the models do not run in float32.
        """
        fused, moved = self.fused(inputs), [one(inputs) for one in self.moved]
        for name, true in truth.items():
            different = _difference(name, fused[name], [m[name] for m in moved], true, self.eps)
            if different is not None:
                self.found.append(different)
        return fused

    @property
    def problems(self) -> dict[str, str]:
        """Return the outputs that differ in most cases by more than the rounding of weights explains, and how."""
        told = {}
        for name in dict.fromkeys(d.output for d in self.found):
            cases = [d for d in self.found if d.output == name]
            over = [d for d in cases if d.error > d.allowed]
            if len(over) > MOSTLY * len(cases):
                worst = max(over, key=lambda d: d.error / d.allowed)
                told[name] = (
                    f"output '{name}' is another one in float32, too, where no value is rounded: in {len(over)} of "
                    f"{len(cases)} cases; root mean square {worst.error:.2g}, rounding the weights explains "
                    f"{worst.allowed:.2g}"
                )
        return told


def with_moved_weights(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return a copy whose half weights and constants are in float32, each moved by up to half a rounding step.

    Whole numbers stay: they are meant, as the 2 of a square, and so does what is not finite.
    """
    rng = np.random.default_rng(seed)

    def moved(tensor: TensorProto) -> TensorProto:
        if tensor.data_type not in NARROWER[TensorProto.FLOAT]:
            return tensor
        array = numpy_helper.to_array(tensor)
        exact = array.astype(np.float64)
        free = np.isfinite(exact) & (exact != np.rint(exact))
        step = rounding_step(np.where(free, exact, 1.0), array.dtype) * rng.uniform(-0.5, 0.5, exact.shape)
        return numpy_helper.from_array((exact + np.where(free, step, 0.0)).astype(np.float32), tensor.name)

    copy = without_weights(model, moved)
    for node in nodes_of(copy.graph):
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                attribute.t.CopyFrom(moved(attribute.t))
    return copy


def _difference(
    name: str,
    fused: npt.NDArray[np.generic],
    moved: Sequence[npt.NDArray[np.generic]],
    truth: npt.NDArray[np.generic],
    eps: float,
) -> Difference | None:
    """Return how one output differs; None where nothing can be said: no floats, as many as a threshold leaves."""
    if truth.dtype.kind not in "fV" or any(x.shape != truth.shape for x in (fused, *moved)):
        return None
    true = truth.astype(np.float64)
    every = [x.astype(np.float64) for x in (fused, *moved)]
    known = np.isfinite(true) & np.all([np.isfinite(x) for x in every], axis=0)
    if not known.any():
        return None
    error, *explained = (_rms((x - true)[known]) for x in every)
    hidden = HIDDEN * eps * _rms(true[known])
    return Difference(name, error, DEVIATIONS * _rms(np.array(explained)) + hidden)


def _rms(x: npt.NDArray[np.float64]) -> float:
    return math.sqrt(float(np.mean(np.square(x))))


def _eps(model: onnx.ModelProto) -> float:
    """Return the distance from 1 to the next number of the model's half type; of float16 where it holds no weight."""
    types = {t.data_type for t in model.graph.initializer}
    brief = TensorProto.BFLOAT16 if TensorProto.BFLOAT16 in types else TensorProto.FLOAT16
    return float(float_type(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(brief))).eps)
