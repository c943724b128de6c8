"""Ranges, filled tensors and shapes that are read: their extents and their elements, for known and for open sizes."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.ops import generate
from onnxfuse.ops.shapes.extents import UnknownError, is_known
from onnxfuse.symbolic.integer import Int

N: Any = Int.name("n", least=0)


def node(shape: tuple[Any, ...] = (), integers: dict[str, tuple[Any, ...]] | None = None, **attributes: Any) -> Any:
    """Return a node that reads a value of this shape, and these integers by the names of its inputs."""
    known = integers or {}
    return SimpleNamespace(
        shape=lambda _: shape, attribute=lambda name, default=None: attributes.get(name, default),
        integers=lambda name: known[name], axes=lambda name: known[name],
    )  # fmt: skip


def length(start: Any, limit: Any, delta: Any) -> Any:
    """Return the extent of a Range."""
    entry = generate.Range.shape
    assert entry is not None
    (((found),),) = entry(node(integers={"start": (start,), "limit": (limit,), "delta": (delta,)}))
    return found


@pytest.mark.parametrize(
    ("start", "limit", "delta"),
    [(0, 5, 1), (2, 5, 1), (0, 5, 2), (0, 6, 2), (5, 0, 1), (5, 0, -1), (5, 0, -2), (3, 3, 1), (-2, 7, 3)],
)
def test_a_range_has_as_many_numbers_as_that_of_numpy(start: int, limit: int, delta: int) -> None:
    assert length(start, limit, delta) == len(np.arange(start, limit, delta))


def test_a_range_of_an_open_size_is_told_where_it_follows() -> None:
    """Up to a name, in steps of 1, from 0 or from what is known to be no more; else its extent is not known."""
    assert length(0, N, 1) is N
    assert length(N, N + 3, 1) == 3
    for start, limit, delta in ((1, N, 1), (0, N, 2), (0, 5, N), (N, 2, 1)):
        assert not is_known(length(start, limit, delta)), (str(start), str(limit), str(delta))


@pytest.mark.parametrize(
    ("attributes", "extents"),
    [
        ({}, (N, 3, 4)),
        ({"start": 1}, (3, 4)),
        ({"end": -1}, (N, 3)),
        ({"start": -2, "end": 2}, (3,)),
        ({"start": 9}, ()),
    ],
)
def test_a_shape_is_read_from_one_axis_to_another(attributes: dict[str, Any], extents: tuple[Any, ...]) -> None:
    """As many as there are, and their values."""
    shape, value = generate.Shape.shape, generate.Shape.value
    assert shape is not None
    assert value is not None
    assert shape(node((N, 3, 4), **attributes)) == [(len(extents),)]
    found: Any = value(node((N, 3, 4), **attributes))
    assert tuple(found) == extents


def test_a_size_is_the_product_of_all_extents() -> None:
    """One number."""
    shape, value = generate.Size.shape, generate.Size.value
    assert shape is not None
    assert value is not None
    assert shape(node((2, 3))) == [()]
    assert value(node((2, 3))) == math.prod((2, 3))
    assert np.asarray(value(node((N, 3)))).item() == 3 * N


def test_a_filled_tensor_has_its_number_everywhere() -> None:
    """Whole numbers are known; others, and the zeros that are the default, are no extents."""
    value, shape = generate.ConstantOfShape.value, generate.ConstantOfShape.shape
    assert value is not None
    assert shape is not None
    seven = numpy_helper.from_array(np.array([7], np.int64))
    found: Any = value(node(integers={"input": (2, 3)}, value=seven))
    assert found.tolist() == [[7] * 3] * 2
    assert shape(node(integers={"input": (N, 3)})) == [(N, 3)]
    for other in (None, TensorProto(dims=[1], data_type=TensorProto.FLOAT, float_data=[7.0])):
        with pytest.raises(UnknownError):
            value(node(integers={"input": (2,)}, value=other))
