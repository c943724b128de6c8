"""A Transpose of a Transpose is one, or none; and one before a Cast stands behind it."""

import pytest

import onnxfuse
from tests.support.small import assert_same_numbers, ops, parse

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ("t = Transpose <perm = [0,2,1]> (x)  u = Transpose <perm = [1,0,2]> (t)  y = Neg (u)", ["Transpose", "Neg"]),
        ("t = Transpose <perm = [1,2,0]> (x)  u = Transpose <perm = [2,0,1]> (t)  y = Neg (u)", ["Neg"]),
        ("t = Transpose (x)  u = Transpose (t)  y = Neg (u)", ["Neg"]),
        ("t = Transpose (x)  u = Transpose <perm = [0,2,1]> (t)  v = Transpose (u)  y = Neg (v)", ["Transpose", "Neg"]),
        # The first one is read elsewhere: it stays, and the second one no longer waits for it.
        (
            "t = Transpose <perm = [0,2,1]> (x)  u = Transpose <perm = [2,0,1]> (t)  a = Neg (u)  b = ReduceSum (t) "
            "y = Mul (a, b)",
            ["Transpose", "Transpose", "Neg", "ReduceSum", "Mul"],
        ),
    ],
)
def test_transposes_behind_each_other_are_one(nodes: str, left: list[str]) -> None:
    model = parse(f"{HEAD} g (float[N,3,4] x) => (float[A,B,C] y) {{ {nodes} }}")
    alone = onnxfuse.optimize(model, only=["softmax"])
    assert sorted(ops(alone)) == sorted(left)
    assert_same_numbers(model, alone)


def test_an_image_that_is_turned_over_and_back_stays_so() -> None:
    """The other way round it is what two kernels that are channels last leave between them."""
    head = f"{HEAD} g (float[N,3,4,5] x) => (float[A,B,C,D] y)"
    for first, second, left in (("0,2,3,1", "0,3,1,2", 2), ("0,3,1,2", "0,2,3,1", 0)):
        model = parse(
            f"{head} {{ t = Transpose <perm = [{first}]> (x)  u = Transpose <perm = [{second}]> (t)  y = Neg (u) }}"
        )
        assert ops(onnxfuse.optimize(model, only=["softmax"])).count("Transpose") == left


def test_an_image_of_which_a_view_is_taken_is_turned_back() -> None:
    """As the heads of YOLO12's values are, beside its attention: a kernel copied them for nothing."""
    text = """g (float[N,3,4,5] x) => (float[N,60] y) <int64[2] flat = {0,60}> {
      t = Transpose <perm = [0,2,3,1]> (x)  u = Transpose <perm = [0,3,1,2]> (t)
      r = Reshape (u, flat)  MORE y = Neg (r) }"""
    for more, left in (("", 0), ("z = Exp (u)", 2)):
        model = parse(HEAD + text.replace("MORE", more).replace("y)", "y, float[N,3,4,5] z)" if more else "y)", 1))
        assert ops(onnxfuse.optimize(model, only=["softmax"])).count("Transpose") == left
        assert_same_numbers(model, onnxfuse.optimize(model))


def test_an_output_keeps_its_name() -> None:
    """What is turned back to the model's input is still an output of its own."""
    model = parse(f"""{HEAD} g (float[3,4] x) => (float[3,4] y) {{ t = Transpose (x)  y = Transpose (t) }}""")
    alone = onnxfuse.optimize(model, only=["softmax"])
    assert ops(alone) == ["Identity"]
    assert_same_numbers(model, alone)


def test_a_cast_is_done_before_values_are_turned() -> None:
    """Where it alone reads them; images between layouts stay as they are."""
    text = f"""{HEAD}
    g (float16[N,3,4] x, float16[N,3,4,5] i) => (float[A,B,C] y, float16[D,E,F] z, float[G,H,I,J] v) {{
      t = Transpose <perm = [0,2,1]> (x)  c = Cast <to = 1> (t)  y = Neg (c)
      u = Transpose <perm = [1,0,2]> (x)  d = Cast <to = 1> (u)
      e = ReduceSum (d)  f = Cast <to = 10> (e)  z = Mul (u, f)
      w = Transpose <perm = [0,2,3,1]> (i)  k = Cast <to = 1> (w)  v = Neg (k)
    }}"""
    model = parse(text)
    alone = onnxfuse.optimize(model, only=["softmax"])
    order = ops(alone)
    assert order.index("Cast") < order.index("Transpose")
    assert [n.op_type for n in alone.graph.node if "w" in n.output or "w" in n.input] == ["Transpose", "Cast"]
    assert [n.op_type for n in alone.graph.node if "u" in n.output or "d" in n.output] == ["Transpose", "Cast"]
    assert_same_numbers(model, alone)
