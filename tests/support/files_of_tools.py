"""Files as onnxruntime-genai's builder, transformers.optimizer and ONNX 24 have them, with drawn weights."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.golden.graphs import TEXTS

NAMES = ("ort-optimizer-bert-layer", "ort-multi-head-attention-cached", "genai-decoder-layer",
         "genai-decoder-layer-int4", "onnx-24-decoder-layer")  # fmt: skip
EXTENTS = {"N": 1, "S": 3, "P": 5, "T": 8, "Q": 6}
"""Three new tokens behind five, or one."""


def file(name: str) -> onnx.ModelProto:
    """Return a model of `tests/golden/graphs` in float32; halved it is that of the outline."""
    model = onnx.parser.parse_model((TEXTS / f"{name}.txt").read_text(encoding="utf-8"))
    computed = {value for node in model.graph.node for value in node.output}
    random = np.random.default_rng(0)
    for value in [v for v in model.graph.value_info if v.name not in computed]:
        tensor = value.type.tensor_type
        shape, dtype = [d.dim_value for d in tensor.shape.dim], helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        drawn: np.ndarray = np.asarray(random.normal(size=shape))
        if dtype.kind in "iu":
            drawn = random.integers(0, 256, shape)
        elif value.name.endswith("_scales"):
            drawn = (np.abs(drawn) + 0.1) * 0.02
        elif len(shape) > 1:
            drawn = drawn * shape[0] ** -0.5
        else:
            drawn = drawn * 0.1 + (value.name[0] == "g")
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(drawn, dtype), value.name))
        model.graph.value_info.remove(value)
    return model


def inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return numbers for each input, exact in float16; of integers 0 and 1, of a mask with all tokens there."""
    random, found = np.random.default_rng(1), dict[str, np.ndarray]()
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value or EXTENTS[d.dim_param] for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind in "iu":
            ones = np.ones(shape, dtype)
            found[value.name] = ones if "mask" in value.name else np.asarray(random.integers(0, 2, shape), dtype)
        else:
            found[value.name] = random.normal(size=shape).astype(np.float16).astype(dtype)
    return found
