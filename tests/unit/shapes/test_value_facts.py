"""What is remembered of constants: shapes always, elements of small ones that describe shapes."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.shapes.value_facts import EXACT, LIMIT, ValueFacts, attribute


def remembered(array: Any, dtype: Any = np.int64) -> ValueFacts:
    """Return the facts after a constant `c`."""
    facts = ValueFacts(17, {})
    facts.remember("c", numpy_helper.from_array(np.asarray(array, dtype), "c"))
    return facts


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32])
def test_whole_numbers_are_elements(dtype: Any) -> None:
    """Also of floats, whose quotients are not rounded then."""
    facts = remembered([2, -3], dtype)
    numbers = facts.numbers["c"]
    assert numbers is not None
    assert numbers.tolist() == [2, -3]
    assert numbers.dtype == object
    assert facts.shapes["c"] == (2,)
    assert facts.constants["c"].dtype == dtype
    assert facts.reals == ({"c"} if dtype == np.float32 else set())


@pytest.mark.parametrize("array", [[0.5], [float(EXACT)], [-float(EXACT)], [float("nan")], [1.0, 1.5]])
def test_other_floats_are_constants_alone(array: list[float]) -> None:
    """Fractions, and what float32 does not hold exactly."""
    facts = remembered(array, np.float32)
    assert "c" in facts.constants
    assert not facts.numbers
    assert not facts.reals


def test_the_largest_exact_float_is_an_element() -> None:
    """Below 2^24."""
    assert remembered([EXACT - 1.0], np.float32).numbers["c"] is not None


def test_large_constants_and_other_types_have_a_shape_alone() -> None:
    """As have those whose data is elsewhere."""
    assert "c" in remembered(np.zeros(LIMIT)).constants
    for facts in (remembered(np.zeros(LIMIT + 1)), remembered([1], np.float64), remembered([1], np.int8)):
        assert not facts.constants
        assert not facts.numbers
        assert facts.shapes["c"] in ((LIMIT + 1,), (1,))
    tensor = TensorProto(name="c", data_type=TensorProto.INT64, dims=[1], data_location=TensorProto.EXTERNAL)
    facts = ValueFacts(17, {})
    facts.remember("c", tensor)
    assert (facts.shapes, facts.constants) == ({"c": (1,)}, {})


@pytest.mark.parametrize(
    ("given", "shape", "elements"),
    [
        ({"value": numpy_helper.from_array(np.array([4, 5]))}, (2,), [4, 5]),
        ({"value_int": 3}, (), 3), ({"value_ints": [3, 4]}, (2,), [3, 4]),
    ],
)  # fmt: skip
def test_a_constant_node_holds_its_value(given: dict[str, Any], shape: tuple[int, ...], elements: Any) -> None:
    """A tensor, an integer, integers."""
    facts = ValueFacts(17, {})
    facts.hold(helper.make_node("Constant", [], ["c"], **given))
    numbers = facts.numbers["c"]
    assert numbers is not None
    assert (facts.shapes["c"], numbers.tolist()) == (shape, elements)


def test_other_constants_are_not_held() -> None:
    """A number that is not whole, text."""
    facts = ValueFacts(17, {})
    facts.hold(helper.make_node("Constant", [], ["c"], value_float=1.0))
    assert not facts.shapes


def test_keys_tell_apart_what_is_known() -> None:
    """Shape, elements, stored values and their type; an absent input is the empty text."""
    keys = [remembered(a, d).key("c") for a, d in (
        ([1, 2], np.int64), ([1, 3], np.int64), ([[1, 2]], np.int64), ([1, 2], np.int32), ([1, 2], np.float32),
        ([1.5, 2], np.float32),
    )]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert remembered([1, 2]).key("c") == keys[0]
    assert len({remembered(0.0, np.float32).key("c"), remembered(0, np.int64).key("c")}) == 2
    facts = ValueFacts(17, {"x": (3, 4)})
    assert (facts.key("x"), facts.key(""), facts.key("y")) == ((3, 4), "", None)


def test_data_without_whole_numbers_is_known_by_its_shape() -> None:
    """As no shape follows from it: biases of one shape have one key, but not the scales of a Resize."""
    bias, other = (remembered(values, np.float32) for values in ([1.5, 2], [2.5, 2]))
    assert bias.key("c", is_data=True) == other.key("c", is_data=True) == (2,)
    assert bias.key("c") != other.key("c")
    whole = [remembered(values, np.float32).key("c", is_data=True) for values in ([1, 2], [1, 3])]
    assert whole[0] != whole[1]


def test_attributes_are_python_values() -> None:
    """With a default for an absent one."""
    node = helper.make_node("Concat", ["x"], ["y"], axis=2, mode="a")
    assert (attribute(node, "axis"), attribute(node, "mode"), attribute(node, "k", 7)) == (2, b"a", 7)
