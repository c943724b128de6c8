"""The closed vocabulary of rule expressions: each word's arguments, and its value for a match."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.graph.constant_folding import FEW
from onnxfuse.graph.facts.indices import in_order
from onnxfuse.graph.facts.masks import Seen, covers, diagonal, everywhere, is_finite
from onnxfuse.graph.facts.whole_numbers import is_whole
from onnxfuse.graph.graph import Graph
from onnxfuse.model import schema
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Bound, Match, array_of
from onnxfuse.shapes.extents import reshape_target
from onnxfuse.shapes.types import Shape
from onnxfuse.symbolic.integer import Int

Value = int | float | str | Int | None
Values = Value | tuple[Value, ...]
"""Value of a term: a number, a word, or a list of them; None if the model does not determine it."""

DTYPES = {name.lower(): int(value) for name, value in TensorProto.DataType.items()}
DTYPES["float32"], DTYPES["float64"] = DTYPES["float"], DTYPES["double"]


_NUMPYS: Mapping[int, np.dtype[Any]] = {
    one: onnx.helper.tensor_dtype_to_np_dtype(one)
    for one in (
        TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BOOL,
        TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
        TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
    )
}  # fmt: skip
"""Element types whose casts NumPy knows to be exact or not."""


@dataclass(frozen=True)
class VocabularyEntry:
    """One word of the vocabulary."""

    meaning: Callable[..., Any]
    """Called with the graph, the match and the arguments."""
    arguments: tuple[str, ...]
    """Kind of each argument: a `value` of the pattern, a `name` (or a label), a `number`; "..." repeats."""
    text: str
    """Description for `onnxfuse rules --predicates`."""


def _const(graph: Graph, match: Match, *names: str) -> Cause | None:
    for name in names:
        value = match.values[name]
        if isinstance(value, str) and value and not graph.is_constant(value):
            maker = graph.producer(value)
            quantized = maker is not None and maker.op == ops.DequantizeLinear
            return Cause("quantized" if quantized else "not constant", value)
    return None


def _finite(graph: Graph, match: Match, name: str) -> Cause | None:
    value = match.values[name]
    finite = isinstance(value, str) and is_finite(graph, value)
    return None if finite else Cause("finite", _shown(match, name))


def _whole(graph: Graph, match: Match, *names: str) -> Cause | None:
    for name in names:
        value = match.values[name]
        if not (isinstance(value, str) and is_whole(graph, value)):
            return Cause("not whole", _shown(match, name))
    return None


def _counted(graph: Graph, match: Match, name: str) -> Cause | None:
    value = match.values[name]
    return None if isinstance(value, str) and in_order(graph, value) else Cause("counted", _shown(match, name))


def _output(graph: Graph, match: Match, name: str) -> Cause | None:
    value = match.values[name]
    return None if isinstance(value, str) and graph.is_output(value) else Cause("no output", _shown(match, name))


def _read_by(graph: Graph, match: Match, name: str, op: str) -> Cause | None:
    value = match.values[name]
    readers = graph.readers(value) if isinstance(value, str) else []
    alone = bool(readers) and all(r.op == op and not r.domain for r in readers)
    return None if alone else Cause("readers", _shown(match, name), wanted=op)


def _refused_by(graph: Graph, match: Match, name: str, op: str) -> Cause | None:
    value = match.values[name]
    dtype = graph.type(value).dtype if isinstance(value, str) else 0
    refused = dtype and not schema.takes(op, graph.opset, 0, dtype)
    return None if refused else Cause("taken", _shown(match, name), wanted=op)


def _let_go(graph: Graph, match: Match, name: str) -> Cause | None:
    value = match.values[name]
    return None if isinstance(value, str) and graph.is_let_go(value) else Cause("not let go", _shown(match, name))


def _exact(graph: Graph, match: Match, narrow: str, wide: str) -> Cause | None:
    types = [graph.type(v).dtype if isinstance(v := match.values[name], str) else 0 for name in (wide, narrow)]
    return None if _holds_all(*types) else Cause("inexact", narrow, wanted=wide)


def _holds_all(wide: int, narrow: int) -> bool:
    """Return whether a type holds every number of another one exactly."""
    if narrow == TensorProto.BFLOAT16:
        return wide in (TensorProto.FLOAT, TensorProto.DOUBLE)
    if narrow not in _NUMPYS or wide not in _NUMPYS:
        return False
    return np.can_cast(_NUMPYS[narrow], _NUMPYS[wide], "safe")


def _rank(graph: Graph, match: Match, name: str) -> int | None:
    shape = shape_of(graph, match.values[name])
    return None if shape is None else len(shape)


def _dim(graph: Graph, match: Match, name: str, index: int) -> Value:
    shape = shape_of(graph, match.values[name])
    return None if shape is None or not -len(shape) <= index < len(shape) else shape[index]


def _shape(graph: Graph, match: Match, name: str) -> Values:
    return shape_of(graph, match.values[name])


def _size(graph: Graph, match: Match, name: str) -> Value:
    shape = shape_of(graph, match.values[name])
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return int(np.prod([int(d or 0) for d in shape], dtype=np.int64))


def _dtype(graph: Graph, match: Match, name: str) -> Value:
    value = match.values[name]
    return _type_name(graph.type(value).dtype) if isinstance(value, str) else None


@cache
def _type_name(number: int) -> str | None:
    return TensorProto.DataType.Name(number).lower().replace("undefined", "") or None


def _value(graph: Graph, match: Match, label: str) -> Values:
    bound = match.labels.get(label, match.values.get(label))
    if isinstance(bound, bytes):
        return bound.decode(errors="replace")
    if isinstance(bound, str) and label in match.values:
        bound = graph.constant(bound) if graph.element_count(bound) == 1 else None
    if isinstance(bound, np.ndarray):
        number = bound.reshape(-1)[0] if bound.size == 1 else None
        # An integer stays an integer when bound to a label, as pads and axes require.
        return number if number is None else int(number) if np.issubdtype(bound.dtype, np.integer) else float(number)
    if isinstance(bound, list):
        return tuple(v for v in bound if isinstance(v, int | float)) if bound else None
    return bound if isinstance(bound, int | float | str) else None


def _elements(graph: Graph, match: Match, name: str) -> Values:
    array = array_of(graph, match.values[name])
    return tuple(array.reshape(-1).tolist()) if array is not None and array.size <= FEW else None


def _range(graph: Graph, match: Match, count: int) -> Values:
    return tuple(range(count)) if 0 <= count <= FEW else None


def _target(graph: Graph, match: Match, source: str, result: str) -> Values:
    shapes = [shape_of(graph, match.values[name]) for name in (source, result)]
    before, after = shapes
    target = None if before is None or after is None else reshape_target(before, after)
    return None if target is None else tuple(target)


def _everywhere(graph: Graph, match: Match, name: str) -> Value:
    value = match.values[name]
    return everywhere(graph, value) if isinstance(value, str) else None


def _until(graph: Graph, match: Match, mask: str, scores: str) -> Value:
    seen = _diagonal(graph, match, mask, scores)
    return None if seen is None else seen.before


def _after(graph: Graph, match: Match, mask: str, scores: str) -> Value:
    seen = _diagonal(graph, match, mask, scores)
    return None if seen is None else seen.after


def _diagonal(graph: Graph, match: Match, mask: str, scores: str) -> Seen | None:
    """Return the values of a mask on both sides of the scores' diagonal, None if it is broadcast along their axes."""
    of, to = match.values[mask], match.values[scores]
    return diagonal(graph, of) if isinstance(of, str) and isinstance(to, str) and covers(graph, of, to) else None


