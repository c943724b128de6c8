"""Operators that ONNX has withdrawn stand as nodes, where ONNX Runtime runs them, and in no function."""

import warnings
from collections.abc import Collection
from typing import Any

import onnx
import pytest

from onnxfuse.fusion.region import make_op as module
from onnxfuse.fusion.region.make_op import Made, make_op
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import FusedOp
from onnxfuse.rules.match.replace import _not_in_opset
from onnxfuse.shapes.inference import infer
from tests.support.small import fuses, ops, optimize, parse, reasons

NEWEST = onnx.defs.onnx_opset_version()
WITHDRAWN = sorted({
    (s.name, opset)
    for s in onnx.defs.get_all_schemas_with_history()
    if s.deprecated and not s.domain
    for opset in (s.since_version, NEWEST)
    if onnx.defs.get_schema(s.name, opset).deprecated
})  # fmt: skip
"""Each with the first and the newest operator set that it is withdrawn from."""


def groups(rank: int, element: str, scale: int) -> str:
    extents = ",".join(["N", "4", *["3"] * (rank - 2)])
    numbers = ",".join(["1.5", "-0.5", "2", "0.25"][:scale])
    return f"""g ({element}[{extents}] x, {element}[{extents}] r) => ({element}[{extents}] y)
    <{element}[{scale}] s = {{{numbers}}}, {element}[{scale}] b = {{{numbers}}}> {{
      a = Add (x, r) n = GroupNormalization <num_groups = 2> (a, s, b) y = Relu (n) }}"""


@pytest.mark.parametrize("element", ["float", "double"])
@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("opset", [18, 19, 20])
def test_a_withdrawn_normalization_stays_a_node(opset: int, rank: int, element: str) -> None:
    """No fused op holds an operator that is deprecated at the model's operator set, and the report says why."""
    model = parse(groups(rank, element, scale=2), opset)
    with warnings.catch_warnings(action="error"):
        made, _ = optimize(model)
    assert ops(made) == ["Add", "GroupNormalization", "Relu"]
    assert f"GroupNormalization is deprecated in ONNX's opset {opset}" in reasons(model, "group_norm")


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_its_successor_is_fused(rank: int) -> None:
    """The same name, defined anew in opset 21, is fused as any other operator."""
    assert fuses(groups(rank, "float", scale=4), opset=21) == ["{Add GroupNormalization Relu}"]


@pytest.mark.parametrize(("name", "opset"), WITHDRAWN)
def test_no_withdrawn_operator_is_put_into_a_function(name: str, opset: int) -> None:
    """Whatever is withdrawn from an operator set, neither a fused op nor what a rule writes has it there."""
    count = onnx.defs.get_schema(name, opset).max_input
    inputs = [f"x{i}" for i in range(min(count, 3))]
    types = [onnx.helper.make_tensor_value_info(v, onnx.TensorProto.FLOAT, [1, 4]) for v in (*inputs, "y")]
    proto = onnx.helper.make_graph([onnx.helper.make_node(name, inputs, ["y"])], "g", types[:-1], types[-1:])
    graph = Graph(proto, proto, opset)
    said = make_op(graph, graph.nodes, "any", "row")
    assert said == f"{name} is deprecated in ONNX's opset {opset}: it may be a node, not part of a function"
    assert _not_in_opset(name, "", len(inputs), set(), opset) == f"{name} is deprecated in opset {opset}"


def whole(text: str, opset: int = 17) -> Graph:
    """Return the graph of a model, with the types that are inferred for it."""
    model = parse(text, opset)
    return Graph(model.graph, infer(model).graph, opset)


@pytest.mark.parametrize(
    ("text", "opset", "reason"),
    [
        (
            "g (float[N,4] x, float[4] s) => (float[N,4] y) { n = LayerNormalization (x, s) y = Relu (n) }", 16,
            "LayerNormalization is not in ONNX's opset 16: ONNX Runtime knows it as a node, not in a function",
        ),
        (
            "g (int64[N] x) => (int64[N] y) <int64 two = {2}> { a = Mul (x, two) y = Neg (a) }", 8,
            "'two' is no Constant of ONNX's opset 8, which are floating point numbers alone",
        ),
        (
            "g (float[N] x) => (float[N] y) { a = mine.Odd (x) y = Neg (a) }", 17,
            "the element type of 'a' is not known",
        ),
    ],
)  # fmt: skip
def test_no_function_holds_what_onnx_runtime_does_not_run_there(text: str, opset: int, reason: str) -> None:
    """The same nodes run outside of functions, and stay there."""
    graph = whole(text, opset)
    nodes = [n for n in graph.nodes if not n.domain]
    assert make_op(graph, nodes, "any", "pointwise") == reason


def made_of(graph: Graph, begin: int, rule: str, known: Collection[str], made: Made | None) -> tuple[FusedOp, Node]:
    """Return the op of two adjacent nodes, which there is."""
    here = make_op(graph, graph.nodes[begin : begin + 2], rule, "pointwise", None, known, made)
    assert not isinstance(here, str), here
    return here


def test_the_op_of_equal_regions_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions that differ in names alone share it, and other constants or outputs make another: as without a record."""
    graph = whole("""g (float[N,4] x) => (float[N,4] y, float[N,4] e) <float two = {2}, float three = {3}> {
      a = Mul (x, two) b = Tanh (a) c = Mul (b, two) d = Tanh (c) e = Mul (d, two) f = Tanh (e) h = Mul (f, three)
      y = Tanh (h) }""")
    written, own = list[object](), module._op

    def noted(region: Any, *given: Any) -> FusedOp | str:
        written.append(region)
        return own(region, *given)

    monkeypatch.setattr(module, "_op", noted)
    made: Made = {}
    known = dict[str, FusedOp]()
    names = []
    for index in range(0, len(graph.nodes), 2):
        op, fused = made_of(graph, index, "any", known, made)
        alone, same = made_of(graph, index, "any", known, None)
        assert (op, fused.proto) == (alone, same.proto)
        known[op.name] = op
        names.append(op.name)
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert len(written) == 4 + len(set(names))


def test_an_op_that_was_not_made_is_named_anew() -> None:
    """A region's op is another rule's by then, of the same body: there is one name for both."""
    graph = whole("g (float[N,4] x) => (float[N,4] y) { a = Tanh (x) b = Relu (a) c = Tanh (b) y = Relu (c) }")
    made: Made = {}
    first, _ = made_of(graph, 0, "one", (), made)
    other, _ = made_of(graph, 0, "two", (), made)
    assert first.name != other.name
    again, node = made_of(graph, 2, "one", [other.name], made)
    assert (again.name, node.op) == (other.name, other.name)
