"""What is known of each value before the model runs: element type and shape, from ONNX's own shape inference."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnx
from onnx import ModelProto, TensorProto

from onnxfuse.model.external import SMALL, is_external
from onnxfuse.model.inference import ContradictionError, infer_shapes
from onnxfuse.model.io import tensor_bytes, without_weights
from onnxfuse.model.nested import bodies
from onnxfuse.model.overridable import LISTED_BEFORE_IR, keep_initializers, overridable

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


def infer(model: onnx.ModelProto, *, defaults: bool = False) -> onnx.ModelProto:
    """Return `model` without its weights and with the type of every value that can be inferred as `value_info`.

    Weights become graph inputs of the same type, so that the cost does not grow with their size. What ONNX Runtime
    alone knows has no type here, and what is declared counts where inference says nothing else; but for the names of
    extents that outputs declare. With `defaults` nobody replaces the weights that are inputs, too.
    """
    return _typed(shell(model, defaults=defaults))


def _typed(light: onnx.ModelProto) -> onnx.ModelProto:
    from onnxfuse.model import dims, sliced_names

    _forget_labels(light.graph)
    dims.rename(light.graph)
    own = ModelProto()
    own.CopyFrom(light)
    told = _told(light)
    kept = sliced_names.kept(told)
    if kept:
        told = _told(own, kept)
    dims.refine(told)
    return told


def _told(light: onnx.ModelProto, sliced: Mapping[str, Sequence[int]] | None = None) -> onnx.ModelProto:
    from onnxfuse.model import lenient, stand_ins

    standing = stand_ins.StandIns(light.graph, opset_of(light), sliced=sliced)
    try:
        inferred = infer_shapes(light, strict=True)
    except ContradictionError:
        inferred = lenient.infer(light)
    standing.take_out(inferred.graph)
    return inferred


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return what `infer` does, to be read alone: of the model that was last asked for it is there already."""
    return _inferred(shell(model).SerializeToString(deterministic=True))


@lru_cache(maxsize=1)
def _inferred(light: bytes) -> onnx.ModelProto:
    return _typed(ModelProto.FromString(light))


def _forget_labels(graph: onnx.GraphProto, around: Collection[str] = ()) -> None:
    """Take out, of `graph` and the bodies in it, what outputs call their extents: nothing holds two of a name equal.

    ONNX Runtime runs a model whose output `[height]` is half of its input `[height]`, and torch's tracer gives images
    of four sizes one name. Such a name goes from values on the way, too, where no input has it, here or `around`.
    """
    bound = {*around} | {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim}
    computed = {o for n in graph.node for o in n.output}
    labels = set[str]()
    for output in graph.output:
        if output.name in computed:
            labels.update(d.dim_param for d in output.type.tensor_type.shape.dim)
            _unname(output, lambda name: True)
    labels = {name for name in labels - bound if name.isidentifier()}  # an expression says itself what it is
    for value in graph.value_info:
        _unname(value, labels.__contains__)
    for node in graph.node:
        for body in bodies(node):
            _forget_labels(body, bound)


def _unname(value: onnx.ValueInfoProto, is_label: Callable[[str], bool]) -> None:
    for dim in value.type.tensor_type.shape.dim:
        if dim.dim_param and is_label(dim.dim_param):
            dim.ClearField("dim_param")


def shell(model: onnx.ModelProto, *, defaults: bool = False) -> onnx.ModelProto:
    """Return `model` with graph inputs in the place of its weights, up to those small ones that say shapes.

    A weight that a caller may replace says none; with `defaults` nobody replaces it.
    """
    dropped: list[TensorProto] = []
    replaced = set[str]() if defaults else {*overridable(model)}

    def keep_if_small(tensor: TensorProto) -> TensorProto | None:
        if tensor.name in replaced:
            return None
        # ONNX would look for numbers that are in another file in the folder that the process happens to be in.
        if tensor_bytes(tensor) <= SMALL and not is_external(tensor):
            return tensor
        dropped.append(tensor)
        return None

    light = without_weights(model, keep_if_small)
    if defaults and model.ir_version >= LISTED_BEFORE_IR:
        keep_initializers(light)
    declared = {i.name for i in light.graph.input}
    for tensor in dropped:
        if tensor.name not in declared:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return light


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the default operator set that `model` is written in."""
    return next((int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something."""
    return next((line.strip() for line in plainly(error).splitlines() if line.strip()), type(error).__name__)


def plainly(error: BaseException) -> str:
    """Return an error's text without the C++ signatures that ONNX Runtime puts before what CUDA says.

    >>> plainly(RuntimeError("/onnxruntime_src/a.cc:154 void Call(const char*) CUDA failure 2: out of memory ; GPU=0"))
    'CUDA failure 2: out of memory ; GPU=0'
    """
    return re.sub(r"/onnxruntime_src/.*?(?=\bCU[A-Z]+ failure \d+: )", "", f"{error}", flags=re.DOTALL)


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
