"""Runs of elements get zeros at their ends, in the weights that make and read them: the outputs stay the same."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.passes.alignment.pad_channels import RunLayout, Runs, pad_runs, reached
from tests.support.small import assert_same_numbers, graph_of, parse

SIZE, WIDTH = 3, 4
"""A run, and a padded one."""

HEADS = "r = Reshape (a, apart) t = Transpose <perm = [0,2,1,3]> (r) "
BACK = "b = Transpose <perm = [0,2,1,3]> (e) h = Reshape (b, whole) "
ALONG = {
    "nothing": "h = Mul (a, scale)",
    "factors of each": "h = Mul (a, of_each)",
    "a bias of each": "h = Add (of_each, a)",
    "heads": f"{HEADS} e = Div (t, scale) {BACK}",
    "a product of heads": f"{HEADS} u = Transpose <perm = [0,2,3,1]> (r) s = MatMul (t, u) e = MatMul (s, t) {BACK}",
    "an axis that comes and goes": "u = Unsqueeze (a, one) e = Squeeze (u, one) h = Mul (e, scale)",
    "parts of the sequence": "p, q = Split <axis = 1> (a, rows) h = Mul (p, scale)",
    "one row": "h = Gather <axis = 1> (a, zero)",
    "some rows": "h = Slice (a, zeros, one, one)",
}
REFUSED = {
    "a sum with one number": "h = Add (a, scale)",
    "a number over it": "h = Div (scale, a)",
    "what is not zero at zero": "h = Exp (a)",
    "a norm": "h = Softmax (a)",
    "some columns": "h = Slice (a, zeros, three, two)",
    "a mixture of runs": "r = Reshape (a, other) e = Mul (r, scale) h = Reshape (e, whole)",
    "itself": "h = Mul (a, a)",
    "runs read across": "r = Reshape (a, apart) t = Transpose <perm = [0,1,3,2]> (r) h = Reshape (t, whole)",
}


def model(along: str, outputs: str = "") -> onnx.ModelProto:
    """Return two products with this between them."""
    made = parse(
        f"g (float[N,4,8] x) => (float[A,B,C] y{outputs}) <float scale = {{2}}, float[6] of_each = {{1,-2,3,-4,5,-6}}, "
        "int64[4] apart = {0,0,2,3}, int64[4] other = {0,0,3,2}, int64[3] whole = {0,0,6}, int64[1] one = {1}, "
        "int64[2] three = {3,3}, int64[2] rows = {2,2}, int64[1] zero = {0}, int64[1] zeros = {0}, int64[1] two = {2}> "
        f"{{ a = MatMul (x, w) {along} y = MatMul (h, v) }}",
        opset=18,
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 6)), ("v", (6, 5))):
        made.graph.initializer.append(numpy_helper.from_array(rng.integers(-3, 4, shape).astype(np.float32), name))
    return made


@pytest.mark.parametrize("along", ALONG)
def test_runs_are_padded_from_their_product_to_the_next(along: str) -> None:
    """Both weights get the zeros, and what lies between them has the shapes of padded runs."""
    before, made = model(ALONG[along]), model(ALONG[along])
    graph = graph_of(made)
    runs = reached(graph, {"a": RunLayout(2, 2)}, SIZE, WIDTH)
    assert runs is not None
    assert {"a", "h"} <= runs.layouts.keys()
    assert "y" not in runs.layouts
    pad_runs(graph, runs)
    graph.commit()
    for value, layout in runs.layouts.items():
        shape = graph.type(value).shape
        assert shape is not None
        assert shape[layout.axis] == layout.runs * WIDTH
    products = [n for n in made.graph.node if n.op_type == "MatMul"]
    weights = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    first, last = (weights[products[at].input[1]] for at in (0, -1))
    assert (first.shape, last.shape) == ((8, 2 * WIDTH), (2 * WIDTH, 5))
    assert not first[:, SIZE::WIDTH].any()
    assert not last[SIZE::WIDTH].any()
    assert_same_numbers(before, made)


@pytest.mark.parametrize("along", REFUSED)
def test_what_does_not_keep_zeros_or_runs_keeps_its_size(along: str) -> None:
    graph = graph_of(model(REFUSED[along]))
    assert reached(graph, {"a": RunLayout(2, 2)}, SIZE, WIDTH) is None


def test_what_the_caller_reads_keeps_its_size() -> None:
    """And runs of another size are none."""
    graph = graph_of(model("h = Mul (a, scale)", outputs=", float[N,4,6] a"))
    assert reached(graph, {"a": RunLayout(2, 2)}, SIZE, WIDTH) is None
    graph = graph_of(model("h = Mul (a, scale)"))
    assert reached(graph, {"a": RunLayout(2, 2)}, 2, WIDTH) is None
    assert reached(graph, {"a": RunLayout(2, 3)}, 2, WIDTH) is not None
    assert reached(graph, {"x": RunLayout(2, 4)}, 2, WIDTH) is None


@pytest.mark.parametrize(("parts", "padded"), [("three", [4, 4]), ("uneven", None)])
def test_a_split_is_between_runs(parts: str, padded: list[int] | None) -> None:
    """Its sizes are those of padded runs; one within a run keeps all as it is."""
    ends = ["MatMul (p, rows)", "MatMul (q, rows)"] if padded else ["Neg (p)", "Neg (q)"]
    text = f"p, q = Split <axis = 2> (a, {parts}) y = {ends[0]} z = {ends[1]}"
    made = parse(
        f"g (float[N,4,8] x) => (float[A,B,C] y, float[D,E,F] z) <int64[2] three = {{3,3}}, int64[2] uneven = {{2,4}}> "
        f"{{ a = MatMul (x, w) {text} }}",
        opset=18,
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 6)), ("rows", (3, 5))):
        made.graph.initializer.append(numpy_helper.from_array(rng.integers(-3, 4, shape).astype(np.float32), name))
    if padded is None:
        assert reached(graph_of(made), {"a": RunLayout(2, 2)}, SIZE, WIDTH) is None
        return
    before = onnx.ModelProto.FromString(made.SerializeToString())
    graph = graph_of(made)
    runs = reached(graph, {"a": RunLayout(2, 2)}, SIZE, WIDTH)
    assert runs is not None
    assert (runs.layouts["p"], runs.layouts["q"]) == (RunLayout(2, 1), RunLayout(2, 1))
    pad_runs(graph, runs)
    graph.commit()
    (split,) = (n for n in made.graph.node if n.op_type == "Split")
    sizes = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}[split.input[1]]
    assert sizes.tolist() == padded
    assert_same_numbers(before, made)


def test_each_run_of_an_array_gets_zeros_at_its_end() -> None:
    runs = Runs({"a": RunLayout(1, 2)}, SIZE, WIDTH)
    array = np.arange(12).reshape(2, 6)
    np.testing.assert_array_equal(runs.padded(array, 1), [[0, 1, 2, 0, 3, 4, 5, 0], [6, 7, 8, 0, 9, 10, 11, 0]])
    np.testing.assert_array_equal(runs.padded(array.T, 0), runs.padded(array, 1).T)
    assert runs.padded_dims("a", (2, 6, None)) == (2, 8, None)
