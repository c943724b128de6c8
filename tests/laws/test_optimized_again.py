"""Optimizing an optimized file changes nothing: a model goes through all phases until they leave it as it is."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.graph.graph import Graph
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import substitute
from onnxfuse.passes import pipeline
from onnxfuse.passes.manager import Phase
from onnxfuse.passes.phases import PIPELINE
from tests.support.small import assert_same_numbers, ops, parse


def optimized_twice(model: onnx.ModelProto, only: tuple[str, ...] = ()) -> onnx.ModelProto:
    """Return the optimized model, which optimizing again leaves byte for byte."""
    made = onnxfuse.optimize(model, only=only)
    again = onnxfuse.optimize(made, only=only)
    assert ops(again) == ops(made)
    assert again.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
    return made


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_what_a_later_rule_took_keeps_no_earlier_one_from_its_nodes(op: str, dtype: str, opset: int) -> None:
    """A Softmax that has no kernel with what reads it is one by itself, once that is another rule's kernel."""
    model = parse(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g ({dtype}[3,32] x, {dtype}[1,n] s) => ({dtype}[3,1] t, {dtype}[3,1] y) {{
      r = ReduceL2 <axes = [-1], keepdims = 1> (x)
      t = Transpose <perm = [0,1]> (r)
      p = {op} <axis = -1> (r)
      a = IsNaN (p) b = Cast <to = {onnx.TensorProto.DataType.Value(dtype.upper())}> (a) y = PRelu (b, s)
    }}""")
    assert ops(optimized_twice(model))[-2:] == [f"{{{op}}}", "{IsNaN Cast PRelu}"]


@pytest.mark.parametrize("opset", [21, 22])
@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_open_channels_are_as_many_as_a_norm_has_factors(dtype: str, opset: int) -> None:
    """ONNX's inference does not compare them: the kernel is planned where they agree, and takes what stands around."""
    model = parse(f"""<ir_version: 10, opset_import: ["" : {opset}]>
    g ({dtype}[n] x, {dtype}[1,1] low, {dtype}[4] scale, {dtype}[4] shift, {dtype}[1] two)
    => ({dtype}[1,4] a, {dtype}[1,n] b, {dtype}[1,n] y) {{
      a = Min (x, low) b = Max (a, x, a)
      g = GroupNormalization <num_groups = 1> (a, scale, shift) y = Pow (g, two)
    }}""")
    assert ops(optimized_twice(model)) == ["{Min Max GroupNormalization Pow}"]


BETWEEN = {
    "ConvTranspose": helper.make_node("ConvTranspose", ["a", "half"], ["b"], strides=[2, 2]),
    "ConvTranspose with a bias": helper.make_node("ConvTranspose", ["a", "half", "bias"], ["b"], strides=[2, 2]),
    "MaxPool": helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], dilations=[2, 2]),
    "AveragePool": helper.make_node("AveragePool", ["a"], ["b"], kernel_shape=[2, 2], ceil_mode=1, count_include_pad=1),
    "LRN": helper.make_node("LRN", ["a"], ["b"], size=3),
}


def between_convolutions(node: onnx.NodeProto, dtype: type, *, constant: bool = False) -> onnx.ModelProto:
    """Return a model in which a node stands between two convolutions of four channels, or reads a constant."""
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 4, 3, 3), "half": (4, 4, 2, 2), "z": (4, 4, 3, 3), "bias": (4,)}
    shapes |= {"a": (1, 4, 3, 5)} if constant else {}
    weights = [numpy_helper.from_array((rng.standard_normal(s) / 4).astype(dtype), n) for n, s in shapes.items()]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c" if constant else "a"], pads=[1, 1, 1, 1]),
        node,
        helper.make_node("Conv", ["b", "z"], ["y"], pads=[1, 1, 1, 1]),
    ]
    inputs = [helper.make_tensor_value_info("x", element, ["N", 4, 3, "W"])]
    outputs = [helper.make_tensor_value_info(n, element, None) for n in (("c", "y") if constant else ("y",))]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("only", [(), ("nhwc",), ("nhwc", "direct")])
@pytest.mark.parametrize("node", BETWEEN)
def test_what_a_kernel_leaves_channels_first_is_laid_out_anew(
    node: str, only: tuple[str, ...], constant: bool, dtype: type
) -> None:
    """`direct` takes the Transpose behind an operator of the library; what no rule takes lies as it lay."""
    model = between_convolutions(BETWEEN[node], dtype, constant=constant)
    made = optimized_twice(model, only)
    if dtype is np.float32:
        assert_same_numbers(model, made, folded=True)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("skip", [(), ("nhwc_conv",)])
def test_what_no_rule_takes_channels_last_is_not_written_again(skip: tuple[str, ...], dtype: int) -> None:
    """A movement takes the Transpose behind a ConvTranspose that nothing takes between the two, and keeps it."""
    rng = np.random.default_rng(0)
    weights = [
        helper.make_tensor(name, dtype, shape, rng.standard_normal(np.prod(shape)).astype(np.float32))
        for name, shape in (("w", (8, 8, 3, 3)), ("u", (8, 8, 1, 3)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["c", "u"], ["t"], strides=[2, 2]),
        helper.make_node("Squeeze", ["t", "axis"], ["s"]),
        helper.make_node("Sigmoid", ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, ["n", 8, 1, 16])],
        [helper.make_tensor_value_info(name, dtype, None) for name in ("y", "c")],
        [*weights, numpy_helper.from_array(np.array([2]), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    made = onnxfuse.optimize(model, skip=skip)
    assert onnxfuse.optimize(made, skip=skip) == made


TEXT = "g (float[4,4] x) => (float[4,4] y) { a = Add (x, x) b = Tanh (a) y = MatMul (b, x) }"


def test_phases_that_undo_each_other_are_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built in and never settles is said, not written: such a file would change with each run."""

    @graph_pass
    def grows(graph: Graph) -> bool:
        """Renames a node each time."""
        substitute(graph, graph.nodes[-1], name=f"{graph.nodes[-1].name}'")
        return True

    phase = Phase("grow", (grows,))
    monkeypatch.setattr(pipeline, "PIPELINE", (*PIPELINE, phase))
    with pytest.raises(
        AssertionError, match="undo each other: optimizing what was optimized 50 times changes it still"
    ):
        pipeline.run(parse(TEXT), [])
