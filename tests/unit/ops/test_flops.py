"""Operations of a node from its shapes: a multiply-add is two; without the shapes that decide there is no count."""

from collections.abc import Mapping
from typing import Any

import pytest

from onnxfuse.ops import flops
from onnxfuse.ops.flops import Flops, NodeShapes

Shape = tuple[int, ...] | None


def count(
    function: Flops, output: Shape, *inputs: Shape, present: list[bool] | None = None, **attributes: Any
) -> int | None:
    """Return the operations of a node of these shapes; every input that is listed is there."""
    given: Mapping[str, Any] = attributes
    return function(NodeShapes(output, [*inputs], present or [True] * len(inputs), given.get))


@pytest.mark.parametrize(
    ("function", "output", "inputs", "operations"),
    [
        (flops.none, (2, 3), ((2, 3),), 0),
        (flops.per_output(5), (2, 3), ((7,),), 30),
        (flops.per_operand(2), (2, 3), ((3,), (3,), (3,)), 24),
        (flops.per_operand(2), (2, 3), ((3,),), 12),
        (flops.per_input(4), (2, 3), ((7, 2),), 56),
        (flops.matmul, (2, 3, 5), ((2, 3, 4), (4, 5)), 240),
        (flops.gemm, (3, 5), ((3, 4), (4, 5)), 120),
        (flops.gemm, (3, 5), ((3, 4), (4, 5), (5,)), 135),
        (flops.convolution, (1, 8, 6, 6), ((1, 4, 8, 8), (8, 4, 3, 3)), 288 * 72),
        (flops.convolution, (1, 8, 6, 6), ((1, 4, 8, 8), (8, 4, 3, 3), (8,)), 288 * 73),
        (flops.transposed_convolution, (1, 8, 8, 8), ((1, 4, 6, 6), (4, 8, 3, 3)), 2 * 144 * 72),
        (flops.transposed_convolution, (1, 8, 8, 8), ((1, 4, 6, 6), (4, 8, 3, 3), (8,)), 2 * 144 * 72 + 512),
    ],
)
def test_operations_follow_from_shapes(
    function: Flops, output: Shape, inputs: tuple[Shape, ...], operations: int
) -> None:
    """And are unknown without each of the shapes that decide."""
    assert count(function, output, *inputs) == operations


@pytest.mark.parametrize(
    ("function", "needed"),
    [
        (flops.per_output(5), [True, False, False]), (flops.per_operand(5), [True, False, False]),
        (flops.per_input(5), [False, True, False]), (flops.matmul, [True, True, False]),
        (flops.gemm, [True, True, False]), (flops.convolution, [True, False, True]),
        (flops.transposed_convolution, [True, True, True]), (flops.window, [True, False, False]),
        (flops.packed, [True, False, False]),
    ],
)  # fmt: skip
def test_an_unknown_shape_that_decides_leaves_the_count_unknown(function: Flops, needed: list[bool]) -> None:
    """Of the output, the first input and the second; another one may be unknown."""
    shapes: list[Shape] = [(4, 4), (4, 4), (4, 4)]
    for position, decides in enumerate(needed):
        output, *inputs = [None if i == position else s for i, s in enumerate(shapes)]
        assert (count(function, output, *inputs, kernel_shape=[2, 2], K=4) is None) == decides


def test_transposed_factors_sum_over_the_other_axis() -> None:
    """The attribute says so."""
    assert count(flops.matmul, (5, 6), (4, 5), (4, 6), transA=1) == 2 * 30 * 4
    assert count(flops.gemm, (5, 6), (4, 5), (4, 6), transA=1) == 2 * 30 * 4
    assert count(flops.matmul, (), (), ()) is None


def test_packed_weights_and_windows_say_their_terms() -> None:
    """As attributes: the columns of a weight, the taps of a window."""
    assert count(flops.packed, (2, 5), (2, 4), K=4) == 80
    assert count(flops.window, (1, 2, 3, 3), (1, 2, 6, 6), kernel_shape=[2, 3]) == 108
    assert count(flops.window, (1, 2, 3, 3), (1, 2, 6, 6), kernel_shape=2) is None


@pytest.mark.parametrize(
    ("equation", "shapes", "operations"),
    [
        ("ij,jk->ik", ((2, 3), (3, 4)), 2 * 24), (b"i j, j k -> i k", ((2, 3), (3, 4)), 2 * 24),
        ("...ij,...jk->...ik", ((5, 2, 3), (5, 3, 4)), 2 * 24 * 5),
        ("...ij,jk->...ik", ((5, 2, 3), (3, 4)), 2 * 24 * 5),
        ("i->", ((7,),), 7), ("ij,jk->ik", ((2, 3), None), None),
    ],
)  # fmt: skip
def test_an_einsum_combines_all_indices(
    equation: str | bytes, shapes: tuple[Shape, ...], operations: int | None
) -> None:
    """One multiplication for each operand and one addition; free axes are batches."""
    assert count(flops.einsum, (1,), *shapes, equation=equation) == operations


def test_attention_is_two_products_and_a_softmax() -> None:
    """Of heads that are apart, or merged as the attributes say."""
    heads = count(flops.attention, None, (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4))
    assert heads == 2 * 3 * 5 * 7 * (2 * 8 + 2 * 4 + 6)
    merged = count(flops.attention, None, (2, 5, 24), (2, 7, 24), (2, 7, 12), q_num_heads=3)
    assert merged == heads
    grouped = count(flops.attention, None, (2, 5, 24), (2, 7, 8), (2, 7, 4), q_num_heads=3, kv_num_heads=1)
    assert grouped == heads
    for position in range(3):
        shapes: list[Shape] = [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)]
        shapes[position] = None
        assert count(flops.attention, None, *shapes) is None


def test_multi_head_attention_counts_the_same() -> None:
    """Values may have their heads apart; queries with heads apart are unknown."""
    found = count(flops.multi_head_attention, None, (2, 5, 24), (2, 7, 24), (2, 7, 12), num_heads=3)
    assert found == 2 * 5 * 7 * (2 * 24 + 2 * 12 + 6 * 3)
    assert count(flops.multi_head_attention, None, (2, 5, 24), (2, 3, 7, 8), (2, 3, 7, 4), num_heads=3) == found
    assert count(flops.multi_head_attention, None, (2, 5, 3, 3, 8), (2, 7, 24), (2, 7, 12), num_heads=3) is None
    for position in range(3):
        shapes: list[Shape] = [(2, 5, 24), (2, 7, 24), (2, 7, 12)]
        shapes[position] = None
        assert count(flops.multi_head_attention, None, *shapes, num_heads=3) is None
