"""Nodes that stand in for operators that ONNX cannot infer: the types that ONNX infers for them are those of ORT."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import onnx
import pytest
from onnx import NodeProto, TensorProto, helper

from onnxfuse.ops.shapes import alike

FLOAT, HALF, INT8, INT32 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.INT32


class Made:
    """What stand-ins are written with: weights and names in one graph."""

    def __init__(self, opset: int, **ranks: int) -> None:
        self.opset = opset
        self.ranks: Mapping[str, int] = ranks
        self.sliced: Mapping[str, Sequence[int]] = {}
        self.doubted: set[str] = set()
        self.weights: list[onnx.ValueInfoProto] = []
        self.count = 0

    def weight(self, *shape: int | None, dtype: int = FLOAT) -> str:
        """Declare an input of this shape."""
        name = self.fresh()
        dims = [f"{name}_{axis}" if n is None else n for axis, n in enumerate(shape)]
        self.weights.append(helper.make_tensor_value_info(name, dtype, dims))
        return name

    def fresh(self) -> str:
        """Return a new name."""
        self.count += 1
        return f"w{self.count}"


def inferred(
    entry: alike.Alike, node: NodeProto, inputs: dict[str, tuple[int, list[Any]]], opset: int = 17,
    made: Made | None = None, **known: Any,
) -> dict[str, tuple[int, list[Any] | None]]:  # fmt: skip
    """Return type and shape of each output, as ONNX infers them from the stand-ins; an invented name is None."""
    made = made or Made(opset)
    nodes = list(entry(made, node, known))
    feeds = [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()]
    outputs = [onnx.ValueInfoProto(name=o) for n in nodes for o in n.output if o in node.output]
    graph = helper.make_graph(nodes, "g", [*feeds, *made.weights], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    found = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph.output
    given = {d for _, shape in inputs.values() for d in shape}

    def extents(value: onnx.ValueInfoProto) -> list[Any] | None:
        if not value.type.tensor_type.HasField("shape"):
            return None
        dims = value.type.tensor_type.shape.dim
        return [d.dim_value if d.HasField("dim_value") else d.dim_param if d.dim_param in given else None for d in dims]

    return {v.name: (v.type.tensor_type.elem_type, extents(v)) for v in found}


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> NodeProto:
    """Return a node; its domain does not matter here."""
    return helper.make_node(op, inputs, outputs, **attributes)


Values = dict[str, tuple[int, list[Any]]]
X: Values = {"x": (HALF, ["N", 3, 8])}


@pytest.mark.parametrize(
    ("entry", "of", "inputs", "known", "expected"),
    [
        (alike.same((0, 0), (1, 1)), node("Op", ["x", "s"], ["y", "z"]), X | {"s": (INT8, ["N"])}, {},
         {"y": (HALF, ["N", 3, 8]), "z": (INT8, ["N"])}),
        (alike.same((0, 0), (3, 0)), node("Op", ["x"], ["y"]), X, {}, {"y": (HALF, ["N", 3, 8])}),
        (alike.same((0, 0), (1, 0)), node("Op", ["x"], ["y", ""]), X, {}, {"y": (HALF, ["N", 3, 8])}),
        (alike.as_float, node("Scaler", ["x"], ["y"]), X, {}, {"y": (FLOAT, ["N", 3, 8])}),
        (alike.packed_product, node("MatMulNBits", ["x", "w"], ["y"]), {"x": (FLOAT, ["N", 3, 8])}, {"K": 8, "N": 5},
         {"y": (FLOAT, ["N", 3, 5])}),
        (alike.fused_product, node("FusedMatMul", ["x", "v"], ["y"]), X | {"v": (HALF, [8, 6])}, {},
         {"y": (HALF, ["N", 3, 6])}),
        (alike.fused_product, node("FusedMatMul", ["x", "v"], ["y"]), X | {"v": (HALF, [3, 6])}, {"transA": 1},
         {"y": (HALF, None)}),
        (alike.last_axis_open, node("Attention", ["x", "w"], ["y"]), {"x": (FLOAT, ["N", 3, 8])}, {},
         {"y": (FLOAT, ["N", 3, None])}),
        (alike.of_rank(0, 4), node("Op", ["x"], ["y"]), X, {}, {"y": (HALF, [None] * 4)}),
        (alike.of_rank(0, None), node("Op", ["x"], ["y"]), X, {}, {"y": (HALF, None)}),
        (alike.halved, node("Split", ["x"], ["y"]), X, {}, {"y": (HALF, ["N", 3, 4])}),
        (alike.known_as("Gemm", 3, "transB"), node("Gemm8", ["x", "v", "b", "more"], ["y"]),
         {"x": (FLOAT, ["M", 8]), "v": (FLOAT, [6, 8]), "b": (FLOAT, [6])}, {"transB": 1, "activation": "Relu"},
         {"y": (FLOAT, ["M", 6])}),
        (alike.scaled_product, node("Scaled", ["x", "v", "s"], ["y"]),
         {"x": (INT8, ["N", 3, 8]), "v": (INT8, [8, 6]), "s": (FLOAT, [])}, {}, {"y": (FLOAT, ["N", 3, 6])}),
        (alike.quantizing_product, node("Dynamic", ["x", "v"], ["y"]),
         {"x": (FLOAT, ["N", 8]), "v": (INT8, [8, 6])}, {}, {"y": (FLOAT, ["N", 6])}),
        (alike.sloped, node("PRelu", ["x", "s"], ["y"]), {"x": (FLOAT, [1, 8]), "s": (FLOAT, ["N", 1])}, {},
         {"y": (FLOAT, ["N", 8])}),
        (alike.multi_head_attention, node("MultiHeadAttention", ["x", "k", "v"], ["y"]),
         {"x": (FLOAT, ["N", "S", 8])}, {"num_heads": 2}, {"y": (FLOAT, ["N", "S", None])}),
        (alike.multi_head_attention, node("MultiHeadAttention", ["x"], ["y"]),
         {"x": (HALF, ["N", "S", 2, 3, 4])}, {"num_heads": 2}, {"y": (HALF, [None] * 3)}),
        (alike.multi_head_attention,
         node("MultiHeadAttention", ["x", "k", "v", "", "", "", "p", "q"], ["y", "pk", "pv"]),
         {"x": (FLOAT, ["N", "S", 8]), "p": (FLOAT, ["N", 2, "P", 4]), "q": (FLOAT, ["N", 2, "P", 4])},
         {"num_heads": 2},
         {"y": (FLOAT, ["N", "S", None]), "pk": (FLOAT, ["N", 2, None, 4]), "pv": (FLOAT, ["N", 2, None, 4])}),
        (alike.packed_attention, node("Attention", ["x", "w", "b", "", "p"], ["y", "present"]),
         {"x": (FLOAT, ["N", "S", 8]), "p": (FLOAT, [2, "N", 2, "P", 4])}, {"num_heads": 2},
         {"y": (FLOAT, ["N", "S", None]), "present": (FLOAT, [2, "N", 2, None, 4])}),
        (alike.grouped_attention, node("GroupQueryAttention", ["x", "k"], ["y"]), {"x": (HALF, ["N", "S", 8])},
         {"num_heads": 4, "kv_num_heads": 2}, {"y": (HALF, ["N", "S", 8])}),
        (alike.grouped_attention, node("GroupQueryAttention", ["x"], ["y"]), {"x": (HALF, ["N", "S", 64])},
         {"num_heads": 4, "kv_num_heads": 2}, {"y": (HALF, ["N", "S", 32])}),
        (alike.looked_up, node("EmbedLayerNormalization", ["i", "", "t"], ["y", "m", "rows"]),
         {"i": (INT32, ["N", "S"]), "t": (HALF, [99, 16])}, {},
         {"y": (HALF, ["N", "S", 16]), "m": (INT32, ["N"]), "rows": (HALF, ["N", "S", 16])}),
    ],
)  # fmt: skip
def test_outputs_have_the_types_of_the_stand_ins(
    entry: alike.Alike, of: NodeProto, inputs: dict[str, tuple[int, list[Any]]], known: dict[str, Any],
    expected: dict[str, tuple[int, list[Any] | None]],
) -> None:  # fmt: skip
    """Element types and extents; None is one that a file cannot tell."""
    assert inferred(entry, of, inputs, **known) == expected


def test_a_transposed_right_factor_keeps_the_rows_if_it_is_a_matrix() -> None:
    """Of a factor of any other rank nothing but the type is said."""
    of = node("FusedMatMul", ["x", "v"], ["y"])
    inputs: Values = {"x": (FLOAT, ["N", 3, 8]), "v": (FLOAT, [6, 8])}
    assert inferred(alike.fused_product, of, inputs, made=Made(17, v=2), transB=1) == {"y": (FLOAT, ["N", 3, None])}
    assert inferred(alike.fused_product, of, inputs, made=Made(17, v=3), transB=1) == {"y": (FLOAT, None)}


def test_axes_that_must_not_be_inferred_are_open() -> None:
    """Of a Slice those that its caller names, and the value is doubted from then on."""
    made = Made(10)
    made.sliced = {"y": [1]}
    inputs: Values = {"x": (FLOAT, [2, "S", 4]), "s": (TensorProto.INT64, [1]), "e": (TensorProto.INT64, [1])}
    found = inferred(alike.sliced, node("Slice", ["x", "s", "e"], ["y"]), inputs, 10, made)
    assert found["y"][1] is not None
    assert found["y"][1][1] is None
    assert made.doubted == {"y"}
    untouched = Made(10)
    assert list(alike.sliced(untouched, node("Slice", ["x", "s", "e"], ["y"]), {})) == []
    assert untouched.doubted == set()


def test_windows_that_onnx_counts_otherwise_are_open() -> None:
    """A last window in the padding, before operator set 22; all other pools are left to ONNX."""
    of = node("MaxPool", ["x"], ["y"])
    known = {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 0, 1, 1], "ceil_mode": 1}
    made = Made(17)
    found = inferred(alike.pooled, of, {"x": (FLOAT, ["N", 3, 6, 6])}, 17, made, **known)
    assert found == {"y": (FLOAT, ["N", 3, None, None])}
    assert made.doubted == {"y"}
    assert list(alike.pooled(Made(22), of, known)) == []
    assert list(alike.pooled(Made(17), of, known | {"ceil_mode": 0})) == []


def test_a_newer_onnx_infers_by_itself() -> None:
    """Stand-ins are for those operator sets that have no inference."""
    known, unknown = node("Relu", ["x"], ["y"]), node("Nobodys", ["x"], ["y"])
    assert list(alike.kept(Made(17), known, {})) == []
    assert [n.op_type for n in alike.kept(Made(17), unknown, {})] == ["Identity"]
    assert list(alike.sloped(Made(6), node("PRelu", ["x", "s"], ["y"]), {})) == []
    assert [n.attribute[0].name for n in alike.halved(Made(17), node("S", ["x"], ["y"]), {})] == ["axis"]
    assert {a.name for n in alike.halved(Made(18), node("S", ["x"], ["y"]), {}) for a in n.attribute} == {
        "axis", "num_outputs",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("known", "label", "outputs", "expected"),
    [
        ({"targets": 3}, False, ["y"], {"y": (FLOAT, [None, 3])}),
        ({"classlabels_int64s": [4, 5, 6, 7]}, True, ["l", "y"],
         {"y": (FLOAT, [None, 4]), "l": (TensorProto.INT64, [None])}),
        ({"classlabels_strings": ["a", "b"]}, True, ["l", "y"], {"y": (FLOAT, [None, 2])}),
        ({"classlabels_int64s": [4, 5]}, True, ["l"], {"l": (TensorProto.INT64, [None])}),
        ({}, False, ["y"], {"y": (FLOAT, [None, None])}),
    ],
)  # fmt: skip
def test_scores_have_a_column_for_each_class_and_labels_a_row(
    known: dict[str, Any], label: bool, outputs: list[str], expected: dict[str, tuple[int, list[Any]]]
) -> None:
    """Labels that are strings are left to ONNX; a batch may come as one row."""
    count: Callable[[dict[str, Any]], int | None] = alike.classes
    if not label:
        count = partial(alike.number, name="targets")
    found = inferred(alike.scores(count, label), node("Trees", ["x"], outputs), {"x": (FLOAT, ["N", 8])}, **known)
    assert found == expected
