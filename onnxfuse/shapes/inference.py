"""Infer the type of every value of a model, without its weights: ONNX's shape inference and its refinements."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

import onnx
from onnx import ModelProto, TensorProto

from onnxfuse.files.external import SMALL, is_external
from onnxfuse.files.io import tensor_bytes, without_weights
from onnxfuse.model.nested import bodies
from onnxfuse.model.overridable import LISTED_BEFORE_IR, keep_initializers, overridable
from onnxfuse.model.schema import opset_of
from onnxfuse.shapes import lenient_inference, refinement, sliced_names, stand_ins
from onnxfuse.shapes.onnx_inference import ContradictionError, infer_shapes


def infer(model: onnx.ModelProto, *, defaults: bool = False) -> onnx.ModelProto:
    """Return `model` without its weights and with the type of every value that can be inferred as `value_info`.

    Weights become graph inputs of the same type, so that the cost does not grow with their size. Results of operators
    that only ONNX Runtime defines may stay untyped, and declarations count where inference yields nothing, except for
    the names of extents that outputs declare. With `defaults`, weights that are also inputs are not overridden.
    """
    return _typed(shell(model, defaults=defaults))


def _typed(light: onnx.ModelProto) -> onnx.ModelProto:
    _forget_labels(light.graph)
    refinement.rename(light.graph)
    again = ModelProto()
    if opset_of(light) == stand_ins.KEEPS_NAMES:
        again.CopyFrom(light)
    typed = _inferred_once(light)
    kept = sliced_names.wrong_axes(typed)
    if kept:
        typed = _inferred_once(again, kept)
    refinement.refine(typed)
    return typed


def _inferred_once(light: onnx.ModelProto, sliced: Mapping[str, Sequence[int]] | None = None) -> onnx.ModelProto:
    standing = stand_ins.StandIns(light.graph, opset_of(light), sliced=sliced)
    sloped = stand_ins.insert_in_functions(light)
    try:
        inferred = infer_shapes(light, strict=True)
    except ContradictionError:
        inferred = lenient_inference.infer(light)
    standing.take_out(inferred.graph)
    for number, function in sloped.items():
        inferred.functions[number].CopyFrom(function)
    return inferred


def inferred(model: onnx.ModelProto, light: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """Return the result of `infer`, read-only: it is cached for the most recent model.

    `light` is the model's `shell`, where there is one.
    """
    return _inferred((shell(model) if light is None else light).SerializeToString(deterministic=True))


@lru_cache(maxsize=1)
def _inferred(light: bytes) -> onnx.ModelProto:
    return _typed(ModelProto.FromString(light))


def _forget_labels(graph: onnx.GraphProto, around: Collection[str] = ()) -> None:
    """Remove symbolic extents declared for outputs, here and in bodies: equal names need not mean equal extents.

    ONNX Runtime runs a model whose output `[height]` is half of its input `[height]`, and torch's tracer gives images
    of four sizes one name. Such a name is removed from intermediate values, too, unless an input has it, here or
    `around`.
    """
    bound = {*around} | {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim}
    computed = {o for n in graph.node for o in n.output}
    labels = set[str]()
    for output in graph.output:
        if output.name in computed:
            labels.update(d.dim_param for d in output.type.tensor_type.shape.dim)
            _unname(output, lambda name: True)
    labels = {name for name in labels - bound if name.isidentifier()}  # an expression is self-describing
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
    """Return `model` with graph inputs in place of its weights, except small ones that describe shapes.

    A weight that a caller may override is no constant; with `defaults` none is overridden.
    """
    dropped: list[TensorProto] = []
    replaced = set[str]() if defaults else {*overridable(model)}

    def keep_if_small(tensor: TensorProto) -> TensorProto | None:
        if tensor.name in replaced:
            return None
        # ONNX would search external data relative to the process's working directory.
        if not is_external(tensor) and tensor_bytes(tensor) <= SMALL:
            return tensor
        dropped.append(tensor)
        return None

    light = without_weights(model, keep_if_small)
    if defaults and model.ir_version >= LISTED_BEFORE_IR:
        keep_initializers(light)
    declared = {i.name for i in light.graph.input}
    for tensor in dropped:
        if tensor.name not in declared:
            declared_input = light.graph.input.add()
            declared_input.CopyFrom(_unnamed(tensor.data_type, tuple(tensor.dims)))
            declared_input.name = tensor.name
    return light


@lru_cache(1 << 10)
def _unnamed(dtype: int, dims: tuple[int, ...]) -> onnx.ValueInfoProto:
    """Return the declaration of a tensor, to be copied: the weights of a model share a few."""
    return onnx.helper.make_tensor_value_info("", dtype, dims)
