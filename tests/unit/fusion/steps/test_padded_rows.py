"""Weights that are left factors, stored with rows that begin on boundaries of 16 bytes."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfuse
from onnxfuse.fusion.steps.padded_rows import restore_rows
from tests.support.small import assert_same_numbers, halved, ops, optimize, parse

ALONG = """g (float[N,21,40] x) => (float[N,33,40] y) <float[33,21] w = {WEIGHT}> {
  m = MatMul (w, x)
  y = Relu (m)
}""".replace("WEIGHT", ",".join(str(i % 13 - 6) for i in range(33 * 21)))


def weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


@pytest.mark.parametrize("opset", [11, 17])
def test_rows_are_padded_with_zeros(opset: int) -> None:
    model = halved(parse(ALONG, opset))
    made, report = optimize(model)
    assert ops(made) == ["{Slice MatMul Relu}"]
    assert report.by_rule() == {"left_weight": 1}
    ((name, stored),) = weights(made).items()
    assert (name, stored.shape) == ("w.padded", (33, 24))
    np.testing.assert_array_equal(stored, np.pad(weights(model)["w"], ((0, 0), (0, 3))))
    onnx.checker.check_model(made, full_check=True)
    assert_same_numbers(model, made)
    assert optimize(made)[0] == made


def test_what_is_undone_is_as_it_was() -> None:
    model = halved(parse(ALONG))
    undone = onnxfuse.unfuse(onnxfuse.optimize(model))
    assert [n.op_type for n in undone.graph.node] == ["MatMul", "Relu"]
    assert undone.graph.node[0].input == ["w", "x"]
    np.testing.assert_array_equal(weights(undone)["w"], weights(model)["w"])
    assert list(weights(undone)) == ["w"]
    assert_same_numbers(model, undone)


def test_before_opset_10_the_rows_stay() -> None:
    """Slice says what it cuts in attributes: the kernel for sm_80 multiplies the weight as it is."""
    model = halved(parse(ALONG, 9))
    made, _ = optimize(model)
    assert ops(made) == ["{MatMul Relu}"]
    assert list(weights(made)) == ["w"]
    assert_same_numbers(model, made)


def test_rows_on_the_boundary_stay() -> None:
    text = ALONG.replace("[N,21,40]", "[N,24,40]").replace("[33,21]", "[33,24]")
    made, _ = optimize(halved(parse(text.replace("{", "{1,2,3," + "0," * 96, 1))))
    assert ops(made) == ["{MatMul Relu}"]


def test_a_weight_that_is_read_elsewhere_is_kept_beside() -> None:
    text = ALONG.replace("(float[N,33,40] y)", "(float[N,33,40] y, float[33,21] z)").replace(
        "y = Relu (m)", "y = Relu (m)  z = Neg (w)"
    )
    model = halved(parse(text))
    made = onnxfuse.optimize(model)
    assert {n: a.shape for n, a in weights(made).items() if n.startswith("w")} == {"w": (33, 21), "w.padded": (33, 24)}
    assert_same_numbers(model, made)
    undone = onnxfuse.unfuse(made)
    assert {n for n in weights(undone) if n.startswith("w")} == {"w"}
    assert_same_numbers(model, undone)


@pytest.mark.parametrize("cut", ["0 21 -1", "1 21 -1", "0 21 0"])
def test_what_others_cut_is_cut_back_where_it_is_the_same(cut: str) -> None:
    """A weight of one's own may be called as it likes."""
    first, last, axis = cut.split()
    text = f"""g (float[21,40] x) => (float[A,B] y) <float[33,24] v.padded = {{{",".join(map(str, range(792)))}}},
      int64[1] first = {{{first}}}, int64[1] last = {{{last}}}, int64[1] axis = {{{axis}}}> {{
      c = Slice (w, first, last, axis)  y = Neg (c) }}"""
    model = parse(text.replace("v.padded", "w"))
    model.graph.initializer[0].name = model.graph.node[0].input[0] = "v.padded"
    same = parse(text.replace("v.padded", "w"))
    restore_rows(model)
    onnx.checker.check_model(model)
    assert ops(model) == (["Neg"] if cut == "0 21 -1" else ["Slice", "Neg"])
    assert_same_numbers(same, model)


def test_nothing_is_told_of_products_without_a_weight_on_the_left() -> None:
    """The rule is not about them; of a weight that it leaves it says why."""
    text = "g (float16[N,21,40] x, float16[33,21] w) => (float16[N,33,40] y) { y = MatMul (w, x) }"
    _, report = optimize(parse(text), "left_weight")
    assert (report.applied, report.stopped) == ([], [])
    few = ALONG.replace("[33,21]", "[21,21]").replace("[N,33,40]", "[N,21,40]")
    few = halved(parse(few.replace(few[few.index("{") : few.index("}") + 1], "{" + "1," * 440 + "1}")))
    _, report = optimize(few, "left_weight")
    assert [near.refusal.reason for near in report.near] == ["dim(w, 0) is 21; the rule wants dim(w, 0) >= 32"]
