"""Runs of a quantized model of half precision that show its ties of rounding.

A float16 value is known up to its rounding error. Where that error reaches the middle of two steps to which the model
quantizes, either step is right, and so is what follows from either. ONNX Runtime's CPU provider keeps float32 between
such nodes and kernels round after some of them: neither shows which integers depend on it.
"""

from collections.abc import Callable, Iterator

import onnx

from onnxfuse.model.schema import opset_of
from onnxfuse.verification.reference.float64_reference import as_half
from onnxfuse.verification.run import random_numbers
from onnxfuse.verification.tolerance.quantized_outputs import rounds_inside
from onnxfuse.verification.variants.variant import Arrays

RUNS = 8
"""Runs within the rounding errors: a step that one in three choices leads to is missed by all of them in 4% of the
cases."""
SEEDS = 104_729
"""Distance of the seeds of two runs."""


def within_half_errors(model: onnx.ModelProto) -> Iterator[Callable[[Arrays], Arrays]]:
    """Yield what evaluates `model` with every half-precision value moved within its rounding error, each differently.

    Nothing if it quantizes no computed value, or for an operator set before `random_numbers.SINCE`.
    """
    if rounds_inside(model) and opset_of(model) >= random_numbers.SINCE:
        for run in range(RUNS):
            yield as_half(model, seed=run * SEEDS)
