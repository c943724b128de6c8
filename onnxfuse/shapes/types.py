"""Static types of values: element type and shape, from ONNX's shape inference."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import onnx
from onnx import TensorProto

from onnxfuse.symbolic.integer import Int, IntLike
from onnxfuse.symbolic.parsing import parsed

Dim = int | Int | None
"""An extent: an integer, an expression in names of dimensions, or None if unknown."""

DeclaredExtent = int | str | None
"""An extent as a file declares it: a name is text in its own words, which users of the model know it by."""

Shape = tuple[Dim, ...] | None
"""None if the rank is unknown."""

INVENTED = "unk__"
"""Name prefix that ONNX's shape inference gives unknown extents: two such names may be the same integer."""


@dataclass(frozen=True)
class ValueType:
    """Element type and shape of a value."""

    dtype: int
    """`onnx.TensorProto.DataType`, 0 if unknown."""
    shape: Shape
    """One entry per dimension."""

    @property
    def rank(self) -> int | None:
        """The number of dimensions, None if unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape, None unless every extent is an integer."""
        shape = tuple(d for d in self.shape or () if isinstance(d, int))
        return shape if self.rank == len(shape) else None

    def __str__(self) -> str:
        name = TensorProto.DataType.Name(self.dtype).lower() if self.dtype else "unknown"
        if self.shape is None:
            return f"{name}[...]"
        return f"{name}[{','.join('?' if is_unknown(d) else str(d) for d in self.shape)}]"


UNKNOWN = ValueType(0, None)


def differ(a: Dim, b: Dim) -> bool:
    """Return whether two dimensions are known to be different: 3 and 4, `batch` and 1, `batch` and `sequence`.

    A computed extent may equal any other name: a model's `out_height` can be `((height-1)//2+1)`.
    """
    if a == b or a is None or b is None or is_unknown(a) or is_unknown(b):
        return False
    return isinstance(a - b, int) or (_is_plain(a) and _is_plain(b))


def _is_plain(extent: IntLike) -> bool:
    """Return whether an extent is an integer or a product of names as a model declares them."""
    return isinstance(extent, int) or (extent.is_product and not any(n.endswith(")") for n in extent.names))


def is_unknown(dim: Dim) -> bool:
    """Return whether a dimension is unknown; an invented name still denotes one integer throughout."""
    return dim is None or (isinstance(dim, Int) and any(n.startswith(INVENTED) for n in dim.names))


def invented(value: str, axis: int) -> Int:
    """Return the name of an unknown extent, that of an axis of a value; it is one word whatever the value is called."""
    return Int.name(INVENTED + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in f"{value}.{axis}"))


def shapes_differ(a: Shape, b: Shape) -> bool:
    """Return whether two shapes are known to be different; unknown parts count as equal."""
    if a is None or b is None or a == b:
        return False
    return len(a) != len(b) or any(differ(x, y) for x, y in zip(a, b, strict=True))


def value_types(graph: onnx.GraphProto) -> dict[str, ValueType]:
    """Return the types that `graph` declares: inputs, outputs, `value_info` and initializers, by value name.

    An initializer that is also an input gets the type that the input declares: an override may have another shape.
    """
    declared: Iterable[onnx.ValueInfoProto] = [*graph.value_info, *graph.output]
    types = {i.name: type_of(i.type) for i in declared}
    types.update({t.name: _of_tensor(t.data_type, tuple(t.dims)) for t in graph.initializer})
    types.update({i.name: type_of(i.type) for i in graph.input})
    return types


_of_tensor = lru_cache(1 << 14)(ValueType)
"""The type of a weight: those of a model share a few."""


def value_info(name: str, type_: ValueType) -> onnx.ValueInfoProto:
    """Return the declaration of a value; invented names are omitted."""
    shape = None if type_.shape is None else tuple(None if is_unknown(d) else d for d in type_.shape)
    return tensor_info(name, type_.dtype, shape)


def tensor_info(name: str, dtype: int, shape: Shape) -> onnx.ValueInfoProto:
    """Return the declaration of a tensor with every extent that is not None, invented names included."""
    dims = None if shape is None else [str(d) if isinstance(d, Int) else d for d in shape]
    return onnx.helper.make_tensor_value_info(name, dtype, dims)


def write_extent(dim: onnx.TensorShapeProto.Dimension, extent: IntLike) -> None:
    """Set an extent of a declaration."""
    if isinstance(extent, int):
        dim.dim_value = extent
    elif dim.dim_param != str(extent):
        dim.dim_param = str(extent)


def type_of(proto: onnx.TypeProto) -> ValueType:
    """Return the type of a declaration; `UNKNOWN` if it is not a tensor."""
    return _type_of(proto.SerializeToString())


@lru_cache(1 << 14)
def _type_of(data: bytes) -> ValueType:
    """Return the type of a serialized declaration: the values of a model share a few."""
    proto = onnx.TypeProto.FromString(data)
    if not proto.HasField("tensor_type"):
        return UNKNOWN
    shape = declared_shape(proto)
    extents = None if shape is None else tuple(parsed(d) if isinstance(d, str) else d for d in shape)
    return ValueType(proto.tensor_type.elem_type, extents)


def declared_shape(proto: onnx.TypeProto) -> tuple[DeclaredExtent, ...] | None:
    """Return the extents of a tensor as a file declares them; None if its rank is unknown."""
    return tuple(map(_declared, proto.tensor_type.shape.dim)) if proto.tensor_type.HasField("shape") else None


def _declared(dim: onnx.TensorShapeProto.Dimension) -> DeclaredExtent:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) or None
