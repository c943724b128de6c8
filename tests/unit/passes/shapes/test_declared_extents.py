"""What only declarations tell of a Reshape is written into its target; what nodes tell, or nobody, stays."""

import pytest
from onnx import ModelProto, numpy_helper

from onnxfuse.passes.shapes.declared_extents import keep_declared_extents
from tests.support.small import parse

TEXT = """g (float16[batch,1,64] x, float16[512,64] table, int64[1] past, int64[1] next) => (float16[batch,4,16] y)
<float16[1,64] rows, float16[batch,1,64] q, int64[3] left = {-1, 4, 16}> {
  rows = Slice (table, past, next) q = Add (x, rows) y = Reshape (q, left) }"""
"""Nothing but the declaration tells that one row is cut off, so that -1 is the batch."""


def target(text: str) -> list[int]:
    """Return the target of the Reshape after the pass."""
    model = parse(text)
    keep_declared_extents(model)
    return target_of(model)


def target_of(model: ModelProto) -> list[int]:
    """Return the constant target of a model's Reshape."""
    (reshape,) = (n for n in model.graph.node if n.op_type == "Reshape")
    weights = {t.name: t for t in model.graph.initializer}
    return list(numpy_helper.to_array(weights[reshape.input[1]]).tolist())


def test_an_extent_that_is_declared_alone_is_copied() -> None:
    """By a 0 in its place."""
    assert target(TEXT) == [0, 4, 16]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float16[batch,1,64] q", "float16[2,1,64] q"),
        ("rows = Slice (table, past, next) q = Add (x, rows)", "q = Neg (x)"),
        ("{-1, 4, 16}", "{0, 4, -1}"),
        ("Reshape (q, left)", "Reshape <allowzero = 1> (q, left)"),
    ],
    ids=["a number", "nodes tell it", "another axis", "allowzero without a 0"],
)
def test_other_targets(old: str, new: str) -> None:
    """A 0 that is written already is read past, unless it is no copy."""
    assert old in TEXT
    expected = [0, 4, 16] if "allowzero" in new else [0, 4, -1] if "-1}" in new else [-1, 4, 16]
    assert target(TEXT.replace(old, new)) == expected


def test_a_zero_that_is_no_copy_stays_alone() -> None:
    """With allowzero an extent of 0 elements is one."""
    text = TEXT.replace("{-1, 4, 16}", "{-1, 4, 0}").replace("float16[batch,4,16] y", "float16[batch,4,0] y")
    assert target(text.replace("Reshape (q, left)", "Reshape <allowzero = 1> (q, left)")) == [-1, 4, 0]


def test_two_open_extents_and_fused_files_stay() -> None:
    """A file that was optimized before declares what was inferred from other nodes."""
    assert target(TEXT.replace("{-1, 4, 16}", "{-1, 4, -1}")) == [-1, 4, -1]
    model = parse(TEXT)
    model.functions.add(domain="onnxfuse", name="f")
    keep_declared_extents(model)
    assert target_of(model) == [-1, 4, 16]
