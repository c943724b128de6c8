"""Merge Gathers from several tables, whose results are concatenated, into one Gather from one stacked table.

Recommenders and tabular nets look up one embedding table per column and concatenate the rows: one or two launches per
column. Here the tables are stacked, and each index is offset by the rows above its own table. An index outside its own
table is mapped outside the stacked one, too, so that ONNX Runtime's behaviour (an error on the CPU, zeros on CUDA) is
preserved.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from onnx import TensorProto, helper

from onnxfuse import ops
from onnxfuse.files.io import tensor_bytes
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter

SINCE = 13
"""First operator set whose Unsqueeze reads its axes as an input."""

FEWEST = 3
"""Minimum number of tables: two are read as fast separately."""

LARGEST = 1 << 30
"""Maximum bytes of the merged table: files of more than 2 GB use external data, where one weight is one piece."""


@dataclass(frozen=True)
class _Row:
    """Rows gathered from a table, as one input of a Concat."""

    value: str
    nodes: tuple[Node, ...]
    """The Gather, and the Unsqueeze after it."""
    table: str
    ids: str
    wide: int | None
    """Extent of the indices along the Concat's axis; None if they lack that axis."""


@dataclass(frozen=True)
class _Joint:
    """A Concat, its adjacent gathered rows, and the axis of the indices that it concatenates."""

    concat: Node
    rows: tuple[_Row, ...]
    axis: int
    flat: bool
    """Whether they are concatenated along the last axis, the table's columns."""


@graph_pass
def merge_embedding_tables(graph: Graph) -> bool:
    """Merges Gathers from several concatenated tables into one."""
    if graph.opset < SINCE:
        return False
    joints = [joint for n in graph.nodes if n.op == ops.Concat and not n.domain for joint in _joints(graph, n)]
    for joint in joints:
        _join(graph, joint)
    return bool(joints)


def _joints(graph: Graph, concat: Node) -> Iterator[_Joint]:
    """Yield the longest run of gathered rows of one width among each Concat's inputs."""
    rank = graph.type(concat.outputs[0]).rank
    if rank is None:
        return
    axis = int(str(graph.attributes(concat)["axis"])) % rank
    rows = [_row(graph, value, axis, rank) for value in concat.inputs]
    runs = [tuple(run) for kind, run in groupby(rows, key=lambda row: _kind(graph, row)) if kind is not None]
    longest = max(runs, key=len, default=())
    joined = tuple(row for row in longest if row is not None)
    if len(joined) < FEWEST or sum(_bytes(graph, row) for row in joined) > LARGEST:
        return
    if all(graph.constant(row.table) is not None for row in joined):
        yield _Joint(concat, joined, axis, flat=axis == rank - 1)


def _bytes(graph: Graph, row: _Row) -> int:
    tensor = graph.constant_tensor(row.table)
    assert tensor is not None
    return tensor_bytes(tensor)


def _row(graph: Graph, value: str, axis: int, rank: int) -> _Row | None:
    """Return `value` as rows of a table without other readers; None if it is not."""
    node = graph.producer(value)
    if node is None or graph.only_reader(value) is None:
        return None
    nodes: tuple[Node, ...] = (node,)
    unsqueezed = node.op == ops.Unsqueeze and not node.domain
    if unsqueezed:
        axes, gather = graph.constant(node.inputs[1]), graph.producer(node.inputs[0])
        if axes is None or axes.size != 1 or int(axes.reshape(-1)[0]) % rank != axis or axis == rank - 1:
            return None
        if gather is None or graph.only_reader(node.inputs[0]) is None:
            return None
        nodes = (gather, node)
    gather = nodes[0]
    if gather.op != ops.Gather or gather.domain or graph.attributes(gather)["axis"] != 0:
        return None
    table, ids = gather.inputs[0], graph.type(gather.inputs[1])
    if not graph.is_let_go(table) or graph.type(table).rank != 2:
        return None
    if ids.shape is None or ids.dtype not in (TensorProto.INT64, TensorProto.INT32):
        return None
    if unsqueezed or axis == rank - 1:
        return _Row(value, nodes, table, gather.inputs[1], None)
    wide = ids.shape[axis]
    return _Row(value, nodes, table, gather.inputs[1], wide) if isinstance(wide, int) else None


