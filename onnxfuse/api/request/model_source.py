"""Model inputs (path, bytes, ModelProto), and reloading the original unchanged."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx

from onnxfuse.files import detached, io
from onnxfuse.graph.frozen_shapes import Shapes, freeze_shapes
from onnxfuse.model import custom_ops
from onnxfuse.model.tf32 import set_strict_fp32
from onnxfuse.model.validate import validate
from onnxfuse.support.errors import ModelError, UsageError

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


def owned_copy(source: Source) -> onnx.ModelProto:
    """Return a copy of the model that may be modified, its large weights detached where they may be.

    Raises ModelError for an invalid model.
    """
    if isinstance(source, onnx.ModelProto):
        validate(source)
    if detached.is_detaching():
        return detached.load(source)
    return copied(source) if isinstance(source, onnx.ModelProto) else io.load(source)


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return another copy of the model, including weights."""
    return io.without_weights(model, lambda weight: weight)


@dataclass(frozen=True)
class Origin:
    """The source of a model, from which it can be reloaded whenever it is optimized anew."""

    source: Source
    strict_fp32: bool = False
    """Whether to mark the model as strict float32; an existing mark is preserved."""
    shapes: Shapes = field(default_factory=dict)
    """Sizes that replace its dynamic dimensions."""

    def fresh(self) -> onnx.ModelProto:
        """Return a fresh copy of the original model that may be modified."""
        return self.marked(owned_copy(self.source))

    def marked(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Apply the requested mark and sizes to `model`; return it."""
        freeze_shapes(model, self.shapes)
        if custom_ops.libraries():
            from onnxfuse.runtime.sessions.opening import (
                declare_custom_ops,  # ONNX Runtime is imported only when something is run.
            )

            declare_custom_ops(model)
        if self.strict_fp32:
            set_strict_fp32(model)
        return model

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Add the model's file name to errors raised about it."""
        try:
            yield
        except ModelError as error:
            if isinstance(self.source, onnx.ModelProto):
                raise
            raise ModelError(f"{self.source}: {error}", error.hint) from None
