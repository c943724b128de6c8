"""Models whose embeddings and head, or encoder and decoder, share a weight: their kernels on a real GPU."""

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse import runtime
from tests.unit.fusion.steps.test_stored_transposes import BOTH, HEADS, LARGE, SMALL, inputs, tied

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(runtime.cuda_unusable() is not None, reason=f"no GPU: {runtime.cuda_unusable()}"),
]

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
BODIES = {**{f"head, {name}": body for name, body in HEADS.items() if name != "Einsum"}, **BOTH}


@pytest.mark.parametrize("form", BODIES)
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_kernels_agree_with_the_original(form: str, size: tuple[int, int], dtype: str) -> None:
    """One session, batches of 1, 300, 0 and 7 in turns; every product is a kernel."""
    original = tied(BODIES[form], size, dtype)
    made = onnxfuse.optimize(original)
    ours, theirs = runtime.session(made, CUDA), onnxruntime_session(original)
    multiply = [p for p in ours.fused if {"MatMul", "Gemm"} & set(body_of(made, p.op))]
    assert multiply
    assert {p.runs_as for p in multiply} == {"kernel"}
    for rows in (1, 300, 0, 7, 300):
        given = inputs(original, rows)
        (mine,), (wanted,) = ours.run(None, given), theirs.run(None, given)
        assert mine.shape == wanted.shape
        # Factors are rounded to 2**-12 of TF32 or float16; sums have norms below 5, in two layers. Six times that.
        bound = 2.0**-7 * max(1.0, float(np.abs(wanted).max(initial=0)))
        np.testing.assert_allclose(mine.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=bound)


def onnxruntime_session(model: onnx.ModelProto) -> runtime.Session:
    """Return a session of a model without fused ops on the CPU."""
    return runtime.session(model, ["CPUExecutionProvider"])


def body_of(model: onnx.ModelProto, op: str) -> list[str]:
    """Return the operators in a fused op's body."""
    return [n.op_type for f in model.functions if f.name == op for n in f.node]
