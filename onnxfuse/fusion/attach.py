"""Attach the bodies of fused ops to the model as model-local functions."""

from collections.abc import Mapping

from onnx import ModelProto

from onnxfuse.graph import normalize
from onnxfuse.graph.shared_weights import share_equal_weights
from onnxfuse.model.fused import DOMAIN, FusedOp, write
from onnxfuse.model.nested import nodes_of


def attach(model: ModelProto, ops: Mapping[str, FusedOp]) -> None:
    """Add the bodies of the fused ops as model-local functions, each once, and the imports of operators that passes
    have written; deduplicate the nodes' weights.
    """
    share_equal_weights(model)
    normalize.import_what_is_used(model)
    have = {f.name for f in model.functions if f.domain == DOMAIN}
    # An op merged into another one has no node.
    used = {node.op_type for node in nodes_of(model.graph) if node.domain == DOMAIN}
    new = [op for name, op in ops.items() if name not in have and name in used]
    if not new:
        return
    model.functions.extend(write(op) for op in new)
    if all(o.domain != DOMAIN for o in model.opset_import):
        model.opset_import.add(domain=DOMAIN, version=1)
    model.ir_version = max(model.ir_version, normalize.FUNCTIONS_IR)
