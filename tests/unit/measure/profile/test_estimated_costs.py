"""Costs of nodes from shapes alone: sizes that are given, those that are assumed, and those that are mistakes."""

import pytest

from onnxfuse.measure.profile.estimated_costs import costs, dimensions
from onnxfuse.support.errors import UsageError
from tests.support.small import parse

MODEL = parse("""g (float[N,M] x, float[?,N] z, float[2,3] k, float w) => (float[N,M] y, float[A] r) {
  a = Relu (x)  y = Neg (a)  s = Shape (z)  f = Cast <to = 1> (s)  r = Abs (f)
}""")


def test_dynamic_dimensions_have_assumed_sizes() -> None:
    """The first of an input is a batch of 1, others are 128; a name that is first anywhere is 1."""
    assert dimensions(MODEL) == {"N": 1, "M": 128, "z[0]": 1}
    found = costs(MODEL)
    assert found.sizes == {"N": 1, "M": 128, "z[0]": 1}
    assert found.shapes == {"x": (1, 128), "z": (1, 1), "k": (2, 3), "w": ()}


def test_sizes_are_given_by_dimension_or_by_input() -> None:
    """An input's shape sets its dimensions everywhere."""
    assert costs(MODEL, {"M": (5,)}).shapes["x"] == (1, 5)
    found = costs(MODEL, {"x": (4, 6)})
    assert found.shapes == {"x": (4, 6), "z": (1, 4), "k": (2, 3), "w": ()}
    assert found.sizes["N"] == 4
    assert costs(MODEL, {"z[0]": (7,)}).shapes["z"] == (7, 1)
    assert costs(MODEL, {"k": (2, 3)}).shapes["k"] == (2, 3)


def test_nodes_that_launch_nothing_are_free() -> None:
    """Arithmetic on shapes; the others read and write their values once."""
    facts = {fact["name"]: fact for fact in costs(MODEL, {"x": (4, 6)}).facts()}
    assert facts["a"] == {"name": "a", "reads": 96, "writes": 96, "flops": 24, "launches": 1}
    assert facts["s"] == {"name": "s", "reads": 0, "writes": 0, "flops": 0, "launches": 0}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"Q": (1,), "R": (2,)}, "no dimension and no input called 'Q'; it has N, M, z\\[0\\], x, z, k, w"),
        ({"M": (1, 8)}, "M has 2 sizes, and one is looked at at a time"),
        ({"M": ()}, "M has 0 sizes"),
        ({"x": (4,)}, "x has 2 dimensions, and 1 is given"),
        ({"k": (1, 2, 3)}, "k has 2 dimensions, and 3 are given"),
    ],
)  # fmt: skip
def test_mistakes_in_sizes_are_told(sizes: dict[str, tuple[int, ...]], message: str) -> None:
    """A name that is none, several sizes, another rank."""
    with pytest.raises(UsageError, match=message):
        costs(MODEL, sizes)
