"""Functions of one 8-bit value in kernels that read it from memory: elementwise, transposed, before a reduction."""

import numpy as np
import pytest
from onnx import TensorProto

from bench.cases import ops
from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import A100
from tests.emulator import emulate
from tests.support.kernels.quantized import GELU, GELU_SCALES, by_nodes

STEPS = GELU.replace(" y =", " k =")
BEHIND = {
    "elementwise": ("pointwise", GELU),
    "transposed": ("pointwise", f"{STEPS} y = Transpose <perm = [0, 2, 1]> (k)"),
    "reduced": (
        "row",
        f"""{STEPS} f = DequantizeLinear (k, so, zo) last = Constant <value_ints = [-1]> ()
  m = ReduceMax <keepdims = 1> (f, last) y = QuantizeLinear (m, so, zo)""",
    ),
}


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("behind", BEHIND)
def test_elements_are_those_of_the_nodes(behind: str, aligned: bool) -> None:
    template, text = BEHIND[behind]
    fused = ops.op(f"(q) => (y) {{ {GELU_SCALES} {text} }}", (TensorProto.INT8,), (TensorProto.UINT8,), template)
    q = np.random.default_rng(0).integers(-128, 128, (3, 33, 70)).astype(np.int8)
    plan = cuda.plan(fused, (q.shape,), aligned, A100)
    assert "[256] = {" in plan.kernel.text
    (got,) = emulate.run(plan, [q], [np.uint8], aligned)
    wanted = by_nodes(GELU, "int8", q=q)
    moved = {"transposed": wanted.transpose(0, 2, 1), "reduced": wanted.max(-1, keepdims=True)}
    np.testing.assert_array_equal(got, moved.get(behind, wanted))
