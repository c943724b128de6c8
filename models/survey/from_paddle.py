"""Small Paddle models as paddle2onnx writes them when nobody asks: opset 9 or what it needs, many Identities."""

# mypy: disallow-untyped-calls=False
# (Paddle says nothing of its types)

from collections.abc import Iterator
from pathlib import Path

from models.survey import Subject, require

MODELS = ("cnn", "recognizer", "transformer", "upsampling", "tagger")
"""Functions of `paddle_models`: Paddle is imported where it exports, for it does not bear TensorFlow beside it."""


def subjects() -> Iterator[Subject]:
    """Yield every model; raises ImportError where it cannot be exported."""
    require("paddle", "paddle2onnx")
    for name in MODELS:
        yield Subject(f"paddle:{name}", f"paddle {name}")


def export(name: str, path: Path) -> None:
    """Write a model, its batch open; raises what Paddle raises."""
    import paddle

    from models.survey import paddle_models

    paddle.seed(0)
    layer, shape, dtype = getattr(paddle_models, name)()
    layer.eval()
    for value in (*layer.parameters(), *layer.buffers()):  # off 0 and 1: a model that loses one shows it
        if value.ndim == 1 and value.dtype == paddle.float32:
            value.set_value(value + 0.1 * paddle.rand(value.shape))
    spec = paddle.static.InputSpec([None, *shape], dtype, "x")
    paddle.onnx.export(layer, str(path.with_suffix("")), input_spec=[spec])
