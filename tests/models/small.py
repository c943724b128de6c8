"""The architectures at sizes that build and run in milliseconds, odd where the architecture allows it."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

import models

SIZES: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": 33},
    "lenet5": {},
    "resnet50": {"stages": (1, 2), "width": 8, "image": 45, "classes": 7},
    "efficientnet_b0": {
        "width": 8,
        "stages": (1, 2, 1),
        "channels": (8, 12, 12),
        "image": 45,
        "classes": 7,
    },
    "convnext_tiny": {"stages": (1, 2), "width": 10, "image": 40, "classes": 7},
    "bert_base": {"layers": 2, "hidden": 36, "heads": 3, "intermediate": 50, "vocabulary": 97, "positions": 40},
    "vit_b_16": {"layers": 2, "hidden": 36, "heads": 3, "intermediate": 50, "image": 48, "classes": 7},
    "gpt2": {"layers": 2, "hidden": 36, "heads": 3, "intermediate": 50, "vocabulary": 97, "positions": 40},
}
"""Every model with drawn weights that maps a batch row by row; minilm and training_step have tests of their own."""


def build(name: str, **form: Any) -> onnx.ModelProto:
    """Return the small model `name`."""
    return models.build(name, **form, **SIZES[name])


def inputs(name: str, batch: int = 3, sequence: int = 11, **form: Any) -> dict[str, NDArray[np.generic]]:
    """Return inputs for the small model `name`."""
    return models.example_inputs(name, batch=batch, sequence=sequence, **form, **SIZES[name])


def run(model: onnx.ModelProto, feeds: dict[str, NDArray[np.generic]]) -> list[NDArray[np.float64]]:
    """Return the model's outputs on ONNX Runtime's CPU provider, as float64."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # One level below the default: ONNX Runtime 1.31.1 crashes in its NCHWc pass on float16 models with a Conv and
    # a LayerNormalization, such as ViT (it does not with disabled_optimizers=["NchwcTransformer"]).
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [output.astype(np.float64) for output in session.run(None, feeds)]


def parameters(model: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    """Return the model's parameters under torch's names and in torch's layout: MatMul's weights are transposed back."""
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    turned = {name for node in model.graph.node if node.op_type == "MatMul" for name in node.input if name in values}
    return {name: array.T.copy() if name in turned else array.copy() for name, array in values.items()}
