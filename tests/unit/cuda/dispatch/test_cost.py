"""What a kernel is estimated to cost: the order of things, and that it counts what memory sees."""

import pytest

from bench.cases import moved, ops
from bench.cases.ops import FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.model.fused import FusedOp

MANY = 4096


def cost(fused: FusedOp, *shapes: tuple[int, ...]) -> float:
    found = cuda.estimate(fused, shapes)
    assert isinstance(found, float), found
    return found


def test_a_copy_costs_its_bytes() -> None:
    """Each input once, each output once, and a little for the accesses."""
    fused = ops.op("(x) => (y) { y = Identity (x) }", (HALF,), (HALF,))
    bytes_ = 2 * 2 * MANY * 1024
    assert bytes_ <= cost(fused, (MANY, 1024)) < 1.1 * bytes_


def test_a_slice_costs_what_it_reads() -> None:
    fused = moved.slice_mul(HALF, 0, 256)
    assert cost(fused, (MANY, 4096), (256,)) < 1.2 * 2 * 2 * MANY * 256


def test_a_value_read_at_two_places_is_read_once_from_memory() -> None:
    """RoPE reads each element itself and for its partner: the second time it is in the cache."""
    fused = moved.rope(HALF, 64)
    size = 2 * 64 * 32 * 1024 * 64
    assert cost(fused, (64, 32, 1024, 64), (1024, 64), (1024, 64)) < 2.9 * size


def test_reading_across_costs_whole_sectors_unless_a_tile_helps() -> None:
    """32 bytes for 2 where the rows are too short for a tile of their own and too far apart for the cache."""
    text = "(x) => (y) { y = Transpose (x) }"
    tiled = cost(ops.op(text, (HALF,), (HALF,)), (4096, 4096))
    assert tiled < 1.1 * 2 * 2 * 4096 * 4096
    strided = f"(x) => (y) {{ {moved.ints(s=(0,), e=(65536,), a=(1,), k=(16,))} y = Slice (x, s, e, a, k) }}"
    assert cost(ops.op(strided, (HALF,), (HALF,)), (MANY, 16384)) > 15 * 2 * MANY * 1024


@pytest.mark.parametrize(("node", "least"), [("Erf", 4.0), ("Neg", 0.5)])
def test_what_is_computed_again_costs_time(node: str, least: float) -> None:
    """Each element of an Expand: by the weight of the operation."""
    fused = ops.op(f"(x) => (y) {{ {moved.ints(s=(MANY, 512))} a = {node} (x) y = Expand (a, s) }}", (FLOAT,), (FLOAT,))
    plain = ops.op(f"(x) => (y) {{ {moved.ints(s=(MANY, 512))} y = Expand (x, s) }}", (FLOAT,), (FLOAT,))
    more = cost(fused, (MANY, 1)) - cost(plain, (MANY, 1))
    assert more == pytest.approx(least * MANY * 511, rel=0.01)


def test_there_is_no_cost_where_there_is_no_kernel() -> None:
    split = ops.op(
        "(x) => (y, z) { s = Constant <value_ints = [1, 2]> () y, z = Split <axis = 0> (x, s) }", (FLOAT,), (FLOAT,) * 2
    )
    assert "outputs of shapes" in str(cuda.estimate(split, ((3, 4),)))
