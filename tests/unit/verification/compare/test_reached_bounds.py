"""Inputs are scaled along a ray until a value is near the large constant that it meets, each row for itself."""

from functools import partial

import numpy as np
import pytest

from onnxfuse.verification.compare import reached_bounds
from onnxfuse.verification.compare.reached_bounds import (
    CLOSE,
    OFFSETS,
    SITES,
    BoundSite,
    bound_sites,
    case_reaching,
    scaled,
)
from onnxfuse.verification.inputs.inputs import Array, Case
from tests.support.verification.small_models import text_model

FORMS = {
    "Sub": ("y = Sub (h, s)", 5000.0), "Add": ("y = Add (h, s)", -5000.0),
    "Add, other side": ("y = Add (s, h)", -5000.0),
    "Max": ("y = Max (h, s)", 5000.0), "Less": ("c = Less (h, s) y = Cast <to = 1> (c)", 5000.0),
    "Clip": ("y = Clip (h, , s)", 5000.0),
}  # fmt: skip


def sites(nodes: str, **constants: float) -> list[BoundSite]:
    """Return the sites of nodes over `h`, which is computed, with these constants."""
    known = {name: np.array(value, np.float32) for name, value in {"s": 5000.0, **constants}.items()}
    return bound_sites(
        text_model(f"g (float[n, 4] x) => (float[n, 4] y) {{ h = Tanh (x) {nodes} }}", opset=17, **known)
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_value_that_meets_a_large_constant_is_a_site(form: str) -> None:
    """Where it is compared, clipped, chosen from or added to: with the number at which they meet."""
    nodes, target = FORMS[form]
    (site,) = sites(nodes)
    assert (site.value, float(site.target)) == ("h", target)


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Mul (h, s)",
        "y = Pow (h, s)",
        "y = Sub (x, s)",
        "y = Sub (h, small)",
        "y = Sub (h, huge)",
        "y = own.Sub (h, s)",
    ],
)
def test_other_values_are_none(nodes: str) -> None:
    """Scaled by it, an input itself, near a usual number, or beyond all; an operator of another library."""
    model = text_model(
        f"g (float[n, 4] x) => (float[n, 4] y) {{ h = Tanh (x) {nodes.replace('own.', '')} }}", opset=17,
        s=np.array(5000, np.float32), small=np.array(2, np.float32), huge=np.array(1e30, np.float32),
    )  # fmt: skip
    if "own." in nodes:
        model.graph.node[-1].domain = "own"
    assert bound_sites(model) == []


def test_each_value_and_number_is_sought_once_and_few_of_them() -> None:
    """Two that are alike are one site."""
    assert len(sites("a = Sub (h, s) b = Sub (h, s) y = Add (a, b)")) == 1
    many = " ".join(f"a{n} = Sub (h, s{n})" for n in range(SITES + 3))
    found = sites(f"{many} y = Identity (a0)", **{f"s{n}": 5000.0 + n for n in range(SITES + 3)})
    assert len(found) == SITES


def base(rows: int) -> Case:
    """Return inputs of so many rows, and an integer beside them."""
    x = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
    x[:, 1] = np.abs(x[:, 1])  # a ray from zero reaches numbers of one sign
    return Case("default", 0, {"x": x.shape}, partial(dict, x=x, i=np.arange(rows)))


def value(x: dict[str, Array]) -> Array:
    """Return a value that is no multiple of the inputs."""
    return x["x"] * 3.0 + np.sin(x["x"]) + 1.0


@pytest.mark.parametrize("rotation", [0, 3])
def test_each_row_comes_near_the_constant_at_its_own_distance(rotation: int) -> None:
    """In one element; the other inputs stay, and the case can be made again."""
    site = BoundSite("h", np.array(5000.0))
    found = case_reaching(base(5), site, value, rotation)
    assert found is not None
    made = found.make()
    goals = np.resize(np.roll(OFFSETS, -rotation), 5)
    nearest = np.abs((value(made) - 5000.0) - goals[:, None]).min(axis=1)
    assert (nearest <= CLOSE).all()
    np.testing.assert_array_equal(made["i"], np.arange(5))
    np.testing.assert_array_equal(found.make()["x"], made["x"])


def test_what_no_scale_reaches_gives_no_case() -> None:
    """A value that stays where it is, and one whose constant is on the other side of zero for every row."""
    site = BoundSite("h", np.array(5000.0))
    assert case_reaching(base(3), site, lambda x: np.tanh(x["x"])) is None
    assert case_reaching(base(3), site, lambda x: -np.abs(x["x"])) is None


def test_rows_are_scaled_alone_where_all_have_a_batch() -> None:
    """Else all of the inputs at once."""
    inputs = {"x": np.ones((2, 3), np.float32), "n": np.array([1, 2])}
    by_row = scaled(inputs, [2.0, 3.0])
    np.testing.assert_array_equal(by_row["x"], [[2, 2, 2], [3, 3, 3]])
    np.testing.assert_array_equal(by_row["n"], [1, 2])
    assert by_row["x"].dtype == np.float32
    np.testing.assert_array_equal(scaled(inputs, [5.0])["x"], np.full((2, 3), 5.0))
    assert reached_bounds._rows(inputs, np.ones((2, 7))) == 2
    assert reached_bounds._rows({**inputs, "w": np.ones(4)}, np.ones((2, 7))) == 1
    assert reached_bounds._rows(inputs, np.array(1, np.float32)) == 1
