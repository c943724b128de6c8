"""Sequences and optionals as inputs of a submodel: built from tensors, which are generated, transferred and fed as
usual."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from onnxfuse import ops
from onnxfuse.verification.run.sessions import Arrays

ELEMENTS = {"float": TensorProto.FLOAT, "double": TensorProto.DOUBLE}
"""Element types whose names differ between ONNX Runtime and ONNX."""


@dataclass
class SubmodelFeed:
    """The inputs of a submodel."""

    tensors: Arrays = field(default_factory=dict)
    """Inputs by name: tensors, and the entries of other values."""
    nodes: list[NodeProto] = field(default_factory=list)
    """Nodes that build the other values from these."""
    why_not: str = ""
    """Why the submodel cannot be fed; empty if it can."""

    def add_to(self, part: ModelProto) -> ModelProto:
        """Add to `part`, which has the tensors as inputs, the nodes that build the other values."""
        nodes = [*self.nodes, *part.graph.node]
        del part.graph.node[:]
        part.graph.node.extend(nodes)
        return part


def feed_of(values: Mapping[str, Any], types: Mapping[str, str]) -> SubmodelFeed:
    """Return how to feed values that ONNX Runtime computed; `types` are its names for their types.

    A map cannot be fed: no operator builds one from tensors.
    """
    feed = SubmodelFeed()
    for name, value in values.items():
        type_ = types.get(name, "tensor")
        if type_.startswith("tensor"):
            feed.tensors[name] = value
        elif type_.startswith("seq(tensor"):
            _sequence(feed, name, value, type_)
        elif type_.startswith("optional("):
            _optional(feed, name, value, type_.removeprefix("optional(").removesuffix(")"))
        else:
            feed.why_not = f"'{name}' is of type {type_}, of which no operator makes one"
    return feed


def _sequence(feed: SubmodelFeed, name: str, entries: Sequence[np.ndarray], type_: str) -> None:
    names = [f"{name}[{n}]" for n in range(len(entries))]
    feed.tensors.update((n, np.asarray(x)) for n, x in zip(names, entries, strict=True))
    if names:
        feed.nodes.append(helper.make_node(ops.SequenceConstruct, names, [name]))
    else:
        feed.nodes.append(helper.make_node(ops.SequenceEmpty, [], [name], dtype=_element_type(type_)))


def _optional(feed: SubmodelFeed, name: str, value: Any, type_: str) -> None:
    if value is None:
        element = helper.make_tensor_type_proto(_element_type(type_), None)
        proto = helper.make_sequence_type_proto(element) if type_.startswith("seq(") else element
        feed.nodes.append(helper.make_node(ops.Optional, [], [name], type=proto))
        return
    inner = f"{name}.value"
    if type_.startswith("seq("):
        _sequence(feed, inner, value, type_)
    else:
        feed.tensors[inner] = np.asarray(value)
    feed.nodes.append(helper.make_node(ops.Optional, [inner], [name]))


def _element_type(type_: str) -> int:
    named = re.findall(r"tensor\((\w+)\)", type_)[0]
    return int(ELEMENTS.get(named) or TensorProto.DataType.Value(named.upper()))
