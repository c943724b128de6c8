"""Write QuantizeLinear and DequantizeLinear of other domains as ONNX's own operators.

ONNX Runtime's tools write those of com.microsoft for 16-bit integers before opset 21, and wherever they are asked to;
NVIDIA's ModelOpt before 0.43 wrote float8 as trt::TRT_FP8QuantizeLinear, and int4 as trt::DequantizeLinear, which ONNX
Runtime does not have. They are
written as ONNX's own where the operator set has these types (float16 numbers from 19 on, else between Casts; float8
from 19 on, 16-bit integers from 21 on) and scales (of channels from 13 on). Elsewhere they stay.
"""

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite
from onnxfuse.model import schema
from onnxfuse.ops.registry import StandardForm
from onnxfuse.passes.quantization.scales import SINCE_AXIS
from onnxfuse.shapes.types import ValueType


@graph_pass
def standard_operators(graph: Graph) -> bool:
    """Writes QuantizeLinear and DequantizeLinear of other domains as ONNX's own."""
    changed = False
    for node in [n for n in graph.nodes if _standard(n) is not None]:
        changed |= rewrite(graph, node, _write)
    return changed


def _standard(node: Node) -> StandardForm | None:
    return node.entry.standard if node.entry is not None else None


def _write(node: Node, to: Rewriter) -> bool:
    form = _standard(node)
    assert form is not None
    graph, quantizes = to.graph, form.of == ops.QuantizeLinear
    reads, dtypes = [*node.inputs], [graph.type(v).dtype for v in node.inputs]
    if form.quantized and not _names_its_type(graph, node, form):
        return False
    if not all(dtypes) or (graph.opset < SINCE_AXIS and _may_have_several_scales(graph, node)):
        return False
    floats = (0, 1) if quantizes else (1,)
    narrow = not all(schema.takes(form.of, graph.opset, i, dtypes[i]) for i in floats)
    if narrow:
        for i in floats:
            reads[i], dtypes[i] = _promoted(to, reads[i]), TensorProto.FLOAT
    if form.quantized and quantizes:
        reads.append(to.constant(f"{node.outputs[0]}.zero", _zeros(graph, reads[1], form.quantized)))
        dtypes.append(form.quantized)
    if not all(schema.takes(form.of, graph.opset, i, dtype) for i, dtype in enumerate(dtypes)):
        return False
    type_ = graph.type(node.outputs[0])
    layout: dict[str, Any] = {name: node.written.get(name) for name in ("axis", "block_size")}
    if form.quantized and quantizes:  # exporters declare it as uint8
        graph.retype(node.outputs[0], ValueType(form.quantized, type_.shape))
    if quantizes or not narrow:
        to.add(form.of, *reads, output=node.outputs[0], **layout)
        return True
    wide_type = ValueType(dtypes[1], type_.shape)
    wide = to.add(form.of, *reads, hint=f"{node.outputs[0]}.wide", type_=wide_type, **layout)
    to.add(ops.Cast, wide, output=node.outputs[0], to=graph.type(node.inputs[1]).dtype)
    return True


def _names_its_type(graph: Graph, node: Node, form: StandardForm) -> bool:
    """Return whether the values of an operator whose name says their type have this type, or may get it."""
    if form.of == ops.DequantizeLinear:
        return graph.type(node.inputs[0]).dtype == form.quantized
    value = node.outputs[0]
    back = StandardForm(ops.DequantizeLinear, form.quantized)
    return not graph.is_output(value) and all(_standard(r) == back for r in graph.readers(value))


def _may_have_several_scales(graph: Graph, node: Node) -> bool:
    return graph.type(node.inputs[1]).static_shape not in ((), (1,))


def _promoted(to: Rewriter, value: str) -> str:
    shape = to.graph.type(value).shape
    return to.add(
        ops.Cast, value, to=TensorProto.FLOAT, hint=f"{value}.wide", type_=ValueType(TensorProto.FLOAT, shape)
    )


def _zeros(graph: Graph, scale: str, dtype: int) -> np.ndarray:
    return np.zeros(graph.type(scale).static_shape or (), helper.tensor_dtype_to_np_dtype(dtype))
