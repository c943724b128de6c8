"""The scalar language in NumPy: floating point in float64, integers as they are, types as the functions give them."""

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.ops import scalar
from onnxfuse.ops.arrays import NUMPY, Values, read
from onnxfuse.ops.scalar import Kind

FLOAT, HALF, BRAIN, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
INT32, INT8, BOOL = TensorProto.INT32, TensorProto.INT8, TensorProto.BOOL


def real(*numbers: float, dtype: int = FLOAT) -> Values:
    """Return floating-point numbers."""
    return Values(np.array(numbers, np.float64), dtype)


def whole(*numbers: int) -> Values:
    """Return integers."""
    return Values(np.array(numbers, np.int32), INT32)


@pytest.mark.parametrize(
    ("a", "b", "quotient"), [(7, 2, 3), (-7, 2, -3), (7, -2, -3), (-7, -2, 3), (-6, 2, -3), (0, 5, 0)]
)
def test_integers_are_divided_towards_zero(a: int, b: int, quotient: int) -> None:
    """As in C++; floating-point numbers exactly."""
    assert (whole(a) / whole(b)).array.tolist() == [quotient]
    assert (real(a) / real(b)).array.tolist() == [a / b]


def test_kinds_follow_from_the_elements() -> None:
    """Reals, integers and truth values."""
    assert [v.kind for v in (real(1), whole(1), Values(np.array([True]), BOOL))] == [
        Kind.REAL, Kind.INTEGER, Kind.BOOLEAN,
    ]  # fmt: skip


def test_numbers_are_constants_of_the_same_type() -> None:
    """Whose literal is known, and nothing else's."""
    two = whole(1, 2).number(2)
    assert (two.type, str(two.array.dtype), two.literal) == (INT32, "int32", 2)
    assert whole(2).literal is None
    assert (whole(1, 2) + 2).array.tolist() == [3, 4]


def test_conversions_round_to_the_type() -> None:
    """And are computed in float64 again."""
    third = real(1 / 3)
    for dtype, digits in ((HALF, 11), (BRAIN, 8), (FLOAT, 24)):
        rounded = third.cast(dtype)
        assert (rounded.type, str(rounded.array.dtype)) == (dtype, "float64")
        assert rounded.array.item() == round(2 ** (digits + 1) / 3) / 2 ** (digits + 1)
    assert real(-1.5).cast(INT8).array.tolist() == [-1]
    assert read(np.array([1, 2], np.int8)).dtype == np.int8
    with pytest.raises(ValueError, match="a conversion to"):
        real(1).cast(TensorProto.STRING)


def test_a_double_keeps_its_type() -> None:
    """The stash type narrows what has fewer digits alone."""
    assert real(1, dtype=DOUBLE).retype(FLOAT).type == DOUBLE
    assert real(1, dtype=HALF).retype(FLOAT).type == FLOAT
    assert real(1).is_computed_as(HALF)
    assert not real(1).is_computed_as(INT32)
    assert not whole(1).is_computed_as(FLOAT)


def test_functions_are_applied_by_formula_or_by_numpy() -> None:
    """Python numbers take the type of the first value; comparisons give truth values."""
    x = real(-1.0, 0.0, 3.0)
    assert scalar.less(x, 1).array.tolist() == [True, True, False]
    assert scalar.less(x, 1).type == BOOL
    assert scalar.relu(x).array.tolist() == [0.0, 0.0, 3.0]
    np.testing.assert_allclose(scalar.softplus(x).array, np.log1p(np.exp([-1.0, 0.0, 3.0])), rtol=1e-15)
    np.testing.assert_allclose(scalar.one_plus_erf(x, 1.0).array, 1 + NUMPY[scalar.erf](x.array), rtol=1e-12)
