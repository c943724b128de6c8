"""Numbers for extents by name: what exporters and onnxfuse compute extents by."""

import pytest

from onnxfuse.shapes.extent_values import extent_value

NUMBERS = {"batch": 3, "height": 7, "seq": 512, "a.b/c": 5, "": 11, "unk__/x/Add_output_0.1": 13}


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (24, 24),
        (f"batch*{10**400}", None),
        (f"1e300*{10**300}*batch", None),
        ("1e300*1e300", None),
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
        ("unk__/x/Add_output_0.1", 13),
        ("unk__/x/Add_output_0.1*2", 26),
        ("a.b/c", 5),
        ("height-8", None),
        ("height/2", None),
        ("seq//0", None),
        ("odd(seq)", None),
    ],
)
def test_an_extent_is_computed_from_its_names(dim, expected):
    """None where no extent comes out; a name of which only letters are odd is a name."""
    assert extent_value(dim, NUMBERS.__getitem__) == expected


def test_every_name_is_asked_for():
    asked: list[str] = []

    def numbers(name: str) -> int:
        asked.append(name)
        return 2

    assert extent_value("batch*(rows//2+rows)", numbers) == 6
    assert asked == ["batch", "rows", "rows"]
