"""Static types of values: element type and shape, from ONNX's shape inference."""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx
from onnx import TensorProto

Dim = int | str | None
"""An extent: an integer, a dimension's name, or None if unknown."""

INVENTED = "unk__"
"""Name prefix that ONNX's shape inference gives unknown extents: two such names may be the same integer."""


@dataclass(frozen=True)
class ValueType:
    """Element type and shape of a value."""

    dtype: int
    """`onnx.TensorProto.DataType`, 0 if unknown."""
    shape: tuple[Dim, ...] | None
    """One entry per dimension; None if the rank is unknown."""

    @property
    def rank(self) -> int | None:
        """The number of dimensions, None if unknown."""
        return None if self.shape is None else len(self.shape)

    def __str__(self) -> str:
        name = TensorProto.DataType.Name(self.dtype).lower() if self.dtype else "unknown"
        if self.shape is None:
            return f"{name}[...]"
        return f"{name}[{','.join('?' if is_unknown(d) else str(d) for d in self.shape)}]"


UNKNOWN = ValueType(0, None)


def differ(a: Dim, b: Dim) -> bool:
    """Return whether two dimensions are known to be different: 3 and 4, `batch` and 1, `batch` and `sequence`.

    A computed name may equal any other name: a model's `out_height` can be `((height-1)//2+1)`.
    """
    if a == b or is_unknown(a) or is_unknown(b):
        return False
    return not any(isinstance(d, str) and d.endswith(")") for d in (a, b))


def is_unknown(dim: Dim) -> bool:
    """Return whether a dimension is unknown; an invented name still denotes one integer throughout."""
    return dim is None or (isinstance(dim, str) and dim.startswith(INVENTED))


def factors(name: str) -> list[str]:
    """Return the factors of an extent's name: its parts between top-level `*`.

    Exporters name extents by expressions: a sum, a quotient or a power counts as one name.

    >>> factors("4*batch*(h + 1)"), factors("a*b + 1"), factors("floor(a*b)")
    (['4', 'batch', '(h + 1)'], ['a*b + 1'], ['floor(a*b)'])
    """
    parts, depth = [""], 0
    for letter in name:
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and letter in "+-/%":
            return [name]
        if depth == 0 and letter == "*":
            parts.append("")
        else:
            parts[-1] += letter
    parts = [p.strip() for p in parts]
    return parts if all(parts) else [name]


def whole(factor: str) -> int | None:
    """Return the integer value of a name's factor, None for a name: including `²`, and digits beyond 64 bits.

    >>> whole("64"), whole("batch"), whole("9" * 5000)
    (64, None, None)
    """
    return int(factor) if factor.isascii() and factor.isdigit() and len(factor) <= 18 else None


def shapes_differ(a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None) -> bool:
    """Return whether two shapes are known to be different; unknown parts count as equal."""
    if a is None or b is None:
        return False
    return len(a) != len(b) or any(differ(x, y) for x, y in zip(a, b, strict=True))


def value_types(graph: onnx.GraphProto) -> dict[str, ValueType]:
    """Return the types that `graph` declares: inputs, outputs, `value_info` and initializers, by value name.

    An initializer that is also an input gets the type that the input declares: an override may have another shape.
    """
    declared: Iterable[onnx.ValueInfoProto] = [*graph.value_info, *graph.output]
    types = {i.name: type_of(i.type) for i in declared}
    types.update({t.name: ValueType(t.data_type, tuple(t.dims)) for t in graph.initializer})
    types.update({i.name: type_of(i.type) for i in graph.input})
    return types


def value_info(name: str, type_: ValueType) -> onnx.ValueInfoProto:
    """Return the declaration of a value; invented names are omitted."""
    shape = None if type_.shape is None else [None if is_unknown(d) else d for d in type_.shape]
    return onnx.helper.make_tensor_value_info(name, type_.dtype, shape)


def type_of(proto: onnx.TypeProto) -> ValueType:
    """Return the type of a declaration; `UNKNOWN` if it is not a tensor."""
    if not proto.HasField("tensor_type"):
        return UNKNOWN
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return ValueType(tensor.elem_type, None)
    return ValueType(tensor.elem_type, tuple(_dim(d) for d in tensor.shape.dim))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) or None
