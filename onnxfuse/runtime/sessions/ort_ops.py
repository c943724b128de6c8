"""Fused ops that an op of ONNX Runtime's own computes: on CUDA its function takes the place of the portable body.

Only in the model that a session opens, and in one that is exported for CUDA alone: the library's op has no kernel for
every provider and type.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import onnx
import onnx.inliner
from onnxruntime import SessionOptions

from onnxfuse.files import io
from onnxfuse.graph.constant_folding import common_subexpressions, redundant_expand_elimination, reuse_extents
from onnxfuse.graph.graph import Graph
from onnxfuse.model.fused import DOMAIN, FusedOp
from onnxfuse.runtime.sessions.placement import Model
from onnxfuse.shapes import inference

DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""Session config entry: where ONNX Runtime finds the external data of a model that it is given as bytes."""


def with_library_ops(model: Model, session_options: SessionOptions, ops: Mapping[str, FusedOp]) -> onnx.ModelProto:
    """Return a copy of `model` in which the library computes these fused ops, as their forms tell it.

    Weights in files stay where they are, those of the model's own file too; `session_options` learn its folder.
    """
    if isinstance(model, onnx.ModelProto):
        own = io.without_weights(model, lambda weight: weight)
    elif isinstance(model, bytes):
        own = io.parse(model, "the model given as bytes")
    else:
        place = Path(model).resolve()
        # What ONNX Runtime writes of it would look for the weights beside the place where that is written.
        own = io.load(place, weights=False) if session_options.optimized_model_filepath else io.outline(place)
        session_options.add_session_config_entry(DATA_FOLDER, str(place.parent))
    place_library_ops(own, ops)
    return own


def place_library_ops(model: onnx.ModelProto, ops: Mapping[str, FusedOp], called: Collection[str] = ()) -> None:
    """Let the library compute these fused ops of `model`, as their forms tell it.

    Those of `called` stay functions that are called: for where a kernel of the op may be registered.
    """
    inferred = inference.infer(model)
    in_place = []
    for function in model.functions:
        library = ops[function.name].library if function.domain == DOMAIN and function.name in ops else None
        if library is not None:
            del function.node[:]
            function.node.extend(library.node)
            del function.opset_import[:]
            function.opset_import.extend(library.opset_import)
            # ONNX Runtime goes by the imports of the model when it puts the function's nodes into the graph.
            known = {o.domain for o in model.opset_import}
            model.opset_import.extend(o for o in library.opset_import if o.domain not in known)
            if function.name not in called:
                in_place.append((function.domain, function.name))
    if in_place:
        _put_in_place(model, inferred, in_place)


def _put_in_place(model: onnx.ModelProto, inferred: onnx.ModelProto, functions: list[tuple[str, str]]) -> None:
    """Write the nodes of `functions` where they are called; what every layer makes of the mask is made once."""
    inlined = onnx.inliner.inline_selected_functions(io.without_weights(model, lambda _: None), functions)
    # Of the library's ops nothing is inferred: what is known of their results is what was known of the functions'.
    inlined.graph.value_info.extend(inferred.graph.value_info)
    del model.graph.node[:]
    model.graph.node.extend(inlined.graph.node)
    del model.functions[:]
    model.functions.extend(inlined.functions)
    opset = next((o.version for o in model.opset_import if o.domain == ""), 1)
    graph = Graph(model.graph, inference.infer(inlined).graph, opset)
    redundant_expand_elimination(graph)
    reuse_extents(graph)
    common_subexpressions(graph)
    graph.eliminate_dead_code()
    graph.commit()
