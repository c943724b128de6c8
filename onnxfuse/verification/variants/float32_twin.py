"""What a half type hides: the fused model in float32, where no value is rounded, beside what rounding the weights does.

In float16 a bias that is wrong by one percent can move an output of few elements by two roundings, of which the
original makes as many. In float32 it stands alone: there the fused model differs from the truth only because weights
that were computed from others were rounded once more. What that may do is what it does to the original: its own weights
are moved by up to half a rounding step, each by itself.

Where a sound file stays below a fifth of what is allowed, the weights of a small network times 1.01 are twice and more
(`tests/verification/scaled.py`).
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

from onnxfuse.model.nested import nodes_of
from onnxfuse.support.plurals import plural
from onnxfuse.verification.reference.float64_reference import in_float32
from onnxfuse.verification.reference.promoted import NARROWER
from onnxfuse.verification.run.floats import float_type
from onnxfuse.verification.run.tensors import MISSING
from onnxfuse.verification.tolerance.error_budget import rounding_step
from onnxfuse.verification.variants.variant import with_weights

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
class RoundingDifference:
    """One output in one case, in float32."""

    output: str
    error: float
    """Root mean square of what the fused model is away from the truth."""
    allowed: float
    """The error up to which the rounding of weights explains it."""


class Wide:
    """The fused model in float32, and how it differed from the truth in the cases so far.

    `original` and `fused` load the models. The original is moved where there is a difference to explain: mostly there
    is none, and four runs of a case take as long as all else. Raises ModelError where the fused model does not open.
    """

    def __init__(
        self, original: Callable[[], onnx.ModelProto], eps: float, fused: Callable[[], onnx.ModelProto]
    ) -> None:
        self.original, self.eps, self.load_fused = original, eps, fused
        self.fused = in_float32(fused())
        self.found: list[RoundingDifference] = []

    @cached_property
    def moved(self) -> list[Callable[[dict[str, npt.NDArray[Any]]], dict[str, npt.NDArray[Any]]]]:
        """What runs the original with moved weights, each time others."""
        original = self.original()
        return [in_float32(with_moved_weights(original, seed)) for seed in range(MOVES)]

    @cached_property
    def rounded_again(self) -> bool:
        """Whether the fused model holds weights that the original does not: computed from its own, and rounded."""
        return not _weights(self.load_fused()) <= _weights(self.original())

    def add(self, inputs: dict[str, npt.NDArray[np.generic]], truth: Arrays) -> Arrays:
        """Take one more case; return what the fused model gives in float32.

        Raises what ONNX Runtime raises where the models do not run in float32, and ModelError where the original with
        moved weights does not open.
        """
        fused = self.fused(inputs)
        found = self._differences(fused, [], truth)
        if any(d.error > d.allowed for d in found):
            found = self._differences(fused, [one(inputs) for one in self.moved], truth)
        self.found += found
        return fused

    def _differences(self, fused: Arrays, moved: Sequence[Arrays], truth: Arrays) -> list[RoundingDifference]:
        every = (
            _difference(n, fused[n], [m.get(n, MISSING) for m in moved], true, self.eps)
            for n, true in truth.items()
            if n in fused
        )
        return [d for d in every if d is not None]

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
                    f"{plural(cases, 'case')}; root mean square {worst.error:.2g}, rounding the weights explains "
                    f"{worst.allowed:.2g}"
                )
        return told


def with_moved_weights(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return a copy whose half weights and constants are in float32, each moved by up to half a rounding step.

    Whole numbers stay: they are meant, as the 2 of a square, and so does what is not finite.
    """
    rng = np.random.default_rng(seed)

    def moved(_: str, tensor: TensorProto) -> TensorProto:
        if tensor.data_type not in NARROWER[TensorProto.FLOAT]:
            return tensor
        array = numpy_helper.to_array(tensor)
        exact = array.astype(np.float64)
        free = np.isfinite(exact) & (exact != np.rint(exact))
        step = rounding_step(np.where(free, exact, 1.0), array.dtype) * rng.uniform(-0.5, 0.5, exact.shape)
        return numpy_helper.from_array((exact + np.where(free, step, 0.0)).astype(np.float32), tensor.name)

    return with_weights(model, moved)


def _weights(model: onnx.ModelProto) -> set[tuple[int, int, int]]:
    """Return what is the same of half weights in any order: how many elements, the sums of their bits and squares."""
    constants = [a.t for n in nodes_of(model.graph) for a in n.attribute if n.op_type == "Constant" and a.HasField("t")]
    found = set[tuple[int, int, int]]()
    for tensor in (*model.graph.initializer, *constants):
        if tensor.data_type in NARROWER[TensorProto.FLOAT]:
            bits = numpy_helper.to_array(tensor).ravel().view(np.uint16).astype(np.uint64)
            if bits.size > 1:  # a scale or an epsilon is no weight
                found.add((bits.size, int(bits.sum()), int(np.square(bits).sum())))
    return found


def _difference(
    name: str,
    fused: npt.NDArray[np.generic],
    moved: Sequence[npt.NDArray[np.generic]],
    truth: npt.NDArray[np.generic],
    eps: float,
) -> RoundingDifference | None:
    """Return how one output differs; without `moved` nothing of it is explained.

    None where nothing can be said: no floats, as many as a threshold leaves.
    """
    if truth.dtype.kind not in "fV" or any(x.shape != truth.shape for x in (fused, *moved)):
        return None
    true = truth.astype(np.float64)
    every = [x.astype(np.float64) for x in (fused, *moved)]
    known = np.isfinite(true) & np.all([np.isfinite(x) for x in every], axis=0)
    if not known.any():
        return None
    error, *explained = (_rms((x - true)[known]) for x in every)
    hidden = HIDDEN * eps * _rms(true[known])
    return RoundingDifference(name, error, hidden + (DEVIATIONS * _rms(np.array(explained)) if explained else 0.0))


def _rms(x: npt.NDArray[np.float64]) -> float:
    return math.sqrt(float(np.mean(np.square(x))))


def step_of_half(model: onnx.ModelProto) -> float:
    """Return the distance from 1 to the next number of the model's half type; of float16 where it holds no weight."""
    types = {t.data_type for t in model.graph.initializer}
    brief = TensorProto.BFLOAT16 if TensorProto.BFLOAT16 in types else TensorProto.FLOAT16
    return float(float_type(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(brief))).eps)
