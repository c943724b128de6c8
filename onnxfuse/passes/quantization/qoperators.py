"""Write operators on quantized values as QuantizeLinear of the operator of DequantizeLinears: the QDQ form.

QLinearConv, QGemm, QLinearAdd and the like are the QOperator format of ONNX Runtime's tools. It runs nearly all of them
on the CPU in a CUDA session. In the QDQ form they are read like the files of any other tool.

QLinearConv has scales of filters from operator set 10 on, DequantizeLinear only from 13 on. Before, the second operand
is dequantized by a scale of 1, and the result is multiplied by the scales: the order in which the 8-bit kernels scale.
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
from onnxfuse.passes.quantization.scales import SINCE_AXIS
from onnxfuse.shapes.types import ValueType

SINCE_ONE_AXIS = 13
"""Operator set from which on Softmax is over one axis, not over all from it on."""
SINCE_NO_BIAS = 11
"""Operator set from which on a Gemm is without its third operand."""


@graph_pass
def qdq_form(graph: Graph) -> bool:
    """Writes operators on quantized values as DequantizeLinear, the operator, QuantizeLinear."""
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
    behind = _scales_behind(graph, node, form)
    if behind and _common_zero(graph, node, form) is None:
        return False
    result, type_ = node.outputs[0], graph.type(node.inputs[form.operands[0] + 1])
    reads = [_input(node, i) for i in form.plain]
    reads += [_dequantized(to, node, form, i) for i in form.operands]
    bias = _bias(to, node, form, form.bias) if form.bias is not None and _input(node, form.bias) else ""
    if form.of == ops.Gemm and graph.opset < SINCE_NO_BIAS and (behind or not bias):
        reads.append(to.constant(f"{result}.no_bias", np.zeros((), np.float32)))
    elif bias and not behind:
        reads.append(bias)
    scale, zero = _input(node, form.result), _input(node, form.result + 1)
    names = {"output": result} if not scale else {"hint": f"{result}.number"}
    axes = {"axes": attributes.pop("axes")} if "axes" in attributes else {}
    number_type = ValueType(type_.dtype, graph.type(result).shape)
    hint = {"hint": f"{result}.sum"} if behind else names
    number = to.add(form.of, *reads, **hint, **attributes, **axes, type_=number_type, name=node.name)
    if behind:
        number = _scaled(to, node, form, number, bias, names, number_type)
    if scale:
        if not zero:
            zero = to.constant(f"{result}.zero", np.zeros((), _numpy(graph, node.inputs[form.operands[0]])))
        to.add(ops.QuantizeLinear, number, scale, zero, output=result)
    return True


def _scales_behind(graph: Graph, node: Node, form: NumbersForm) -> bool:
    """Return whether the second operand has several scales, and the operator set no DequantizeLinear with them."""
    several = form.channels is not None and graph.element_count(node.inputs[form.operands[1] + 1]) != 1
    return several and graph.opset < SINCE_AXIS


def _common_zero(graph: Graph, node: Node, form: NumbersForm) -> np.ndarray | None:
    """Return the zero point of the second operand as a scalar; None if it is not known, or there are several."""
    value = _input(node, form.operands[1] + 2)
    zero = np.zeros(1, _numpy(graph, node.inputs[form.operands[1]])) if not value else graph.constant(value)
    return None if zero is None or zero.min() != zero.max() else zero.reshape(-1)[0].reshape(())


def _scaled(
    to: Rewriter, node: Node, form: NumbersForm, number: str, bias: str, names: dict[str, str], type_: ValueType
) -> str:
    """Multiply a sum of products by the scales of the second operand, and add the bias."""
    scales, result = node.inputs[form.operands[1] + 1], node.outputs[0]
    spatial = (to.graph.type(node.inputs[form.operands[1]]).rank or 0) - 2 if form.channels == 0 else 0

    def along_channels(value: str) -> str:
        return to.add(ops.Reshape, value, shape=[-1, *[1] * spatial]) if spatial else value

    last = {"hint": f"{result}.scaled"} if bias else names
    number = to.add(ops.Mul, number, along_channels(scales), **last, type_=type_)
    return to.add(ops.Add, number, along_channels(bias), **names, type_=type_) if bias else number


def _input(node: Node, position: int) -> str:
    return node.inputs[position] if position < len(node.inputs) else ""


def _numpy(graph: Graph, value: str) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(graph.type(value).dtype)


def _dequantized(to: Rewriter, node: Node, form: NumbersForm, position: int) -> str:
    graph, value = to.graph, node.inputs[position]
    read = [value, node.inputs[position + 1], _input(node, position + 2)]
    type_ = ValueType(graph.type(read[1]).dtype, graph.type(value).shape)
    several = graph.element_count(read[1]) != 1
    if several and graph.opset < SINCE_AXIS:  # the scales are behind the operator
        zero = _common_zero(graph, node, form)
        assert zero is not None
        read[1:] = to.constant(f"{read[1]}.one", np.ones((), np.float32)), to.constant(f"{value}.zero", zero)
        several = False
    axis = _channels(node, form, graph.type(value).rank) if several else None
    zero = graph.constant(read[2]) if several and read[2] else None
    if zero is not None and zero.size == 1:  # DequantizeLinear takes as many zero points as scales
        read[2] = to.constant(f"{read[2]}.each", np.full(graph.type(read[1]).static_shape or (), zero.reshape(())))
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
