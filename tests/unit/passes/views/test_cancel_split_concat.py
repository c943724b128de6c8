"""Parts of a value that are put side by side again in their order are the value; others stay as they are."""

import onnx
import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.passes.views.cancel_split_concat import cancel_split_concat
from onnxfuse.shapes.inference import infer
from tests.support.small import assert_same_numbers, parse

NUMBERS = """<int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] one = {1},
  int64[1] last = {9223372036854775807}, int64[1] third_last = {-3}, int64[2] halves = {4, 4},
  int64[3] thirds = {2, 2, 4}>"""
HALVES = "a, b = Split <axis = 1> (x, halves) "
THIRDS = "a, b, c = Split <axis = -3> (x, thirds) "
CUT = "a = Slice (x, zero, four, one) b = Slice (x, four, last, one) "
FROM_END = "a = Slice (x, zero, four, one, one) b = Slice (x, four, last, third_last, one) "


def rewritten(nodes: str, channels: str = "8") -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return the model of these nodes over images of 8 channels, and what the step makes of it."""
    model = parse(f"g (float[N,{channels},H,W] x, float[N,8,H,W] z) => (float[N,C,P,Q] y) {NUMBERS} {{ {nodes} }}", 17)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = Graph(made.graph, infer(made).graph, 17)
    changed = cancel_split_concat(graph)
    if changed:
        graph.eliminate_dead_code()
    graph.commit()
    assert changed == (made.graph.node != model.graph.node)
    return model, made


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        (f"{HALVES} r = Relu (b) y = Concat <axis = 1> (a, b, r)", ["Split", "Relu", "Concat"]),
        (f"{CUT} r = Relu (b) y = Concat <axis = 1> (a, b, r)", ["Slice", "Relu", "Concat"]),
        (f"{FROM_END} y = Concat <axis = -3> (z, a, b)", ["Concat"]),
        (f"{THIRDS} y = Concat <axis = 1> (a, b, c, a, b, c)", ["Concat"]),
        (f"{HALVES} y = Concat <axis = 1> (a, b)", ["Identity"]),
    ],
)
def test_they_are_the_value(nodes: str, left: list[str]) -> None:
    """What only the Concat read of them goes; the numbers are the same."""
    model, made = rewritten(nodes)
    assert [n.op_type for n in made.graph.node] == left
    onnx.checker.check_model(made, full_check=True)
    assert_same_numbers(model, made)


@pytest.mark.parametrize(
    "nodes",
    [
        f"{HALVES} y = Concat <axis = 1> (b, a)",
        f"{HALVES} y = Concat <axis = 1> (a, z, b)",
        f"{HALVES} y = Concat <axis = 0> (a, b)",
        f"{HALVES} y = Concat <axis = 1> (b, z)",
        f"{THIRDS} y = Concat <axis = 1> (a, b, z)",
        f"{THIRDS} y = Concat <axis = 1> (b, c)",
        f"{CUT} c, d = Split <axis = 1> (z, halves) y = Concat <axis = 1> (a, d)",
        "a = Slice (x, zero, four, one, two) b = Slice (x, four, last, one) y = Concat <axis = 1> (a, b)",
        "a = Slice (x, zero, four, one) b = Slice (x, two, last, one) y = Concat <axis = 1> (a, b)",
    ],
)
def test_others_stay(nodes: str) -> None:
    """In another order, with something between them, along another axis, not all of one, of two values, with gaps."""
    model, made = rewritten(nodes)
    assert made.graph.node == model.graph.node


def test_of_an_unknown_number_of_channels_nothing_is_known() -> None:
    model, made = rewritten(f"{CUT} y = Concat <axis = 1> (a, b)", "D")
    assert made.graph.node == model.graph.node
