"""Types go on behind operators of which ONNX's inference knows nothing, and the nodes are the model's own."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import is_unknown, type_of, value_types
from tests.support.extents import extents
from tests.support.small import run

N = helper.make_node
MS, ML = "com.microsoft", "ai.onnx.ml"


def q4(name: str, n: int, k: int) -> list[TensorProto]:
    """Return the packed weight and the scales of a MatMulNBits."""
    return [
        numpy_helper.from_array(np.zeros((n, k // 32, 16), np.uint8), f"{name}.w"),
        numpy_helper.from_array(np.ones((n * (k // 32),), np.float16), f"{name}.s"),
    ]


def attention(inputs: str, outputs: str, heads: int) -> onnx.NodeProto:
    """Return a GroupQueryAttention of two heads of queries; - stands for an input that is left out."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return N("GroupQueryAttention", names, outputs.split(), domain=MS, num_heads=2, kv_num_heads=heads)


CASES: dict[str, tuple[list[NodeProto], list[Any]]] = {
    "MatMulNBits": (
        [N("MatMulNBits", ["x", "q.w", "q.s"], ["y"], domain=MS, K=64, N=96, bits=4, block_size=32)],
        ["b", "s", 96],
    ),
    "a chain of them": (
        [
            N("MatMulNBits", ["x", "q.w", "q.s"], ["h"], domain=MS, K=64, N=96, bits=4, block_size=32),
            N("Relu", ["h"], ["r"]),
            N("MatMulNBits", ["r", "p.w", "p.s"], ["y"], domain=MS, K=96, N=64, bits=4, block_size=32),
        ],
        ["b", "s", 64],
    ),
    "SkipSimplifiedLayerNormalization": (
        [N("SkipSimplifiedLayerNormalization", ["x", "x", "g"], ["first", "", "", "y"], domain=MS)],
        ["b", "s", 64],
    ),
    "SkipLayerNormalization": (
        [N("SkipLayerNormalization", ["x", "x", "g"], ["first", "", "", "y"], domain=MS)],
        ["b", "s", 64],
    ),
    "SimplifiedLayerNormalization": ([N("SimplifiedLayerNormalization", ["x", "g"], ["y"], axis=-1)], ["b", "s", 64]),
    "RotaryEmbedding": ([N("RotaryEmbedding", ["x", "at", "c", "c"], ["y"], domain=MS)], ["b", "s", 64]),
    "GroupQueryAttention": (
        [attention("x x x pk pv n t", "y k v", 2)],
        ["b", "s", 64],
    ),
    "a cache of it": (
        [attention("x x x pk pv n t", "o y v", 2)],
        ["b", 2, None, 32],
    ),
    "packed": (
        [attention("x - - pk pv n t", "y k v", 1)],
        ["b", "s", None],
    ),
    "FusedMatMul": ([N("FusedMatMul", ["x", "m"], ["y"], domain=MS, alpha=0.5)], ["b", "s", 8]),
    "FusedMatMul, transposed": (
        [N("FusedMatMul", ["x", "mt"], ["y"], domain=MS, transB=1)],
        ["b", "s", None],
    ),
    "FusedGemm": (
        [
            N("Flatten", ["x"], ["f"], axis=2),
            N("FusedGemm", ["f", "mt"], ["y"], domain=MS, transB=1, activation="Relu"),
        ],
        [None, 8],
    ),
    "FusedConv": (
        [
            N("Unsqueeze", ["x", "last"], ["i"]),
            N("Transpose", ["i"], ["tr"], perm=[0, 2, 1, 3]),
            N("FusedConv", ["tr", "filters"], ["y"], domain=MS, activation="Relu", pads=[0, 0, 0, 0]),
        ],
        ["b", 5, None, 1],
    ),
    "MatMulIntegerToFloat": (
        [N("MatMulIntegerToFloat", ["bytes", "wb", "scale", "scale"], ["y"], domain=MS)],
        ["b", "s", 8],
    ),
    "DynamicQuantizeMatMul": ([N("DynamicQuantizeMatMul", ["x", "wb", "scale"], ["y"], domain=MS)], ["b", "s", 8]),
    "MultiHeadAttention": ([N("MultiHeadAttention", ["x", "x", "x"], ["y"], domain=MS, num_heads=2)], ["b", "s", None]),
    "MultiHeadAttention of packed": (
        [
            N("Reshape", ["x", "five"], ["r"]),
            N("MultiHeadAttention", ["r"], ["y"], domain=MS, num_heads=2),
        ],
        [None, None, None],
    ),
    "Attention": ([N("Attention", ["x", "qkv", "bias"], ["y"], domain=MS, num_heads=2)], ["b", "s", None]),
}


