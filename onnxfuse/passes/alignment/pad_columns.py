"""Zero-pad the columns of products to the kernels' alignment, in their weights and in those of the following products.

Squeeze-and-excite nets squeeze to 6 or 10 channels: without padding, such a product and the next one would run in the
library, and what follows each would be a separate launch. Whatever the padded columns become in between, for example
0.5 after a Sigmoid, is multiplied by zero rows of the next weights.
"""

from collections.abc import Mapping

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.cuda.isa.factors import ALIGNED
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.ops import Trait
from onnxfuse.passes.alignment.pad_channels import RunLayout, carried, of_elements, one_constant, pad_runs, reached

SUMS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT32)

ALIGNED_BYTES = 16
"""The same of 8-bit integers, which TMA loads and stores in rows of whole 16 bytes.

Networks of 24 or 40 channels: 100352 x 24, of 8 bits, is written as 32 columns and read as 32 terms.
"""

MOST_TIMES = 2
"""Maximum growth factor of the number of columns."""


@graph_pass
def pad_columns(graph: Graph) -> bool:
    """Pads the columns of products to a size that kernels take, in the weights on both sides."""
    changed = False
    for node in [n for n in graph.nodes if n.has(Trait.BATCHED_PRODUCT) and not n.domain]:
        (result,) = node.outputs
        type_, weight = graph.type(result), graph.type(node.inputs[1]).shape
        columns = weight[-1] if weight is not None and graph.is_constant(node.inputs[1]) else None
        aligned = ALIGNED if node.op == ops.MatMul else ALIGNED_BYTES
        if type_.dtype not in SUMS or not type_.rank or not isinstance(columns, int) or columns % aligned == 0:
            continue
        width = -(-columns // aligned) * aligned
        layout = RunLayout(type_.rank - 1, 1)
        runs = None if width > MOST_TIMES * columns else reached(graph, {result: layout}, columns, width, _carried)
        if runs is not None:
            pad_runs(graph, runs)
            changed = True
    return changed


def _carried(graph: Graph, node: Node, value: str, layout: RunLayout, size: int) -> Mapping[str, RunLayout] | None:
    """Padded columns may hold any finite number: only products by weights contract over them."""
    if node.has(Trait.FINITE_FROM_ZERO):
        return _of_each(graph, node, value, layout)
    return (_of_two if node.has(Trait.ARITHMETIC) else carried)(graph, node, value, layout, size)


def _of_each(graph: Graph, node: Node, value: str, layout: RunLayout) -> Mapping[str, RunLayout] | None:
    """An elementwise activation propagates padded columns if its other operands are scalars."""
    alike = all(graph.element_count(v) == 1 for v in node.inputs[1:] if v)
    return {node.outputs[0] if value == node.inputs[0] else node.inputs[0]: layout} if alike else None


def _of_two(graph: Graph, node: Node, value: str, layout: RunLayout, size: int) -> Mapping[str, RunLayout] | None:
    """Two values with the same padded columns combine elementwise; a scalar operand may change the padding, too."""
    at = one_constant(graph, node)
    if at is not None and graph.element_count(node.inputs[at]) == 1 and not (node.op == ops.Div and at == 0):
        other = node.inputs[1 - at]
        alike = graph.type(other).rank == graph.type(node.outputs[0]).rank
        return {node.outputs[0] if value == other else other: layout} if alike else None
    if at is not None or node.op == ops.Div:
        return of_elements(graph, node, value, layout, size)
    values = (*node.inputs, node.outputs[0])
    shapes = [graph.type(v).shape or (None,) for v in values]
    alike = all(len(s) == len(shapes[0]) and s[-1] == size for s in shapes) and layout == RunLayout(
        len(shapes[0]) - 1, 1
    )
    return {v: layout for v in values if v != value} if alike else None
