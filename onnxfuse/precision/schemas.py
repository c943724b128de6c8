"""Allowed types of each input and output of an operator, from ONNX's schemas and ONNX Runtime's for its own
operators."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import onnx

from onnxfuse.model import schema

Types = frozenset[str]
"""Such as `tensor(float16)`; empty if unknown."""


def allowed(node: onnx.NodeProto, opsets: dict[str, int]) -> tuple[tuple[Types, ...], tuple[Types, ...]]:
    """Return the allowed types of each input and each output of `node`."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return _allowed(node.op_type, domain, opsets.get(domain, 1), len(node.input), len(node.output))


@cache
def _allowed(
    op: str, domain: str, opset: int, inputs: int, outputs: int
) -> tuple[tuple[Types, ...], tuple[Types, ...]]:
    op_schema = schema.find(op, domain, opset) or _of_runtime(op, domain, opset)
    if op_schema is None:
        return (Types(),) * inputs, (Types(),) * outputs
    variables = {c.type_param_str: Types(c.allowed_type_strs) for c in op_schema.type_constraints}

    def of(formals: Sequence[Any], count: int) -> tuple[Types, ...]:
        names = [p.typeStr if hasattr(p, "typeStr") else p.type_str for p in formals]
        each = [variables.get(name, Types([name])) for name in names]
        return tuple(each[min(i, len(each) - 1)] if each else Types() for i in range(count))

    return of(op_schema.inputs, inputs), of(op_schema.outputs, outputs)


def _of_runtime(op: str, domain: str, opset: int) -> Any:
    """Return ONNX Runtime's schema of one of its own operators; None if there is none."""
    candidates = [s for s in _runtime_schemas().get((domain, op), ()) if s.since_version <= opset]
    return max(candidates, key=lambda s: s.since_version, default=None)


@cache
def _runtime_schemas() -> dict[tuple[str, str], list[Any]]:
    from onnxruntime.capi import onnxruntime_pybind11_state as ort

    by_operator: dict[tuple[str, str], list[Any]] = {}
    for one in ort.get_all_operator_schema():
        by_operator.setdefault((one.domain, one.name), []).append(one)
    return by_operator
