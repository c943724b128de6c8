"""Numbers for extents by name: what exporters and onnxfuse compute extents by."""

import pytest

from onnxfuse.shapes.extent_values import extent_value, name_sizes
from tests.support.extents import extents

NUMBERS = {"batch": 3, "height": 7, "seq": 512, "a.b/c": 5, "": 11, "unk__3": 13, "odd(seq)": 17, "1e300*1e300": 19}


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (24, 24),
        (f"batch*{10**400}", None),
        (f"1e300*{10**300}*batch", None),
        (None, 11),
        ("batch", 3),
        ("4*batch", 12),
        ("batch*height*4", 84),
        ("((height-1)//2+1)", 4),
        ("4*((height-1)//2+1)", 16),
        ("ceil(height/2)", 4),
        ("min(384,seq)", 384),
        ("min(seq,batch)", 3),
        ("(floor((height - 1)/2) + 1)*(floor(seq/32))", 64),
        ("floor(height/2 - 1/2) + 1", 4),
        ("unk__3", 13),
        ("unk__3*2", 26),
        ("a.b/c", 5),
        ("odd(seq)", 17),
        ("1e300*1e300", 19),
        ("height-8", None),
        ("height/2", None),
        ("height//(seq-512)", None),
    ],
)
def test_an_extent_is_computed_from_its_names(dim: int | str | None, expected: int | None) -> None:
    """None where no extent comes out; what is no expression is a name."""
    (extent,) = extents(dim)
    assert extent_value(extent, NUMBERS.__getitem__) == expected


def test_every_name_is_asked_for() -> None:
    asked: list[str] = []

    def numbers(name: str) -> int:
        asked.append(name)
        return 2

    (extent,) = extents("batch*(rows//2+rows)")
    assert extent_value(extent, numbers) == 6
    assert sorted(asked) == ["batch", "rows"]


def test_names_have_the_integers_that_sizes_of_extents_say() -> None:
    """Also where a model declares an expression: its names are what makes it come out."""
    assert name_sizes({"past + 1": 9, "batch": 3, "batch*heads": 12, "h.w": 5, "7": 7}) == {
        "past": 8, "batch": 3, "heads": 4, "h.w": 5,
    }  # fmt: skip
    (length,) = extents("4*(batch-size)")
    assert extent_value(length, name_sizes({"batch-size": 6}).__getitem__) == 24
    assert name_sizes({"n//2": 3}) == {}
