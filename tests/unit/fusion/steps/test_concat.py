"""Kernels that write their channels of a Concat: which become one op, and that nothing else changes."""

import json

import numpy as np
import pytest
from onnx import ModelProto, helper

import onnxfuse
from onnxfuse.fusion.steps import concat
from onnxfuse.fusion.steps.concat import joins_channels
from onnxfuse.model.fused import fused_ops
from tests.support.small import assert_same_numbers, graph_of, halved, optimize, parse


def weights(name: str, *shape: int) -> str:
    """Return a weight as text, its numbers small."""
    numbers = ",".join(f"{(n * 7 % 11 - 5) / 40}" for n in range(int(np.prod(shape))))
    return f"float[{','.join(map(str, shape))}] {name} = {{{numbers}}}"


def inception(joined: str = "a, b, c, d", channels: int = 40, rest: str = "z = Conv (d, p)") -> ModelProto:
    """Return four branches side by side, float16: 1x1, 3x3, a pooling with a 1x1, and one that is read elsewhere."""
    made = [weights("p", 8, 8, 1, 1), weights("q", 16, 8, 3, 3), weights("r", 8, 8, 1, 1), weights("s", 8, 8, 3, 3)]
    made += [weights("u", 8, channels, 3, 3), "float half = {0.5}"]
    model = parse(f"""g (float[2,8,9,7] x) => (float[2,8,9,7] y, float[2,8,9,7] z) <{", ".join(made)}> {{
      first = Conv <pads = [1,1,1,1]> (x, s)
      i = Relu (first)
      e = Conv (i, p)
      a = Mul (e, half)
      f = Conv <pads = [1,1,1,1]> (i, q)
      b = Mul (f, half)
      m = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (i)
      g = Conv (m, r)
      c = Relu (g)
      h = Conv <pads = [1,1,1,1]> (i, s)
      d = Relu (h)
      t = Concat <axis = 1> ({joined})
      y = Conv <pads = [1,1,1,1]> (t, u)
      {rest}
    }}""")
    return halved(model)


def test_branches_side_by_side_are_one_op() -> None:
    """What others read, too, goes in as it is; the parts' own ops are gone from the model."""
    model = inception()
    made, report = optimize(model)
    (op,) = (op for op in fused_ops(made).values() if op.rule == "concat")
    assert report.by_rule()["concat"] == 1
    (node,) = (n for n in made.graph.node if n.op_type == op.name)
    assert op.body.node[-1].op_type == "Concat"
    assert op.body.node[-1].input[3] in op.body.input
    assert "Concat" not in {n.op_type for n in made.graph.node}
    assert {n.op_type for n in made.graph.node} >= {f.name for f in made.functions}
    assert len(node.output) == 1
    assert_same_numbers(model, made)
    assert_same_numbers(model, onnxfuse.unfuse(made))


def test_a_constant_between_the_nodes_of_a_body_is_no_node_that_was_replaced() -> None:
    """One of a later part stands there, as the factors of a Resize do: every node comes back under its name."""
    model = parse("g (float[2,9] x) => (float[2,9] y) <float half = {0.5}> { m = Mul (x, half) y = Softmax (m) }")
    made, _ = optimize(model)
    plain = [n.name for n in onnxfuse.unfuse(made).graph.node]
    (function,) = made.functions
    body = [n.op_type for n in function.node]
    assert body == ["Constant", "Mul", "Softmax"]
    passed = helper.make_node("Identity", ["x0"], ["v2"])
    function.node.insert(0, passed)
    function.node[2].input[0] = "v2"
    for node in made.graph.node:
        for fact in node.metadata_props:
            if fact.key == "onnxfuse.nodes":
                fact.value = json.dumps(["first", *json.loads(fact.value)])
            if fact.key == "onnxfuse.values":
                fact.value = json.dumps([*json.loads(fact.value), "passed"])
    back = onnxfuse.unfuse(made)
    assert [n.name for n in back.graph.node] == ["first", *plain]
    assert_same_numbers(model, back)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (inception("d, d", 16), "2 values concatenated, expected 2 to 8 different ones"),
        (inception("d, i", 16), "no value side by side is what a kernel computes for that alone"),
    ],
)
def test_what_is_no_op_of_parts_stays_with_the_reason(model: ModelProto, reason: str) -> None:
    _, report = optimize(model)
    assert [n.refusal.reason for n in report.stopped if n.rule == "concat"] == [reason]


@pytest.mark.parametrize(
    ("channels", "told"),
    [
        ("6", "'a' has 6 channels, not a multiple of"),
        ("C", "'a' has C channels, not a multiple of"),
        ("64", "no value"),
    ],
)
def test_each_part_has_whole_slots_of_channels(channels: str, told: str) -> None:
    """Known ones: the next part begins where this one ends."""
    text = f"g (float16[2,5,7,{channels}] a, float16[2,5,7,64] b) => (float16[2,5,7,E] y)"
    graph = graph_of(parse(f"{text} {{ y = Concat <axis = 3> (a, b) }}"))
    reason = concat._members(graph, graph.nodes[0], {})
    assert isinstance(reason, str)
    assert reason.startswith(told)


def test_a_concat_of_something_else_was_not_near() -> None:
    """Shapes are put together in every exported model: that says nothing of images."""
    _, report = optimize(parse("g (int64[1] a, int64[1] b) => (int64[2] y) { y = Concat <axis = 0> (a, b) }"))
    (stopped,) = (s for s in report.stopped if s.rule == "concat")
    assert (stopped.refusal.far, stopped.refusal.size) == (True, 3)
    _, report = optimize(inception("d, d", 16))
    assert not any(s.refusal.far for s in report.stopped if s.rule == "concat")


@pytest.mark.parametrize(("shape", "axis", "joined"), [
    ("2,5,7,4", 3, True), ("2,5,7,4", -1, True), ("2,5,7,4", 1, False), ("2,5,7,4", -2, False),
    ("2,5,4", -1, False), ("2,5,7,9,4", -1, False), ("2,5,7,9,4", 3, False),
])  # fmt: skip
def test_channels_are_the_last_axis_of_four(shape: str, axis: int, joined: bool) -> None:
    """Of channels-last images alone: tokens and volumes are concatenated by other kernels."""
    made = parse(f"g (float[{shape}] a, float[{shape}] b) => (float y) {{ y = Concat <axis = {axis}> (a, b) }}")
    extents = [int(n) for n in shape.split(",")]
    extents[axis] *= 2
    del made.graph.output[0].type.tensor_type.shape.dim[:]
    for extent in extents:
        made.graph.output[0].type.tensor_type.shape.dim.add().dim_value = extent
    graph = graph_of(made)
    assert joins_channels(graph, graph.nodes[0]) == joined


@pytest.mark.parametrize(("joined", "channels", "library"), [("a, c", 16, False), ("b, d", 24, True)])
def test_an_op_of_parts_has_a_library_form_where_a_part_has_one(joined: str, channels: int, library: bool) -> None:
    """Convolutions of windows have, products have none."""
    made, _ = optimize(inception(joined, channels))
    (op,) = (op for op in fused_ops(made).values() if op.rule == "concat")
    assert (op.library is not None) == library
