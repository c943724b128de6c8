"""Detect outputs that are class scores, for which the top-k agreement of both models is reported.

Determined from the graph, not from names. An output of rank 2 or 3, ignoring casts and reshapes that preserve its last
axis, counts as scores over its last axis if it is

- a Softmax or LogSoftmax over that axis,
- a linear layer (MatMul, Gemm) with a bias, as classifiers end in, of LINEAR_COLUMNS columns and more, or
- one that gives more values than it reads, as the head of a language model does, with or without a bias;

all times a number, or divided by one, if there is a temperature. So hidden states after a normalization, a pooler's
Tanh, projected or normalized embeddings, attention maps and images of classes are excluded: `--top-k` requests those.
"""

import onnx
from onnx import NodeProto

from onnxfuse import ops
from onnxfuse.ops import Trait, named
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import ValueType, value_types

SOFTMAX, PRODUCTS = named(Trait.SOFTMAX), named(Trait.MATRIX_PRODUCT)
CARRIERS = named(Trait.CASTS, Trait.QUANTIZES) | {ops.Identity}
"""Operators that forward scores unchanged, or nearly, whatever is known of their shape."""
MOVERS = named(Trait.RESHAPE)
"""Operators that forward them if the last axis is unchanged."""
RANKS = (2, 3)
"""Scores per item, and per item and position. Higher ranks are attention maps, and images of classes."""

LINEAR_COLUMNS = 10
"""Smaller linear layers may produce coordinates, or regression values."""


def class_outputs(model: onnx.ModelProto) -> frozenset[str]:
    """Return the outputs of `model` that are class scores over their last axis."""
    typed = infer(model)
    types = value_types(typed.graph)
    makers = {value: node for node in typed.graph.node for value in node.output if value}
    return frozenset(
        o.name for o in typed.graph.output if _rank(types, o.name) in RANKS and _are_scores(o.name, makers, types)
    )


def _are_scores(name: str, makers: dict[str, NodeProto], types: dict[str, ValueType]) -> bool:
    biased = False
    while (node := makers.get(name)) is not None:
        if node.op_type in SOFTMAX:
            return _over_the_last_axis(node, _rank(types, name))
        if node.op_type in PRODUCTS:
            columns, read = _columns(types, name), _columns(types, node.input[0])
            if columns is None or columns < LINEAR_COLUMNS:
                return False
            biased |= len([i for i in node.input if i]) > 2
            return biased or (read is not None and columns > read)
        keeps_columns = _columns(types, name) is not None and _columns(types, name) == _columns(types, node.input[0])
        if node.op_type in CARRIERS or (node.op_type in MOVERS and keeps_columns):
            name = node.input[0]
        elif (entry := ops.operator(node.op_type, node.domain)) is not None and Trait.ARITHMETIC in entry.traits:
            # Scores minus a bias or divided by a number are scores; a number minus scores or divided by them is not.
            vector = int(entry.neutral == 0)
            ranks = [_rank(types, i) if entry.neutral_at(n) is not None else None for n, i in enumerate(node.input)]
            other = next((n for n, rank in enumerate(ranks) if rank is not None and rank <= vector), None)
            if other is None:
                return False
            biased |= ranks[other] == vector == 1
            name = node.input[1 - other]
        else:
            return False
    return False


def _over_the_last_axis(node: NodeProto, rank: int | None) -> bool:
    """Return whether the axis is the last one, which is the default at rank 2 in every opset."""
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
    return axis == -1 or (rank is not None and axis == rank - 1)


def _rank(types: dict[str, ValueType], name: str) -> int | None:
    shape = types[name].shape if name in types else None
    return None if shape is None else len(shape)


def _columns(types: dict[str, ValueType], name: str) -> int | None:
    """Return the extent of the last axis; None if it is symbolic."""
    shape = types[name].shape if name in types else None
    return shape[-1] if shape and isinstance(shape[-1], int) else None
