"""Other forms of the original, which tell how far rounding brings it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx
from onnx import TensorProto

from onnxfuse.files.io import without_weights
from onnxfuse.model.nested import nodes_of
from onnxfuse.verification.reference.float64_reference import FLOAT64_PARAMETERS, parameters
from onnxfuse.verification.run import sessions

Arrays = dict[str, npt.NDArray[Any]]


def running(
    form: Callable[[onnx.ModelProto], onnx.ModelProto | None],
    model: onnx.ModelProto,
    providers: Sequence[str],
    cuda: Mapping[str, str],
) -> Callable[[Arrays], Arrays] | None:
    """Return what runs a form of the model; None where it has none, or is too big to be there twice.

    Raises ModelError where it cannot be opened.
    """
    made = form(model) if parameters(model) <= FLOAT64_PARAMETERS else None
    if made is None:
        return None
    session = sessions.ort_session(made, providers, cuda=cuda)
    return lambda inputs: sessions.tensors(session, inputs)


def with_weights(model: onnx.ModelProto, weight: Callable[[str, TensorProto], TensorProto]) -> onnx.ModelProto:
    """Return a copy in which `weight(name, tensor)` stands for each initializer and each tensor of a Constant node."""
    copy = without_weights(model, lambda tensor: weight(tensor.name, tensor))
    for node in nodes_of(copy.graph):
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                attribute.t.CopyFrom(weight(node.output[0], attribute.t))
    return copy
