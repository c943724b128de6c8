"""Normalize a model to the canonical form that rules match, without changing what it computes."""

from collections.abc import Iterator

import onnx
import onnx.inliner
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from onnxfuse.files.io import without_weights
from onnxfuse.graph.redefined import keep_last_definitions
from onnxfuse.model import schema
from onnxfuse.model.functions import bind_attributes
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.nested import bodies, in_order, nodes_of
from onnxfuse.model.overridable import LISTED_BEFORE_IR, keep_initializers
from onnxfuse.support.error_text import first_line
from onnxfuse.support.errors import ModelError

LONG_NAME = "ai.onnx"

NEWEST = onnx.defs.onnx_opset_version()

OF_ONNX = ("", "ai.onnx.ml")
"""Domains whose newest version ONNX Runtime assumes if a model does not import them."""

OF_ONNX_RUNTIME = {"com.microsoft": 1, "com.microsoft.nchwc": 1, "com.ms.internal.nhwc": 17}
"""ONNX Runtime's own domains, and their versions."""

FUNCTIONS_IR = 8
"""The first IR version with model-local functions."""


def normalize(model: ModelProto, *, freeze: bool = False) -> None:
    """Make a model that ONNX Runtime accepts valid for ONNX's own tools, and inline foreign functions.

    Weights that an old IR lists as inputs become constants, nodes are sorted topologically, and missing opset imports
    are added. With `freeze`, weights that a caller may override become constants, too.
    """
    if freeze or model.ir_version < LISTED_BEFORE_IR:
        keep_initializers(model)
    if model.ir_version < LISTED_BEFORE_IR:
        model.ir_version = FUNCTIONS_IR
    keep_last_definitions(model)
    _use_one_name_of_the_default_domain(model)
    _sort(model.graph)
    for function in model.functions:
        _sort(function)
    import_what_is_used(model)
    _inline_functions(model)


def _use_one_name_of_the_default_domain(model: ModelProto) -> None:
    """Spell the default domain "" everywhere: the checker does not accept "ai.onnx", ONNX Runtime accepts both."""
    for imports in (model.opset_import, *(f.opset_import for f in model.functions)):
        for one in imports:
            if one.domain == LONG_NAME:
                one.domain = ""
    for node in _every_node(model):
        if node.domain == LONG_NAME:
            node.domain = ""
    versions = {o.domain: o.version for o in model.opset_import}
    if len(versions) < len(model.opset_import):  # of several versions ONNX Runtime uses the last
        del model.opset_import[:]
        model.opset_import.extend(onnx.helper.make_opsetid(*one) for one in versions.items())


def _every_node(model: ModelProto) -> Iterator[NodeProto]:
    yield from nodes_of(model.graph)
    for function in model.functions:
        for node in function.node:
            yield node
            for body in bodies(node):
                yield from nodes_of(body)


def _sort(graph: GraphProto | FunctionProto) -> None:
    """Sort the nodes of a graph, and of its nested bodies, topologically."""
    nodes = list(graph.node)
    for node in nodes:
        for body in bodies(node):
            _sort(body)
    found = in_order(nodes)
    if found != nodes:
        del graph.node[:]
        graph.node.extend(found)


def import_what_is_used(model: ModelProto) -> None:
    """Add the opset imports that ONNX Runtime does not require: those of its own domains, and of ONNX's."""
    have = {o.domain for o in model.opset_import} | {f.domain for f in model.functions}
    used: dict[str, set[str]] = {}
    for node in _every_node(model):
        used.setdefault(node.domain, set()).add(node.op_type)
    for domain, ops in sorted(used.items()):
        if domain in have:
            continue
        if domain in OF_ONNX:
            newest = [schema.find(op, domain, NEWEST) for op in ops]
            model.opset_import.add(domain=domain, version=max((s.since_version for s in newest if s), default=1))
        elif domain in OF_ONNX_RUNTIME:
            model.opset_import.add(domain=domain, version=OF_ONNX_RUNTIME[domain])


def _inline_functions(model: ModelProto) -> None:
    if all(f.domain == DOMAIN for f in model.functions):
        return
    light = without_weights(model, lambda _: None)
    bind_attributes(light)
    foreign = [(f.domain, f.name) for f in light.functions if f.domain != DOMAIN]
    try:
        inlined = onnx.inliner.inline_selected_functions(light, foreign)
    except (RuntimeError, onnx.checker.ValidationError) as error:
        raise ModelError(f"its local functions cannot be inlined: {first_line(error)}", "Export it again.") from None
    del model.graph.node[:]
    model.graph.node.extend(inlined.graph.node)
    del model.functions[:]
    model.functions.extend(inlined.functions)
    del model.opset_import[:]
    model.opset_import.extend(inlined.opset_import)
