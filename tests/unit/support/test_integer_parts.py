"""Parts of a name are written as their integers."""

import pytest

from onnxfuse.cuda.templates.gemm.variant import GemmTile, GemmVariant
from onnxfuse.cuda.templates.pointwise.variant import PointwiseVariant
from onnxfuse.support.integer_parts import part_of, text_of

TILED = GemmVariant(tile=GemmTile(128, 64, 2))


def test_parts_are_written_as_their_integers() -> None:
    """A sweep names a field and its value; a part without its last defaults."""
    assert GemmVariant().with_field("tile", "128x64x2") == TILED
    assert PointwiseVariant().with_field("pointwise_threads", "512") == PointwiseVariant(pointwise_threads=512)
    for tile in (GemmTile(128, 64, 2), GemmTile(64, 64, 1, teams=1, split=4), GemmTile(128, 192, 1, 2)):
        assert part_of(GemmTile, text_of(tile)) == tile
    assert text_of(GemmTile(128, 192, 1, 2)) == "128x192x1x2"
    for name, text in (("speed", "3"), ("tile", "128"), ("tile", "128x64xtwo"), ("tile", "1x2x3x4x5x6x7")):
        with pytest.raises(ValueError, match="expected"):
            GemmVariant().with_field(name, text)
