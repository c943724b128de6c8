"""Constant initializers: from IR version 4 on, a caller may override an initializer that is also a graph input.

Such an initializer is only a default value. Before IR version 4 every initializer had to be listed as an input although
it was a constant, and exporters of 2018 and 2019 wrote such files.
"""

from onnx import GraphProto, ModelProto, ValueInfoProto

LISTED_BEFORE_IR = 4
"""First IR version in which an initializer that is a graph input can be overridden."""


def overridable(model: ModelProto) -> list[str]:
    """Return the initializers that a caller may override, which must not be treated as constants."""
    weights = {t.name for t in model.graph.initializer} if model.ir_version >= LISTED_BEFORE_IR else set()
    return [i.name for i in model.graph.input if i.name in weights]


def required_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """Return the inputs of a graph that have no initializer, in order."""
    weights = {t.name for t in graph.initializer}
    return [i for i in graph.input if i.name not in weights]


def keep_initializers(model: ModelProto) -> None:
    """Remove the initializers from the graph's inputs, in place, so that they cannot be overridden."""
    inputs = required_inputs(model.graph)
    if len(inputs) < len(model.graph.input):
        del model.graph.input[:]
        model.graph.input.extend(inputs)
