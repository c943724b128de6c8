"""Write operators on quantized values as QuantizeLinear of the operator of DequantizeLinears: the QDQ form.

QLinearConv, QGemm, QLinearAdd and the like are the QOperator format of ONNX Runtime's tools. It runs nearly all of them
on the CPU in a CUDA session. In the QDQ form they are read like the files of any other tool.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from onnx import helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite
from onnxfuse.ops.registry import NumbersForm
from onnxfuse.shapes.types import ValueType

SINCE_ONE_AXIS = 13
"""Operator set from which on Softmax is over one axis, not over all from it on."""


@graph_pass
def qdq_form(graph: Graph) -> bool:
    """Writes operators on quantized values as QuantizeLinear of the operator of DequantizeLinears."""
    changed = False
    for node in [n for n in graph.nodes if n.has(ops.Trait.QUANTIZED)]:
        changed |= rewrite(graph, node, _write)
    return changed


def _write(node: Node, to: Rewriter) -> bool:
    graph, attributes = to.graph, dict[str, Any](node.written)
    form = node.entry.numbers if node.entry is not None else None
    if form is not None and form.more:
        form = replace(form, operands=range(form.operands[0], len(node.inputs), 3))
    last, softmax = attributes.pop("channels_last", 0), attributes.pop("opset", graph.opset)
    assert isinstance(softmax, int)
    if (
        form is None
        or last
        or (form.of == ops.Softmax and (softmax < SINCE_ONE_AXIS) != (graph.opset < SINCE_ONE_AXIS))
    ):
        return False
    single = form.operands if form.channels is None else form.operands[:1]
    if any(graph.element_count(node.inputs[i + 1]) != 1 for i in single):
        return False
    result, type_ = node.outputs[0], graph.type(node.inputs[form.operands[0] + 1])
    reads = [_input(node, i) for i in form.plain]
    reads += [_dequantized(to, node, form, i) for i in form.operands]
    if form.bias is not None and _input(node, form.bias):
        reads.append(_bias(to, node, form, form.bias))
    scale, zero = _input(node, form.result), _input(node, form.result + 1)
    names = {"output": result} if not scale else {"hint": f"{result}.number"}
    axes = {"axes": attributes.pop("axes")} if "axes" in attributes else {}
    number = to.add(
        form.of, *reads, **names, **attributes, **axes, type_=ValueType(type_.dtype, graph.type(result).shape)
    )
    if scale:
        if not zero:
            zero = to.constant(f"{result}.zero", np.zeros((), _numpy(graph, node.inputs[form.operands[0]])))
        to.add(ops.QuantizeLinear, number, scale, zero, output=result)
    return True


def _input(node: Node, position: int) -> str:
    return node.inputs[position] if position < len(node.inputs) else ""


def _numpy(graph: Graph, value: str) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(graph.type(value).dtype)


def _dequantized(to: Rewriter, node: Node, form: NumbersForm, position: int) -> str:
    graph, value = to.graph, node.inputs[position]
    read = [value, node.inputs[position + 1], _input(node, position + 2)]
    several = graph.element_count(read[1]) != 1
    axis = _channels(node, form, graph.type(value).rank) if several else None
    zero = graph.constant(read[2]) if several and read[2] else None
    if zero is not None and zero.size == 1:  # DequantizeLinear takes as many zero points as scales
        read[2] = to.constant(f"{read[2]}.each", np.full(graph.type(read[1]).static_shape or (), zero.reshape(())))
    type_ = ValueType(graph.type(read[1]).dtype, graph.type(value).shape)
    return to.add(ops.DequantizeLinear, *read, axis=axis, hint=f"{node.outputs[0]}.{position}", type_=type_)


def _channels(node: Node, form: NumbersForm, rank: int | None) -> int | None:
    """Return the axis of the second operand along which its scales lie."""
    if node.written.get("transB"):
        return 0
    return form.channels if form.channels is None or form.channels >= 0 or rank is None else form.channels + rank


def _bias(to: Rewriter, node: Node, form: NumbersForm, position: int) -> str:
    """Return the bias as numbers; its scale is the product of those of the operands."""
    first, second = (node.inputs[i + 1] for i in form.operands)
    type_ = to.graph.type(second)
    scale = to.add(ops.Mul, first, second, hint=f"{node.outputs[0]}.bias_scale", type_=type_)
    if "alpha" in node.written:
        factor = to.constant(f"{node.outputs[0]}.alpha", np.array(node.written["alpha"], np.float32))
        scale = to.add(ops.Mul, scale, factor, hint=f"{node.outputs[0]}.bias_scale", type_=type_)
    wide = to.add(ops.Cast, node.inputs[position], to=1, hint=f"{node.outputs[0]}.wide")
    return to.add(ops.Mul, wide, scale, hint=f"{node.outputs[0]}.bias")
