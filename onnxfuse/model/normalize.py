"""Bring a model into the form that the rules expect, changing nothing that it computes."""

import onnx
import onnx.inliner
from onnx import ModelProto

from onnxfuse.model.errors import ModelError
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.graph import bodies
from onnxfuse.model.io import without_weights
from onnxfuse.model.types import first_line

LONG_NAME = "ai.onnx"

FUNCTIONS_IR = 8
"""The first IR version with model-local functions."""

INITIALIZERS_APART_IR = 4
"""Up to the version before, every initializer also had to be listed as a graph input, though it was a constant."""


def normalize(model: ModelProto) -> None:
    """Make weights constants where an old IR lists them as inputs, and inline the functions of other domains."""
    if model.ir_version < INITIALIZERS_APART_IR:
        weights = {t.name for t in model.graph.initializer}
        inputs = [i for i in model.graph.input if i.name not in weights]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        model.ir_version = FUNCTIONS_IR
    _inline_functions(model)
    _use_one_name_of_the_default_domain(model)


def _use_one_name_of_the_default_domain(model: ModelProto) -> None:
    """The default domain is written "" or "ai.onnx": the checker knows the first alone, ONNX Runtime both."""
    named: list[onnx.OperatorSetIdProto | onnx.NodeProto] = list(model.opset_import)
    waiting = [model.graph]
    while waiting:
        nodes = waiting.pop().node
        named += nodes
        waiting += [body for node in nodes for body in bodies(node)]
    for message in named:
        if message.domain == LONG_NAME:
            message.domain = ""


def _inline_functions(model: ModelProto) -> None:
    foreign = [(f.domain, f.name) for f in model.functions if f.domain != DOMAIN]
    if not foreign:
        return
    light = without_weights(model, lambda _: None)
    try:
        inlined = onnx.inliner.inline_selected_functions(light, foreign)
    except (RuntimeError, onnx.checker.ValidationError) as error:
        raise ModelError(f"its local functions cannot be inlined: {first_line(error)}", "Export it again.") from None
    del model.graph.node[:]
    model.graph.node.extend(inlined.graph.node)
    del model.functions[:]
    model.functions.extend(inlined.functions)
    del model.opset_import[:]
    model.opset_import.extend(inlined.opset_import)
