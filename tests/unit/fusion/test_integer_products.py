"""Products of 8-bit integers, as quantize_dynamic writes them: one kernel with scales, bias and activation."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

import onnxfuse
from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import H200
from onnxfuse.model.fused import fused_ops
from tests.support.small import assert_same_numbers, ops, parse


def layers(tmp_path: Path, **options: Any) -> onnx.ModelProto:
    """Return three products of one input and one of theirs, quantized by ONNX Runtime's tool."""
    rng = np.random.default_rng(0)
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17]>
g (float[B,S,32] x) => (float[B,S,16] y) {
  a = MatMul (x, q) b = MatMul (x, k) c = MatMul (x, v)
  d = Add (a, bias) e = Relu (d) f = Add (b, c) h = Add (e, f)
  i = MatMul (h, o) y = Add (i, bias)
}"""
    )
    # Seven bits: ONNX Runtime's CPU kernels saturate sums of two products of eight.
    weights = {
        n: rng.standard_normal(s) for n, s in {"q": (32, 16), "k": (32, 16), "v": (32, 16), "o": (16, 16)}.items()
    }
    weights["bias"] = rng.standard_normal(16)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items())
    onnx.save(model, tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx", reduce_range=True, **options)
    return onnx.load(tmp_path / "int8.onnx")


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("weight_type", [QuantType.QInt8, QuantType.QUInt8])
def test_each_product_of_a_quantized_layer_is_one_kernel(
    tmp_path: Path, per_channel: bool, weight_type: QuantType
) -> None:
    """The zero point of the activations is the sums of the weight's columns, that of unsigned weights those of the rows
    of the activations."""
    before = layers(tmp_path, per_channel=per_channel, weight_type=weight_type)
    made = onnxfuse.optimize(before)
    found = ops(made)
    fused = [o for o in fused_ops(made).values() if "MatMulInteger" in [n.op_type for n in o.body.node]]
    assert "MatMulInteger" not in found
    for op in fused:
        kinds = [n.op_type for n in op.body.node]
        assert kinds[kinds.index("MatMulInteger") - 1] == "Transpose"
        assert "Cast" in kinds[kinds.index("MatMulInteger") :]
        assert cuda.supports(op, lambda: H200) is None
    assert_same_numbers(before, made)
    again = onnxfuse.optimize(made)
    assert again.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
    assert_same_numbers(before, onnxfuse.unfuse(made))


def test_the_zero_point_of_static_activations_is_a_constant_row() -> None:
    """What is subtracted is computed once: nothing but the kernel remains."""
    w = ",".join(str(i * 7 % 127 - 63) for i in range(16 * 8))
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
g (uint8[N,16] x) => (float[N,8] y) <int8[16,8] w = {{{w}}}, uint8 z = {{3}}, float s = {{0.5}}> {{
  m = MatMulInteger (x, w, z) f = Cast <to = 1> (m) y = Mul (f, s)
}}"""
    before, made = parse(text), parse(text)
    made = onnxfuse.optimize(made)
    assert ops(made) == ["{Transpose MatMulInteger Sub Cast Mul}"]
    assert_same_numbers(before, made)


def test_the_product_of_a_vector_stays_a_vector() -> None:
    """A row of sums has two axes: what is subtracted would make it a matrix."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
g (uint8[2] x, uint8 z) => (int32[3] y) <int8[2,3] w = {1,-2,3,-4,5,-6}> { y = MatMulInteger (x, w, z) }"""
    made = onnxfuse.optimize(parse(text))
    assert ops(made) == ["MatMulInteger"]
    assert_same_numbers(parse(text), made)
