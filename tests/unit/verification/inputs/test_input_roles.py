"""What inputs are for is read from the graph."""

import numpy as np
import onnx
import pytest

from onnxfuse.verification.inputs.input_roles import roles
from tests.support.verification.small_models import text_model


@pytest.mark.parametrize(
    ("graph", "role"),
    [
        ("y = Gather(t, i)", (0, 6)),
        ("y = Gather <axis = 1> (t, i)", (0, 4)),
        ("j = Cast <to = 6> (i)  k = Unsqueeze(j, a)  y = Gather(t, k)", (0, 6)),
        ("y = Gather(t, i)  z = Gather <axis = 1> (t, i)", (0, 4)),
        ("j = Gather <axis = 1> (i, two)  y = Gather(t, j)", (0, 6)),
        ("p = Equal(i, a)  y = Gather(t, i)", (0, 6)),
        ("y = GatherElements <axis = -1> (t, i)", (0, 4)),
        ("y = Cast <to = 1> (i)", "mask"),
        ("p = Equal(i, a)  y = Where(p, a, i)", "mask"),
        ("y = Add(i, a)", "number"),
        ("k = Gather(a, i)  y = Add(k, a)", (0, 0)),
        ("j = Add(i, two)  y = Gather(t, j)", (0, 4)),
        ("j = Sub(i, two)  y = Gather(t, j)", (2, 8)),
        ("p = Equal(i, a)  j = Where(p, i, a)  y = Gather(t, j)", (0, 6)),
        ("v = Constant <value = float[2] {0, 1}> ()  y = OneHot(i, two, v)", (0, 1)),
        ("k = Unsqueeze(i, a)  y = ScatterND(t, k, i)", (0, 4)),
        ("y = GatherND(t, i)", (0, 4)),
        ("y = ConstantOfShape(i)", (1, 4)),
    ],
)
def test_what_integers_are_for_is_read_from_the_graph(graph: str, role: str | tuple[int, int]) -> None:
    """Row numbers stay inside the table that they select from; what is only asked yes or no is a mask."""
    made = text_model(
        f"g (int64[n, m] i) => (int64[k] y) {{ {graph} }}",
        t=np.zeros((7, 5), "f"),
        a=np.zeros(1, np.int64),
        two=np.array(2, np.int64),
    )
    found = roles(made)["i"]
    assert (found.ends({}) or found.kind) == role


def test_roles_are_followed_into_branches_and_functions() -> None:
    """A table that is looked up inside a function or an If bounds its indices too."""
    called = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20, "own": 1]> g (int64[n] i, float[7, 5] t) => (float[n, 5] y) '
        '{ y = own.Look(t, i) } <domain: "own", opset_import: ["": 20]> Look (t, i) => (y) { y = Gather(t, i) }'
    )
    assert roles(called)["i"].ends({}) == (0, 6)
    branch = """g (bool p, int64[n] i, float[7, 5] t) => (float[n, 5] y) { y = If (p) <
        then_branch = yes () => (float[n, 5] a) { a = Gather(t, i) },
        else_branch = no () => (float[n, 5] b) { b = Gather(t, i) } > }"""
    assert roles(text_model(branch))["i"].ends({}) == (0, 6)


def test_a_number_of_turns_is_one_at_least_and_an_extent_with_no_name_is_known() -> None:
    """A Loop whose trip count is an input runs its body, and a length lies within an axis that nobody named."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[4] x, int64 k, float[?, 2] z, int64[2] l) '
        "=> (float[4] y, float[?, 2] r) { c = Constant <value = bool {1}> () y = Loop (k, c, x) <body = "
        "b (int64 i, bool ci, float[4] s) => (bool co, float[4] t) { co = Identity (ci) t = Exp (s) }> "
        "r = ReverseSequence (z, l) }"
    )
    found = roles(model)
    assert found["k"].ends({}) == (1, 4)
    assert found["l"].ends({"z[0]": 9}) == (1, 9)
