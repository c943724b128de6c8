"""The layout of a drawn graph."""

import random
import time
from itertools import pairwise

from onnxfuse.reporting.graph_drawing import GAP, layout


def random_graph(nodes: int, seed: int) -> list[tuple[int, int]]:
    """Return edges of a deep graph with branches, joins, and some very long edges."""
    rng = random.Random(seed)
    edges = {(max(0, i - rng.choice((1, 1, 1, 2, 3, 8))), i) for i in range(1, nodes)}
    edges |= {(rng.randrange(i), i) for i in range(1, nodes) if rng.random() < 0.2}
    return sorted(edges, key=lambda e: e[1])


def test_nothing_overlaps_and_every_edge_goes_down() -> None:
    """The two laws of a layered drawing; lines begin and end at their nodes."""
    for seed in range(20):
        edges = random_graph(60, seed)
        widths = [random.Random(seed + i).uniform(30, 200) for i in range(60)]
        drawn = layout(widths, edges)
        for (start, end), line in zip(edges, drawn.lines, strict=True):
            assert drawn.places[start][1] < drawn.places[end][1]
            assert (line[0], line[-1]) == (drawn.places[start], drawn.places[end])
        rows: dict[float, list[int]] = {}
        for node, (_, y) in enumerate(drawn.places):
            rows.setdefault(y, []).append(node)
        for row in rows.values():
            row.sort(key=lambda n: drawn.places[n][0])
            for left, right in pairwise(row):
                room = drawn.places[right][0] - drawn.places[left][0] - (widths[left] + widths[right]) / 2
                assert room >= GAP - 1e-6
        assert all(0 <= x <= drawn.width and 0 <= y <= drawn.height for x, y in drawn.places)


def test_a_chain_is_a_straight_line() -> None:
    """All in one column."""
    drawn = layout([50.0] * 9, [(i, i + 1) for i in range(8)])
    assert len({x for x, _ in drawn.places}) == 1


def test_an_empty_graph_has_no_size() -> None:
    """Nothing to draw is no error."""
    assert (layout([], []).places, layout([], []).width) == ((), 0.0)


def test_two_thousand_nodes_are_laid_out_in_a_second() -> None:
    """A page is written while a person waits; measured: 0.2 s. Of the processor: other tests run beside this one."""
    edges = random_graph(2000, 1)
    start = time.process_time()
    layout([80.0] * 2000, edges)
    assert time.process_time() - start < 1.0
