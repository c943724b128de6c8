"""Build the program of a fused op: walk the nodes of its body, and expand each by the operator table of its kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import onnx
from onnx import FunctionProto, numpy_helper

from onnxfuse import ops
from onnxfuse.codegen.operators.attention_ops import ATTENTION
from onnxfuse.codegen.operators.constant_extents import folded
from onnxfuse.codegen.operators.contraction_ops import CONTRACTION
from onnxfuse.codegen.operators.movement_ops import MOVEMENT
from onnxfuse.codegen.operators.node import Array, BodyNode, ExtentList, Handlers, Known, ShapeOf
from onnxfuse.codegen.operators.pointwise_ops import POINTWISE
from onnxfuse.codegen.operators.reduction_ops import REDUCTIONS
from onnxfuse.codegen.operators.window_ops import WINDOW
from onnxfuse.codegen.program.builder import Builder
from onnxfuse.codegen.program.program import BodyProgram, Input, Output
from onnxfuse.codegen.program.tables import tabulated
from onnxfuse.model.fused import FusedOp, Meaning
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError

HANDLERS: Handlers = {
    **POINTWISE, **REDUCTIONS, **MOVEMENT, **CONTRACTION, **WINDOW, **ATTENTION,
}  # fmt: skip
"""Semantics of each op, by domain and op type."""


@dataclass(frozen=True)
class SubOp(FusedOp):
    """A part of another op, with that op's name and body."""

    program: BodyProgram | None = None
    """The part's own program."""


def program(op: FusedOp) -> BodyProgram:
    """Return the program of the body of `op`, cached by body and element types.

    Raises `UnsupportedError` with the reason if the body contains an operation for which no kernel can be generated.
    """
    if isinstance(op, SubOp) and op.program is not None:
        return op.program
    return _program(op.meaning)


def library_program(op: FusedOp) -> BodyProgram:
    """Return the program of the library form of `op`; raises `UnsupportedError` like `program`."""
    if isinstance(op, SubOp) and op.program is not None:
        return op.program
    if op.library is None:
        raise UnsupportedError("the op has no form through the library's own ops")
    return _program(replace(op, body=op.library).meaning)


@lru_cache(maxsize=2048)
def _program(meaning: Meaning) -> BodyProgram:
    return program_by(meaning, HANDLERS)


def program_by(meaning: Meaning, handlers: Handlers) -> BodyProgram:
    """Return the program of a body with the given handlers, such as a template's own."""
    inputs, outputs, function = meaning.inputs, meaning.outputs, meaning.op().body
    for dtype in (*inputs, *outputs):
        element_types.require(dtype)
    builder = Builder()
    values: dict[str, Known] = {
        name: builder.term(Input(i, dtype)) for i, (name, dtype) in enumerate(zip(function.input, inputs, strict=True))
    }
    opset = _opset(function)
    for node in function.node:
        values.update(_results(node, values, builder, opset, handlers))
    stored = tuple(_output(name, values, dtype) for name, dtype in zip(function.output, outputs, strict=True))
    return tabulated(BodyProgram(tuple(builder.values), stored, inputs))


def _opset(function: FunctionProto) -> int:
    version = next((o.version for o in function.opset_import if o.domain in ("", "ai.onnx")), None)
    if version is None:
        raise UnsupportedError("the body names no version of the default operator set")
    if version < 7:
        raise UnsupportedError(f"opset {version}, expected 7 or newer")
    return int(version)


def _results(
    node: onnx.NodeProto, values: dict[str, Known], builder: Builder, opset: int, handlers: Handlers
) -> dict[str, Known]:
    if node.op_type == ops.Constant and node.domain in ("", "ai.onnx"):
        return {node.output[0]: _constant(node)}
    domain = "" if node.domain == "ai.onnx" else node.domain
    handler = handlers.get((domain, node.op_type))
    if handler is None:
        raise UnsupportedError(f"no kernel for {domain + '.' if domain else ''}{node.op_type}")
    if (unknown := next((i for i in node.input if i and i not in values), None)) is not None:
        raise UnsupportedError(f"{node.op_type} of '{unknown}', which no node before it computes")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    operands = tuple(values[i] if i else None for i in node.input)
    read = BodyNode(node.op_type, opset, builder, operands, attributes, len(node.output))
    number = folded(read) if not domain else None
    terms = handler(read) if number is None else (number,)
    wanted = [name for name in node.output if name]
    if len(node.output) > len(terms) and any(node.output[len(terms) :]):
        raise UnsupportedError(f"{node.op_type} with {plural(wanted, 'output')}")
    return {name: term for name, term in zip(node.output, terms, strict=False) if name}


def _constant(node: onnx.NodeProto) -> Array:
    attribute = node.attribute[0]
    value = onnx.helper.get_attribute_value(attribute)
    match attribute.name:
        case "value":
            element_types.require(value.data_type)
            return numpy_helper.to_array(value)
        case "value_float" | "value_floats":
            return np.asarray(value, np.float32)
        case "value_int" | "value_ints":
            return np.asarray(value, np.int64)
        case other:
            raise UnsupportedError(f"Constant with {other}")


def _output(name: str, values: dict[str, Known], dtype: int) -> Output:
    term = values[name]
    if isinstance(term, np.ndarray):
        raise UnsupportedError(f"output {name} is a constant")
    if isinstance(term, ShapeOf | ExtentList):
        raise UnsupportedError(f"output {name} is a shape")
    if term.dtype != dtype:
        raise UnsupportedError(
            f"output {name} is computed as {element_types.name(term.dtype)} and stored as {element_types.name(dtype)}"
        )
    return Output(term.index, dtype)
