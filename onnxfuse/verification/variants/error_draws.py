"""Errors that correct float32 arithmetic may have: the original with its sums in a random order, drawn several times.

Perturbed inputs show how chance changes the error of one order of summation; a fused model has another order.
"""

from collections.abc import Callable

import onnx
from onnx import TensorProto

from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types
from onnxfuse.verification.reference.float64_reference import as_reordered
from onnxfuse.verification.tolerance.quantized_outputs import rounds_inside
from onnxfuse.verification.variants.variant import Arrays

OTHER_TYPES = (TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""Float types whose errors are not those of float32."""

ErrorDraws = Callable[[Arrays, int, float], Arrays]
"""Returns the outputs with errors drawn by a seed; raises OutOfTime after a time, by `time.perf_counter`."""


def error_draws(model: onnx.ModelProto) -> ErrorDraws | None:
    """Return what draws errors; None if the model has floats of other types, or quantizes inside and is judged by its
    parts.

    The float64 reference must have all operators of the model.
    """
    if rounds_inside(model) or any(t.dtype in OTHER_TYPES for t in value_types(infer(model).graph).values()):
        return None
    return as_reordered(model)
