"""Operators on arrays, by what their entries say that they compute: the scalar language in NumPy.

Floating-point numbers are computed in float64, and rounded once to their type.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from onnx import helper

from onnxfuse.ops import Operator
from onnxfuse.ops.arrays import Array, Values, read
from onnxfuse.ops.scalar import Kind, Scalar

OVER: Mapping[str, Callable[..., Any]] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


@dataclass(frozen=True)
class ArrayNode:
    """A node with the arrays that it reads."""

    op_type: str
    opset: int
    operands: Sequence[Array | None]
    attributes: Mapping[str, Any]

    def term(self, position: int, *kinds: Kind) -> Values:
        """Return the operand at `position`, which must be present, and of one of these kinds if any are given."""
        found = self.optional(position)
        if found is None or (kinds and found.kind not in kinds):
            raise self.refusal(f"without its input {position}" if found is None else f"of {found.array.dtype}")
        return found

    def optional(self, position: int) -> Values | None:
        """Return the operand at `position`, None if absent."""
        array = self.operands[position] if position < len(self.operands) else None
        if array is None:
            return None
        return Values(read(array), helper.np_dtype_to_tensor_dtype(array.dtype), constant=array.size == 1)

    def real(self, position: int) -> Values:
        """Return the operand at `position`, a floating-point number."""
        return self.term(position, Kind.REAL)

    def alike(self, *kinds: Kind, first: int = 0, count: int | None = None) -> tuple[Values, ...]:
        """Return `count` operands from `first` on, or all, which must have one element type, of one of these kinds if
        any are given."""
        end = len(self.operands) if count is None else first + count
        found = tuple(self.term(i, *kinds) for i in range(first, end))
        if len({v.dtype for v in found}) != 1:
            raise self.refusal(f"of {' and '.join(str(v.array.dtype) for v in found)}")
        return found

    def over(self, kind: str, x: Scalar, axis: int, *, onward: bool) -> Values:
        """Return a reduction over an axis, and with `onward` over all axes after it."""
        assert isinstance(x, Values)
        first = axis % x.array.ndim
        axes = tuple(range(first, x.array.ndim)) if onward else (first,)
        return Values(np.asarray(OVER[kind](x.array, axis=axes, keepdims=True)), x.type)

    def number(self, attribute: str, default: float) -> float:
        """Return a numeric attribute. Attributes are float32 in ONNX, and so are their defaults."""
        value = self.attributes.get(attribute, default if isinstance(default, int) else float(np.float32(default)))
        return float(value) if isinstance(value, float) else int(value)

    def text(self, attribute: str, default: str) -> str:
        """Return a string attribute."""
        value = self.attributes.get(attribute, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def refusal(self, reason: str) -> ValueError:
        """Return the error to raise for a node without a meaning here, such as Dropout "in training mode"."""
        return ValueError(f"{self.op_type} {reason}")


def computed(
    entry: Operator, opset: int, operands: Sequence[Array | None], attributes: Mapping[str, Any]
) -> tuple[Array, ...]:
    """Return the outputs of a node of an elementwise operator, or of one that reduces within rows.

    Raises ValueError for a node without a meaning.
    """
    node = ArrayNode(entry, opset, operands, attributes)
    with np.errstate(all="ignore"):
        if entry.rows is not None:
            return tuple(map(_stored, entry.rows(node)))
        assert entry.meaning is not None
        return (_stored(entry.meaning(node)),)


def _stored(found: Scalar) -> Array:
    """Return elements in their type."""
    assert isinstance(found, Values)
    return np.asarray(found.array).astype(helper.tensor_dtype_to_np_dtype(found.dtype))


@cache
def reference_operators(entries: tuple[Operator, ...]) -> tuple[type[Any], ...]:
    """Return classes for onnx's evaluator of operators whose entries say what they compute."""
    from onnx.reference.op_run import OpRun  # this import takes 20 ms, which a session that folds nothing avoids

    class Meant(OpRun):
        entry: Operator

        def run(
            self, *inputs: Any, linked_attributes: Mapping[str, Any] | None = None, **_unused: Any
        ) -> tuple[Any, ...]:
            """Return the outputs; `linked_attributes` are those of the enclosing function."""
            attributes = {
                a.name: (linked_attributes or {})[a.ref_attr_name] if a.ref_attr_name else helper.get_attribute_value(a)
                for a in self.onnx_node.attribute
            }
            found = computed(self.entry, int(self.run_params["opsets"].get("", 1)), inputs, attributes)
            return found[: len(self.onnx_node.output)]

        def _run(self, *inputs: Any) -> tuple[Any, ...]:
            return self.run(*inputs)

    return tuple(type(str(e), (Meant,), {"op_domain": e.domain, "entry": e}) for e in entries)
