"""Frozen dataclasses of integers, such as tiles, written as text: `128x64x1`."""

from dataclasses import MISSING, fields
from typing import TypeVar

Part = TypeVar("Part")


def part_of(kind: type[Part], text: str) -> Part:
    """Return the part written as its integers in the order of its fields, `128x64x1`; omitted last ones are defaults.

    Raises ValueError.
    """
    numbers = text.split("x")
    declared = [(f.name, f.default is MISSING) for f in fields(kind)]  # type: ignore[arg-type]  # parts are dataclasses
    least = sum(required for _, required in declared)
    if not all(n.isdecimal() for n in numbers) or not least <= len(numbers) <= len(declared):
        names = ", ".join(name for name, _ in declared)
        raise ValueError(f"{text!r} is no {kind.__name__}, expected {least} to {len(declared)} integers: {names}")
    return kind(*map(int, numbers))


def text_of(part: object) -> str:
    """Return a part as `part_of` reads it, without last fields that have their default."""
    values = [(getattr(part, f.name), f.default) for f in fields(part)]  # type: ignore[arg-type]  # parts are dataclasses
    while values and values[-1][0] == values[-1][1]:
        values.pop()
    return "x".join(str(value) for value, _ in values)
