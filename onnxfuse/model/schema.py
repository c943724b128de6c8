"""Version-independent view of a node: attributes with their defaults, and attributes that a newer operator set moved to
inputs presented as inputs.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx

from onnxfuse import ops
from onnxfuse.ops import Trait, named

AttributeValue = int | float | str | bytes | list[int] | list[float] | list[bytes] | onnx.TensorProto | onnx.GraphProto

COMMUTATIVE = named(Trait.COMMUTATIVE)
"""Commutative operators of two operands."""

RANDOM = named(Trait.RANDOM)
"""Non-deterministic operators; for Dropout see `is_random`."""


def is_random(node: onnx.NodeProto, constant: Callable[[str], np.ndarray | None] = lambda _: None) -> bool:
    """Return whether `node` is non-deterministic: Dropout is in training, unless its ratio is 0.

    `constant` returns known values: an unknown training mode may be true.
    """
    if node.op_type != ops.Dropout:
        return node.op_type in RANDOM
    ratio, training = (constant(v) if v else None for v in (*node.input, "", "")[1:3])
    trains = len(node.input) > 2 and bool(node.input[2]) and (training is None or bool(training.any()))
    return trains and (ratio is None or bool(ratio.any()))


@cache
def is_function(op: str, domain: str, opset: int) -> bool:
    """Return whether ONNX defines an operator by a function of others, as SequenceMap by a Loop."""
    schema: Any = find(op, domain, opset)  # the function body is not in the stubs
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


@cache
def defaults(op: str, domain: str, opset: int) -> dict[str, AttributeValue]:
    """Return the default attributes of `op` in version `opset` of `domain`."""
    schema, entry = find(op, domain, opset), ops.operator(op, domain)
    if schema is None:
        return {} if entry is None else {**entry.defaults}
    return {
        name: onnx.helper.get_attribute_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type
    }


@cache
def moved(op: str, domain: str, opset: int) -> dict[str, int]:
    """Return the attributes of `op` at `opset` that are inputs in its newest version: {attribute: input index}.

    >>> moved("ReduceMean", "", 13)
    {'axes': 1}
    """
    entry = ops.operator(op, domain)
    if entry is None:
        return {}
    return {name: entry.position(name) for name, since in entry.moved.items() if opset < since}


@cache
def input_index(op: str, domain: str, opset: int, name: str) -> int | None:
    """Return which input of `op` at `opset` has this name in ONNX; None for an attribute, or an unknown operator.

    >>> input_index("Unsqueeze", "", 12, "axes"), input_index("Unsqueeze", "", 13, "axes")
    (None, 1)
    """
    schema = find(op, domain, opset)
    if schema is None or name in schema.attributes:
        return None
    return [p.name for p in schema.inputs].index(name)


@cache
def find(op: str, domain: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema of `op` in version `opset` of `domain`; None for an operator that ONNX does not define."""
    try:
        return onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None


@cache
def is_deprecated(op: str, domain: str, opset: int) -> bool:
    """Return whether ONNX has deprecated `op` in version `opset` of `domain`.

    >>> is_deprecated("GroupNormalization", "", 18), is_deprecated("GroupNormalization", "", 21)
    (True, False)
    """
    schema = find(op, domain, opset)
    return schema is not None and bool(schema.deprecated)


@cache
def takes(op: str, opset: int, index: int, dtype: int) -> bool:
    """Return whether an input of one of ONNX's own operators may have an element type in this operator set.

    >>> [takes("QuantizeLinear", opset, 0, onnx.TensorProto.FLOAT16) for opset in (13, 19)]
    [False, True]
    """
    schema = find(op, "", opset)
    if schema is None or not schema.inputs:
        return False
    return (
        f"tensor({onnx.TensorProto.DataType.Name(dtype).lower()})"
        in schema.inputs[min(index, len(schema.inputs) - 1)].types
    )


@cache
def type_variables(
    op: str, domain: str, opset: int, inputs: int, outputs: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the type variables of an operator's inputs and outputs: equal ones have one type, "" is unknown.

    >>> type_variables("Pow", "", 15, 2, 1)
    (('T', 'T1'), ('T',))
    """
    schema = find(op, domain, opset)

    def of(formals: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> tuple[str, ...]:
        names = [p.type_str if p.is_homogeneous else "" for p in formals]
        return tuple(names[min(i, len(names) - 1)] if names else "" for i in range(count))

    return (of(schema.inputs, inputs), of(schema.outputs, outputs)) if schema else (("",) * inputs, ("",) * outputs)


def as_constant(value: AttributeValue) -> np.ndarray:
    """Return the tensor for an attribute that moved to an input."""
    array = np.asarray(value)
    return array.astype(np.int64 if array.dtype.kind == "i" else np.float32)


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the default operator set that `model` imports."""
    return next((int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
