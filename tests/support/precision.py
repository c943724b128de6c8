"""What the tests of lower precision share: small models, and their truth."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfuse.graph.normalize import normalize
from onnxfuse.precision.write import constants_as_tensors
from onnxfuse.verification.reference.reference import float64_evaluator

Arrays = dict[str, NDArray[Any]]


def normalized(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model as `convert` takes it."""
    normalize(model)
    constants_as_tensors(model, [model.graph])
    return model


def true_outputs(model: onnx.ModelProto, feeds: Sequence[Arrays]) -> list[Arrays]:
    """Return what the model gives in float64 on each of `feeds`."""
    evaluator = float64_evaluator(model)
    names = [o.name for o in model.graph.output]
    found = []
    for feed in feeds:
        wide = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in feed.items()}
        found.append(dict(zip(names, evaluator.run(names, wide), strict=True)))
    return found


def model_of(text: str) -> onnx.ModelProto:
    """Return the model in ONNX's own syntax, without its header: IR 10, opset 17."""
    made: onnx.ModelProto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]>\n{text}')
    onnx.checker.check_model(made, full_check=True)
    return made
