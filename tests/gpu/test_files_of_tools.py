"""Files of onnxruntime-genai's builder, of transformers.optimizer and of ONNX 24 in float16, on a real GPU."""

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

import onnxfuse
from onnxfuse import runtime
from tests.support.files_of_tools import NAMES, file, inputs
from tests.support.small import assert_within_budget, halved, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(runtime.cuda_unusable() is not None, reason=f"no GPU: {runtime.cuda_unusable()}"),
]

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_as_near_the_truth_as_onnx_runtime(name: str) -> None:
    """The truth is the file in float32 on the CPU; every fused op but shape arithmetic runs as a kernel."""
    exact = file(name)
    original = halved(exact)
    given = inputs(original)
    truth = run(exact, inputs(exact))
    try:
        session = onnxruntime.InferenceSession(original.SerializeToString(), providers=CUDA)
    except NoKernel as error:
        pytest.skip(f"ONNX Runtime has no kernel: {error}")
    theirs = session.run(None, given)
    ours = runtime.session(onnxfuse.optimize(original), CUDA, wait_for_kernels=True)
    assert any(p.runs_as == "kernel" for p in ours.fused)
    for output, true, before, after in zip(exact.graph.output, truth, theirs, ours.run(None, given), strict=True):
        assert_within_budget(output.name, np.asarray(true, np.float64), before, after)
