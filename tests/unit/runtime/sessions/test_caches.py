"""Caches in sessions on the stand-in CUDA libraries: one kernel gives the attention and both caches."""

from typing import Any

import numpy as np
import onnxruntime

import onnxfuse
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda
from tests.support.small import optimize, parse, signed_inputs
from tests.unit.fusion.steps.test_extra_outputs import step


def each_output_of_one_kernel() -> Any:
    stand_in_kernels.install()
    original = parse(step())
    made, _ = optimize(original)
    session = onnxfuse.session(made, ["CUDAExecutionProvider"])
    given = signed_inputs(original)
    plain = onnxruntime.InferenceSession(original.SerializeToString(), providers=["CPUExecutionProvider"])
    pairs = zip(session.run(None, given), plain.run(None, given), strict=True)
    errors = [float(np.abs(np.asarray(a, np.float64) - b).max()) for a, b in pairs]
    return [(p.rule, p.runs_as) for p in session.fused], errors


def test_attention_and_caches_are_outputs_of_one_kernel(on_fake_cuda: FakeCuda) -> None:
    """The caches to the bit; the stand-in evaluates the body on the very pointers that the kernel would get."""
    fused, (keys, values, y) = on_fake_cuda(each_output_of_one_kernel)
    assert fused == [["attention", "kernel"]]
    assert (keys, values) == (0, 0)
    assert y < 0.01
