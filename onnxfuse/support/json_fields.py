"""Typed access to untrusted JSON: each field is read with its required type, or an error names where it is."""

import sys
from collections.abc import Mapping
from typing import Any

from onnxfuse.support.bounded_text import read_json

MOST_NUMBER = sys.float_info.max


def parse(text: str) -> "Facts":
    """Return the JSON object in `text`. Raises ValueError, which names what is wrong, as all functions here do."""
    return Facts(read_json(text), "the file")


class Facts:
    """A JSON object at some place of a file."""

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(place, value, "an object")
        self.all: Mapping[str, Any] = value
        self.place = place

    def __contains__(self, key: str) -> bool:
        return key in self.all

    def at(self, key: str) -> "tuple[Any, str]":
        """Return what stands under `key`, and the place as a person reads it."""
        if key not in self.all:
            raise ValueError(f"{self.place} has no '{key}'")
        return self.all[key], f"{self.place}.{key}"

    def only(self, *known: str) -> None:
        """Complain of keys that nobody knows."""
        unknown = sorted(set(self.all) - set(known))
        if unknown:
            raise ValueError(f"{self.place} has {unknown[0]!r}, which is none of {', '.join(known)}")

    def text(self, key: str) -> str:
        """Return a text."""
        value, place = self.at(key)
        return as_text(value, place)

    def integer(self, key: str, low: int, high: int) -> int:
        """Return a whole number between the two, both included."""
        return as_integer(*self.at(key), low, high)

    def number(self, key: str) -> float:
        """Return a finite number."""
        return as_number(*self.at(key))

    def object(self, key: str) -> "Facts":
        """Return an object."""
        return Facts(*self.at(key))

    def list(self, key: str) -> "list[tuple[Any, str]]":
        """Return the elements of a list, each with its place."""
        return as_list(*self.at(key))


def as_list(value: object, place: str) -> list[tuple[Any, str]]:
    """Return the elements of a list, each with its place."""
    if not isinstance(value, list):
        raise _wrong(place, value, "a list")
    return [(element, f"{place}[{n}]") for n, element in enumerate(value)]


def as_text(value: object, place: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise _wrong(place, value, "a text")
    return value


def as_integer(value: object, place: str, low: int, high: int) -> int:
    """Return a whole number between the two, both included."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _wrong(place, value, f"a whole number from {low} to {high}")
    return value


def as_number(value: object, place: str) -> float:
    """Return a finite number."""
    # Compared, not converted: a whole number of JSON may be larger than any float.
    if not isinstance(value, int | float) or isinstance(value, bool) or not -MOST_NUMBER <= value <= MOST_NUMBER:
        raise _wrong(place, value, "a number")
    return float(value)


def _wrong(place: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{place} is {shown(value)}, expected {expected}")


def shown(value: object) -> str:
    """Return a value as a message quotes it: in one line of at most 60 characters, whatever a file holds there."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
