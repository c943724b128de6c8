"""A Clip of a Clip is one Clip with the bounds that hold in the end."""

import numpy as np
import pytest
from onnx import numpy_helper

from tests.support.small import assert_same_numbers, ops, optimize, parse, run

TEXT = """g (TYPE[N,4] x) => (TYPE[N,4] y) <TYPE a = {-1}, TYPE b = {3}, TYPE c = {0}, TYPE d = {2}, TYPE e = {5}> {
  NODES
}"""

MERGED = {
    "p = Clip (x, a, b) y = Clip (p, c, d)": [0, 2],
    "p = Clip (x, c, d) y = Clip (p, a, b)": [0, 2],
    "p = Clip (x, a, c) y = Clip (p, d, e)": [2, 2],
    "p = Clip (x, b, e) y = Clip (p, a, d)": [2, 2],
    "p = Clip (x, a) y = Clip (p, , d)": [-1, 2],
    "p = Clip (x, , e) y = Clip (p, c)": [0, 5],
    "p = Clip (x, a) y = Clip (p, c)": [0],
    "p = Clip (x, a, b) q = Clip (p, , e) y = Clip (q, c, d)": [0, 2],
}


@pytest.mark.parametrize("opset", [12, 17, 23])
@pytest.mark.parametrize("type_", ["float", "double", "int64"])
@pytest.mark.parametrize("nodes", MERGED)
def test_bounds_of_bounds(nodes: str, type_: str, opset: int) -> None:
    """Each bound is that of the first Clip, within those of the second."""
    model = parse(TEXT.replace("TYPE", type_).replace("NODES", nodes), opset)
    made, _ = optimize(model, "softmax")
    assert ops(made) == ["Clip"]
    constants = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    bounds = [constants[name] for name in made.graph.node[0].input[1:] if name]
    assert [b.item() for b in bounds] == MERGED[nodes]
    assert_same_numbers(model, made)


@pytest.mark.parametrize(
    "nodes",
    [
        "p = Clip (x, b, a) y = Clip (p, c, d)",  # out of order: all of it is the upper bound
        "p = Clip (x, a, b) y = Clip (p, d, c)",
        "p = Clip (x, a, b) q = Clip (p, c, d) y = Add (p, q)",
        "p = Clip (x, a, b) m = ReduceMax <keepdims = 0> (x) y = Clip (p, c, m)",
    ],
)
def test_what_stays(nodes: str) -> None:
    """Bounds out of order, a first Clip that is read elsewhere, bounds that are computed."""
    model = parse(TEXT.replace("TYPE", "float").replace("NODES", nodes))
    made, _ = optimize(model, "softmax")
    assert ops(made).count("Clip") == 2
    assert_same_numbers(model, made)


def test_a_number_that_is_none_stays_none() -> None:
    """NaN passes one Clip as it passes two, and infinities are bounded."""
    model = parse(TEXT.replace("TYPE", "float").replace("NODES", "p = Clip (x, a, b) y = Clip (p, c, d)"))
    made, _ = optimize(model, "softmax")
    x = np.array([[np.nan, np.inf, -np.inf, 1]], np.float32)
    np.testing.assert_array_equal(run(made, {"x": x})[0], run(model, {"x": x})[0])
