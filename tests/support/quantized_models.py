"""Small models as ONNX Runtime's quantization tool writes them: static QDQ, QOperator, dynamic."""

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, helper, numpy_helper
from onnxruntime import quantization

from onnxfuse.symbolic.packing import Packing
from tests.support.small import parse

IMAGES = """g (float[N,3,8,8] x) => (float[N,10] y) {
  a = Conv <pads = [1,1,1,1]> (x, w0, b0)
  b = Relu (a)
  c = MaxPool <kernel_shape = [2,2], strides = [2,2]> (b)
  d = Conv <pads = [1,1,1,1]> (c, w1, b1)
  e = Relu (d)
  f = Conv <pads = [1,1,1,1]> (e, w2, b2)
  h = Add (f, e)
  i = Relu (h)
  j = GlobalAveragePool (i)
  k = Flatten (j)
  y = Gemm <transB = 1> (k, w3, b3)
}"""
TOKENS = """g (float[N,8,32] x) => (float[N,8,32] y) {
  a = MatMul (x, w0)
  b = Add (a, b0)
  c = Relu (b)
  d = MatMul (c, w1)
  e = Add (d, b1)
  f = Add (e, x)
  y = LayerNormalization (f, b2, b3)
}"""
ATTENTION = """g (float[N,8,32] x) => (float[N,8,32] y)
<int64[4] heads = {0,0,2,16}, int64[3] merge = {0,0,-1}, float root = {4}> {
  qm = MatMul (x, w0) qa = Add (qm, b0) q4 = Reshape (qa, heads) q = Transpose <perm = [0,2,1,3]> (q4)
  km = MatMul (x, w1) ka = Add (km, b1) k4 = Reshape (ka, heads) k = Transpose <perm = [0,2,3,1]> (k4)
  vm = MatMul (x, w2) va = Add (vm, b2) v4 = Reshape (va, heads) v = Transpose <perm = [0,2,1,3]> (v4)
  s = MatMul (q, k) d = Div (s, root) p = Softmax <axis = -1> (d) c = MatMul (p, v)
  ct = Transpose <perm = [0,2,1,3]> (c) r = Reshape (ct, merge) m = MatMul (r, w3) a = Add (m, b3) e = Add (a, x)
  y = LayerNormalization (e, b4, b5)
}"""
OLD_TOKENS = TOKENS.replace("LayerNormalization (f, b2, b3)", "Relu (f)")
"""Of operator sets before 17."""
SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    IMAGES: {
        "w0": (16, 3, 3, 3), "b0": (16,), "w1": (32, 16, 3, 3), "b1": (32,), "w2": (32, 32, 3, 3), "b2": (32,),
        "w3": (10, 32), "b3": (10,),
    },
    TOKENS: {"w0": (32, 64), "b0": (64,), "w1": (64, 32), "b1": (32,), "b2": (32,), "b3": (32,)},
    ATTENTION: {
        **{f"w{i}": (32, 32) for i in range(4)}, **{f"b{i}": (32,) for i in range(6)},
    },
    OLD_TOKENS: {"w0": (32, 64), "b0": (64,), "w1": (64, 32), "b1": (32,)},
}  # fmt: skip
"""By model: a block of a convolutional network, and of a transformer its feed-forward network and its attention."""
INPUTS = {IMAGES: (4, 3, 8, 8), TOKENS: (4, 8, 32), ATTENTION: (4, 8, 32), OLD_TOKENS: (4, 8, 32)}


def drawn(text: str, seed: int) -> np.ndarray:
    """Return an input of a model."""
    return np.random.default_rng(seed).standard_normal(INPUTS[text]).astype(np.float32)


class _Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]  # ONNX Runtime has no types
    def __init__(self, text: str) -> None:
        self.batches = iter([{"x": drawn(text, seed)} for seed in range(2)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


def model(text: str, opset: int = 21) -> ModelProto:
    """Return a model with its weights, before quantization."""
    random = np.random.default_rng(0)
    made = parse(text, opset)
    for name, shape in SHAPES[text].items():
        weight = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        made.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), name))
    return made


def static(
    text: str,
    form: str,
    activations: str,
    weights: str,
    *,
    per_channel: bool,
    reduce_range: bool = False,
    opset: int = 21,
    **extra: object,
) -> ModelProto:
    """Return a model as `quantize_static` writes it, `form` being "QDQ" or "QOperator"; with `reduce_range` its weights
    are integers of 7 bits. `extra` are extra options of the tool."""
    return _written(
        lambda path: quantization.quantize_static(
            model(text, opset), path, _Calibration(text), quant_format=quantization.QuantFormat[form],
            activation_type=quantization.QuantType[activations], weight_type=quantization.QuantType[weights],
            per_channel=per_channel, reduce_range=reduce_range, extra_options=extra,
        )
    )  # fmt: skip


def dynamic(text: str, weights: str, *, per_channel: bool) -> ModelProto:
    """Return a model as `quantize_dynamic` writes it."""
    weight_type = quantization.QuantType[weights]
    return _written(
        lambda path: quantization.quantize_dynamic(model(text), path, weight_type=weight_type, per_channel=per_channel)
    )


def saved_by_ort(model: ModelProto) -> ModelProto:
    """Return a model as ONNX Runtime's optimizer saves it: with its own operators for the CPU."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "optimized.onnx")
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(path)


def _written(quantize: Callable[[Path], None]) -> ModelProto:
    logging.getLogger().setLevel(logging.ERROR)  # the tool advises preprocessing at each call
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "quantized.onnx")
        quantize(path)
        return onnx.load(path)


def in_few_bits(model: ModelProto, bits: int = 4, block: int = 32) -> ModelProto:
    """Return the model with MatMulNBits in the place of MatMuls by weights [k, n] whose columns are whole blocks."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    weights = {t.name: t for t in made.graph.initializer}
    for node in made.graph.node:
        tensor = weights.get(node.input[1]) if node.op_type == "MatMul" else None
        if tensor is None or len(tensor.dims) != 2 or tensor.dims[0] % block or tensor.dims[1] % 8:
            continue
        packed, scales = few_bits(numpy_helper.to_array(tensor), bits, block)
        names = [f"{tensor.name}.packed", f"{tensor.name}.scales"]
        if names[0] not in weights:
            made.graph.initializer.extend(map(numpy_helper.from_array, (packed, scales), names))
            weights.update({t.name: t for t in made.graph.initializer[-2:]})
        node.op_type, node.domain, node.input[1:] = "MatMulNBits", "com.microsoft", names
        k, n = tensor.dims
        node.attribute.extend(
            helper.make_attribute(*one) for one in {"K": k, "N": n, "bits": bits, "block_size": block}.items()
        )
    read = {name for node in made.graph.node for name in node.input}
    kept = [t for t in made.graph.initializer if t.name in read]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    if all(o.domain != "com.microsoft" for o in made.opset_import):
        made.opset_import.add(domain="com.microsoft", version=1)
    return made


def few_bits(weight: np.ndarray, bits: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a weight [k, n] as MatMulNBits reads it, without zero points: packed numbers and scales [n, blocks]."""
    packing = Packing(bits, block, len(weight))
    blocks = weight.T.astype(np.float32).reshape(weight.shape[1], packing.blocks, block)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    scales = (-extreme / packing.middle).astype(weight.dtype)  # of either sign, so that the extreme is the number 0
    steps = np.rint(blocks / np.where(scales == 0, 1, scales).astype(np.float32)) + packing.middle
    numbers = steps.clip(0, 2 * packing.middle - 1).astype(np.uint8)
    return packing.pack(numbers.reshape(len(numbers), -1)), scales[..., 0]
