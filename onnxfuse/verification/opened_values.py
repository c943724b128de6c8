"""Tensors out of the sequences and optionals that a part of a model gives, so that they are compared one by one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfuse.verification import sessions
from onnxfuse.verification.sessions import Arrays


@dataclass
class Opened:
    """What is added to a part of a model."""

    outputs: dict[str, int] = field(default_factory=dict)
    """Tensors, with their element types."""
    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def add_to(self, part: ModelProto) -> ModelProto:
        """Let `part` give these tensors in the place of its outputs."""
        part.graph.node.extend(self.nodes)
        part.graph.initializer.extend(self.weights)
        del part.graph.output[:]
        part.graph.output.extend(helper.make_tensor_value_info(n, t, None) for n, t in self.outputs.items())
        return part


def opened(part: ModelProto, feeds: Arrays, names: Sequence[str]) -> Opened:
    """Return how the tensors of the values `names` are had, which `part` computes; as many as it gives on `feeds`.

    A map is left out: no operator opens one.
    """
    del part.graph.output[:]
    part.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    session = sessions.unoptimized(part)
    values = sessions.run(session, feeds)
    found = Opened()
    for value in session.get_outputs():
        name, content = value.name, values[value.name]
        if value.type.startswith("seq(tensor"):
            _open_sequence(found, name, [np.asarray(x) for x in content])
        elif value.type.startswith("optional(tensor") and content is not None:
            found.nodes.append(helper.make_node("OptionalGetElement", [name], [f"{name}.value"]))
            found.outputs[f"{name}.value"] = _type(content)
        elif value.type.startswith("tensor"):
            found.outputs[name] = _type(content)
    return found


def _open_sequence(found: Opened, name: str, content: Sequence[np.ndarray]) -> None:
    length = f"{name}.length"
    found.nodes.append(helper.make_node("SequenceLength", [name], [length]))
    found.outputs[length] = TensorProto.INT64
    for n, x in enumerate(content):
        entry = f"{name}[{n}]"
        found.weights.append(numpy_helper.from_array(np.array(n), f"{entry}.position"))
        found.nodes.append(helper.make_node("SequenceAt", [name, f"{entry}.position"], [entry]))
        found.outputs[entry] = _type(x)


def _type(x: np.ndarray) -> int:
    return int(helper.np_dtype_to_tensor_dtype(x.dtype))
