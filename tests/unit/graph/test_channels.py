"""Channels first and channels last are permutations of each other; a signal is an image of one row."""

import numpy as np
import pytest

from onnxfuse.graph import channels

SHAPES = {3: (2, 3, 5), 4: (2, 3, 5, 7), 5: (2, 3, 4, 5, 7)}


@pytest.mark.parametrize("rank", SHAPES)
def test_there_and_back_is_where_it_was(rank: int) -> None:
    """Channels are the last axis on the way, and every axis is found there, counted from either end."""
    array = np.arange(np.prod(SHAPES[rank])).reshape(SHAPES[rank])
    last = channels.channels_last_array(array)
    rows = channels.with_row(array.shape, 1)
    assert last.shape == tuple(rows[axis] for axis in channels.to_last(rank))
    assert last.shape[-1] == 3
    np.testing.assert_array_equal(last.transpose(channels.to_first(rank)).reshape(array.shape), array)
    for axis in range(-rank, rank):
        assert last.shape[channels.channels_last_axis(rank, axis)] == array.shape[axis]


def test_ranks_that_have_the_form() -> None:
    assert [rank for rank in (None, *range(8)) if channels.has_form(rank)] == [3, 4, 5]


def test_a_signal_s_convolution_is_one_over_a_row() -> None:
    """Nothing is padded, skipped or spread along the row's axis."""
    written = {"kernel_shape": [5], "strides": [2], "dilations": [3], "pads": [1, 4], "output_padding": [1], "group": 2}
    assert channels.over_rows(written, 3) == {
        "kernel_shape": [1, 5], "strides": [1, 2], "dilations": [1, 3], "pads": [0, 1, 0, 4], "output_padding": [0, 1],
    }  # fmt: skip
    assert channels.over_rows({"kernel_shape": [3]}, 3) == {"kernel_shape": [1, 3]}
    assert channels.over_rows(written, 4) == {}
