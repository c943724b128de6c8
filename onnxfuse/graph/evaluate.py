"""Evaluate constant nodes at optimize time: by ONNX's reference implementation, where it has none by the meanings of
their entries."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from onnxfuse import ops
from onnxfuse.graph.meanings import reference_operators
from onnxfuse.ops import Trait

MEANT = tuple(e for e in ops.ENTRIES.values() if e.meaning is not None and Trait.FOLDABLE not in e.traits)
"""Operators that are computed by the meanings of their entries: onnx's reference rounds each step of an activation to
the type of its input, where exp(12) is infinite in float16."""

REFUSALS = (ArithmeticError, LookupError, ValueError, TypeError, RuntimeError)
"""Exceptions of the reference operators for values outside an operator's domain: an index out of range, shapes that do
not broadcast, a negative extent, a step of 0. They have no exception class of their own.
"""


def is_foldable(op: str, domain: str = "") -> bool:
    """Return whether a node of constants is computed at optimize time: it is deterministic and cheap."""
    entry = ops.operator(op, domain)
    return entry is not None and (Trait.FOLDABLE in entry.traits or entry.meaning is not None)


def evaluate(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, np.ndarray], outputs: Sequence[str], opset: int
) -> list[np.ndarray]:
    """Return the values of `outputs`, computed by `nodes` from `inputs`; `opset` is the version of the default domain.

    Raises one of REFUSALS for values outside an operator's domain: an error of the model, if the node ever runs.
    """
    from onnx.reference import (
        ReferenceEvaluator,
    )  # this import takes 20 ms, which a session that folds nothing avoids

    domains = {node.domain for node in nodes} - {"", "ai.onnx"}
    imports = [onnx.helper.make_opsetid("", opset), *(onnx.helper.make_opsetid(domain, 1) for domain in domains)]
    function = onnx.helper.make_function("constant", "constant", list(inputs), list(outputs), list(nodes), imports)
    with np.errstate(all="ignore"):  # a division by zero is the model's own, with the same result
        evaluator = ReferenceEvaluator(function, new_ops=list(reference_operators(MEANT)))
        return [np.asarray(a) for a in evaluator.run(None, dict(inputs), attributes={})]
