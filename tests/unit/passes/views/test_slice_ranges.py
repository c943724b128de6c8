"""Which part of an axis a Slice takes, and where the parts of a Split lie."""

import pytest

from onnxfuse.passes.views.slice_ranges import slice_range, split_at
from tests.support.small import graph_of, parse

NUMBERS = ", ".join(f"int64[1] {name} = {{{n}}}" for name, n in (("one", 1), ("two", 2), ("five", 5), ("last", -1)))


def sliced(operands: str) -> tuple[int, int, int] | None:
    text = f"g (float[N,8] x, int64[1] free) => (float[A,B] y) <{NUMBERS}, int64[2] both = {{0,1}}, int64 end = {{7}}>"
    graph = graph_of(parse(f"{text} {{ y = Slice (x, {operands}) }}"))
    return slice_range(graph, graph.nodes[0])


@pytest.mark.parametrize(
    ("operands", "found"),
    [
        ("one, five, one", (1, 1, 5)),
        ("one, five, one, one", (1, 1, 5)),
        ("last, five, last", (-1, -1, 5)),
        ("one, five, one, two", None),
        ("one, five, one, last", None),
        ("one, free, one", None),
        ("one, five, one, free", None),
        ("one, five", None),
        ("both, both, both", None),
    ],
)
def test_one_axis_in_steps_of_one(operands: str, found: tuple[int, int, int] | None) -> None:
    """As axis, start and end; negative ones stay as they are. None of several axes, other steps, unknown operands."""
    assert sliced(operands) == found


@pytest.mark.parametrize(
    ("shape", "axis", "nodes", "found"),
    [
        ("[N,9]", 1, "a, b, c = Split <axis = 1, num_outputs = 3> (x)", [(0, 3), (3, 6), (6, 9)]),
        ("[N,9]", 1, "a, b, c = Split <axis = 1> (x, parts)", [(0, 2), (2, 3), (3, 9)]),
        ("[N,9]", -1, "a, b, c = Split <axis = -1> (x, parts)", [(0, 2), (2, 3), (3, 9)]),
        ("[9,N]", 1, "a, b, c = Split <axis = 1, num_outputs = 3> (x)", []),
    ],
)
def test_parts_lie_behind_each_other(shape: str, axis: int, nodes: str, found: list[tuple[int, int]]) -> None:
    """Up to the first whose size is not known: where the next one begins is not known either."""
    outputs = "float[A,B] a, float[A,C] b, float[A,D] c"
    text = f"g (float{shape} x) => ({outputs}) <int64[3] parts = {{2,1,6}}> {{ {nodes} }}"
    graph = graph_of(parse(text, 18))
    assert split_at(graph, graph.nodes[0], axis) == found
