"""An If whose condition is known, a Loop of a known few trips: their nodes stand in the graph, and compute the same."""

import numpy as np
import onnx
import pytest

import onnxfuse
from tests.support.small import fuses, ops, parse, run, signed_inputs

THEN = "then_branch = yes () => (float[N,4] a) { a = Relu (x) }"
ELSE = "else_branch = no () => (float[N,4] b) <float two = {2}> { b = Mul (x, two) }"
FLOW = {"If", "Loop"}


def alone(text: str, opset: int = 17) -> list[str]:
    """Return the operators that are left where no rule but one that matches nothing applies."""
    return fuses(text, "softmax", opset=opset)


@pytest.mark.parametrize(("flag", "left"), [("1", ["Relu", "Neg"]), ("0", ["Mul", "Neg"])])
def test_an_if_is_the_branch_that_it_takes(flag: str, left: list[str]) -> None:
    text = f"g (float[N,4] x) => (float[N,4] y) <bool c = {{{flag}}}> {{ i = If (c) <{THEN}, {ELSE}>  y = Neg (i) }}"
    assert alone(text) == left


def test_a_question_about_a_known_shape_is_answered() -> None:
    """As torch.jit asks whether there is an axis of 1: the nodes fuse with those around it."""
    text = f"""g (float[N,4] x) => (float[N,4] y) <int64 one = {{1}}, int64 zero = {{0}}> {{
      s = Shape (x)  w = Gather <axis = 0> (s, one)  c = Equal (w, one)  i = If (c) <{THEN}, {ELSE}>  y = Neg (i)
    }}"""
    assert fuses(text) == ["{Mul Neg}"]


def test_a_condition_that_is_computed_stays() -> None:
    text = f"g (float[N,4] x, bool c) => (float[N,4] y) {{ i = If (c) <{THEN}, {ELSE}>  y = Neg (i) }}"
    assert alone(text) == ["If", "Neg"]


def test_what_a_branch_passes_on_is_read_where_it_is() -> None:
    """A value from outside, a weight of the branch, and one that the graph gives under its own name."""
    branch = "() => (float[N,4] a, float[4] b) <float[4] b = {1,2,3,4}> { a = Identity (x) }"
    text = f"""g (float[N,4] x) => (float[N,4] y, float[N,4] a1) <bool c = {{1}}> {{
      a1, w = If (c) <then_branch = yes {branch}, else_branch = no {branch}>  y = Add (a1, w)
    }}"""
    assert sorted(alone(text)) == ["Add", "Identity"]


LOOP = """g (float[N,4] x) => (float[N,4] y) <int64 n = {%s}, bool go = {%s}, float half = {0.5}> {
  y = Loop (n, go, x) <body = b (int64 i, bool c, float[N,4] h) => (bool c1, float[N,4] h2) {
    c1 = Identity (%s)  h1 = Mul (h, half)  f = Cast <to = 1> (i)  h2 = Add (h1, f)
  }>
}"""


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_loop_is_its_trips(trips: int) -> None:
    """Each with its own number, which is a constant."""
    assert alone(LOOP % (trips, 1, "c")) == (["Mul", "Add"] * trips or ["Identity"])


@pytest.mark.parametrize(("trips", "go", "goes"), [("3", "1", "go"), ("5", "0", "c"), ("-2", "1", "c")])
def test_a_loop_whose_condition_is_known(trips: str, go: str, goes: str) -> None:
    """A constant of the graph around it; one that never begins."""
    assert not FLOW & {*alone(LOOP % (trips, go, goes))}


def test_trips_that_are_computed_stay() -> None:
    text = LOOP.replace("float[N,4] x)", "float[N,4] x, int64 n)").replace("int64 n = {%s}, ", "")
    assert alone(text % ("1", "c")) == ["Loop"]


def test_many_trips_stay() -> None:
    """The file would grow by a thousand nodes and more."""
    assert alone(LOOP % ("300", "1", "c")) == ["Loop"]


def test_a_loop_that_may_end_early_stays() -> None:
    text = (LOOP % ("3", "1", "c")).replace(
        "c1 = Identity (c)", "m = ReduceMax <keepdims = 0> (h)  c1 = Greater (half, m)"
    )
    assert alone(text) == ["Loop"]


@pytest.mark.parametrize("opset", [11, 17])
def test_what_every_trip_gives_stands_side_by_side(opset: int) -> None:
    text = """g (float[N,4] x) => (float[3,N,4] all, float[N,4] last) <int64 n = {3}, bool go = {1}> {
      last, all = Loop (n, go, x) <body = b (int64 i, bool c, float[N,4] h) => (bool c, float[N,4] h1, float[N,4] h1) {
        h1 = Sin (h)
      }>
    }"""
    model = parse(text, opset)
    made = onnxfuse.optimize(model, only=["softmax"])
    assert sorted(ops(made)) == ["Concat", "Identity", "Sin", "Sin", "Sin", "Unsqueeze", "Unsqueeze", "Unsqueeze"]
    for before, after in zip(*(run(m, signed_inputs(model)) for m in (model, made)), strict=True):
        np.testing.assert_array_equal(before, after)


def test_bodies_in_bodies_read_what_is_there_now() -> None:
    """The inner If stays; it reads the trip's own values."""
    text = """g (float[N,4] x, bool c0) => (float[N,4] y) <int64 n = {2}, bool go = {1}> {
      y = Loop (n, go, x) <body = b (int64 i, bool c, float[N,4] h) => (bool c, float[N,4] h2) {
        h1 = Cos (h)
        h2 = If (c0) <then_branch = yes () => (float[N,4] a) { a = Add (h1, h) },
                      else_branch = no () => (float[N,4] e) { e = Mul (h1, h) }>
      }>
    }"""
    model = parse(text)
    made = onnxfuse.optimize(model, only=["softmax"])
    assert ops(made) == ["Cos", "If", "Cos", "If"]
    for flag in (True, False):
        feeds = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "c0": np.array(flag)}
        np.testing.assert_array_equal(run(model, feeds)[0], run(made, feeds)[0])
    assert onnxfuse.optimize(made, only=["softmax"]) == made


def test_nodes_of_trips_have_names_of_their_own() -> None:
    """ONNX Runtime refuses two of one name."""
    model = parse(LOOP % ("2", "1", "c"))
    for node in model.graph.node[0].attribute[0].g.node:
        node.name = f"n/{node.op_type}"
    model.graph.node.add(op_type="Abs", name="n/Mul_0", input=["y"], output=["z"])
    model.graph.output.add().CopyFrom(onnx.helper.make_tensor_value_info("z", 1, ("N", 4)))
    made = onnxfuse.optimize(model, only=["softmax"])
    assert [n.name for n in made.graph.node] == ["n/Mul_0_1", "n/Add_0", "n/Mul_1", "n/Add_1", "n/Mul_0"]
