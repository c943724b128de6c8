"""Models are converted whose outputs are no tensors, and whose operators onnx's reference has not in that form."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.verification import verify
from onnxfuse.verification.run import sessions

OUTPUTS = {
    "sequence": 'opset_import: ["":17]> g (float[N,4] x) => (seq(float[N,4]) s) '
    "{ a = Relu (x) b = Exp (a) d = Mul (a, b) s = SequenceConstruct (a, b, d) }",
    "split": 'opset_import: ["":17]> g (float[N,4] x) => (seq(float[N,2]) s) { two = Constant <value = int64 {2}> () '
    "a = Relu (x) b = Exp (a) s = SplitToSequence <axis = 1> (b, two) }",
    "loop": 'opset_import: ["":17]> g (float[N,4] x, int64 k) => (seq(float[A,4]) s) { '
    "c = Constant <value = bool {1}> () e = SequenceEmpty <dtype = 1> () s = Loop (k, c, e) "
    "<body = b (int64 i, bool ci, seq(float[A,4]) si) => "
    "(bool co, seq(float[A,4]) so) { co = Identity (ci) f = Cast <to = 1> (i) a = Add (x, f) q = Exp (a) "
    "so = SequenceInsert (si, q) }> }",
    "optional": 'opset_import: ["":18]> g (float[N,4] x) => (optional(float[N,4]) o, float[N,4] b) '
    "{ a = Relu (x) b = Exp (a) o = Optional (b) }",
    "map": 'opset_import: ["":17, "ai.onnx.ml":3]> g (float[N,3] x) => (seq(map(int64,float)) z) '
    "{ a = Relu (x) b = Softmax (a) z = ai.onnx.ml.ZipMap <classlabels_int64s = [0,1,2]> (b) }",
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("how", ["float16", "bfloat16", "guard"])
def test_outputs_that_are_no_tensors(name: str, how: Any) -> None:
    """Each tensor of a sequence, a map or an optional is held to the contract, and checked by the guard."""
    model = onnx.parser.parse_model(f"<ir_version: 9, {OUTPUTS[name]}")
    if how == "guard":
        onnxfuse.optimize(model, guard=True)
    else:
        report = verify(model, onnxfuse.optimize(model, precision=how), providers=[sessions.CPU])
        assert report.ok
        assert any(r.measure.elements for r in report.rows)


def scan(directions: list[int], axis: int) -> onnx.ModelProto:
    """Return a running sum behind a product, from either end, along either axis."""
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (4,)) for n in ("s", "i", "t", "o")]
    nodes = [helper.make_node("Add", ["s", "i"], ["t"]), helper.make_node("Identity", ["t"], ["o"])]
    body = helper.make_graph(nodes, "b", types[:2], types[2:])
    node = helper.make_node(
        "Scan", ["z", "a"], ["f", "y"], body=body, num_scan_inputs=1, scan_input_directions=directions[:1],
        scan_output_directions=directions[1:], scan_input_axes=[axis], scan_output_axes=[axis],
    )  # fmt: skip
    return model_of([helper.make_node("MatMul", ["x", "w"], ["a"]), node], {"z": np.zeros(4, np.float32)})


def model_of(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], opset: int = 21) -> onnx.ModelProto:
    """Return a model of x [4, 4], with w [4, 4] among the weights."""
    w = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    tensors = [t if isinstance(t, TensorProto) else numpy_helper.from_array(t, n) for n, t in weights.items()]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 4))], [numpy_helper.from_array(w, "w"), *tensors],
    )  # fmt: skip
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


def between(*nodes: onnx.NodeProto, weights: dict[str, Any] | None = None, opset: int = 21) -> onnx.ModelProto:
    """Return a model with nodes from a to d between two products."""
    products = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in (("x", "a"), ("d", "y"))]
    return model_of([products[0], *nodes, products[1]], weights or {}, opset)


def quantized(type_: int) -> onnx.ModelProto:
    """Return a QDQ pair of a type of eight bits."""
    zero = helper.make_tensor("z", type_, [], [0.0])
    weights = {"s": np.array(0.05, np.float32), "z": zero}
    nodes = (
        helper.make_node("QuantizeLinear", list("asz"), ["q"]),
        helper.make_node("DequantizeLinear", list("qsz"), ["d"]),
    )
    return between(*nodes, weights=weights)


def cast(type_: int) -> onnx.ModelProto:
    """Return a Cast to a type and back."""
    there, back = (helper.make_node("Cast", [a], [b], to=t) for a, b, t in (("a", "q", type_), ("q", "d", 1)))
    return between(there, back)


MICROSOFT: dict[str, tuple[list[str], dict[str, Any]]] = {
    "Gelu": (["a"], {}), "FastGelu": (["a"], {}), "QuickGelu": (["a"], {"alpha": 1.7}),
    "ScaledSiLU": (["a"], {"alpha": 1.7}),
    "FusedMatMul": (["a", "w"], {"alpha": 0.5}),
}  # fmt: skip

MODELS = {
    **{f"scan {d} axis {axis}": scan(d, axis) for d in ([1, 0], [0, 1], [1, 1]) for axis in (0, 1)},
    **{f"qdq {t}": quantized(TensorProto.DataType.Value(t)) for t in ("FLOAT8E4M3FN", "FLOAT8E5M2")},
    **{f"cast {t}": cast(TensorProto.DataType.Value(t)) for t in ("INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT8E5M2")},
    **{
        op: between(helper.make_node(op, read, ["d"], domain="com.microsoft", **how),
                    weights={"g": np.ones(4, np.float32)}, opset=17)
        for op, (read, how) in MICROSOFT.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_operators_that_the_reference_lacks(name: str) -> None:
    """ONNX Runtime's own, alone and in float32, stands in for what has no reference; the rest is float64."""
    made = onnxfuse.optimize(MODELS[name], precision="float16")
    assert verify(MODELS[name], made, providers=[sessions.CPU]).ok
