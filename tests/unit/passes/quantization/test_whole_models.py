"""Models of ONNX Runtime's quantization tool as a whole: what fuses, the same numbers, and the same file twice."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.model.fused import fused_ops
from onnxfuse.model.schema import opset_of
from tests.support.quantized_models import ATTENTION, IMAGES, OLD_TOKENS, TOKENS, drawn, dynamic, static
from tests.support.small import Arrays, evaluate, ops, optimize, run

Run = Callable[[onnx.ModelProto, Arrays], list[np.ndarray]]

MODELS = {"images": IMAGES, "tokens": TOKENS}
TYPES = {
    "int8": ("QInt8", "QInt8", False),
    "uint8 by int8 per channel": ("QUInt8", "QInt8", True),
    "uint8 by uint8": ("QUInt8", "QUInt8", False),
}
INTEGERS = {"images": "ConvInteger", "tokens": "MatMulInteger"}
PRODUCTS = {"images": 3, "tokens": 2}
"""Products and convolutions of a model that kernels of integers take."""


def check(model: onnx.ModelProto, made: onnx.ModelProto, before: np.ndarray, text: str, run: Run = evaluate) -> None:
    """Assert that the optimized model, and what is left of it without its fused ops, give the numbers of the model, and
    that optimizing it again changes nothing.

    By ONNX's reference: the CPU's products of uint8 by int8 saturate in 16 bits on processors without VNNI. It has no
    DequantizeLinear of older operator sets: there ONNX Runtime runs weights of 7 bits.
    """
    inputs = {"x": drawn(text, 9)}
    again, _ = optimize(made)
    assert again.SerializeToString() == made.SerializeToString()
    plain = onnx.ModelProto()
    plain.CopyFrom(made)
    assert unfuse(plain) > 0
    assert not plain.functions
    onnx.checker.check_model(plain, full_check=True)
    for one in (made, plain):
        (after,) = run(one, inputs)
        np.testing.assert_allclose(after, before, rtol=0, atol=2e-6 * np.abs(before).max())


@pytest.mark.parametrize("activations", ["QInt8", "QUInt8"])
def test_attention_of_static_qdq(activations: str) -> None:
    """Three kernels: queries, keys and values, their attention, and the product after it, which a norm reads."""
    model = static(ATTENTION, "QDQ", activations, "QInt8", per_channel=True)
    made, report = optimize(model)
    rules = [a.rule for a in report.applied if a.op]
    assert sorted(rules)[-3:] == ["matmul_integer", "matmul_integer", "quantized_attention"]
    (attention,) = (op for op in fused_ops(made).values() if op.rule == "quantized_attention")
    eight = {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
    assert {*attention.inputs, *attention.outputs} <= eight
    check(model, made, evaluate(model, {"x": drawn(ATTENTION, 9)})[0], ATTENTION)


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_static_qdq(name: str, types: str) -> None:
    """Weights of uint8 with a zero point stay floating-point, all others are multiplied in 8 bits, and no kernel leaves
    their sums to the next one: a norm or a mean behind them reads 8 bits."""
    activations, weights, per_channel = TYPES[types]
    text = MODELS[name]
    model = static(text, "QDQ", activations, weights, per_channel=per_channel)
    made, _ = optimize(model)
    fused = [op for op in ops(made) if INTEGERS[name] in op]
    assert len(fused) == (0 if types == "uint8 by uint8" else PRODUCTS[name])
    assert all(op.startswith("{") for op in fused)
    assert not any(onnx.TensorProto.INT32 in op.outputs for op in fused_ops(made).values())
    check(model, made, evaluate(model, {"x": drawn(text, 9)})[0], text)


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_qoperators(name: str, types: str) -> None:
    """By weights of 7 bits, whose sums do not saturate on the CPU."""
    activations, weights, per_channel = TYPES[types]
    text = MODELS[name]
    model = static(text, "QOperator", activations, weights, per_channel=per_channel, reduce_range=True)
    made, _ = optimize(model)
    assert not any(op.rpartition(".")[2].startswith(("QLinear", "QGemm")) for op in ops(made))
    check(model, made, run(model, {"x": drawn(text, 9)})[0], text)


OLDER = [
    (opset, form, per_channel)
    for opset in range(10, 15)
    for form in ("QDQ", "QOperator")
    for per_channel in (False, True)
    if opset >= 13 or form == "QOperator" or not per_channel
]
"""DequantizeLinear has scales of channels from opset 13 on, QLinearConv and QLinearMatMul from the first one on."""


@pytest.mark.parametrize(("opset", "form", "per_channel"), OLDER)
@pytest.mark.parametrize("text", [IMAGES, OLD_TOKENS], ids=MODELS)
def test_older_operator_sets(text: str, opset: int, form: str, per_channel: bool) -> None:
    """The same products and convolutions are multiplied in 8 bits as in newer files, by nodes of the file's opset. Pad
    reads no integers before 11: the first layer, whose images have a zero point, is convolved as numbers there."""
    model = static(text, form, "QUInt8", "QInt8", per_channel=per_channel, reduce_range=True, opset=opset)
    made, _ = optimize(model)
    assert opset_of(made) == opset
    fused = [op for op in ops(made) if "ConvInteger" in op or "MatMulInteger" in op]
    assert len(fused) == (2 if text != IMAGES or opset < 11 else 3)
    assert all(op.startswith("{") for op in fused)
    check(model, made, run(model, {"x": drawn(text, 9)})[0], text, run)


KERNELS = {("tokens", "QInt8"): 2, ("tokens", "QUInt8"): 2, ("images", "QInt8"): 3, ("images", "QUInt8"): 4}
"""Kernels of integers. A weight that uses all of uint8 needs sums over each window besides, a convolution by ones."""


@pytest.mark.parametrize(("name", "weights"), KERNELS)
def test_dynamic(name: str, weights: str) -> None:
    """Nothing of an image is left for the CPU: neither the quantization of activations, nor a convolution, nor the
    padding by their zero points."""
    text = MODELS[name]
    model = dynamic(text, weights, per_channel=weights == "QInt8")
    made, _ = optimize(model)
    left = ops(made)
    assert not {"DynamicQuantizeLinear", "ConvInteger", "Pad"} & {*left}
    assert sum(INTEGERS[name] in op for op in left if op.startswith("{")) == KERNELS[name, weights]
    check(model, made, evaluate(model, {"x": drawn(text, 9)})[0], text)
