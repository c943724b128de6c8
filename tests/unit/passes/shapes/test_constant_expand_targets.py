"""Targets of Expand become constants where the shapes tell them, or read each extent from a value that has it."""

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, numpy_helper

from onnxfuse.passes import pipeline
from onnxfuse.passes.shapes.constant_expand_targets import constant_expand_targets
from onnxfuse.shapes.types import DeclaredExtent, ValueType
from tests.support.extents import extents
from tests.support.small import graph_of, parse

CHOSEN = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N,3,8] x) => (float[N,4,8] y)
<float[1,1,8] token = {1,2,3,4,5,6,7,8}, int64[1] zero = {0}, int64[2] kept = {-1,-1}, int64[1] single = {1},
 int64[3] ones = {1,1,1}, int64[3] given = {-1,-1,-1}> {
  a = Relu (x)  s = Shape (a)  n = Gather (s, zero)  asked = Concat <axis = 0> (n, kept)
  own = Equal (asked, given)  target = Where (own, ones, asked)
  spread = Expand (token, target)  all = Concat <axis = 1> (spread, a)  y = Neg (all) }"""


def test_an_expand_that_keeps_some_extents_chooses_nothing() -> None:
    """As torch writes `token.expand(n, -1, -1)`: its extents are read, without Equal and Where on the CPU."""
    model, made = parse(CHOSEN), parse(CHOSEN)
    pipeline.run(made, rules=())
    left = pipeline.count_ops(made)
    assert left["Expand"] == 1
    assert not {"Where", "Equal"} & set(left)
    assert left["Shape"] == 1
    for rows in (0, 1, 3):
        x = np.arange(rows * 24, dtype=np.float32).reshape(rows, 3, 8) - 20
        mine, theirs = (
            onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
            for m in (made, model)
        )
        np.testing.assert_array_equal(mine[0], theirs[0])


Extents = tuple[DeclaredExtent, ...]


def expanded(text: str, result: Extents | None = None, source: Extents | None = None) -> tuple[ModelProto, bool]:
    """Return the model after the pass, and whether that changed it; `result` and `source` are the shapes of y and x."""
    model = parse(text, 18)
    graph = graph_of(model)
    for value, shape in (("y", result), ("x", source)):
        if shape is not None:
            graph.retype(value, ValueType(1, extents(*shape)))
    changed = constant_expand_targets(graph)
    graph.commit()
    return model, changed


def constants(model: ModelProto) -> list[list[int]]:
    """Return the constant targets of Expand."""
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return [weights[n.input[1]].tolist() for n in model.graph.node if n.op_type == "Expand"]


COMPUTED = "g (float[P,Q] x, int64[K] t) => (float[R,S] y) { u = Abs (t)  y = Expand (x, u) }"
CHOICE = """g (float[1,3] x, int64[2] t, int64[2] o, bool[2] b, float[N,5] z) => (float[M,3] y) {
  w = Where (b, t, o)  u = Abs (w)  y = Expand (x, u) }"""


@pytest.mark.parametrize(
    ("source", "result", "target"),
    [
        ((1, 3), (2, 3), [2, 3]), ((3,), (2, 3), [2, 3]), (("N", 1), ("N", 4), [1, 4]),
        (("N", 3), (2, "N", 3), [2, 1, 3]), ((1,), (2, 1, 5), [2, 1, 5]),
    ],
)  # fmt: skip
def test_a_target_that_the_shapes_tell_is_a_constant(source: Extents, result: Extents, target: list[int]) -> None:
    """An extent of 1 leaves that of the operand."""
    model, changed = expanded(COMPUTED, result, source)
    assert changed
    assert constants(model) == [target]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (COMPUTED, ("N", 3)), (COMPUTED, (None, 3)), (COMPUTED.replace(" Expand", " other.Expand"), (2, 3)),
        ("g (float[1,3] x) => (float[2,3] y) <int64[2] u = {2, 3}> { y = Expand (x, u) }", (2, 3)),
        (CHOICE, ("L", 3)), (CHOICE, (None, 3)), (CHOICE.replace("Where (b, t, o)", "Add (t, o)"), ("N", 3)),
    ],
    ids=["a name", "unknown", "another domain", "constant", "a name of no value", "unknown choice", "no choice"],
)  # fmt: skip
def test_other_targets_stay(text: str, result: Extents) -> None:
    """Extents that are not known of any value, and what is constant already."""
    model, changed = expanded(text, result, (1, 3))
    assert not changed
    assert model == parse(text, 18)


@pytest.mark.parametrize("result", [("N", 3), (4, "N")])
def test_a_selected_extent_is_read_from_a_value_that_has_it(result: Extents) -> None:
    """Beside numbers and what is left to the operand."""
    model, changed = expanded(CHOICE, result, (1, 3))
    assert changed
    shapes = [n for n in model.graph.node if n.op_type == "Shape"]
    assert [n.input[0] for n in shapes] == ["z"]


def test_an_extent_is_not_read_from_a_value_behind() -> None:
    """Which would be a cycle."""
    text = """g (float[1,3] x, int64[2] t, int64[2] o, bool[2] b, float[K] c) => (float[M,3] y, int64[1] s) {
      w = Where (b, t, o)  PLACE  s = Shape (z) }"""
    expand, compress = "y = Expand (x, w)", "z = Compress (c, b)"
    for place, before in ((f"{compress} {expand}", True), (f"{expand} {compress}", False)):
        model = parse(text.replace("PLACE", place), 18)
        graph = graph_of(model)
        graph.retype("y", ValueType(1, extents("L", 3)))
        graph.retype("z", ValueType(1, extents("L")))
        assert constant_expand_targets(graph) == before
