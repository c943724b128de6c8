"""Evaluate constant nodes at optimize time with ONNX's reference implementation."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

FOLDABLE = frozenset({
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "ConstantOfShape", "Div", "Einsum", "Equal", "Exp", "Expand",
    "Flatten", "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min",
    "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum",
    "Relu", "Reshape", "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "Sqrt", "Squeeze", "Sub", "Tile",
    "Transpose", "Trilu", "Unsqueeze", "Where",
})  # fmt: skip
"""Operators that exporters put between weights and their use; deterministic, and cheap next to loading the weights."""


REFUSALS = (ArithmeticError, LookupError, ValueError, TypeError, RuntimeError)
"""What the reference operators raise for values that the operator is not defined on: an index out of range, shapes that
do not broadcast, a negative extent, a step of 0. They have no exception of their own for it."""


def evaluate(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, np.ndarray], outputs: Sequence[str], opset: int
) -> list[np.ndarray]:
    """Return the values of `outputs`, computed by `nodes` (default domain, version `opset`) from `inputs`.

    Raises one of REFUSALS where an operator is not defined on its values: the model is at fault, if the node ever runs.
    """
    from onnx.reference import (
        ReferenceEvaluator,
    )  # takes 20 ms, which a session that computes no constants does without

    imports = [onnx.helper.make_opsetid("", opset)]
    function = onnx.helper.make_function("constant", "constant", list(inputs), list(outputs), list(nodes), imports)
    with np.errstate(all="ignore"):  # what the model divides by zero is its own affair; the result is the same
        return [np.asarray(a) for a in ReferenceEvaluator(function).run(None, dict(inputs), attributes={})]
