"""Static types of values: element type and shape, from ONNX's shape inference."""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx
from onnx import TensorProto

Dim = int | str | None
"""An extent, a dimension's name, or None where nothing is known."""

INVENTED = "unk__"
"""How ONNX's shape inference names an extent of which it knows nothing: two such names may mean one number."""


@dataclass(frozen=True)
class ValueType:
    """Element type and shape of a value."""

    dtype: int
    """`onnx.TensorProto.DataType`, 0 where unknown."""
    shape: tuple[Dim, ...] | None
    """One entry per dimension; None where not even the rank is known."""

    @property
    def rank(self) -> int | None:
        """The number of dimensions, None where unknown."""
        return None if self.shape is None else len(self.shape)

    def __str__(self) -> str:
        name = TensorProto.DataType.Name(self.dtype).lower() if self.dtype else "unknown"
        if self.shape is None:
            return f"{name}[...]"
        return f"{name}[{','.join('?' if is_unknown(d) else str(d) for d in self.shape)}]"


UNKNOWN = ValueType(0, None)


def differ(a: Dim, b: Dim) -> bool:
    """Return whether two dimensions are known to be different: 3 and 4, `batch` and 1, `batch` and `sequence`.

    A computed one may be any other name: what a model calls `out_height` can be `((height-1)//2+1)`.
    """
    if a == b or is_unknown(a) or is_unknown(b):
        return False
    return not any(isinstance(d, str) and d.endswith(")") for d in (a, b))


def is_unknown(dim: Dim) -> bool:
    """Return whether nothing is known of a dimension, except that an invented name means one number everywhere."""
    return dim is None or (isinstance(dim, str) and dim.startswith(INVENTED))


def factors(name: str) -> list[str]:
    """Return the factors of an extent's name: parts between `*`, where that is all that joins the parts.

    Exporters name extents by expressions: those of a sum, a quotient or a power are one name.

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
    """Return the number that a factor of an extent's name is, None for a name: so are `²`, and digits beyond 64 bits.

    >>> whole("64"), whole("batch"), whole("9" * 5000)
    (64, None, None)
    """
    return int(factor) if factor.isascii() and factor.isdigit() and len(factor) <= 18 else None


def shapes_differ(a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None) -> bool:
    """Return whether two shapes are known to be different; unknown parts are taken as equal."""
    if a is None or b is None:
        return False
    return len(a) != len(b) or any(differ(x, y) for x, y in zip(a, b, strict=True))


def value_types(graph: onnx.GraphProto) -> dict[str, ValueType]:
    """Return the types that `graph` declares: inputs, outputs, `value_info` and initializers, by value name.

    What replaces an initializer that is an input need not have its shape, but the one that the input declares.
    """
    declared: Iterable[onnx.ValueInfoProto] = [*graph.value_info, *graph.output]
    types = {i.name: type_of(i.type) for i in declared}
    types.update({t.name: ValueType(t.data_type, tuple(t.dims)) for t in graph.initializer})
    types.update({i.name: type_of(i.type) for i in graph.input})
    return types


def value_info(name: str, type_: ValueType) -> onnx.ValueInfoProto:
    """Return the declaration of a value; invented names stay out of it."""
    shape = None if type_.shape is None else [None if is_unknown(d) else d for d in type_.shape]
    return onnx.helper.make_tensor_value_info(name, type_.dtype, shape)


def type_of(proto: onnx.TypeProto) -> ValueType:
    """Return what a declaration says; `UNKNOWN` of what is no tensor."""
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
