"""Derive the shapes that each fused op sees from ranges of the model's input dimensions."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx

from onnxfuse import cuda
from onnxfuse.cuda.launch_programs.cover import Domain, Rows
from onnxfuse.cuda.launch_programs.family import Key
from onnxfuse.graph.concrete_shapes import every_type, fused_nodes, input_shapes, with_sizes
from onnxfuse.model.fused import FusedOp
from onnxfuse.model.overridable import required_inputs
from onnxfuse.runtime.kernels.total_lengths import ROWS, TOKENS, totals
from onnxfuse.shapes.extent_values import extent_value
from onnxfuse.shapes.inference import infer, shell
from onnxfuse.shapes.types import Dim, is_unknown
from onnxfuse.symbolic.integer import Int
from onnxfuse.symbolic.parsing import parsed

Range = tuple[int, int]
"""Least and greatest size."""
Sizes = Mapping[str, int]

MOST_SHAPES = 1_000_000
"""Shapes per op that are enumerated, which takes a second to evaluate; larger sets are sampled to this size."""
MOST_ALONG = 20_000
"""Values per dimension when the shapes are sampled."""
MOST_INFERRED = 48
"""Sizes at which shape inference is run for shapes that do not follow from dimension names: 0.1 s each for
BERT-base."""
BATCH, REST = (1, 32), (1, 512)
"""Default ranges: the first dimension of an input, and all others."""


def dimensions(model: onnx.ModelProto) -> dict[str, Range]:
    """Return the dynamic dimensions of the model's inputs by name, each with its default range.

    An unnamed one is called INPUT[AXIS]. A computed name such as `past+1` is not a dimension of its own.
    """
    ranges: dict[str, Range] = {}
    for value in required_inputs(model.graph):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                ranges.setdefault(dim.dim_param or f"{value.name}[{axis}]", REST if axis else BATCH)
    computed = {n for n in ranges if n not in (names := _names(parsed(n))) and names and names <= set(ranges)}
    return {n: r for n, r in ranges.items() if n not in computed}


def domains(model: onnx.ModelProto, ranges: Mapping[str, Range]) -> dict[str, list[Domain]]:
    """Return the shapes that each fused op sees while the model's dimensions take all values of their ranges.

    One domain for each set of constant extents, such as those of weights. Ops without known shapes are omitted.
    """
    light = _named(shell(model))
    graph = infer(light).graph
    types, nodes = every_type(graph), fused_nodes(graph)
    rows: dict[str, dict[Key, list[tuple[Rows, bool]]]] = {}
    unknown = False
    for name, mine in nodes.items():
        for input_dims in dict.fromkeys(tuple(types[v].shape if v in types else None for v in n.input) for n in mine):
            if any(s is None or not all(_follows(d, ranges) for d in s) for s in input_dims):
                unknown = True
                continue
            sides = [tuple(s or ()) for s in input_dims]
            extents, complete = _extents([d for s in sides for d in s], ranges)
            _add(rows.setdefault(name, {}), tuple(map(len, sides)), extents, complete)
    if unknown:
        _inferred(light, ranges, rows)
    return {name: [_domain(key, parts) for key, parts in by_key.items()] for name, by_key in rows.items()}


def with_totals(domain: Domain, op: FusedOp) -> Domain:
    """Return the shapes with those of the numbers on the CPU that are a total length: each has its value as a shape.

    A total is at least the number of new tokens, and at most that and all rows of the cache.
    """
    for total in totals(op):
        fresh, past = (total.fresh, TOKENS), (total.past, ROWS)
        if domain.key.ranks[total.position] == 0 and all(domain.key.ranks[at] > axis for at, axis in (fresh, past)):
            domain = _with_total(domain, total.position, fresh, past)
    return domain


def _with_total(domain: Domain, position: int, fresh: tuple[int, int], past: tuple[int, int]) -> Domain:
    ranks, rows = [*domain.key.ranks], domain.extents
    least, cached = (rows[:, sum(ranks[:at]) + axis] for at, axis in (fresh, past))
    whole = domain.whole and bool((cached + 1).sum() <= MOST_SHAPES)
    if whole:
        each = cached + 1
        totals = np.repeat(least, each) + np.arange(each.sum()) - np.repeat(each.cumsum() - each, each)
        rows = np.repeat(rows, each, axis=0)
    else:
        steps = np.linspace(0, 1, max(MOST_SHAPES // len(rows), 3))
        most = MOST_SHAPES // len(steps)
        if len(rows) > most:
            chosen = np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))
            rows, least, cached = rows[chosen], least[chosen], cached[chosen]
        totals = (least[:, None] + (cached[:, None] * steps).astype(np.int64)).reshape(-1)
        rows = np.repeat(rows, len(steps), axis=0)
    before = sum(ranks[:position])
    rows = np.unique(np.concatenate([rows[:, :before], totals[:, None], rows[:, before:]], 1), axis=0)
    ranks[position] = 1
    fixed = [*domain.key.fixed]
    fixed.insert(before, int(totals[0]) if (totals == totals[0]).all() else None)
    return Domain(Key(tuple(ranks), tuple(fixed)), rows, whole)


def outside(model: onnx.ModelProto) -> set[str]:
    """Return the fused ops that read graph inputs or write graph outputs: buffers of the caller, of any alignment."""
    values = {v.name for v in required_inputs(model.graph)}
    for node in model.graph.node:
        if cuda.is_free(node.op_type, node.domain) and node.input and node.input[0] in values:
            values.update(node.output)
    values |= {v.name for v in model.graph.output}
    return {
        name
        for name, nodes in fused_nodes(model.graph).items()
        if any(v in values for n in nodes for v in (*n.input, *n.output))
    }


def _named(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every input dimension either named or fixed."""
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") and not dim.dim_param:
                dim.dim_param = f"{value.name}[{axis}]"
    return model


