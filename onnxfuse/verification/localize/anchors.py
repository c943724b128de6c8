"""Values of the original that a fused model holds in another form, given back under their own names.

Within a channels-last region, and where integers of 8 bits have the other sign, no value has the original's name, so
`partition` sees the region as one window. Of a model that rounds inside, such a window says little. Here each such
value is turned into the original's form, under its name, and back for its readers: then a window ends there. Nothing is
taken on trust by that, because what the window gives under that name is compared with the original's value.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfuse import ops
from onnxfuse.graph.channels import has_form, to_first, to_last
from onnxfuse.graph.graph import captured
from onnxfuse.model.derived_names import original_name
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import UNKNOWN, ValueType, value_types
from onnxfuse.verification.tolerance.quantized_outputs import rounds_inside

SIGNAL = 3
"""Rank of a signal, which has a row axis more where its channels are last."""
OTHER: Mapping[int, tuple[int, int]] = {
    TensorProto.INT8: (TensorProto.UINT8, 128),
    TensorProto.UINT8: (TensorProto.INT8, -128),
}
"""By type of 8 bits: the other one, and how much higher the same bits, shifted, are in it."""
TRACE = "onnxfuse.anchor"
"""`doc_string` of the nodes that are added."""


def anchored(original: ModelProto, fused: ModelProto) -> ModelProto:
    """Return a copy of `fused` that also holds, under their own names, the original's values that it has in another
    form; `fused` itself if the original does not round inside."""
    if not rounds_inside(original):
        return fused
    copy = ModelProto()
    copy.CopyFrom(fused)
    types, held = (value_types(infer(model).graph) for model in (original, fused))
    values = {v for n in original.graph.node for v in n.output if v}
    taken = {v for n in fused.graph.node for v in n.output} | {i.name for i in fused.graph.input}
    inside = {v for n in fused.graph.node for v in captured(n)} | {o.name for o in fused.graph.output}
    renamed: dict[str, str] = {}
    nodes = list[NodeProto]()
    for node in copy.graph.node:
        for index, value in enumerate(node.input):
            node.input[index] = renamed.get(value, value)
        nodes.append(NodeProto.FromString(node.SerializeToString()))
        for value in node.output:
            name, last, shifted = original_name(value)
            known = types.get(name, UNKNOWN)
            if name in taken or name not in values or value in inside or not (last or shifted):
                continue
            if (shifted and known.dtype not in OTHER) or (last and not _same_channels(known, held.get(value, UNKNOWN))):
                continue
            taken.add(name)
            renamed[value] = f"{value}.again"
            nodes += _anchor(value, name, renamed[value], known, last=last, shifted=shifted)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def is_anchor(node: NodeProto) -> bool:
    """Return whether `anchored` added a node."""
    return node.doc_string == TRACE


def _same_channels(original: ValueType, channels_last: ValueType) -> bool:
    """Return whether the form has the original's channels: kernels pad them, and signals have a row axis more."""
    first, last = original.shape, channels_last.shape
    if first is None or last is None or len(first) == SIGNAL or not has_form(len(first)):
        return False
    return len(first) == len(last) and first[1] == last[-1] and first[1] is not None


def _anchor(value: str, name: str, again: str, known: ValueType, *, last: bool, shifted: bool) -> Iterator[NodeProto]:
    """Yield the nodes from a value to the original's form, and from there to the same value again."""
    rank, plain, back = known.rank or 0, value, name
    if last:
        plain = f"{name}.first" if shifted else name
        yield _node(ops.Transpose, [value], plain, perm=to_first(rank))
    if shifted:
        other, higher = OTHER[known.dtype]
        yield from _shift(plain, name, -higher, known.dtype)
        back = f"{name}.back" if last else again
        yield from _shift(name, back, higher, other)
    if last:
        yield _node(ops.Transpose, [back], again, perm=to_last(rank))


def _shift(value: str, to: str, by: int, dtype: int) -> Iterator[NodeProto]:
    wide, moved, amount = (f"{to}.{part}" for part in ("wide", "moved", "by"))
    yield _node(ops.Constant, [], amount, value=numpy_helper.from_array(np.array(by, np.int32)))
    yield _node(ops.Cast, [value], wide, to=TensorProto.INT32)
    yield _node(ops.Add, [wide, amount], moved)
    yield _node(ops.Cast, [moved], to, to=dtype)


def _node(op: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs, [output], doc_string=TRACE, **attributes)
