"""Ranges that one-hot encodings compare with: consecutive integers along an axis, wherever they come from."""

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.verification.inputs.one_hot_ids import MOST, ranges
from tests.support.small import parse


def of(nodes: str = "y = Relu (x)", weights: str = "") -> dict[str, tuple[int, int]]:
    """Return the ranges in a model."""
    return ranges(parse(f"g (float[2] x) => (float[2] y) {weights} {{ {nodes} }}"))


@pytest.mark.parametrize(
    ("array", "found"),
    [
        ([0, 1, 2], (0, 3)), ([3.0, 4.0], (3, 5)), ([[0, 1], [0, 1]], (0, 2)), ([[0, 0], [1, 1], [2, 2]], (0, 3)),
        ([-1, 0], (-1, 1)), ([[[5]], [[6]]], (5, 7)), ([0, 2], None), ([0.5, 1.5], None), ([1, 0], None), ([7], None),
        ([[0, 1], [1, 2]], None), ([float("inf"), float("inf")], None), ([True, False], None),
    ],
)  # fmt: skip
def test_weights_that_count(array: list[float], found: tuple[int, int] | None) -> None:
    """Along any axis, alike along the others."""
    model = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    model.graph.initializer.append(numpy_helper.from_array(np.array(array), "w"))
    assert ranges(model) == ({} if found is None else {"w": found})


def test_texts_large_and_external_weights_are_not_read() -> None:
    """Nor empty ones."""
    model = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    for n, tensor in enumerate((
        TensorProto(data_type=TensorProto.STRING, dims=[2], string_data=[b"0", b"1"]),
        TensorProto(data_type=TensorProto.INT64, dims=[MOST + 1]),
        TensorProto(data_type=TensorProto.INT64, dims=[2], data_location=TensorProto.EXTERNAL),
        numpy_helper.from_array(np.zeros(0, np.int64)),
    )):  # fmt: skip
        model.graph.initializer.add(name=f"w{n}").MergeFrom(tensor)
    assert ranges(model) == {}


@pytest.mark.parametrize(
    ("value", "found"),
    [("value = int64[2] {4, 5}", (4, 6)), ("value_ints = [0, 1]", (0, 2)), ("value_floats = [0.0, 1.0]", (0, 2)),
     ("value_int = 3", None)],
)  # fmt: skip
def test_constants_count(value: str, found: tuple[int, int] | None) -> None:
    """In each of their spellings; one number is no range."""
    assert of(f"c = Constant <{value}> () y = Relu (x)").get("c") == found


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ((0, 3, 1), (0, 3)),
        ((2, 5, 1), (2, 5)),
        ((0, 3, 2), None),
        ((0, 1, 1), None),
        ((1, 3, 1), (1, 3)),
        ((0, 2, 1), (0, 2)),
    ],
)
def test_a_range_of_constants_counts(bounds: tuple[int, int, int], found: tuple[int, int] | None) -> None:
    """By steps of one, of two integers or more."""
    weights = ", ".join(f"int64 {name} = {{{n}}}" for name, n in zip("abs", bounds, strict=True))
    assert of("r = Range (a, b, s) y = Relu (x)", f"<{weights}>").get("r") == found


def test_a_range_may_begin_and_end_between_integers() -> None:
    """A fraction at the end is rounded up; one at the beginning is no id."""
    weights = "<float a = {%s}, float b = {3.5}, float s = {1.0}>"
    assert of("r = Range (a, b, s) y = Relu (x)", weights % "0.0")["r"] == (0, 4)
    assert "r" not in of("r = Range (a, b, s) y = Relu (x)", weights % "0.5")


def test_ranges_and_numbers_are_followed() -> None:
    """Through casts and other shapes, also into bodies and functions; not through arithmetic."""
    weights = "<int64[3] w = {0, 1, 2}, int32 a = {0}, int64[2] s = {3, 1}>"
    found = of("c = Cast <to = 1> (w) r = Reshape (c, s) n = Neg (r) y = Relu (x)", weights)
    assert {k: v for k, v in found.items() if k in "crn"} == {"c": (0, 3), "r": (0, 3)}
    found = of(
        "b = Cast <to = 7> (a) e = Constant <value_int = 4> () k = Constant <value_int = 1> () r = Range (b, e, k)"
        " y = Relu (x)",
        weights,
    )
    assert found["r"] == (0, 4)
    model = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    inner = parse("g (float[2] x) => (float[2] y) { c = Constant <value_ints = [0, 1]> () y = Relu (x) }")
    model.functions.add(name="f").node.extend(inner.graph.node)
    assert ranges(model) == {"c": (0, 2)}
