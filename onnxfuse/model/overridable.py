"""Constant initializers: from IR version 4 on, a caller may override an initializer that is also a graph input.

Such an initializer is only a default value. Before IR version 4 every initializer had to be listed as an input although
it was a constant, and exporters of 2018 and 2019 wrote such files.
"""

from onnx import ModelProto

LISTED_BEFORE_IR = 4
"""The first IR version in which an initializer that is a graph input is meant to be replaced."""


def overridable(model: ModelProto) -> list[str]:
    """Return the initializers that a caller may replace, as the inputs have them: nothing takes them for constants."""
    return _listed(model) if model.ir_version >= LISTED_BEFORE_IR else []


def keep_initializers(model: ModelProto) -> None:
    """Take the initializers out of the graph's inputs, in place: nobody can replace them any more."""
    listed = set(_listed(model))
    inputs = [i for i in model.graph.input if i.name not in listed]
    if listed:
        del model.graph.input[:]
        model.graph.input.extend(inputs)


def _listed(model: ModelProto) -> list[str]:
    weights = {t.name for t in model.graph.initializer}
    return [i.name for i in model.graph.input if i.name in weights]
