"""Layered graph layout (Sugiyama's four steps): every node below its inputs, edges short and mostly straight.

Layers by longest path; dummy points for long edges; ordering by medians; x coordinates by least squares.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

ROW = 64.0
"""Distance between layers."""
GAP = 22.0
"""Minimum distance between adjacent nodes."""
POINT = 8.0
"""Width of the dummy points of a long edge."""
LONG = 40
"""Largest number of layers for which an edge is routed; a longer one is drawn straight, as it would push all others
aside."""
SWEEPS = 6

Point = tuple[float, float]


@dataclass(frozen=True)
class Drawing:
    """Where everything stands."""

    places: tuple[Point, ...]
    """Center of each node."""
    lines: tuple[tuple[Point, ...], ...]
    """Points of each edge, including those of its nodes."""
    width: float
    height: float


def layout(widths: Sequence[float], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Return positions for nodes of these widths; edges lead from lower to higher indices, as in topological order."""
    if not widths:
        return Drawing((), (), 0.0, 0.0)
    layers = _layers(len(widths), edges)
    sizes, level = list(widths), list(layers)
    routes: list[list[int]] = []
    links: list[tuple[int, int]] = []
    for start, end in edges:
        span = layers[end] - layers[start]
        route = [start]
        if 1 < span <= LONG:
            route += range(len(sizes), len(sizes) + span - 1)
            sizes += [POINT] * (span - 1)
            level += range(layers[start] + 1, layers[end])
        route.append(end)
        routes.append(route)
        if span <= LONG:
            links += pairwise(route)
    above: list[list[int]] = [[] for _ in sizes]
    below: list[list[int]] = [[] for _ in sizes]
    for start, end in links:
        below[start].append(end)
        above[end].append(start)
    rows: list[list[int]] = [[] for _ in range(max(level) + 1)]
    for item, row in enumerate(level):
        rows[row].append(item)
    _order(rows, above, below)
    x = _positions(rows, sizes, above, below)
    leftmost = min(x[i] - sizes[i] / 2 for i in range(len(sizes)))
    positions = [(x[i] - leftmost + GAP, level[i] * ROW + ROW / 2) for i in range(len(sizes))]
    width = max(position[0] + sizes[i] / 2 for i, position in enumerate(positions)) + GAP
    lines = tuple(tuple(positions[i] for i in route) for route in routes)
    return Drawing(tuple(positions[: len(widths)]), lines, width, len(rows) * ROW)


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return each node's layer: below its lowest input; without inputs, just above its first reader."""
    layers = [0] * count
    sources, readers = [0] * count, dict[int, list[int]]()
    for start, end in sorted(edges, key=lambda e: e[1]):
        layers[end] = max(layers[end], layers[start] + 1)
        sources[end] += 1
        readers.setdefault(start, []).append(end)
    for node in range(count):
        if not sources[node] and node in readers:
            layers[node] = max(min(layers[r] for r in readers[node]) - 1, 0)
    return layers


def _order(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    """Sort each row by the median position of the neighbors, alternately downwards and upwards."""
    position: dict[int, float] = {}
    for row in rows:
        position.update((item, float(index)) for index, item in enumerate(row))
    for sweep in range(SWEEPS):
        neighbours = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            row.sort(key=_by_median(neighbours, position))
            position.update((item, float(index)) for index, item in enumerate(row))


def _by_median(neighbours: list[list[int]], position: dict[int, float]) -> Callable[[int], float]:
    return lambda item: median(position[n] for n in neighbours[item]) if neighbours[item] else position[item]


def _positions(
    rows: list[list[int]], sizes: list[float], above: list[list[int]], below: list[list[int]]
) -> list[float]:
    """Return each item's x: as close to the center of its neighbors as order and widths allow."""
    x = [0.0] * len(sizes)
    for row in rows:
        _set_row(row, [0.0] * len(row), sizes, x)
    for sweep in range(2 * SWEEPS):
        neighbours = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            targets = [sum(x[n] for n in neighbours[i]) / len(neighbours[i]) if neighbours[i] else x[i] for i in row]
            _set_row(row, targets, sizes, x)
    return x


def _set_row(row: list[int], targets: list[float], sizes: list[float], x: list[float]) -> None:
    """Place a row at least-squares distance from `targets` without overlap, by pooling adjacent violators."""
    offsets, offset = [], 0.0
    for index, item in enumerate(row):
        if index:
            offset += (sizes[row[index - 1]] + sizes[item]) / 2 + GAP
        offsets.append(offset)
    pools: list[tuple[float, int]] = []
    for target, off in zip(targets, offsets, strict=True):
        mean, count = target - off, 1
        while pools and pools[-1][0] > mean:
            other, members = pools.pop()
            mean, count = (other * members + mean * count) / (members + count), members + count
        pools.append((mean, count))
    index = 0
    for mean, count in pools:
        for _ in range(count):
            x[row[index]] = mean + offsets[index]
            index += 1
