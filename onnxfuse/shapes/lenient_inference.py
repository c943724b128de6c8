"""Type inference where ONNX's inference reports a contradiction: operators take precedence over declarations."""

from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto

from onnxfuse.model.nested import bodies, nodes_of
from onnxfuse.shapes.onnx_inference import ContradictionError, infer_shapes
from onnxfuse.shapes.types import Dim, ValueType, is_unknown, type_of, value_info


def infer(model: ModelProto) -> ModelProto:
    """Return `model` with the types inferred without its declarations, which fill in where nothing is inferred.

    ONNX's inference trusts a wrong declaration, and stops at a graph that ONNX Runtime runs.
    """
    bare = ModelProto()
    bare.CopyFrom(model)
    _forget(bare.graph)
    imported = {o.domain for o in bare.opset_import}
    for domain in sorted({n.domain for n in nodes_of(bare.graph)} - imported):
        bare.opset_import.add(domain=domain, version=1)  # inference stops at a domain that is not imported
    try:
        inferred = infer_shapes(bare)
    except ContradictionError:
        inferred = bare  # only the declaration is known
    _fill(inferred.graph, model.graph)
    del inferred.opset_import[:]
    inferred.opset_import.extend(model.opset_import)
    return inferred


def _forget(graph: GraphProto) -> None:
    """Remove the declarations of computed values in `graph` and its nested bodies."""
    del graph.value_info[:]
    computed = {o for n in graph.node for o in n.output}
    for output in graph.output:
        if output.name in computed and output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")  # ONNX Runtime does not accept a wrong element type either
    for node in graph.node:
        for body in bodies(node):
            _forget(body)


def _fill(inferred: GraphProto, declared: GraphProto) -> None:
    """Restore the declarations of a graph and its bodies where they contradict nothing."""
    infos = {i.name: i for i in (*inferred.value_info, *inferred.output)}
    for info in (*declared.value_info, *declared.output):
        if info.name in infos:
            _merge(infos[info.name], info.type)
        else:
            inferred.value_info.add().CopyFrom(info)
            infos[info.name] = inferred.value_info[-1]
    for node, twin in zip(inferred.node, declared.node, strict=True):
        for body, other in zip(bodies(node), bodies(twin), strict=True):
            _fill(body, other)


def _merge(info: ValueInfoProto, declared: TypeProto) -> None:
    if info.type.WhichOneof("value") is None:
        info.type.CopyFrom(declared)
        return
    mine, other = type_of(info.type), type_of(declared)
    if not mine.dtype or mine.dtype != other.dtype or other.shape is None:
        return
    if mine.shape is None:
        info.type.CopyFrom(declared)
    elif len(mine.shape) == len(other.shape):
        dims: list[Dim] = [
            b if is_unknown(a) and b is not None else a for a, b in zip(mine.shape, other.shape, strict=True)
        ]
        info.CopyFrom(value_info(info.name, ValueType(mine.dtype, tuple(dims))))
