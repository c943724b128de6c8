"""Windows have as many places as ONNX Runtime gives them, whatever ONNX's inference says of an operator set."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, defs, helper

import onnxfuse
from onnxfuse import ops
from onnxfuse.codegen.program.window import Sliding
from onnxfuse.ops.shapes.windows import Window
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import type_of

POOLS = (ops.MaxPool, ops.AveragePool, ops.LpPool)

LENGTHS = (4, 5, 7, 8)

PADDED = ("VALID", "SAME_UPPER", "SAME_LOWER", [0, 0], [1, 0], [0, 1], [1, 1])


def forms(op: str, opset: int) -> list[dict[str, Any]]:
    """Return the attributes of windows that an operator set has: of each size, stride, dilation, padding, rounding."""
    known = defs.get_schema(op, opset).attributes
    found: list[dict[str, Any]] = []
    for size, stride, dilation, pad, ceil in itertools.product((1, 2, 3), (1, 2, 3), (1, 2), PADDED, (0, 1)):
        if (dilation > 1 and "dilations" not in known) or (ceil and "ceil_mode" not in known):
            continue
        if max(pad) >= size if isinstance(pad, list) else (pad != "VALID" and size < stride):
            continue  # ONNX Runtime refuses them
        one: dict[str, Any] = {"kernel_shape": [size], "strides": [stride]}
        one |= {"auto_pad": pad} if isinstance(pad, str) else {"pads": pad}
        found.append(one | ({"dilations": [2]} if dilation > 1 else {}) | ({"ceil_mode": 1} if ceil else {}))
    return found


def pools(op: str, opset: int, extents: Mapping[str, int | str]) -> onnx.ModelProto:
    """Return a model of a pool of each form over each of its inputs."""
    inputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 2, n]) for x, n in extents.items()]
    nodes = [
        helper.make_node(op, [x], [f"{x}_{i}"], **form) for i, form in enumerate(forms(op, opset)) for x in extents
    ]
    outputs = [helper.make_tensor_value_info(n.output[0], TensorProto.FLOAT, None) for n in nodes]
    graph = helper.make_graph(nodes, "pools", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return what ONNX Runtime computes, with nothing folded."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    found: list[np.ndarray] = ort.InferenceSession(model.SerializeToString(), options).run(None, dict(feeds))
    return found


def ones(extents: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return images of these lengths."""
    return {x: np.ones((1, 2, n), np.float32) for x, n in extents.items()}


