"""Made-up inputs: signed, wide, at the edges, and of a kind and shape that the model can take."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.support.errors import UsageError
from onnxfuse.verification.inputs.counted_extents import IntegerRange
from onnxfuse.verification.inputs.input_roles import InputRole
from onnxfuse.verification.inputs.inputs import Case, InputSpec, cases, perturb, shape_sets

NUMBER = InputRole("number")


def within(low: int, high: int) -> InputRole:
    """Return the role of integers of a range."""
    return InputRole("within", (IntegerRange(low, high, limited=False),))


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE])
def test_floats_are_signed_and_wide_and_reach_the_edges(dtype: int) -> None:
    """Every type gets both signs, magnitudes over many powers of two, zeros of both signs, ones and denormals."""
    spec = InputSpec("x", dtype, (64, 64), NUMBER)
    made = {c.name: c.make()["x"] for c in cases([spec], [0])}
    assert set(made) == {"normal", "small", "wide", "edge"}
    info = ml_dtypes.finfo(spec.array_type)  # type: ignore[no-untyped-call]  # ml_dtypes leaves it untyped
    for x in made.values():
        values = x.astype(np.float64)
        assert x.dtype == spec.array_type
        assert np.isfinite(values).all()
        assert 0.4 < (values < 0).mean() / (values != 0).mean() < 0.6
    assert np.abs(made["small"].astype("d")).max() < 0.1
    wide = np.abs(made["wide"].astype(np.float64))
    assert wide.max() / wide.min() > 2**15
    edge = made["edge"].astype(np.float64)
    for value in (1.0, -1.0, float(info.tiny), float(info.smallest_subnormal)):
        assert (edge == value).any()
    assert ((edge == 0) & np.signbit(edge)).any()
    assert (edge[0] == 0).all()
    assert (edge[1] != 0).any()


def test_the_same_seed_gives_the_same_inputs() -> None:
    """Inputs depend on seed, kind and name, and not on the other inputs."""
    x, y = (InputSpec(n, TensorProto.FLOAT, ("n", 8), NUMBER) for n in "xy")
    both, alone = cases([y, x], [0]), cases([x], [0])
    for a, b in zip(both, alone, strict=True):
        np.testing.assert_array_equal(a.make()["x"], b.make()["x"])
        np.testing.assert_array_equal(a.make()["x"], a.make()["x"])
    assert (both[0].make()["x"] != both[0].make()["y"]).any()
    assert (cases([x], [1])[0].make()["x"] != alone[0].make()["x"]).any()
    static = cases([InputSpec("x", TensorProto.FLOAT, (8,), NUMBER)], [0])
    assert [c.name for c in static].count("normal") == 2
    assert (static[0].make()["x"] != static[1].make()["x"]).any()


def test_a_dimension_name_is_one_number_everywhere() -> None:
    """Dynamic dimensions take 1, a small odd size and a bigger one; equal names equal sizes."""
    specs = [
        InputSpec("ids", TensorProto.INT64, ("batch", "sequence"), NUMBER),
        InputSpec("mask", TensorProto.INT64, ("batch", 1, "sequence"), NUMBER),
        InputSpec("image", TensorProto.FLOAT, (None, 3, None, None), NUMBER),
    ]
    sets = shape_sets(specs, {})
    assert [s["ids"] for s in sets] == [(1, 16), (3, 7), (8, 1)]
    assert [s["mask"] for s in sets] == [(1, 1, 16), (3, 1, 7), (8, 1, 1)]
    assert [s["image"] for s in sets] == [(1, 3, 64, 64), (3, 3, 33, 33), (8, 3, 96, 96)]
    run = cases(specs, [0])
    assert {c.shapes["ids"] for c in run if c.name == "normal"} == {(1, 16), (3, 7), (8, 1)}


def test_shapes_that_the_user_gives() -> None:
    """Values of a dimension, the shape of an input, and both."""
    specs = [
        InputSpec("x", TensorProto.FLOAT, ("n", "c"), NUMBER),
        InputSpec("y", TensorProto.FLOAT, ("n", 4), NUMBER),
    ]
    assert shape_sets(specs, {"n": [2, 5], "c": [9]}) == [{"x": (2, 9), "y": (2, 4)}, {"x": (5, 9), "y": (5, 4)}]
    assert shape_sets(specs, {"x": [6, 7]}) == [{"x": (6, 7), "y": (6, 4)}]
    assert shape_sets(specs, {"x": [6, 7], "n": [1, 2]}) == [{"x": (6, 7), "y": (6, 4)}]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": [1]}, "shape z: no input or dimension has that name"),
        ({"x": [1]}, "shape x=1: the input has rank 2"),
        ({"y": [1, 5]}, "shape y=1x5: axis 1 must be 4"),
        ({"x": [2, 2], "y": [3, 4]}, "shape y=3x4: axis 0 must be 2"),
        ({"n": []}, "sizes are integers from 0"),
        ({"n": [-1]}, "sizes are integers from 0"),
    ],
)
def test_shapes_that_cannot_be(shapes: dict[str, list[int]], message: str) -> None:
    """A wrong shape names the input, the axis and what fits."""
    specs = [
        InputSpec("x", TensorProto.FLOAT, ("n", "c"), NUMBER),
        InputSpec("y", TensorProto.FLOAT, ("n", 4), NUMBER),
    ]
    with pytest.raises(UsageError, match=message):
        shape_sets(specs, shapes)


def test_token_ids_masks_and_bools_are_ones_that_the_model_can_take() -> None:
    """Ids lie in the table and reach both ends; every row of a mask holds a 1, some a 0."""
    ids = InputSpec("ids", TensorProto.INT64, (32, 16), within(0, 9))
    mask = InputSpec("mask", TensorProto.INT64, (32, 16), InputRole("mask"))
    flag = InputSpec("flag", TensorProto.BOOL, (32, 16), NUMBER)
    for case in cases([ids, mask, flag], [0, 1]):
        made = case.make()
        assert made["ids"].dtype == np.int64
        assert (made["ids"].min(), made["ids"].max()) == (0, 9)
        for name in ("mask", "flag"):
            assert set(np.unique(made[name])) == {0, 1}
            assert made[name].any(axis=-1).all()
        assert made["flag"].dtype == np.bool_


def test_indices_stay_valid_after_what_is_added_to_them() -> None:
    """Positions that a model moves by two, as RoBERTa does, still lie in the table; sizes are small and positive."""
    moved = InputSpec("moved", TensorProto.INT64, (64,), within(2, 8))
    size = InputSpec("size", TensorProto.INT64, (64,), within(1, 4))
    for case in cases([moved, size], [0]):
        made = case.make()
        assert (made["moved"].min(), made["moved"].max()) == (2, 8)
        assert (made["size"].min(), made["size"].max()) == (1, 4)


def test_a_flag_takes_both_values() -> None:
    """A single bool, or a number that is only tested, decides about a branch: both are taken."""
    flag = InputSpec("flag", TensorProto.BOOL, (), NUMBER)
    switch = InputSpec("switch", TensorProto.INT64, (1,), InputRole("mask"))
    made = [c.make() for c in cases([flag, switch], [0])]
    assert {bool(m["flag"]) for m in made} == {False, True}
    assert {int(m["switch"][0]) for m in made} == {0, 1}


def test_bytes_and_other_integers_use_their_range() -> None:
    """Bytes are full-range, wider integers signed and moderate."""
    specs = [
        InputSpec("u8", TensorProto.UINT8, (64, 64), InputRole("mask")),
        InputSpec("i8", TensorProto.INT8, (64, 64), NUMBER),
        InputSpec("i32", TensorProto.INT32, (64, 64), NUMBER),
    ]
    made = cases(specs, [0])[0].make()
    assert [(int(x.min()), int(x.max())) for x in made.values()] == [(0, 255), (-128, 127), (-100, 100)]


def test_a_type_without_made_up_values_asks_for_real_ones() -> None:
    """Strings are not invented."""
    spec = InputSpec("s", TensorProto.STRING, (1,), NUMBER)
    with pytest.raises(UsageError, match="input 's' is of type STRING"):
        cases([spec], [0])[0].make()


def test_nudged_inputs_differ_by_at_most_one_rounding_step() -> None:
    """Signs, zeros, integers and tiny values stay; about two thirds of the rest move to a neighbour."""
    for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16):
        x = np.random.default_rng(0).standard_normal(1000).astype(dtype)
        x[:3] = 0.0, -0.0, ml_dtypes.finfo(dtype).smallest_subnormal  # type: ignore[no-untyped-call]  # ml_dtypes leaves it untyped
        moved = perturb({"x": x, "i": np.arange(3)}, 0)
        assert moved is not None
        up = np.abs(moved["x"].astype(np.float64) - x.astype(np.float64))
        step = np.abs(np.nextafter(x, np.full_like(x, np.inf)).astype(np.float64) - x.astype(np.float64))
        assert (up <= 2 * step).all()
        assert 0.5 < (up > 0).mean() < 0.8
        assert (moved["x"][:3].view(f"u{x.itemsize}") == x[:3].view(f"u{x.itemsize}")).all()
        np.testing.assert_array_equal(moved["i"], np.arange(3))
    assert perturb({"i": np.arange(3)}, 0) is None


def test_values_are_made_when_asked_for() -> None:
    """A plan of many cases holds no arrays."""
    assert all(isinstance(c, Case) and callable(c.make) and c.generated for c in cases([], range(3)))


def test_volumes_are_made_up_smaller_than_images() -> None:
    """Three open axes of 96 would be as many places as a hundred images: the truth of a volume takes seconds, too."""
    specs = [InputSpec("x", TensorProto.FLOAT, ("n", 3, "d", "h", "w"), NUMBER)]
    images = [InputSpec("x", TensorProto.FLOAT, ("n", 3, "h", "w"), NUMBER)]
    largest = [max(int(np.prod(s["x"])) for s in shape_sets(one, {})) for one in (specs, images)]
    assert largest[0] < 2 * largest[1]
