"""Constant integer operands of data movement: concatenated constants, and selected or divided extents."""

from dataclasses import replace

import numpy as np

from onnxfuse import ops
from onnxfuse.codegen.operators.node import BodyNode, ExtentList, Known, ShapeOf
from onnxfuse.codegen.program.movement import ExtentOf


def folded(node: BodyNode) -> Known | None:
    """Return a node's result from known integers and extents alone; None if it computes anything else."""
    match node.op_type, node.operands:
        case ops.Gather, (ShapeOf(of=of), np.ndarray() as axes):
            return ExtentList(tuple(ExtentOf(0, int(axis)) for axis in axes.reshape(-1)), (of,))
        case ops.Div, (ExtentList() as extents, np.ndarray() as divisor) if divisor.size == 1 and divisor.item() > 0:
            by = int(divisor.item())
            numbers = (replace(n, by=n.by * by) if isinstance(n, ExtentOf) else n // by for n in extents.numbers)
            return ExtentList(tuple(numbers), extents.of)
        case ops.Concat, operands if operands and all(_is_list(o) for o in operands):
            return _joined(operands)
        case _:
            return None


def _is_list(operand: Known | None) -> bool:
    return isinstance(operand, ExtentList) or (isinstance(operand, np.ndarray) and operand.ndim == 1)


def _joined(operands: tuple[Known | None, ...]) -> Known:
    if all(isinstance(o, np.ndarray) for o in operands):
        return np.concatenate([o for o in operands if isinstance(o, np.ndarray)])
    result = ExtentList((), ())
    for operand in operands:
        if isinstance(operand, ExtentList):
            base = len(result.of)
            numbers = (replace(n, operand=n.operand + base) if isinstance(n, ExtentOf) else n for n in operand.numbers)
            result = ExtentList((*result.numbers, *numbers), (*result.of, *operand.of))
        elif isinstance(operand, np.ndarray):
            result = ExtentList((*result.numbers, *(int(n) for n in operand)), result.of)
    return result
