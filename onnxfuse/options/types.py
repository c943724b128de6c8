"""Check a value against a type, strictly, and describe the type as JSON schema.

Types are those of options: bool, int, float, str, Path, dict, Literal, unions, tuples, and `Annotated` with `Limits`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from onnxfuse.support.json_fields import MOST_NUMBER


@dataclass(frozen=True)
class Limits:
    """Limits of a number, of a list's length, and the pattern of a string."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    pattern: str | None = None
    """A regular expression for the whole string."""
    items: int | None = None
    """Least length of a list."""

    def hold(self, value: Any) -> bool:
        """Return whether they hold."""
        if self.pattern is not None and not (isinstance(value, str) and re.fullmatch(self.pattern, value)):
            return False
        if self.items is not None and len(value) < self.items:
            return False
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def schema(self) -> dict[str, Any]:
        """Return them as JSON schema."""
        words = {
            "minimum": self.least, "maximum": self.most, "exclusiveMinimum": self.above, "exclusiveMaximum": self.below,
            "pattern": self.pattern and f"^{self.pattern}$", "minItems": self.items,
        }  # fmt: skip
        return {word: limit for word, limit in words.items() if limit is not None}


def is_list(value: Any) -> bool:
    """Return whether it is a sequence; a single string is a mistake, because a string is a sequence of letters."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def is_mapping(value: Any) -> bool:
    """Return whether it is a mapping with strings as keys."""
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def convert(value: Any, kind: Any) -> Any:
    """Return the value as one of the type: numbers, of NumPy too, as Python's own, sequences as tuples, paths.

    Nothing else is converted. Raises ValueError for what is not of the type.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        converted = convert(value, inner[0])
        if all(limits.hold(converted) for limits in inner[1:]):
            return converted
    elif origin in (Union, UnionType):
        return _first(value, inner)
    elif origin is Literal and isinstance(value, str) and value in inner:
        return value
    elif origin is tuple and is_list(value):
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        if len(kinds) == len(value):
            return tuple(map(convert, value, kinds))
    elif origin is None and _is_plain(value, kind):
        return value if kind in (Any, dict, bool) else kind(value)
    raise ValueError(value)


def _first(value: Any, kinds: Sequence[Any]) -> Any:
    """Return the value as one of the first type that it is of."""
    for kind in kinds[:-1]:
        try:
            return convert(value, kind)
        except ValueError:
            continue
    return convert(value, kinds[-1])


def _is_plain(value: Any, kind: Any) -> bool:
    if kind is dict:
        return is_mapping(value)
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
            return False
        # An integer is compared, not converted: it may be larger than any float.
        size: Any = abs(value) if isinstance(value, Integral) else abs(float(value))
        return kind is int or bool(size <= MOST_NUMBER)
    return kind is Any or isinstance(value, str | Path if kind is Path else kind)


NAMES: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string",
                            dict: "object"}  # fmt: skip


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        schema = json_schema(inner[0])
        for limits in inner[1:]:
            schema |= limits.schema()
        return schema
    if origin in (Union, UnionType):
        return {"anyOf": [json_schema(one) for one in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple:
        return {"type": "array", "items": json_schema(inner[0])}
    return {"type": NAMES[kind]}
