"""Runs of a quantized model of half precision that show its ties of rounding.

A float16 value is known up to its rounding error. Where that error reaches the middle of two steps to which the model
quantizes, either step is right, and so is what follows from either. ONNX Runtime's CPU provider keeps float32 between
such nodes and kernels round after some of them: neither shows which integers depend on it.
"""

from collections.abc import Callable, Iterator
from functools import cache

import onnx

from onnxfuse.model.schema import opset_of
from onnxfuse.verification.reference.float64_reference import as_half, parameters
from onnxfuse.verification.run import random_numbers
from onnxfuse.verification.tolerance.quantized_outputs import rounds_inside
from onnxfuse.verification.variants.variant import Arrays

RUNS = 64
"""Most runs within the rounding errors. What a share p of them leads to, n runs miss by p (1 - p)^n, at most 1 / (e n):
of elements that depend on such errors, a fifth in an attention of 8 bits, no more than one in a thousand of all."""
MOST_PARAMETERS = 200_000_000
"""Limit of weights in all runs; of a larger model there is one."""
SEEDS = 104_729
"""Distance of the seeds of two runs."""


def within_half_errors(model: onnx.ModelProto) -> Iterator[Callable[[Arrays], Arrays]]:
    """Yield what evaluates `model` with every half-precision value moved within its rounding error, each differently.

    Each opens its session when it is first called. Nothing if the model quantizes no computed value, or for an operator
    set before `random_numbers.SINCE`.
    """
    if rounds_inside(model) and opset_of(model) >= random_numbers.SINCE:
        for run in range(max(1, min(RUNS, MOST_PARAMETERS // max(parameters(model), 1)))):
            yield _opened_once(model, run * SEEDS)


def _opened_once(model: onnx.ModelProto, seed: int) -> Callable[[Arrays], Arrays]:
    opened = cache(lambda: as_half(model, seed=seed))
    return lambda inputs: opened()(inputs)
