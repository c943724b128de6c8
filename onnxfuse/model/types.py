"""What is known of each value before the model runs: element type and shape, from ONNX's own shape inference."""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from onnxfuse.model.errors import ModelError
from onnxfuse.model.external import SMALL, is_external
from onnxfuse.model.inference import NOT_VALID, infer_shapes
from onnxfuse.model.io import tensor_bytes, without_weights

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


def shapes_differ(a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None) -> bool:
    """Return whether two shapes are known to be different; unknown parts are taken as equal."""
    if a is None or b is None:
        return False
    return len(a) != len(b) or any(differ(x, y) for x, y in zip(a, b, strict=True))


def infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` without its weights and with the type of every value that ONNX can infer as `value_info`.

    Weights become graph inputs of the same type, so that the cost does not grow with their size. Raises ModelError.
    """
    dropped: list[TensorProto] = []

    def keep_if_small(tensor: TensorProto) -> TensorProto | None:
        # ONNX would look for numbers that are in another file in the folder that the process happens to be in.
        if tensor_bytes(tensor) <= SMALL and not is_external(tensor):
            return tensor
        dropped.append(tensor)
        return None

    light = without_weights(model, keep_if_small)
    # ONNX has no inference for this function op, whose result has the type of what it normalizes.
    opaque = {i: n for i, n in enumerate(model.graph.node) if n.op_type == "GroupNormalization" and n.domain == ""}
    for i, node in opaque.items():
        light.graph.node[i].CopyFrom(onnx.helper.make_node("Identity", node.input[:1], node.output[:1], node.name))
    declared = {i.name for i in light.graph.input}
    for tensor in dropped:
        if tensor.name not in declared:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    from onnxfuse.model import dims

    inferred = infer_shapes(light)
    for i, node in opaque.items():
        inferred.graph.node[i].CopyFrom(node)
    dims.refine(inferred)
    return inferred


def check(model: onnx.ModelProto) -> None:
    """Raise ModelError unless `model` passes `onnx.checker` with its full check; of weights only the type."""
    light = infer(model)
    try:
        onnx.checker.check_model(light, full_check=True)
    except NOT_VALID as error:
        raise ModelError(f"the model is not valid: {first_line(error)}", "Check it with onnx.checker.") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def value_types(graph: onnx.GraphProto) -> dict[str, ValueType]:
    """Return the types that `graph` declares: inputs, outputs, `value_info` and initializers, by value name."""
    declared: Iterable[onnx.ValueInfoProto] = [*graph.value_info, *graph.output, *graph.input]
    types = {i.name: _type(i.type) for i in declared}
    types.update({t.name: ValueType(t.data_type, tuple(t.dims)) for t in graph.initializer})
    return types


def value_info(name: str, type_: ValueType) -> onnx.ValueInfoProto:
    """Return the declaration of a value; invented names stay out of it."""
    shape = None if type_.shape is None else [None if is_unknown(d) else d for d in type_.shape]
    return onnx.helper.make_tensor_value_info(name, type_.dtype, shape)


def _type(proto: onnx.TypeProto) -> ValueType:
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
