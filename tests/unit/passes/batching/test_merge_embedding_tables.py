"""Rows of several tables side by side are read from one: the numbers, and what is outside, stay."""

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, numpy_helper

import onnxfuse
from tests.support.small import ops, parse

CPU = ["CPUExecutionProvider"]
HEIGHTS = (5, 3, 7)


def tables(model: ModelProto) -> ModelProto:
    """Return the model with three tables of two columns: no number stands in them twice."""
    numbers = np.arange(2 * sum(HEIGHTS), dtype=np.float32).reshape(-1, 2)
    for n, rows in enumerate(np.split(numbers, np.cumsum(HEIGHTS)[:-1])):
        model.graph.initializer.append(numpy_helper.from_array(rows, f"t{n}"))
    return model


def columns(concat: str, ids: str = "int64", picked: tuple[int, ...] = (0, 1, 2)) -> ModelProto:
    """Return three rows, one for each column of `ids`, and what a Concat makes of them."""
    weights = ", ".join(f"int64 c{n} = {{{column}}}" for n, column in enumerate(picked))
    read = " ".join(f"i{n} = Gather <axis = 1> (ids, c{n}) g{n} = Gather (t{n}, i{n}) u{n} = Unsqueeze (g{n}, one)"
                    for n in range(3))  # fmt: skip
    return tables(
        parse(f"""g ({ids}[N,{1 + max(picked)}] ids, float[N,1,2] x) => (float[] y)
      <int64[1] one = {{1}}, {weights}> {{ {read} y = {concat} }}""")
    )


def told(model: ModelProto) -> ModelProto:
    """Return the model, whose output may have any shape."""
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def assert_rows(model: ModelProto, wanted: int = 1) -> ModelProto:
    alone = onnxfuse.optimize(told(model), only=["softmax"])
    assert ops(alone).count("Gather") == wanted
    assert "Concat" not in ops(alone) or len(alone.graph.node[-1].input) > 1
    return alone


def runs(model: ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=CPU)
    (y,) = session.run(None, feeds)
    return np.asarray(y)


@pytest.mark.parametrize("ids", ["int64", "int32"])
@pytest.mark.parametrize(
    ("concat", "picked", "gathers"),
    [
        ("Concat <axis = 1> (u0, u1, u2)", (0, 1, 2), 1),
        ("Concat <axis = 1> (x, u0, u1, u2, x)", (0, 1, 2), 1),
        ("Concat <axis = 1> (u0, u1, u2)", (0, 2, 3), 2),  # their columns are chosen first
        ("Concat <axis = -1> (g0, g1, g2)", (0, 1, 2), 1),
    ],
)
def test_rows_of_columns(ids: str, concat: str, picked: tuple[int, ...], gathers: int) -> None:
    """Also of indices that are counted from a table's end."""
    model = columns(concat, ids, picked)
    alone = assert_rows(model, gathers)
    chosen = np.asarray([[-1, -1, -1, -1], [0, 0, 0, 0], [-3, 2, -3, 2], [1, -3, 2, -3]], ids)[:, : 1 + max(picked)]
    feeds = {"ids": chosen, "x": np.full((4, 1, 2), -1, np.float32)}
    np.testing.assert_array_equal(runs(alone, feeds), runs(model, feeds))


@pytest.mark.parametrize("wrong", [(5, 0, 0), (0, 3, 0), (0, -4, 0), (0, 0, 7), (0, 0, -8)])
def test_a_row_outside_its_table_is_an_error_still(wrong: tuple[int, ...]) -> None:
    """As it was: no row of the next table is read."""
    alone = assert_rows(columns("Concat <axis = 1> (u0, u1, u2)"))
    feeds: dict[str, np.ndarray] = {
        "ids": np.asarray([(0, 0, 0), wrong], np.int64),
        "x": np.zeros((2, 1, 2), np.float32),
    }
    with pytest.raises(Exception, match="indices element out of data bounds"):
        runs(alone, feeds)


def test_indices_of_their_own_are_put_side_by_side() -> None:
    """Each of any number of places, as Keras has them."""
    model = tables(
        parse("""g (int64[N,1] a, int64[N,2] b, int64[N,1] c) => (float[] y) {
      g0 = Gather (t0, a)  g1 = Gather (t1, b)  g2 = Gather (t2, c)  y = Concat <axis = 1> (g0, g1, g2)
    }""")
    )
    alone = assert_rows(model)
    feeds = {"a": np.asarray([[4], [-5]]), "b": np.asarray([[0, 2], [-1, -3]]), "c": np.asarray([[6], [-7]])}
    np.testing.assert_array_equal(runs(alone, feeds), runs(model, feeds))


@pytest.mark.parametrize("axis", [2, -1])
def test_rows_are_put_side_by_side_by_the_indices_that_they_have(axis: int) -> None:
    """Several readings of one text (RoCBert), or several hashes of a letter (CANINE), each with indices of its own."""
    model = tables(
        parse(f"""g (int64[N,S] a, int64[N,S] b, int64[N,S] c) => (float[] y) {{
      g0 = Gather (t0, a)  g1 = Gather (t1, b)  g2 = Gather (t2, c)  y = Concat <axis = {axis}> (g0, g1, g2)
    }}""")
    )
    alone = assert_rows(model)
    feeds = {"a": np.asarray([[4, -5]]), "b": np.asarray([[0, -3]]), "c": np.asarray([[6, -7]])}
    np.testing.assert_array_equal(runs(alone, feeds), runs(model, feeds))


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Concat <axis = 1> (u0, u1)",
        "y = Concat <axis = 1> (u0, x, u1, x, u2)",
        "n = Neg (g1) u = Unsqueeze (n, one) a = Add (u, u1) y = Concat <axis = 1> (u0, a, u2)",
        "z = ReduceSum (t1) u = Add (u1, z) y = Concat <axis = 1> (u0, u, u2)",
        "y = Concat <axis = 0> (u0, u1, u2)",
    ],
)
def test_what_is_read_elsewhere_or_stands_apart_stays(nodes: str) -> None:
    head, _, last = nodes.rpartition("y = ")
    model = columns(f"Identity (x) {head} z9 = {last}")
    model.graph.output[0].name = "z9"
    before = ops(onnxfuse.optimize(told(model), only=["softmax"]))
    assert before.count("Gather") >= 4


def test_it_ends() -> None:
    once = assert_rows(columns("Concat <axis = 1> (x, u0, u1, u2)"))
    assert ops(onnxfuse.optimize(once, only=["softmax"])) == ops(once)
