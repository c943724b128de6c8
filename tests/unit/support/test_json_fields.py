"""A field of JSON is read with its type, or an error names where it is and what was expected there."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from onnxfuse.support.json_fields import JsonObject, as_integer, as_text, parse


def holding(value: object) -> JsonObject:
    return parse(json.dumps({"a": {"b": [0, value]}})).object("a")


READ: dict[str, tuple[Callable[[JsonObject], Any], object, str]] = {
    "text": (lambda o: as_text(*o.list("b")[1]), 3, "a string"),
    "integer": (lambda o: as_integer(*o.list("b")[1], 0, 9), 10, "an integer from 0 to 9"),
    "true is no integer": (lambda o: as_integer(*o.list("b")[1], 0, 9), True, "an integer from 0 to 9"),
    "no fraction is an integer": (lambda o: as_integer(*o.list("b")[1], 0, 9), 1.0, "an integer from 0 to 9"),
    "object": (lambda o: JsonObject(*o.list("b")[1]), "x", "an object"),
}


@pytest.mark.parametrize("name", READ)
def test_an_error_names_the_place_and_what_is_expected_there(name: str) -> None:
    read, value, expected = READ[name]
    with pytest.raises(ValueError, match=rf"^the file\.a\.b\[1\] is .*, expected {expected}$"):
        read(holding(value))


def test_what_is_as_expected_is_read() -> None:
    """Bounds are included; a number may be written as an integer."""
    data = parse('{"name": "x", "least": 1, "most": 5, "ratio": 2, "parts": ["p", "q"]}')
    assert data.text("name") == "x"
    assert (data.integer("least", 1, 5), data.integer("most", 1, 5), data.number("ratio")) == (1, 5, 2.0)
    assert [as_text(*one) for one in data.list("parts")] == ["p", "q"]
    assert ("name" in data, "other" in data) == (True, False)


@pytest.mark.parametrize("number", ["true", '"2"', "1e999", "-1e999", f"1{'0' * 400}"])
def test_a_number_is_finite_and_no_truth(number: str) -> None:
    """A JSON integer may be larger than any double."""
    with pytest.raises(ValueError, match=r"expected a number|finite|constant"):
        parse(f'{{"n": {number}}}').number("n")


def test_a_key_that_lacks_or_is_unknown_is_named() -> None:
    data = parse('{"a": {"b": 1, "c": 2}}').object("a")
    with pytest.raises(ValueError, match=r"^the file\.a has no 'd'$"):
        data.at("d")
    with pytest.raises(ValueError, match=r"^the file\.a has 'c', which is none of b$"):
        data.only("b")
    data.only("b", "c")
    with pytest.raises(ValueError, match=r"^the file is .*, expected an object$"):
        parse("[1]")
