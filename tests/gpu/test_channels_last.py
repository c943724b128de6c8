"""Regions channels last on a real GPU: the library's own ops for them, and whole small nets, against float64."""

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

import onnxfuse
from onnxfuse import runtime
from tests.rewrite.small import assert_within_budget, doubled, evaluate, halved, signed_inputs
from tests.runtime.test_channels_last import MODELS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(runtime.cuda_unusable() is not None, reason=f"no GPU: {runtime.cuda_unusable()}"),
]

# Without TF32: which of the library's kernels use it is its own choice, and not the same for a Conv and a MatMul.
CUDA = [("CUDAExecutionProvider", {"use_tf32": "0"}), "CPUExecutionProvider"]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_librarys_ops_compute_what_the_model_says(name: str, half: bool) -> None:
    """Each as often as the file says, none through its body; errors stay within twice the original's."""
    model: ModelProto = halved(MODELS[name]()) if half else MODELS[name]()
    inputs = signed_inputs(model)
    (truth,) = evaluate(doubled(model), {k: a.astype(np.float64) for k, a in inputs.items()})
    before = onnxruntime.InferenceSession(model.SerializeToString(), providers=CUDA).run(None, inputs)[0]
    session = runtime.session(onnxfuse.optimize(model), CUDA)
    assert "function" not in {p.runs_as for p in session.fused}
    assert {p.rule for p in session.fused if p.runs_as == "library"} <= {"direct", "nhwc_conv", "nhwc_pool"}
    assert_within_budget(name, truth, before, session.run(None, inputs)[0])
