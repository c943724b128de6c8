"""Variant of the original with inferred types declared: ONNX Runtime then fuses, and rounds, differently.

Its fusions require types. Where its inference knows less than ours, it leaves nodes unfused in the original that it
fuses in the optimized model (an Add and a LayerNormalization into SkipLayerNormalization), and those round differently.
"""

from collections.abc import Callable, Mapping, Sequence

import onnx

from onnxfuse.shapes import inference, types
from onnxfuse.verification.variants import variant
from onnxfuse.verification.variants.variant import Arrays


def with_types(
    model: onnx.ModelProto, providers: Sequence[str], cuda: Mapping[str, str]
) -> Callable[[Arrays], Arrays] | None:
    """Return the runner of a model with declared types; None if no type is new, or if it is too big for a second copy.

    Raises ModelError if it cannot be opened.
    """
    return variant.running(typed, model, providers, cuda)


def typed(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a copy that declares every type that can be inferred in the main graph; None if none is new."""
    declared = {v.name: types.type_of(v.type) for v in model.graph.value_info}
    outputs = {o.name for o in model.graph.output}
    inferred_types = {
        v.name: types.type_of(v.type) for v in inference.inferred(model).graph.value_info if v.name not in outputs
    }
    new = {name: t for name, t in inferred_types.items() if t.dtype and t.shape is not None and t != declared.get(name)}
    if not new:
        return None
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    copy.graph.value_info.extend(v for v in model.graph.value_info if v.name not in new)
    copy.graph.value_info.extend(types.value_info(name, t) for name, t in new.items())
    return copy
