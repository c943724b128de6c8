"""Where a model comes from, and how it is reloaded unchanged whenever it is optimized anew."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx

from onnxfuse.files import detached, io
from onnxfuse.files.model_source import Source, copied
from onnxfuse.graph.frozen_shapes import Shapes, freeze_shapes
from onnxfuse.model import custom_ops
from onnxfuse.model.tf32 import set_strict_fp32
from onnxfuse.model.validate import validate
from onnxfuse.support.errors import ModelError


def owned_copy(source: Source) -> onnx.ModelProto:
    """Return a copy of the model that may be modified, its large weights detached where they may be.

    Raises ModelError for an invalid model.
    """
    if isinstance(source, onnx.ModelProto):
        validate(source)
    if detached.is_detaching():
        return detached.load(source)
    return copied(source) if isinstance(source, onnx.ModelProto) else io.load(source)


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
