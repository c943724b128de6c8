"""Small Keras models as tf2onnx writes them when nobody asks for more: layouts turned by Transposes, opset 15."""

# mypy: disallow-untyped-calls=False
# (Keras and tf2onnx say nothing of their types)

from collections.abc import Iterator
from pathlib import Path

from models.survey import Subject, require

MODELS = ("cnn", "transformer", "lstm", "mobilenet_v2", "upsampling", "tabular")
"""Functions of `keras_models`: TensorFlow is imported where it exports, for it does not bear Paddle beside it."""


def subjects() -> Iterator[Subject]:
    """Yield every model; raises ImportError where it cannot be exported."""
    require("tensorflow", "tf2onnx")
    for name in MODELS:
        yield Subject(f"keras:{name}", f"keras {name}")


def export(name: str, path: Path) -> None:
    """Write a model, its batch open; raises what Keras or tf2onnx raises."""
    import keras
    import numpy as np
    import tf2onnx

    from models.survey import keras_models

    keras.utils.set_random_seed(0)
    model = getattr(keras_models, name)()
    rng = np.random.default_rng(1)
    for weight in model.weights:  # biases, scales and statistics off 0 and 1: a model that loses one shows it
        if len(weight.shape) == 1 and weight.dtype == "float32":
            weight.assign(weight.numpy() + 0.1 * rng.standard_normal(weight.shape))
    tf2onnx.convert.from_keras(model, output_path=str(path))
