"""Detect outputs whose values lie on a grid of steps, to which the model itself rounds them.

A value close to the middle of two steps is rounded to either by runs that differ in the last digit: then the output
differs by a whole step, which is no error of either. Determined from the graph: an output, ignoring operators that move
elements or choose among them, is

- of integers that a node rounds to (QuantizeLinear, DynamicQuantizeLinear, QLinearAdd and the like): its step is 1; or
- what a DequantizeLinear with one constant scale makes of such integers: its step is the scale; or
- the same of float8 numbers that a node rounds to, whose steps are those of their type times the scale.
"""

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.model.nested import constants_of
from onnxfuse.ops import Trait, named
from onnxfuse.ops.quantize import INTEGER_RANGES
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import UNKNOWN, ValueType, value_types

CARRIERS = named(Trait.CARRIES, Trait.CARRIES_SOME) | {ops.MaxPool}
"""Operators whose results are elements of their inputs, or 0."""
OF_ALL = named(Trait.IDENTITY_OF_ONE)
"""Those of them that take elements of all their inputs."""


def steps_of_outputs(model: onnx.ModelProto) -> Mapping[str, float]:
    """Return the step of each output of `model` whose values the model rounds to multiples of one."""
    if not any(rounds(node) for node in model.graph.node):
        return {}
    typed = infer(model).graph
    makers = {value: node for node in typed.node for value in node.output if value}
    graph = _Grid(makers, constants_of(typed), value_types(typed))
    steps = {o.name: graph.step(o.name) for o in typed.output}
    return {name: step for name, step in steps.items() if step is not None}


def float8_outputs(model: onnx.ModelProto) -> Mapping[str, float]:
    """Return the scale of each output of `model` whose values are float8 numbers to which it rounds, dequantized."""
    if not any(rounds(node) for node in model.graph.node):
        return {}
    typed = infer(model).graph
    makers = {value: node for node in typed.node for value in node.output if value}
    graph = _Grid(makers, constants_of(typed), value_types(typed), frozenset({TensorProto.FLOAT8E4M3FN}))
    scales = {o.name: graph.step(o.name) for o in typed.output if graph.type_of(o.name) != TensorProto.FLOAT8E4M3FN}
    return {name: scale for name, scale in scales.items() if scale is not None}


def rounds_inside(model: onnx.ModelProto) -> bool:
    """Return whether `model` rounds computed values to integers."""
    weights = {t.name for t in model.graph.initializer} - {i.name for i in model.graph.input}
    return any(rounds(n) and n.input[0] not in weights for n in model.graph.node)


def rounds(node: NodeProto) -> bool:
    """Return whether a node rounds to integers."""
    entry = ops.operator(node.op_type, node.domain)
    return entry is not None and Trait.ROUNDS in entry.traits


class _Grid:
    """The grids on which the values of a graph lie."""

    def __init__(
        self,
        makers: Mapping[str, NodeProto],
        constants: Mapping[str, TensorProto],
        types: Mapping[str, ValueType],
        rounded_to: Collection[int] = (0, *INTEGER_RANGES),
    ) -> None:
        """`rounded_to` are the element types that count, 0 for an unknown one."""
        self.makers, self.constants, self.types, self.rounded_to = makers, constants, types, rounded_to

    def type_of(self, value: str) -> int:
        """Return the element type of a value, 0 if unknown."""
        return self.types.get(value, UNKNOWN).dtype

    def step(self, value: str) -> float | None:
        """Return the step of a value; None if it has none that is known."""
        node = self.makers.get(value)
        if node is None:
            return None
        if rounds(node):
            return 1.0 if self.type_of(value) in self.rounded_to else None
        if node.op_type == ops.DequantizeLinear:
            return self._scale(node.input[1]) if self.step(node.input[0]) == 1.0 else None
        if node.op_type not in CARRIERS:
            return None
        read = [v for v in (node.input if node.op_type in OF_ALL else node.input[:1]) if v not in self.constants]
        steps = {self.step(v) for v in read}
        return steps.pop() if len(steps) == 1 else None

    def _scale(self, value: str) -> float | None:
        scale = self.constants.get(value)
        array = None if scale is None else numpy_helper.to_array(scale)
        return abs(float(array.astype(np.float64).ravel()[0])) if array is not None and array.size == 1 else None
