"""Prove that a fused op has a plan on every GPU, by planning for each of them; inference on the body validates
shapes."""

import math
from collections.abc import Iterable
from functools import lru_cache

import onnx
from onnx import helper

from onnxfuse import ops
from onnxfuse.cuda.dispatch.dispatch import output_shapes, plan, planner_of
from onnxfuse.cuda.planning import limits
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.model.fused import FusedOp, Meaning
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic.element_types import DisagreeingError
from onnxfuse.symbolic.strides import Shape

Case = tuple[Arch, bool]
"""A GPU, and whether every pointer is a multiple of 16 bytes."""


SERVES_ALL = "a fused op has to serve every GPU, and all sizes that the model allows"
"""Why sizes and a GPU are named that nobody asked for."""


def unplanned(op: FusedOp, shapes: tuple[Shape, ...], cases: Iterable[Case]) -> str | None:
    """Return why `op` has no plan for inputs of these shapes in one of the cases; None if it has one, or needs none.

    No plan is needed on a GPU where the body or the library does the work, nor for shapes that the body rejects. If the
    planner rejects such a combination of shapes, and the body's inference does not: DisagreeingError.
    """
    tried = [case for case in cases if _is_planned(op, shapes, case[0])]
    failed = [(arch, reason) for arch, aligned in tried if (reason := _failure(op, shapes, aligned, arch)) is not None]
    if not failed or _is_beyond(op, shapes) or not takes(op, shapes):
        return None
    arch, reason = failed[0]
    if isinstance(reason, DisagreeingError):
        raise reason
    sizes = ", ".join("x".join(map(str, s)) or "scalar" for s in shapes)
    return f"{SERVES_ALL}, and for inputs of {sizes} there is no kernel on {arch.name}: {reason}"


def _is_planned(op: FusedOp, shapes: tuple[Shape, ...], arch: Arch) -> bool:
    """Return whether a session on this GPU requests a plan: neither the body nor the library's op is preferred."""
    mine = planner_of(op)
    if mine.refuses is not None and mine.refuses(op, arch) is not None:
        return False
    return op.library is None or mine.fits is None or mine.fits(op, shapes, arch) is None


def _is_beyond(op: FusedOp, shapes: tuple[Shape, ...]) -> bool:
    """Return whether some input or output has 2^31 elements or more.

    Kernels with transposed stores use 32-bit indices, which for usual sizes is worth more than a guarantee beyond.
    """
    try:
        outputs = output_shapes(op, shapes)
    except KernelError:
        outputs = ()
    return any(math.prod(shape) >= limits.INDICES for shape in (*shapes, *outputs))


def _failure(op: FusedOp, shapes: tuple[Shape, ...], aligned: bool, arch: Arch) -> BaseException | None:
    """Return why there is no plan; None if there is one."""
    try:
        plan(op, shapes, aligned, arch)
    except KernelError as error:
        return error.__cause__ or error
    return None


def takes(op: FusedOp, shapes: tuple[Shape, ...]) -> bool:
    """Return whether the nodes of the body accept inputs of these shapes, according to ONNX's own inference."""
    return _takes(op.meaning, shapes)


@lru_cache(maxsize=1024)
def _takes(meaning: Meaning, shapes: tuple[Shape, ...]) -> bool:
    op = meaning.op()
    body = op.body
    inputs = [helper.make_tensor_value_info(*facts) for facts in zip(body.input, op.inputs, shapes, strict=True)]
    outputs = [helper.make_tensor_value_info(*facts, None) for facts in zip(body.output, op.outputs, strict=True)]
    graph = helper.make_graph(body.node, "body", inputs, outputs)
    model = helper.make_model(graph, opset_imports=body.opset_import)
    # Without a Shape there is no data to propagate; for any vector it would track as many values as that has elements.
    data = any(n.op_type == ops.Shape for n in body.node)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=data).graph
    except onnx.shape_inference.InferenceError:
        return False
    counts = {v.name: _count(v) for v in (*inferred.input, *inferred.value_info, *inferred.output)}
    # Inference does not check that a Reshape to a fixed target preserves the number of elements.
    reshapes = ((n.input[0], n.output[0]) for n in body.node if n.op_type == ops.Reshape)
    return all(counts.get(a) == counts.get(b) for a, b in reshapes if None not in (counts.get(a), counts.get(b)))


def _count(value: onnx.ValueInfoProto) -> int | None:
    """Return the number of elements of a value; None if unknown."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    return math.prod(int(d.dim_value) for d in tensor.shape.dim)