def _kind(graph: Graph, row: _Row | None) -> object:
    """Return the properties that rows must share to be merged."""
    if row is None:
        return None
    ids, table = graph.type(row.ids), graph.type(row.table)
    return (table.shape or ())[1:], table.dtype, ids.dtype, len(row.nodes), row.wide is None, ids.rank


# ---- rewriting


def _join(graph: Graph, joint: _Joint) -> None:
    rows, base = joint.rows, joint.rows[0].value
    to = Rewriter(graph, *(n for row in rows for n in row.nodes), joint.concat)
    arrays = [table for row in rows if (table := graph.constant(row.table)) is not None]
    indices = _rows_of(joint, _ids(joint, to), np.asarray([len(table) for table in arrays]), to)
    tables = to.constant(f"{base}.tables", np.concatenate(arrays))
    joined = to.add(ops.Gather, tables, indices, axis=0, hint=f"{base}.joined")
    if joint.flat:
        target = [*[0] * joint.axis, len(rows) * arrays[0].shape[1]]
        joined = to.add(ops.Reshape, joined, shape=target, hint=f"{base}.flat")
    first, run = joint.concat.inputs.index(base), len(rows)
    side_by_side = [*joint.concat.inputs[:first], joined, *joint.concat.inputs[first + run :]]
    if len(side_by_side) == 1:
        to.replace(joint.concat.outputs[0], joined)
    else:
        to.copy(joint.concat, side_by_side)
    to.finish()


def _ids(joint: _Joint, to: Rewriter) -> str:
    """Return the concatenated indices of all rows: columns of a common source, else a Concat."""
    graph, rows, axis, base = to.graph, joint.rows, joint.axis, joint.rows[0].value
    columns = [_column(graph, row, axis) for row in rows]
    sources = {column[0] for column in columns if column is not None}
    if None in columns or len(sources) != 1:
        each = [
            row.ids if row.wide is not None else to.add(ops.Unsqueeze, row.ids, axes=[axis], hint=f"{base}.apart_{n}")
            for n, row in enumerate(rows)
        ]
        return to.add(ops.Concat, *each, axis=axis, hint=f"{base}.ids")
    (source,) = sources
    indices = [column[1] for column in columns if column is not None]
    shape = graph.type(source).shape
    if shape is not None and shape[axis] == len(indices) and indices == list(range(len(indices))):
        return source
    return to.add(ops.Gather, source, indices=indices, axis=axis, hint=f"{base}.ids")


def _column(graph: Graph, row: _Row, axis: int) -> tuple[str, int] | None:
    """Return the source of which indices are a column along `axis`, and the column's index; None if they are not."""
    gather = graph.producer(row.ids)
    if row.wide is not None or gather is None or gather.op != ops.Gather or gather.domain:
        return None
    index, rank = graph.constant(gather.inputs[1]), graph.type(gather.inputs[0]).rank
    if index is None or index.ndim or rank is None:
        return None
    return (gather.inputs[0], int(index)) if int(str(graph.attributes(gather)["axis"])) % rank == axis else None


def _rows_of(joint: _Joint, ids: str, heights: np.ndarray, to: Rewriter) -> str:
    """Return the indices into the merged table; an index outside its own table is mapped outside the merged one."""
    graph, rows, base = to.graph, joint.rows, joint.rows[0].value
    element = helper.tensor_dtype_to_np_dtype(graph.type(rows[0].ids).dtype)
    behind = (graph.type(rows[0].ids).rank or 0) - joint.axis - (rows[0].wide is not None)

    def each(what: str, numbers: np.ndarray) -> str:
        repeated = np.repeat(numbers.astype(element), [row.wide or 1 for row in rows])
        return to.constant(f"{base}.{what}", repeated.reshape(-1, *[1] * behind))

    height = each("rows", heights)
    zero = to.constant(f"{base}.zero", np.asarray(0, element))
    end = to.constant(f"{base}.end", np.asarray(heights.sum(), element))
    from_end = to.add(ops.Add, ids, height)
    counted = to.add(ops.Where, to.add(ops.Less, ids, zero), from_end, ids)
    inside = to.add(ops.And, to.add(ops.Less, counted, height), to.add(ops.Not, to.add(ops.Less, counted, zero)))
    raised = to.add(ops.Add, counted, each("above", np.cumsum(heights) - heights))
    return to.add(ops.Where, inside, raised, end)