TESTS: dict[str, VocabularyEntry] = {
    "const": VocabularyEntry(_const, ("value", "..."), "const(a, b, ...): each is a weight or a constant"),
    "counted": VocabularyEntry(
        _counted, ("value",), "counted(i): its elements are known to be 0, 1, 2 and so on, in memory order"
    ),
    "whole": VocabularyEntry(
        _whole, ("value", "..."), "whole(x, w): the elements of each are known to be whole numbers, of any type"
    ),
    "finite": VocabularyEntry(_finite, ("value",), "finite(mask): its elements are known to be finite"),
    "exact": VocabularyEntry(
        _exact, ("value", "value"), "exact(x, w): the element type of w represents every number of x's"
    ),
    "output": VocabularyEntry(_output, ("value",), "output(y): it is an output of the graph"),
    "read_by": VocabularyEntry(
        _read_by, ("value", "operator"), "read_by(y, Reshape): nodes read it, and each of them is a Reshape"
    ),
    "refused_by": VocabularyEntry(
        _refused_by, ("value", "operator"), "refused_by(x, Pad): no Pad of the model's opset reads its element type"
    ),
    "let_go": VocabularyEntry(
        _let_go, ("value",), "let_go(w): a constant that nothing else reads, so that it is removed with its reader"
    ),
}
"""Words that are conditions: the meaning returns why it does not hold, or None."""

TERMS: dict[str, VocabularyEntry] = {
    "rank": VocabularyEntry(_rank, ("value",), "rank(x) == 2: the number of dimensions"),
    "dim": VocabularyEntry(
        _dim, ("value", "number"), "dim(x, -1) == 768: one extent, or its name; also against other dim(...)"
    ),
    "shape": VocabularyEntry(
        _shape, ("value",), "shape(x)[:-1] == shape(y)[:-1]: the extents, or some; != where they are known to differ"
    ),
    "size": VocabularyEntry(_size, ("value",), "size(b) == 1: the number of elements, where the whole shape is known"),
    "dtype": VocabularyEntry(_dtype, ("value",), "dtype(x) in (float16, bfloat16, float32): the element type"),
    "value": VocabularyEntry(
        _value,
        ("name",),
        "value(alpha) == 1, value(perm)[-1] == 2: an attribute bound to a label, or a constant of one element",
    ),
    "elements": VocabularyEntry(
        _elements, ("value",), "elements(pads) == [0, 0]: the numbers of a constant of 64 elements or fewer"
    ),
    "range": VocabularyEntry(
        _range, ("number",), "range(rank(x)) == value(perm): the integers from 0 up to the number, without it"
    ),
    "target": VocabularyEntry(
        _target,
        ("value", "value"),
        "target(x, y), in `let`: the numbers with which a Reshape gives x the shape of y, 0 where it keeps an extent",
    ),
    "everywhere": VocabularyEntry(
        _everywhere, ("value",), "everywhere(mask) == 0: the number that every element is known to be; true is 1"
    ),
    "until": VocabularyEntry(
        _until,
        ("value", "value"),
        "until(mask, s) == 0: what it is known to be up to the diagonal of the last two axes of s, which it has",
    ),
    "after": VocabularyEntry(
        _after, ("value", "value"), "after(mask, s) <= -30000: what it is known to be after that diagonal"
    ),
}
"""Words that are operands of a comparison: the meaning returns None if the model does not determine the value."""


def shape_of(graph: Graph, value: Bound) -> Shape:
    """Return the shape of the value that a pattern name is bound to."""
    return graph.type(value).shape if isinstance(value, str) else value.shape


def _shown(match: Match, name: str) -> str:
    value = match.values[name]
    return value if isinstance(value, str) else name
