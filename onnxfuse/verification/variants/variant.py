"""Variants of the original, used to estimate the effect of rounding."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx
from onnx import TensorProto

from onnxfuse import ops
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
    """Return the runner of a variant of the model; None if there is none, or if it is too big for a second copy.

    Raises ModelError if it cannot be opened.
    """
    changed = form(model) if parameters(model) <= FLOAT64_PARAMETERS else None
    if changed is None:
        return None
    session = sessions.ort_session(changed, providers, cuda=cuda)
    return lambda inputs: sessions.tensors(session, inputs)


def with_weights(model: onnx.ModelProto, weight: Callable[[str, TensorProto], TensorProto]) -> onnx.ModelProto:
    """Return a copy with each initializer and Constant tensor replaced by `weight(name, tensor)`."""
    copy = without_weights(model, lambda tensor: weight(tensor.name, tensor))
    for node in nodes_of(copy.graph):
        for attribute in node.attribute:
            if node.op_type == ops.Constant and attribute.HasField("t"):
                attribute.t.CopyFrom(weight(node.output[0], attribute.t))
    return copy
