"""A value is converted to the type of its option, or refused."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from onnxfuse.options import toml
from onnxfuse.options.types import Limits, convert

FILLED = Annotated[tuple[int, ...], Limits(items=1)]

# Each a form of its own to mypy, and none a type that a value could have.
COUNT: Any = Annotated[int, Limits(least=0)]

RELATION: Any = Annotated[str, Limits(pattern=toml.RELATION)]

COUNTS: Any = tuple[Annotated[int, Limits(least=0)], ...]

PAIR: Any = tuple[Annotated[int, Limits(least=0)], Annotated[int, Limits(least=0)]]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (np.int64(3), COUNT, 3), (np.float32(0.5), float, 0.5), (3, float, 3.0), ("a/b", Path, Path("a/b")),
        ([1, np.int8(2)], COUNTS, (1, 2)), (range(2), COUNTS, (0, 1)), ("x", Literal["x"], "x"),
        ([3], COUNT | COUNTS, (3,)), (">= 3", RELATION, ">= 3"), (True, COUNT, None), (-1, COUNT, None),
        (2.0, int, None), (float("nan"), float, None), (float("inf"), float, None), (10**400, float, None),
        ("x", tuple[str, ...], None), ([1, 2, 3], COUNT | PAIR, None), ("z", Literal["x"], None),
        ((), FILLED, None), ([1], FILLED, (1,)), ({1: 2}, dict, None), (3, Path, None), ("=>3", RELATION, None),
    ],
)  # fmt: skip
def test_a_value_is_converted_or_refused(value: Any, kind: Any, expected: Any) -> None:
    """Strictly: no number is a bool, no string a list, none without an end; numbers of NumPy become Python's."""
    if expected is None:
        with pytest.raises(ValueError, match=re.escape(str(value))):
            convert(value, kind)
    else:
        converted = convert(value, kind)
        assert (converted, type(converted)) == (expected, type(expected))
