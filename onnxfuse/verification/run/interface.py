"""Interface differences that callers of a fused model would hit before anything runs."""

from collections.abc import Sequence

import onnx
from onnx import TensorProto

from onnxfuse.model.overridable import required_inputs
from onnxfuse.shapes.types import UNKNOWN, ValueType, value_types

MISSING = "is missing in the fused model"
ADDED = "is not in the original"


def belong_together(problems: Sequence[str]) -> bool:
    """Return whether no input or output of one model lacks in the other: what fusion never changes."""
    return not any(problem.endswith((MISSING, ADDED)) for problem in problems)


def interface_problems(original: onnx.ModelProto, fused: onnx.ModelProto, *, lower: bool = False) -> list[str]:
    """Return differences of inputs and outputs in names, types or shapes.

    With `lower` a float32 one may be of a half type, as requested.
    """
    problems = []
    for kind in ("input", "output"):
        ours, theirs = _interface(original, kind), _interface(fused, kind)
        problems += [f"{kind} '{name}' {MISSING}" for name in ours if name not in theirs]
        problems += [f"{kind} '{name}' {ADDED}" for name in theirs if name not in ours]
        problems += [
            f"{kind} '{name}' is {theirs[name]} in the fused model, {ours[name]} in the original"
            for name in ours
            if name in theirs and _types_differ(ours[name], theirs[name], lower=lower)
        ]
        if not problems and list(ours) != list(theirs):
            problems.append(f"{kind}s are in another order: {', '.join(theirs)}; original: {', '.join(ours)}")
    return problems


def _interface(model: onnx.ModelProto, kind: str) -> dict[str, ValueType]:
    types = value_types(model.graph)
    values = model.graph.output if kind == "output" else required_inputs(model.graph)
    return {v.name: types.get(v.name, UNKNOWN) for v in values}


def _types_differ(a: ValueType, b: ValueType, *, lower: bool) -> bool:
    halved = lower and a.dtype == TensorProto.FLOAT and b.dtype in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    if a.dtype and b.dtype and a.dtype != b.dtype and not halved:
        return True
    if a.shape is None or b.shape is None:
        return False
    fixed = [(x, y) for x, y in zip(a.shape, b.shape, strict=False) if isinstance(x, int) and isinstance(y, int)]
    return len(a.shape) != len(b.shape) or any(x != y for x, y in fixed)
