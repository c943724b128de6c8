"""The original on nudged inputs, where its inputs are whole numbers: the rows that they look up are moved instead.

A truth of the output's own type rounds as the original does, node by node: that they agree says nothing of how far
rounding brings either. Inputs that are one rounding step away tell that, but an index has no rounding.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxfuse.model.io import without_weights
from onnxfuse.model.nested import nodes_of
from onnxfuse.verification import forms
from onnxfuse.verification.forms import Arrays
from onnxfuse.verification.inputs import nudge


def on_nudged_tables(
    model: onnx.ModelProto, providers: Sequence[str], cuda: Mapping[str, str]
) -> Callable[[Arrays], Arrays] | None:
    """Return what runs a model whose tables are nudged; None where it has none, or is too big to be there twice."""
    return forms.running(with_nudged_tables, model, providers, cuda)


def with_nudged_tables(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a copy whose float tables, of which Gathers take rows, are moved by one rounding step; None without."""
    read = {node.input[0] for node in nodes_of(model.graph) if node.op_type == "Gather" and not node.domain}
    found = []

    def moved(tensor: TensorProto) -> TensorProto:
        array = numpy_helper.to_array(tensor) if tensor.name in read else np.zeros(0)
        nudged = nudge({tensor.name: array}, 0) if array.ndim > 1 else None
        if nudged is None:
            return tensor
        found.append(tensor.name)
        return numpy_helper.from_array(nudged[tensor.name], tensor.name)

    copy = without_weights(model, moved)
    return copy if found else None
