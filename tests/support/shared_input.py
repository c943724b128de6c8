"""Models of many products of one input, as an encoder with relative positions shared by all layers has them."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HALF = TensorProto.FLOAT16


def products(count: int, *, summed: bool = False, hidden: int = 64) -> onnx.ModelProto:
    """Return a model of so many products of one normalized input, with a bias each; an output each, or their sum."""
    rng = np.random.default_rng(0)
    weights = {"g": rng.standard_normal(hidden), "b": rng.standard_normal(hidden)}
    nodes = [helper.make_node("LayerNormalization", ["x", "g", "b"], ["r"])]
    for i in range(count):
        weights |= {f"w{i}": rng.standard_normal((hidden, hidden)) / 8, f"c{i}": rng.standard_normal(hidden)}
        nodes += [helper.make_node("MatMul", ["r", f"w{i}"], [f"m{i}"], f"product{i}")]
        nodes += [helper.make_node("Add", [f"m{i}", f"c{i}"], [f"y{i}"])]
    results = [f"y{i}" for i in range(count)]
    if summed:
        sums = ["y0", *(f"s{i}" for i in range(1, count))]
        nodes += [helper.make_node("Add", [sums[i - 1], results[i]], [sums[i]]) for i in range(1, count)]
        results = sums[-1:]
    make = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "products",
        [make("x", HALF, ["positions", hidden])],
        [make(name, HALF, ["positions", hidden]) for name in results],
        [numpy_helper.from_array(w.astype(np.float16), name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
