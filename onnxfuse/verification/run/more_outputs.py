"""Values inside a model as outputs of it."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import onnx
from onnx import ModelProto


@contextmanager
def with_outputs(model: ModelProto, names: Collection[str]) -> Iterator[ModelProto]:
    """Add the values `names` to the outputs of `model` inside the block; its weights are not copied.

    ONNX Runtime infers their types.
    """
    existing = {o.name for o in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in existing)
    try:
        yield model
    finally:
        del model.graph.output[len(existing) :]
