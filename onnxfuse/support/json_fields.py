"""Typed access to untrusted JSON: each field is read with its required type, or an error names where it is."""

import sys
from collections.abc import Mapping
from typing import Any

from onnxfuse.support.bounded_text import read_json
from onnxfuse.support.shown import shown

MOST_NUMBER = sys.float_info.max


def parse(text: str) -> "JsonObject":
    """Return the JSON object in `text`. Raises ValueError that names the problem, like all functions here."""
    return JsonObject(read_json(text), "the file")


class JsonObject:
    """A JSON object with its location in a file."""

    def __init__(self, value: object, location: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(location, value, "an object")
        self.all: Mapping[str, Any] = value
        self.place = location

    def __contains__(self, key: str) -> bool:
        return key in self.all

    def at(self, key: str) -> "tuple[Any, str]":
        """Return the value under `key`, and its location as text."""
        if key not in self.all:
            raise ValueError(f"{self.place} has no '{key}'")
        return self.all[key], f"{self.place}.{key}"

    def only(self, *keys: str) -> None:
        """Reject unknown keys."""
        unknown = sorted(set(self.all) - set(keys))
        if unknown:
            raise ValueError(f"{self.place} has {unknown[0]!r}, which is none of {', '.join(keys)}")

    def text(self, key: str) -> str:
        """Return a string."""
        value, location = self.at(key)
        return as_text(value, location)

    def integer(self, key: str, low: int, high: int) -> int:
        """Return an integer within the inclusive bounds."""
        return as_integer(*self.at(key), low, high)

    def number(self, key: str) -> float:
        """Return a finite number."""
        return as_number(*self.at(key))

    def object(self, key: str) -> "JsonObject":
        """Return an object."""
        return JsonObject(*self.at(key))

    def list(self, key: str) -> "list[tuple[Any, str]]":
        """Return the elements of a list, each with its location."""
        return as_list(*self.at(key))


def as_list(value: object, location: str) -> list[tuple[Any, str]]:
    """Return the elements of a list, each with its location."""
    if not isinstance(value, list):
        raise _wrong(location, value, "a list")
    return [(element, f"{location}[{n}]") for n, element in enumerate(value)]


def as_text(value: object, location: str) -> str:
    """Return a string."""
    if not isinstance(value, str):
        raise _wrong(location, value, "a string")
    return value


def as_integer(value: object, location: str, low: int, high: int) -> int:
    """Return an integer within the inclusive bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _wrong(location, value, f"an integer from {low} to {high}")
    return value


def as_number(value: object, location: str) -> float:
    """Return a finite number."""
    # Compared, not converted: a JSON integer may exceed any float.
    if not isinstance(value, int | float) or isinstance(value, bool) or not -MOST_NUMBER <= value <= MOST_NUMBER:
        raise _wrong(location, value, "a number")
    return float(value)


def _wrong(location: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{location} is {shown(value)}, expected {expected}")
