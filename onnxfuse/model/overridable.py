"""Constant initializers: from IR version 4 on, a caller may override an initializer that is also a graph input.

Such an initializer is only a default value. Before IR version 4 every initializer had to be listed as an input although
it was a constant, and exporters of 2018 and 2019 wrote such files.
"""

from onnx import ModelProto

LISTED_BEFORE_IR = 4
"""First IR version in which an initializer that is a graph input can be overridden."""


def overridable(model: ModelProto) -> list[str]:
    """Return the initializers that a caller may override, which must not be treated as constants."""
    return _listed(model) if model.ir_version >= LISTED_BEFORE_IR else []


def keep_initializers(model: ModelProto) -> None:
    """Remove the initializers from the graph's inputs, in place, so that they cannot be overridden."""
    listed = set(_listed(model))
    inputs = [i for i in model.graph.input if i.name not in listed]
    if listed:
        del model.graph.input[:]
        model.graph.input.extend(inputs)


def _listed(model: ModelProto) -> list[str]:
    weights = {t.name for t in model.graph.initializer}
    return [i.name for i in model.graph.input if i.name in weights]
