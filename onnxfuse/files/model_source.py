"""The forms in which callers give a model: a path, a ModelProto, or a graph of onnx-graphsurgeon."""

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx

from onnxfuse.files import io
from onnxfuse.support.errors import UsageError

if TYPE_CHECKING:
    import onnx_graphsurgeon

Model: TypeAlias = "onnx.ModelProto | onnx_graphsurgeon.Graph | str | Path"
Source = str | Path | onnx.ModelProto


def is_model(given: object) -> bool:
    """Return whether an object is a model in an accepted form."""
    ours = isinstance(given, str | Path | onnx.ModelProto)
    return ours or type(given).__module__.partition(".")[0] == "onnx_graphsurgeon"


def path_or_proto(model: Model) -> Source:
    """Return a path or a ModelProto; a graph of onnx-graphsurgeon is exported."""
    if isinstance(model, str | Path | onnx.ModelProto):
        return model
    if not is_model(model):
        raise UsageError(
            f"the model is of the type {type(model).__name__}; expected a ModelProto, a path, or an onnx-graphsurgeon "
            "Graph"
        )
    from onnx_graphsurgeon import export_onnx

    exported: onnx.ModelProto = export_onnx(model, do_type_check=False)
    return exported


def loaded(source: Source, *, weights: bool = True) -> onnx.ModelProto:
    """Return a model that is in memory as it is, another one from its file, without `weights` with references to
    these."""
    return source if isinstance(source, onnx.ModelProto) else io.load(source, weights=weights)


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return another copy of the model, including weights."""
    return io.without_weights(model, lambda weight: weight)