def _follows(dim: Dim, ranges: Mapping[str, Range]) -> bool:
    """Return whether an extent is determined by dimensions that have ranges."""
    return dim is not None and not is_unknown(dim) and _names(dim) <= set(ranges)


def _names(dim: Dim) -> set[str]:
    """Return the names that an extent depends on."""
    return set(dim.names) if isinstance(dim, Int) else set()


def _extents(dims: Sequence[Dim], ranges: Mapping[str, Range]) -> tuple[Rows, bool]:
    """Return the extents at all sizes, one row each, and whether these are exhaustive."""
    names = set[str]().union(*map(_names, dims))
    used = [n for n in ranges if n in names]
    sizes, complete = _sizes({n: ranges[n] for n in used})
    columns_by_name = {n: sizes[:, c] for c, n in enumerate(used)}
    columns = []
    for dim in dims:
        if isinstance(dim, Int):
            columns.append(columns_by_name[str(dim)] if dim.is_name else _computed(dim, columns_by_name))
        else:
            columns.append(np.full(len(sizes), dim, np.int64))
    rows = np.stack(columns, 1) if columns else np.empty((len(sizes), 0), np.int64)
    return np.unique(rows[(rows >= 0).all(1)], axis=0), complete


def _computed(dim: Int, sizes: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return a computed extent at all sizes, -1 where it is invalid; evaluated once per distinct set of its own
    dimensions."""
    sets, inverse = np.unique(np.stack([sizes[n] for n in dim.names], 1), axis=0, return_inverse=True)
    values_computed = (
        extent_value(dim, dict(zip(dim.names, values, strict=True)).__getitem__) for values in sets.tolist()
    )
    return np.array([-1 if v is None else v for v in values_computed], np.int64)[inverse.reshape(-1)]


def _sizes(ranges: Mapping[str, Range]) -> tuple[Rows, bool]:
    """Return sizes of the dimensions, one row per set, and whether they cover the ranges exhaustively.

    If there are too many: every size of each dimension with the others at their extremes, and random sets.
    """
    sides = [range(low, high + 1) for low, high in ranges.values()]
    count = math.prod(map(len, sides))
    if count <= MOST_SHAPES:
        return np.array(list(itertools.product(*sides)), np.int64).reshape(count, len(sides)), True
    some = set(_along(sides))
    chance = np.random.default_rng(0)
    by_chance = np.stack([chance.integers(s.start, s.stop, MOST_SHAPES // 8) for s in sides], 1)
    return np.unique(np.concatenate([np.array(sorted(some), np.int64), by_chance]), axis=0), False


def _along(sides: Sequence[range]) -> Iterator[tuple[int, ...]]:
    for axis, side in enumerate(sides):
        ends = [_values(side) if a == axis else sorted({s.start, s.stop - 1}) for a, s in enumerate(sides)]
        yield from itertools.product(*ends)


def _values(side: range) -> Sequence[int]:
    """Return all values; of a large range a sample, with the neighbors of powers of 2, where planners switch
    strategy."""
    if len(side) <= MOST_ALONG:
        return side
    powers = {2**k + offset for k in range(side.stop.bit_length()) for offset in (-1, 0, 1)}
    some = set(np.linspace(side.start, side.stop - 1, MOST_ALONG).astype(np.int64).tolist())
    return sorted(some | {n for n in powers if n in side})


def _inferred(
    model: onnx.ModelProto, ranges: Mapping[str, Range], rows: dict[str, dict[Key, list[tuple[Rows, bool]]]]
) -> None:
    """Add the shapes inferred at some sizes (at all sizes if few) for nodes whose shapes do not follow from names."""
    sizes, complete = _few(ranges)
    shapes_seen: dict[tuple[str, int], list[tuple[tuple[int, ...], ...]]] = {}
    for at in sizes:
        graph = infer(with_sizes(model, at)[0]).graph
        types = every_type(graph)
        for name, nodes in fused_nodes(graph).items():
            for index, node in enumerate(nodes):
                shapes = input_shapes(node, types)
                if shapes is not None:
                    shapes_seen.setdefault((name, index), []).append(shapes)
    for (name, _), all_shapes in shapes_seen.items():
        for ranks in {tuple(map(len, shapes)) for shapes in all_shapes}:
            mine = [[d for s in shapes for d in s] for shapes in all_shapes if tuple(map(len, shapes)) == ranks]
            extents = np.unique(np.array(mine, np.int64).reshape(len(mine), -1), axis=0)
            _add(rows.setdefault(name, {}), ranks, extents, complete)


def _few(ranges: Mapping[str, Range]) -> tuple[list[Sizes], bool]:
    sides = [range(low, high + 1) for low, high in ranges.values()]
    if math.prod(map(len, sides)) <= MOST_INFERRED:
        return [dict(zip(ranges, at, strict=True)) for at in itertools.product(*sides)], True
    chance = random.Random(0)
    ends = list(itertools.product(*(sorted({s.start, s.stop - 1}) for s in sides)))[: MOST_INFERRED // 2]
    by_chance = [tuple(chance.choice(s) for s in sides) for _ in range(MOST_INFERRED - len(ends))]
    return [dict(zip(ranges, at, strict=True)) for at in dict.fromkeys([*ends, *by_chance])], False


def _add(by_key: dict[Key, list[tuple[Rows, bool]]], ranks: tuple[int, ...], extents: Rows, complete: bool) -> None:
    """Add shapes to the family with the same constant extents."""
    if not len(extents):
        return
    same = (extents == extents[0]).all(0)
    fixed = tuple(int(n) if s else None for n, s in zip(extents[0], same, strict=True))
    by_key.setdefault(Key(ranks, fixed), []).append((extents, complete))


def _domain(key: Key, parts: Sequence[tuple[Rows, bool]]) -> Domain:
    if len(parts) == 1:
        return Domain(key, *parts[0])
    extents = np.unique(np.concatenate([rows for rows, _ in parts]), axis=0)
    if len(extents) <= MOST_SHAPES:
        return Domain(key, extents, all(complete for _, complete in parts))
    chosen = np.random.default_rng(0).choice(len(extents), MOST_SHAPES, replace=False)
    return Domain(key, extents[np.sort(chosen)], False)
