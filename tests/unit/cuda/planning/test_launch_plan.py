"""Launch plans: how parameters become bytes, what several launches in a row are, and how two plans differ."""

import struct
from dataclasses import replace

import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT
from onnxfuse import cuda
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import H200
from onnxfuse.cuda.planning.launch_plan import (
    PARAMETER_LIMIT,
    LaunchPlan,
    PackedParameters,
    SmallCosts,
    difference,
    in_sequence,
    is_small,
    packed,
    residency_padding,
    vector_width,
)
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.element_types import UnsupportedError
from tests.unit.symbolic.test_recording import recording

NEGATE = ops.op("(x) => (y) { y = Neg(x) }", (FLOAT,), (FLOAT,), "pointwise")
EXP = ops.op("(x) => (y) { y = Exp(x) }", (FLOAT,), (FLOAT,), "pointwise")


def plan(op: FusedOp = NEGATE, size: int = 4096) -> LaunchPlan:
    """Return the plan for so many elements."""
    return cuda.plan(op, ((size,),), True, H200)


@pytest.mark.parametrize(("bits", "letter"), [(32, "I"), (64, "Q")])
def test_parameters_are_words_of_the_index_type(bits: int, letter: str) -> None:
    """Negative ones in two's complement, little endian, one after the other."""
    assert packed((1, -1, 5), bits) == struct.pack(f"<3{letter}", 1, 2**bits - 1, 5)
    assert len(PackedParameters((1, 2, 3), bits)) == 3 * bits // 8
    assert packed((2**bits - 1, -(2 ** (bits - 1))), bits) == struct.pack(f"<2{letter}", 2**bits - 1, 2 ** (bits - 1))


@pytest.mark.parametrize(("words", "told"), [((2**32,), "beyond 32 bits"), ((-(2**31) - 1,), "beyond 32 bits")])
def test_a_number_that_does_not_fit_is_refused(words: tuple[int, ...], told: str) -> None:
    """Rather than cut off."""
    with pytest.raises(UnsupportedError, match=told):
        packed(words, 32)


def test_more_parameters_than_a_kernel_takes_are_refused() -> None:
    """To the byte."""
    assert len(packed((0,) * (PARAMETER_LIMIT // 4), 32)) == PARAMETER_LIMIT
    with pytest.raises(UnsupportedError, match=f"{PARAMETER_LIMIT + 4} bytes of kernel parameters"):
        packed((0,) * (PARAMETER_LIMIT // 4 + 1), 32)


def test_recorded_parameters_stay_expressions() -> None:
    """They become bytes when a program answers."""
    extent = recording(12)[1][0]
    assert isinstance(packed((extent, 3), 32), PackedParameters)


def test_an_index_is_as_wide_as_its_largest_element_needs() -> None:
    """32 bits below 2^31 elements."""
    assert [launch_plan.index_bits(n) for n in (0, 2**31 - 1, 2**31)] == [32, 32, 64]
    assert launch_plan.index_type(32) != launch_plan.index_type(64)


def test_small_tensors_take_narrower_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never wider than asked, never none, and as asked from the size on at which memory is the limit."""
    monkeypatch.setattr(launch_plan, "small_costs", lambda arch: SmallCosts(1024, 128))
    small = launch_plan.small_costs(H200).elements * H200.sm_count
    assert (is_small(small, H200), is_small(small + 1, H200)) == (True, False)
    assert vector_width(8, small + 1, H200) == 8
    widths = [vector_width(8, n, H200) for n in (1, 1000, small // 4, small)]
    assert widths == sorted(widths)
    assert widths[0] == 1
    assert all(w in (1, 2, 4, 8) for w in widths)


@pytest.mark.parametrize("blocks", [1, 132, 133, 264, 500])
def test_padding_spreads_blocks_over_all_multiprocessors(blocks: int) -> None:
    """No multiprocessor has room for more than its share; a kernel that needs more keeps what it needs."""
    bytes_ = residency_padding(0, blocks, H200)
    share = -(-blocks // H200.sm_count)
    assert (share + 1) * (bytes_ + 1024) > H200.shared_bytes + 1024
    assert residency_padding(200_000, blocks, H200) >= 200_000


def test_launches_in_a_row_are_one_plan() -> None:
    """The first with all others behind it, flat, with the op's outputs."""
    a, b, c = plan(), plan(EXP), plan(NEGATE, 100)
    made = in_sequence([replace(a, then=(b,)), c], ((7,),))
    assert made.kernel == a.kernel
    assert [one.kernel for one in made.then] == [b.kernel, c.kernel]
    assert {one.output_shapes for one in (made, *made.then)} == {((7,),)}
    assert all(not one.then for one in made.then)


def test_a_difference_names_its_fields() -> None:
    """Also of what comes after, and of the kernels' texts the lines; equal plans have none."""
    one = plan()
    assert difference(one, plan()) == ""
    told = difference(replace(one, grid=(9, 1, 1), shared_bytes=64), one)
    assert told.startswith(f"grid (9, 1, 1) instead of {one.grid}; shared_bytes 64 instead of 0")
    assert "instead of" in difference(plan(EXP, 4096), one)
    assert plan(EXP).kernel.entry in difference(plan(EXP), one)
    assert difference(replace(one, then=(one,)), one) == "1 launches after it instead of 0"
    inner = difference(replace(one, then=(replace(one, block=(1, 1, 1)),)), replace(one, then=(one,)))
    assert inner == f"after it: block (1, 1, 1) instead of {one.block}"


def test_outputs_without_elements_launch_nothing() -> None:
    """But there is a plan, with a kernel that compiles."""
    made = launch_plan.nothing(NEGATE, ((0, 4),))
    assert made.grid[0] == 0
    assert made.output_shapes == ((0, 4),)
    assert made.configuration != plan().configuration
    assert plan().configuration == plan().configuration
