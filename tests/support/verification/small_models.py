"""Small models as text, with seeded weights, in any float type."""

import numpy as np
import onnx
from onnx import numpy_helper

WIDTH = 32
TYPES = {"float32": "float", "float16": "float16"}


def model(body: str, dtype: str = "float32", output: str = "y", opset: int = 20) -> onnx.ModelProto:
    """Return `x[batch, 32] -> output[batch, ...]` over `body`, which may use the weights w, b and g of 32 columns."""
    name = TYPES[dtype]
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> '
        f"small ({name}[batch, {WIDTH}] x) => ({name}[batch, columns] {output}) {{ {body} }}"
    )
    rng = np.random.default_rng(1)
    for weight, values in (
        ("w", rng.standard_normal((WIDTH, WIDTH)) / 6),
        ("b", rng.standard_normal(WIDTH) * 0.1),
        ("g", 1 + rng.standard_normal(WIDTH) * 0.1),
    ):
        made.graph.initializer.append(numpy_helper.from_array(values.astype(dtype), weight))
    return made


def text_model(text: str, opset: int = 20, **weights: np.ndarray) -> onnx.ModelProto:
    """Return the model of a graph written as text, with `weights` as initializers."""
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return made
