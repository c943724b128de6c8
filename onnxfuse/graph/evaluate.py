"""Evaluate constant nodes at optimize time with ONNX's reference implementation."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from onnxfuse import ops

FOLDABLE = frozenset({
    ops.Abs, ops.Add, ops.And, ops.Cast, ops.Ceil, ops.Clip, ops.Concat, ops.ConstantOfShape, ops.Div, ops.Einsum,
    ops.Equal, ops.Exp, ops.Expand, ops.Flatten, ops.Floor, ops.Gather, ops.Greater, ops.GreaterOrEqual,
    ops.Identity, ops.Less, ops.LessOrEqual, ops.Max, ops.Min, ops.Mod, ops.Mul, ops.Neg, ops.Not, ops.Or, ops.Pow,
    ops.Range, ops.Reciprocal, ops.ReduceMax, ops.ReduceMin, ops.ReduceProd, ops.ReduceSum, ops.Relu, ops.Reshape,
    ops.ScatterElements, ops.ScatterND, ops.Shape, ops.Size, ops.Slice, ops.Sqrt, ops.Squeeze, ops.Sub, ops.Tile,
    ops.Transpose, ops.Trilu, ops.Unsqueeze, ops.Where,
})  # fmt: skip
"""Operators that exporters insert between weights and their use; deterministic, and cheap compared to loading the
weights.
"""


REFUSALS = (ArithmeticError, LookupError, ValueError, TypeError, RuntimeError)
"""Exceptions of the reference operators for values outside an operator's domain: an index out of range, shapes that do
not broadcast, a negative extent, a step of 0. They have no exception class of their own.
"""


def evaluate(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, np.ndarray], outputs: Sequence[str], opset: int
) -> list[np.ndarray]:
    """Return the values of `outputs`, computed by `nodes` (default domain, version `opset`) from `inputs`.

    Raises one of REFUSALS for values outside an operator's domain: an error of the model, if the node ever runs.
    """
    from onnx.reference import (
        ReferenceEvaluator,
    )  # this import takes 20 ms, which a session that folds nothing avoids

    imports = [onnx.helper.make_opsetid("", opset)]
    function = onnx.helper.make_function("constant", "constant", list(inputs), list(outputs), list(nodes), imports)
    with np.errstate(all="ignore"):  # a division by zero is the model's own, with the same result
        return [np.asarray(a) for a in ReferenceEvaluator(function).run(None, dict(inputs), attributes={})]
