"""What a model is given as, and how the same model is had again, as it came."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx

from onnxfuse.files import io
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
    """Return whether something is a model in a form that is taken."""
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
    """Return a model that is ours to change. Raises ModelError for one that is not valid."""
    if isinstance(source, str | Path):
        return io.load(source)
    validate(source)
    return copied(source)


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model once more, with its weights."""
    return io.without_weights(model, lambda weight: weight)


@dataclass(frozen=True)
class Origin:
    """Where a model comes from: it is had from there as often as it is to be made anew."""

    source: Source
    strict_fp32: bool = False
    """Whether it is to say that no float32 product is rounded; what says so by itself goes on saying it."""
    shapes: Shapes = field(default_factory=dict)
    """Numbers that stand in place of its dynamic dimensions."""

    def fresh(self) -> onnx.ModelProto:
        """Return the model as it came, ours to change."""
        return self.marked(owned_copy(self.source))

    def marked(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return `model`, in which now stands what is asked for."""
        freeze_shapes(model, self.shapes)
        if custom_ops.libraries():
            from onnxfuse.runtime.sessions.opening import (
                declare_custom_ops,  # ONNX Runtime is imported where it is to run.
            )

            declare_custom_ops(model)
        if self.strict_fp32:
            set_strict_fp32(model)
        return model

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Let an error about the model name the file that it came from."""
        try:
            yield
        except ModelError as error:
            if isinstance(self.source, onnx.ModelProto):
                raise
            raise ModelError(f"{self.source}: {error}", error.hint) from None
