"""Replace fused ops by ONNX Runtime's own contrib ops on CUDA, where the library's op computes the same function.

Only in the model that a session opens, and in a model exported for CUDA alone: the library's op does not have a kernel
for every provider and type.
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
from onnxfuse.model.schema import opset_of
from onnxfuse.runtime.sessions.placement import Model
from onnxfuse.shapes import inference

DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""Session config entry with the folder of the external data of a model passed as bytes."""


def with_library_ops(model: Model, session_options: SessionOptions, ops: Mapping[str, FusedOp]) -> onnx.ModelProto:
    """Return a copy of `model` in which the library computes these fused ops in their library forms.

    External weights stay in their files, also those of the model's own file; `session_options` are given its folder.
    """
    if isinstance(model, onnx.ModelProto):
        copy = io.without_weights(model, lambda weight: weight)
    elif isinstance(model, bytes):
        copy = io.parse(model, "the model given as bytes")
    else:
        file = Path(model).resolve()
        # A model that ONNX Runtime saves would look for the weights next to the saved file.
        copy = io.load(file, weights=False) if session_options.optimized_model_filepath else io.outline(file)
        session_options.add_session_config_entry(DATA_FOLDER, str(file.parent))
    place_library_ops(copy, ops)
    return copy


def place_library_ops(model: onnx.ModelProto, ops: Mapping[str, FusedOp], called: Collection[str] = ()) -> None:
    """Replace the bodies of these fused ops in `model` by their library forms.

    Those in `called` remain function calls, so that a kernel can be registered for them.
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
            # ONNX Runtime uses the opset imports of the model when it inlines the function's nodes.
            domains = {o.domain for o in model.opset_import}
            model.opset_import.extend(o for o in library.opset_import if o.domain not in domains)
            if function.name not in called:
                in_place.append((function.domain, function.name))
    if in_place:
        _put_in_place(model, inferred, in_place)


def _put_in_place(model: onnx.ModelProto, inferred: onnx.ModelProto, functions: list[tuple[str, str]]) -> None:
    """Inline the nodes of `functions` at their calls; mask preprocessing that every layer repeats is emitted once."""
    inlined = onnx.inliner.inline_selected_functions(io.without_weights(model, lambda _: None), functions)
    # Nothing is inferred for the library's ops: types of their results are copied from the functions' outputs.
    inlined.graph.value_info.extend(inferred.graph.value_info)
    del model.graph.node[:]
    model.graph.node.extend(inlined.graph.node)
    del model.functions[:]
    model.functions.extend(inlined.functions)
    graph = Graph(model.graph, inference.infer(inlined).graph, opset_of(model))
    redundant_expand_elimination(graph)
    reuse_extents(graph)
    common_subexpressions(graph)
    graph.eliminate_dead_code()
    graph.commit()
