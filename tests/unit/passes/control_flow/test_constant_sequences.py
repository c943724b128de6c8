"""Elements of sequences are read where they were put in; what is not known stays."""

import numpy as np
import pytest

from tests.support.small import fuses, ops, optimize, parse, run

WEIGHTS = "int64 p0 = {0}, int64 p1 = {1}, int64 last = {-1}"


def alone(text: str, opset: int = 17) -> list[str]:
    """Return the operators that are left where no rule but one that matches nothing applies."""
    return fuses(text, "softmax", opset=opset)


@pytest.mark.parametrize(
    ("made", "element"),
    [
        ("s = SequenceConstruct (a, b)", "b"),
        ("e = SequenceEmpty () f = SequenceInsert (e, a) s = SequenceInsert (f, b)", "b"),
        ("e = SequenceConstruct (b) s = SequenceInsert (e, a, p0)", "b"),
        ("e = SequenceConstruct (a, b, a) s = SequenceErase (e)", "b"),
        ("e = SequenceConstruct (a, a, b) s = SequenceErase (e, p0)", "b"),
    ],
)
@pytest.mark.parametrize("place", ["p1", "last"])
def test_an_element_is_what_was_put_in(made: str, element: str, place: str) -> None:
    text = f"""g (float[N,4] x) => (float[N,4] y) <{WEIGHTS}> {{
      a = Sin (x)  b = Cos (x)  {made}  t = SequenceAt (s, {place})  y = Neg (t)
    }}"""
    assert alone(text) == ["Cos", "Neg"]


def test_a_sequence_that_is_given_or_a_place_that_is_computed_stays() -> None:
    text = """g (float[2,4] x, int64 some) => (float[2,4] y) <int64 two = {2}> {
      place = Mod (some, two)  a = Sin (x)  s = SequenceConstruct (a, x)  y = SequenceAt (s, place)
    }"""
    assert "SequenceAt" in alone(text)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(
    ("split", "left"),
    [
        ("SplitToSequence <axis = 1, keepdims = 0> (x)", ["Split", "Squeeze"]),
        ("SplitToSequence <axis = 1> (x)", ["Split"]),
        ("SplitToSequence <axis = 1> (x, p1)", ["Split"]),
        ("SplitToSequence <axis = -1> (x, two)", ["Split"]),
        ("SplitToSequence <axis = 1, keepdims = 0> (x, uneven)", ["Split"]),
    ],
)
def test_pieces_are_a_split(split: str, left: list[str], opset: int) -> None:
    shape = "float[N]" if "Squeeze" in left else "float[N,A]"
    text = f"""g (float[N,4] x) => ({shape} y) <{WEIGHTS}, int64 two = {{3}}, int64[2] uneven = {{1,3}}> {{
      s = {split}  t = SequenceAt (s, p1)  y = Neg (t)
    }}"""
    assert [o for o in alone(text, opset) if o != "Squeeze"] == [*[o for o in left if o != "Squeeze"], "Neg"]


def test_pieces_of_an_extent_that_is_open_stay() -> None:
    text = f"""g (float[N,4] x) => (float[A,4] y) <{WEIGHTS}> {{
      s = SplitToSequence <axis = 0> (x)  y = SequenceAt (s, p1)
    }}"""
    assert alone(text) == ["SplitToSequence", "SequenceAt"]


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(("new", "shape"), [(0, "float[A,4]"), (1, "float[2,N,4]")])
def test_all_elements_side_by_side(new: int, shape: str, opset: int) -> None:
    text = f"""g (float[N,4] x) => ({shape} y) <{WEIGHTS}> {{
      a = Sin (x)  s = SequenceConstruct (a, x)  y = ConcatFromSequence <axis = 0, new_axis = {new}> (s)
    }}"""
    assert alone(text, opset) == ["Sin", *["Unsqueeze"] * 2 * new, "Concat"]


def test_the_number_of_elements_is_known() -> None:
    text = f"""g (float[N,4] x) => (float[N,4] y) <{WEIGHTS}> {{
      a = Sin (x)  s = SequenceConstruct (a, x)  n = SequenceLength (s)  f = Cast <to = 1> (n)  y = Mul (x, f)
    }}"""
    assert alone(text) == ["Mul"]


def test_elements_of_other_ranks_stay_a_sequence() -> None:
    """ONNX Runtime skips what has no elements, of whatever rank; in a Concat it refuses it."""
    text = """g (float[1,5,4,0] x) => (float[A,B,C,D] y) <int64 p0 = {0}> {
      s = SplitToSequence <axis = 0, keepdims = 0> (x)  t = SequenceInsert (s, x, p0)
      y = ConcatFromSequence <axis = 0> (t)
    }"""
    made, _ = optimize(parse(text), "softmax")
    assert ops(made)[-1] == "ConcatFromSequence"
    x = np.zeros((1, 5, 4, 0), np.float32)
    (before,), (after,) = (run(model, {"x": x}) for model in (parse(text), made))
    assert before.shape == after.shape