def model(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    """Return a model of nodes, with an elementwise pair behind `y`."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*nodes, N("Sigmoid", ["y"], ["sig"], name="sig"), N("Mul", ["y", "sig"], ["z"], name="mul")],
        "g",
        [
            value("x", TensorProto.FLOAT16, ["b", "s", 64]),
            value("pk", TensorProto.FLOAT16, ["b", 2, "p", 32]),
            value("pv", TensorProto.FLOAT16, ["b", 2, "p", 32]),
            value("n", TensorProto.INT32, ["b"]),
            value("t", TensorProto.INT32, [1]),
            value("at", TensorProto.INT64, ["b", "s"]),
            value("c", TensorProto.FLOAT16, [10, 32]),
            value("bytes", TensorProto.UINT8, ["b", "s", 64]),
        ],
        [value("z", TensorProto.FLOAT16, None)],
        [
            *q4("q", 96, 64),
            *q4("p", 64, 96),
            numpy_helper.from_array(np.ones(64, np.float16), "g"),
            numpy_helper.from_array(np.ones((64, 8), np.float16), "m"),
            numpy_helper.from_array(np.ones((64, 192), np.float16), "qkv"),
            numpy_helper.from_array(np.ones(192, np.float16), "bias"),
            numpy_helper.from_array(np.ones((8, 64), np.float16), "mt"),
            numpy_helper.from_array(np.ones((5, 64, 1, 1), np.float16), "filters"),
            numpy_helper.from_array(np.ones((64, 8), np.uint8), "wb"),
            numpy_helper.from_array(np.array(0.5, np.float16), "scale"),
            numpy_helper.from_array(np.array([3]), "last"),
            numpy_helper.from_array(np.array([-1, 1, 2, 1, 32]), "five"),
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)], ir_version=8
    )


@pytest.mark.parametrize("name", CASES)
def test_types_are_known_behind_operators_of_onnx_runtime(name: str) -> None:
    """Element type and rank, extents where they can be told; the nodes are those of the model, no stand-in stays."""
    nodes, shape = CASES[name]
    one = model(nodes)
    made = infer(one)
    assert list(made.graph.node) == list(one.graph.node)
    values = [*made.graph.input, *made.graph.value_info, *made.graph.output]
    assert not [v.name for v in values if v.name.startswith("onnxfuse.")]
    known = value_types(made.graph)["y"]
    assert known.dtype == TensorProto.FLOAT16
    found = [None if is_unknown(d) else d for d in known.shape or ()]
    assert [d if w is not None else None for d, w in zip(found, shape, strict=True)] == [*extents(*shape)]
    fused = onnxfuse.optimize(one)
    assert [n.domain for n in fused.graph.node][-1] == "onnxfuse", [n.op_type for n in fused.graph.node]


SCORES = {
    "Scaler": (N("Scaler", ["x"], ["y"], domain=ML, offset=[0.0] * 4, scale=[2.0] * 4), ("n", 4)),
    "Normalizer": (N("Normalizer", ["x"], ["y"], domain=ML, norm="L2"), ("n", 4)),
    "Imputer": (N("Imputer", ["x"], ["y"], domain=ML, imputed_value_floats=[0.0] * 4), ("n", 4)),
    "LinearRegressor": (N("LinearRegressor", ["x"], ["y"], domain=ML, coefficients=[1.0] * 8, targets=2), (None, 2)),
    "SVMRegressor": (
        N("SVMRegressor", ["x"], ["y"], domain=ML, coefficients=[1.0] * 4, kernel_type="LINEAR", rho=[0.0]),
        (None, 1),
    ),
}


@pytest.mark.parametrize("name", SCORES)
def test_types_are_known_behind_operators_of_onnx_ml(name: str) -> None:
    """Rows of numbers, float32: what follows is fused."""
    node, shape = SCORES[name]
    value = helper.make_tensor_value_info
    tail = [N("Sigmoid", ["y"], ["s"], name="s"), N("Mul", ["y", "s"], ["z"], name="m")]
    graph = helper.make_graph([node, *tail], "g", [value("x", 1, ["n", 4])], [value("z", 1, None)])
    one = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)], ir_version=8
    )
    known = value_types(infer(one).graph)["y"]
    assert known.dtype == TensorProto.FLOAT
    found = (d if w is not None else None for d, w in zip(known.shape or (), shape, strict=True))
    assert tuple(found) == extents(*shape)
    assert [n.domain for n in onnxfuse.optimize(one).graph.node] == [ML, "onnxfuse"]


@pytest.mark.parametrize(
    ("attributes", "left", "right"),
    [
        ({"transA": 1}, (2, 3, 5), (2, 3, 7)),
        ({"transA": 1, "transB": 1}, (2, 3, 5), (2, 7, 3)),
        ({"transB": 1}, (3, 5), (2, 7, 5)),
        ({"transB": 1}, (2, 3, 5), (7, 5)),
    ],
)
def test_no_extent_of_a_transposed_product_is_told_wrongly(
    attributes: dict[str, Any], left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    """What is said of the result is what ONNX Runtime gives; what a transposed factor hides is not said."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [N("FusedMatMul", ["a", "b"], ["p"], domain=MS, **attributes), N("Relu", ["p"], ["y"])], "g",
        [value("a", TensorProto.FLOAT, left), value("b", TensorProto.FLOAT, right)],
        [value("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    one = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (given,) = run(one, {"a": np.ones(left, np.float32), "b": np.ones(right, np.float32)})
    known = value_types(infer(one).graph)["p"]
    assert known.dtype == TensorProto.FLOAT
    if known.shape is not None:
        assert len(known.shape) == given.ndim
        assert all(not isinstance(d, int) or d == n for d, n in zip(known.shape, given.shape, strict=True))


@pytest.mark.parametrize("opset", [7, 9, 16, 22])
@pytest.mark.parametrize(("slope", "shape"), [("2,1,1,1", (2, "N", 3, 1)), ("3,1", ("N", 3, 1)), ("", ("N", 3, 1))])
def test_a_prelu_has_the_axes_of_the_operand_that_has_more(
    opset: int, slope: str, shape: tuple[int | str, ...]
) -> None:
    """ONNX gives it the shape of what it reads; ONNX Runtime broadcasts that to the slope, too."""
    axes = f"[{slope}]" if slope else ""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    agraph (float[N,3,1] x, float{axes} slope) => (float[] y) {{ y = PRelu (x, slope) }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert type_of(infer(model).graph.output[0].type).shape == extents(*shape)
    feeds = {
        "x": -np.ones((5, 3, 1), np.float32),
        "slope": np.ones([int(n) for n in slope.split(",") if n], np.float32),
    }
    (y,) = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    assert y.shape == tuple(5 if d == "N" else d for d in shape)
