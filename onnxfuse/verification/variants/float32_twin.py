"""Compare half-precision models in float32, where rounding hides nothing, and allow for the rounding of weights.

In float16 a bias that is wrong by one percent can change an output of few elements by two roundings, and the original
makes as many. In float32 it is visible: there the fused model differs from the reference only because weights computed
from others were rounded once more. The effect of that is measured on the original: its weights are perturbed by up to
half a rounding step, each independently.

Where a sound file stays below a fifth of what is allowed, the weights of a small network times 1.01 reach twice that
and more (`tests/support/verification/scaled.py`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.model.nested import nodes_of
from onnxfuse.support.plurals import plural
from onnxfuse.verification.reference.float64_reference import in_float32
from onnxfuse.verification.reference.promoted import NARROWER
from onnxfuse.verification.run.floats import float_type
from onnxfuse.verification.run.tensors import MISSING
from onnxfuse.verification.tolerance.error_budget import rounding_step
from onnxfuse.verification.variants.variant import with_weights

Arrays = Mapping[str, npt.NDArray[np.generic]]

WEIGHT_PERTURBATIONS = 3
"""Number of weight perturbations of the original: three determine the root mean square of correlated outputs well
enough."""
DEVIATIONS = 4.0
"""Allowed deviation as a multiple of that caused by perturbed weights: both are sums of many small errors, and four
standard deviations of one are beyond chance."""
HIDDEN = 1 / 16
"""Differences below this part of a rounding step are ignored, whatever the weights do."""
MOSTLY = 0.5
"""A difference in no more than this share of the cases is attributed to a threshold that one number crossed."""


@dataclass(frozen=True)
class RoundingDifference:
    """One output in one case, in float32."""

    output: str
    error: float
    """Root mean square of the fused model's error against the reference."""
    allowed: float
    """The error that the rounding of weights explains."""


class Float32Comparison:
    """The fused model in float32, and its deviation from the reference in the cases so far.

    `original` and `fused` load the models. The original is perturbed only if there is a difference to explain: usually
    there is none, and four runs of a case take as long as all else. Raises ModelError if the fused model does not open.
    """

    def __init__(
        self, original: Callable[[], onnx.ModelProto], eps: float, fused: Callable[[], onnx.ModelProto]
    ) -> None:
        self.original, self.eps, self.load_fused = original, eps, fused
        self.fused = in_float32(fused())
        self.found: list[RoundingDifference] = []

    @cached_property
    def rerounded_runs(self) -> list[Callable[[dict[str, npt.NDArray[Any]]], dict[str, npt.NDArray[Any]]]]:
        """Run the original with perturbed weights, different ones at each call."""
        original = self.original()
        return [in_float32(with_rerounded_weights(original, seed)) for seed in range(WEIGHT_PERTURBATIONS)]

    @cached_property
    def rounded_again(self) -> bool:
        """Whether the fused model holds weights that the original does not: computed from its own, and rounded."""
        return not _weights(self.load_fused()) <= _weights(self.original())

    def add(self, inputs: dict[str, npt.NDArray[np.generic]], reference: Arrays) -> Arrays:
        """Add one case; return the fused model's float32 outputs.

        Raises ONNX Runtime's error if the models do not run in float32, and ModelError if the original with perturbed
        weights does not open.
        """
        fused = self.fused(inputs)
        differences = self._differences(fused, [], reference)
        if any(d.error > d.allowed for d in differences):
            differences = self._differences(fused, [one(inputs) for one in self.rerounded_runs], reference)
        self.found += differences
        return fused

    def _differences(self, fused: Arrays, perturbed: Sequence[Arrays], reference: Arrays) -> list[RoundingDifference]:
        every = (
            _difference(n, fused[n], [m.get(n, MISSING) for m in perturbed], true, self.eps)
            for n, true in reference.items()
            if n in fused
        )
        return [d for d in every if d is not None]

    @property
    def problems(self) -> dict[str, str]:
        """Return the outputs that differ in most cases by more than the rounding of weights explains, and how."""
        texts = {}
        for name in dict.fromkeys(d.output for d in self.found):
            cases = [d for d in self.found if d.output == name]
            over = [d for d in cases if d.error > d.allowed]
            if len(over) > MOSTLY * len(cases):
                worst = max(over, key=lambda d: d.error / d.allowed)
                texts[name] = (
                    f"output '{name}' is another one in float32, too, where no value is rounded: in {len(over)} of "
                    f"{plural(cases, 'case')}; root mean square {worst.error:.2g}, rounding the weights explains "
                    f"{worst.allowed:.2g}"
                )
        return texts