@pytest.mark.parametrize("opset", [8, 10, 11, 12, 19, 22])
@pytest.mark.parametrize("op", POOLS)
def test_places_are_told_as_onnx_runtime_counts_them(op: str, opset: int) -> None:
    """A window that would begin in the padding is none, and dilated ones are padded as if they were not."""
    extents = {f"x{n}": n for n in LENGTHS}
    model = pools(op, opset, extents)
    told = {o.name: type_of(o.type).shape for o in infer(model).graph.output}
    wrong = {
        (str(helper.printable_node(node)), told[node.output[0]], array.shape)
        for node, array in zip(model.graph.node, run(model, ones(extents)), strict=True)
        if told[node.output[0]] != array.shape
    }
    assert not wrong


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("op", "opset"), [("MaxPool", 12), ("MaxPool", 19), ("AveragePool", 12), ("AveragePool", 19), ("LpPool", 19)]
)
def test_what_is_computed_of_a_pools_extent_stays_as_it_was(op: str, opset: int, named: bool) -> None:
    """The length of its result, read by nodes behind it, is the one that it has at each length of the image."""
    fixed = {"x": 4}
    model = pools(op, opset, {"x": "length"} if named else fixed)
    rare = [n for n in model.graph.node if {"ceil_mode", "dilations"} & {a.name for a in n.attribute}]
    del model.graph.node[:]
    model.graph.node.extend(rare)
    for output in [o for o in model.graph.output if o.name not in {n.output[0] for n in rare}]:
        model.graph.output.remove(output)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2), "last"))
    # What a pool gives is an output, too: ONNX Runtime gives any other value the room that ONNX's inference counts.
    for node in rare:
        (y,) = node.output
        model.graph.node.extend([
            helper.make_node("Shape", [y], [f"{y}_shape"]),
            helper.make_node("Gather", [f"{y}_shape", "last"], [f"{y}_length"], axis=0),
            helper.make_node("Cast", [f"{y}_length"], [f"{y}_count"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", [y], [f"{y}_sum"], keepdims=1),
            helper.make_node("Div", [f"{y}_sum", f"{y}_count"], [f"{y}_mean"]),
        ])  # fmt: skip
        model.graph.output.append(helper.make_tensor_value_info(f"{y}_mean", TensorProto.FLOAT, None))
    made = onnxfuse.optimize(model)
    for was, now in zip(run(model, ones(fixed)), run(made, ones(fixed)), strict=True):
        np.testing.assert_allclose(now, was, rtol=1e-6)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_extents_that_an_exporter_wrote_behind_such_a_pool_are_not_believed(op: str, inner: bool) -> None:
    """A file may hold what ONNX's inference said of its values, of what is computed of the pool, in branches, too."""
    relu = "r = Relu (p)"
    if inner:
        branches = (f"{o}_branch = {o} () => (float[1,1,3] {o}_r) {{{o}_r = Relu (p)}}" for o in ("then", "else"))
        relu = f"r = If <{', '.join(branches)}> (held)"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[1,1,4] x, bool held) => (float[1,1,1] y, float[1,1,3] r) <int64 last = {{2}}> {{
        p = {op} <kernel_shape = [1], strides = [2], ceil_mode = 1> (x)
        {relu}
        s = Shape (r)
        n = Gather <axis = 0> (s, last)
        c = Cast <to = 1> (n)
        t = ReduceSum <keepdims = 1> (r)
        y = Div (t, c)
    }}""")
    model = onnx.shape_inference.infer_shapes(model)
    assert [type_of(v.type).shape for v in model.graph.output][1] == (1, 1, 3)
    told = {v.name: value.shape for v in infer(model).graph.output if (value := type_of(v.type)).shape is not None}
    assert told["r"][2] != 3
    if inner:
        return  # ONNX Runtime itself believes what a branch declares, and refuses to run it
    feeds = {"x": np.arange(4, dtype=np.float32).reshape(1, 1, 4), "held": np.array(True)}
    was, now = (run(one, feeds)[0] for one in (model, onnxfuse.optimize(model)))
    np.testing.assert_allclose(now, was)
    assert was.tolist() == [[[1.0]]]


def test_windows_of_a_large_image_are_counted_exactly() -> None:
    """Beyond the integers that a double holds."""
    assert Window(1, 1, 1, (0, 0), "NOTSET").places(2**53 + 1) == 2**53 + 1


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_a_window_larger_than_the_image_is_none_or_one_of_a_pool(op: str) -> None:
    """ONNX Runtime has one of a pool, larger by less than a stride; a kernel's geometry is what it computes."""
    for size, stride, extent in itertools.product((2, 4, 5), (1, 2, 3), (1, 2, 3)):
        window = Window(size, stride, 1, (0, 0), "NOTSET", pools=True)
        sliding = Sliding((1, stride), (1, 1), (0,) * 4, "NOTSET", pools=True)
        assert sliding.over((1, 1, extent, 1), (1, size)).out == (1, window.places(extent))
        image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, "n"])
        node = helper.make_node(op, ["x"], ["y"], kernel_shape=[size], strides=[stride])
        graph = helper.make_graph(
            [node], "pool", [image], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)
        if (extent - size) // -stride < 2:  # else ONNX Runtime refuses
            assert run(model, ones({"x": extent}))[0].shape[-1] == window.places(extent)
        else:
            assert window.places(extent) == 0
