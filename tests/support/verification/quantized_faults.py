"""Quantized models, what they are optimized to, and faults planted in the bodies of their fused ops."""

from collections.abc import Callable
from functools import cache

import numpy as np
from onnx import FunctionProto, ModelProto, NodeProto, helper, numpy_helper

from onnxfuse import ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.verification import VerifyReport, verify
from tests.support import quantized_models

CPU = ["CPUExecutionProvider"]


@cache
def pair(text: str) -> tuple[ModelProto, ModelProto]:
    """A model with static QDQ, of signed integers with odd zero points, and what it is optimized to."""
    model = quantized_models.static(text, "QDQ", "QInt8", "QInt8", per_channel=True)
    return model, optimized(model)


def optimized(model: ModelProto) -> ModelProto:
    fused = copied(model)
    pipeline.run(fused, rule_file.by_default(rule_file.select([])))
    return fused


def copied(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def verified(original: ModelProto, fused: ModelProto) -> VerifyReport:
    return verify(original, fused, providers=CPU)


def constant(function: FunctionProto, name: str) -> NodeProto:
    return next(n for n in function.node if name in n.output)


def changed_operand(
    op: str, operand: int, change: Callable[[np.ndarray], np.ndarray]
) -> Callable[[FunctionProto], bool]:
    """Return what changes a constant operand of a body's first node of an operator."""

    def plant(function: FunctionProto) -> bool:
        node = next((n for n in function.node if n.op_type == op and len(n.input) > operand), None)
        if node is None:
            return False
        value = constant(function, node.input[operand]).attribute[0]
        array = numpy_helper.to_array(value.t) if value.HasField("t") else np.array(value.f, np.float32)
        value.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(change(array))))
        return True

    return plant


def dropped(op: str) -> Callable[[FunctionProto], bool]:
    """Return what replaces a body's first node of an operator by its first operand."""

    def plant(function: FunctionProto) -> bool:
        node = next((n for n in function.node if n.op_type == op), None)
        if node is None:
            return False
        node.op_type = ops.Identity
        del node.input[1:], node.attribute[:]
        return True

    return plant