def with_rerounded_weights(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return a float32 copy whose half-precision weights and constants are perturbed by up to half a rounding step.

    Integers such as the exponent 2 of a square are intentional and unchanged, as are non-finite values.
    """
    rng = np.random.default_rng(seed)

    def rerounded_runs(_: str, tensor: TensorProto) -> TensorProto:
        if tensor.data_type not in NARROWER[TensorProto.FLOAT]:
            return tensor
        array = numpy_helper.to_array(tensor)
        exact = array.astype(np.float64)
        free = np.isfinite(exact) & (exact != np.rint(exact))
        step = rounding_step(np.where(free, exact, 1.0), array.dtype) * rng.uniform(-0.5, 0.5, exact.shape)
        return numpy_helper.from_array((exact + np.where(free, step, 0.0)).astype(np.float32), tensor.name)

    return with_weights(model, rerounded_runs)


def _weights(model: onnx.ModelProto) -> set[tuple[int, int, int]]:
    """Return an order-independent fingerprint of half-precision weights: element counts, sums of their bits and
    squares."""
    constants = [
        a.t for n in nodes_of(model.graph) for a in n.attribute if n.op_type == ops.Constant and a.HasField("t")
    ]
    fingerprints = set[tuple[int, int, int]]()
    for tensor in (*model.graph.initializer, *constants):
        if tensor.data_type in NARROWER[TensorProto.FLOAT]:
            bits = numpy_helper.to_array(tensor).ravel().view(np.uint16).astype(np.uint64)
            if bits.size > 1:  # a scale or an epsilon is not a weight
                fingerprints.add((bits.size, int(bits.sum()), int(np.square(bits).sum())))
    return fingerprints


def _difference(
    name: str,
    fused: npt.NDArray[np.generic],
    perturbed: Sequence[npt.NDArray[np.generic]],
    reference: npt.NDArray[np.generic],
    eps: float,
) -> RoundingDifference | None:
    """Return the deviation of one output; without `perturbed` nothing of it is explained.

    None if inconclusive: no floats, or a data-dependent size.
    """
    if reference.dtype.kind not in "fV" or any(x.shape != reference.shape for x in (fused, *perturbed)):
        return None
    expected = reference.astype(np.float64)
    every = [x.astype(np.float64) for x in (fused, *perturbed)]
    finite = np.isfinite(expected) & np.all([np.isfinite(x) for x in every], axis=0)
    if not finite.any():
        return None
    error, *explained = (_rms((x - expected)[finite]) for x in every)
    hidden = HIDDEN * eps * _rms(expected[finite])
    return RoundingDifference(name, error, hidden + (DEVIATIONS * _rms(np.array(explained)) if explained else 0.0))


def _rms(x: npt.NDArray[np.float64]) -> float:
    return math.sqrt(float(np.mean(np.square(x))))


def step_of_half(model: onnx.ModelProto) -> float:
    """Return the machine epsilon of the model's half type; of float16 if it holds no weight."""
    types = {t.data_type for t in model.graph.initializer}
    brief = TensorProto.BFLOAT16 if TensorProto.BFLOAT16 in types else TensorProto.FLOAT16
    return float(float_type(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(brief))).eps)
