"""Cross-check of each reference operator against ONNX Runtime: does its kernel compute the same from the same inputs?

A reference operator can be wrong in an unforeseen form. At its first occurrence, each operator of a model is therefore
also run by ONNX Runtime by itself: in float64 if there is a kernel, else in float32 on inputs representable in float32.
A reference that differs by more than rounding is rejected: ONNX Runtime's outputs replace it from there on, and the
report names the node. Bounds are never loosened instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, helper

from onnxfuse import ops
from onnxfuse.support.errors import ModelError
from onnxfuse.support.plurals import agreeing, plural
from onnxfuse.verification.inputs.inputs import perturb
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.custom_operators import CustomOperator, standalone_node
from onnxfuse.verification.run.custom_operators import attributes as attributes_of
from onnxfuse.verification.run.ml_types import carrier

Array = npt.NDArray[Any]
Key = tuple[Any, ...]

EXAMINED_ABOVE = 1e-4
"""Differences beyond this share of the largest value are examined: a hundred times one operator's float32 rounding, and
a hundredth of what a different formula yields."""
ULP_FACTOR = 16.0
"""Bound of internal rounding, as a multiple of the output change caused by one ulp of the inputs."""

REFUSALS: tuple[type[Exception], ...] = (ModelError, *sessions.ORT_ERRORS)
"""Exceptions of a session for an unknown operator, or an unsupported form."""

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

ARRAY_KINDS = "fiubV"
"""Array kinds that a session accepts; `V` in its carrier type."""

TRUSTED: set[Key] = set()
"""Operator forms that were checked in this process and agreed."""


@dataclass(frozen=True)
class UntrustedOperator:
    """An operator whose reference is rejected."""

    op: str
    node: str
    """The node's name, or its first output's."""
    why: str
    dtype: str
    """The type in which ONNX Runtime computes it instead."""

    def __str__(self) -> str:
        return (
            f"onnx's reference of {self.op} is not trusted at node '{self.node}' ({self.why}): the reference "
            f"there is ONNX Runtime's own operator in {self.dtype}"
        )


@dataclass(frozen=True)
class UserOperator:
    """An operator of a user's library, which has no other implementation."""

    op: str
    node: str
    dtype: str
    """The narrowest type in which it was run."""

    def __str__(self) -> str:
        return (
            f"{self.op} (node '{self.node}') is from a custom-op library: the reference there is its own result "
            f"in {self.dtype}"
        )


class OrtReference:
    """Results of the cross-checks of one model's nodes."""

    def __init__(self) -> None:
        self.doubts: dict[str, UntrustedOperator | UserOperator] = {}
        """By message, in the order in which they were found."""
        self.unchecked: dict[str, str] = {}
        """Operators that ONNX Runtime could not check, with an example node."""
        self.unsure = False
        """Whether an output was far from the original while some operators could not be checked."""
        self.again = False
        """Whether trusted operators are checked again."""
        self._replacements: dict[Key, _NodeSession] = {}

    def trusted(self, node: Any, attributes: Mapping[str, Any] | None, inputs: Sequence[Any], ours: Any) -> Any:
        """Return the outputs to continue with: `ours`, or ONNX Runtime's if those are rejected.

        `node` is the reference's operator, `attributes` are those of the enclosing function.
        """
        proto: NodeProto = node.onnx_node
        if isinstance(node, CustomOperator) and node.library and node.dtype:
            user_operator = UserOperator(f"{proto.domain}.{proto.op_type}", _node_name(proto), node.dtype)
            self.doubts[str(user_operator)] = user_operator
        key = _key(node, attributes, inputs, ours)
        if _sums_exactly(proto, inputs):
            return ours
        if key is None:
            # The body of an If consists of operators that are checked themselves.
            if proto.op_type not in (ops.Constant, ops.If) and not proto.domain:
                self.unchecked.setdefault(proto.op_type, _node_name(proto))
            return ours
        if key in TRUSTED and not self.again:
            return ours
        if key in self._replacements:
            return self._replacements[key].outputs(inputs)
        alone = _open_node(node, attributes, inputs, ours)
        why = None if alone is None else alone.disagreement(node, attributes, inputs, ours)
        if alone is None or why is None:
            self.unchecked.setdefault(proto.op_type, _node_name(proto))
            return ours
        if not why:
            TRUSTED.add(key)
            return ours
        doubt = UntrustedOperator(proto.op_type, _node_name(proto), why, alone.dtype)
        self.doubts[str(doubt)] = doubt
        self._replacements[key] = alone
        return alone.outputs(inputs)

    @property
    def text(self) -> str:
        """Describe rejected and unchecked operators; empty if all are trusted."""
        unchecked = ", ".join(f"{op} (node '{node}')" for op, node in self.unchecked.items())
        far = f"the original is further from it than it rounds, and ONNX Runtime could not be asked about {unchecked}"
        return "; ".join((*self.doubts, *([far] if self.unsure else [])))

    @property
    def itemsize(self) -> int:
        """The bytes of the narrowest type in which part of the reference is computed."""
        return min((BYTES[d.dtype] for d in self.doubts.values()), default=8)


class _NodeSession:
    """One node in a session of its own."""

    def __init__(self, session: Any, dtype: str, present: Sequence[int], types: Sequence[Any]) -> None:
        self.session, self.dtype, self.present, self.types = session, dtype, present, types
        """`types`: by index, the type of the reference's output; None for an unnamed one."""

    def outputs(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return ONNX Runtime's outputs, floats in float64. Raises its errors."""
        results = iter(self.run(self.feeds(inputs)))
        # Unnamed outputs between others are not returned by the session.
        return tuple(_in_reference_type(next(results), dtype) if dtype is not None else None for dtype in self.types)

    def feeds(self, inputs: Sequence[Any]) -> dict[str, Array]:
        """Convert inputs of the reference to feeds of the session."""
        return {f"x{n}": _as(inputs[n], self.dtype) for n in self.present}

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Run the session and return the named outputs."""
        return list(sessions.run(self.session, feeds).values())

    def disagreement(
        self, node: Any, attributes: Mapping[str, Any] | None, inputs: Sequence[Any], ours: Any
    ) -> str | None:
        """Return how the reference differs from ONNX Runtime beyond rounding; empty if it does not.

        None if ONNX Runtime's kernel rejects these inputs, which is inconclusive.
        """
        feeds = self.feeds(inputs)
        try:
            theirs = self.run(feeds)
        except sessions.ORT_ERRORS:
            return None
        if any((feeds[f"x{n}"] != inputs[n]).any() for n in self.present if _is_wide(inputs[n])):
            same = [None if x is None else _as(x, self.dtype).astype(_wide(x)) for x in inputs]
            ours = node.run(*same, **({"linked_attributes": attributes} if node.has_linked_attribute else {}))
        ours = [_in_carrier(x) for x, name in zip(ours, node.onnx_node.output, strict=False) if name]
        wrong = [n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if not _agree(a, b)]
        if not wrong:
            return ""
        first, second = np.asarray(ours[wrong[0]]), theirs[wrong[0]]
        if first.shape != second.shape:
            return f"its shape is {list(first.shape)}, ONNX Runtime's {list(second.shape)}"
        perturbed = perturb(feeds, 0)
        other = None if perturbed is None else self.run(perturbed)
        if other is not None and all(_explained(ours[n], theirs[n], other[n]) for n in wrong):
            return ""
        if second.dtype.kind != "f":
            many, of = int((first != second).sum()), second.size
            return f"{many} of {plural(of, 'value')} {agreeing(many, 'differs', 'differ', of=of)} from ONNX Runtime's"
        largest_error, scale = _largest(first - second), _largest(second)
        return f"it differs from ONNX Runtime's by {largest_error:.3g}, where the largest value is {scale:.3g}"


def _sums_exactly(proto: NodeProto, inputs: Sequence[Any]) -> bool:
    """Return whether a node is a product of integers that the reference adds up in int32, without rounding.

    ONNX Runtime's own sums are no measure of it: on processors without VNNI its CPU kernel saturates the sum of two
    neighbouring products of uint8 and int8 at 16 bits. onnx broadcasts a zero point per row along the terms instead.
    """
    by_row = len(inputs) > 2 and inputs[2] is not None and np.size(inputs[2]) > 1
    return proto.op_type == ops.MatMulInteger and not proto.domain and not by_row


def _agree(a: Any, b: Array) -> bool:
    """Return whether two outputs are equal up to rounding; values beyond the narrower type's range may differ."""
    a = np.asarray(a)
    if a.shape != b.shape:
        return False
    if b.dtype.kind != "f" or a.dtype.kind not in "fiu":
        return bool(np.array_equal(a, b))
    return _largest(a - b) <= EXAMINED_ABOVE * _largest(b) and bool(np.array_equal(np.isnan(a), np.isnan(b)))


def _explained(a: Any, b: Array, perturbed: Array) -> bool:
    """Return whether the difference of `a` and `b` is explained by one ulp of the inputs."""
    a = np.asarray(a)
    if perturbed.shape != b.shape:
        return True  # The output size depends on the last digit: inconclusive.
    if b.dtype.kind != "f":
        return int((a != b).sum()) <= ULP_FACTOR * int((perturbed != b).sum())
    return _largest(a - b) <= ULP_FACTOR * _largest(perturbed - b)


def _largest(x: Array) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.abs(x[np.isfinite(x)])
    return float(finite.max(initial=0.0))


def _key(node: Any, attributes: Mapping[str, Any] | None, inputs: Sequence[Any], ours: Any) -> Key | None:
    """Return a key that identifies the form of an operator; None if ONNX Runtime cannot run it."""
    proto: NodeProto = node.onnx_node
    if proto.domain or not inputs or node.need_context() or any(a.HasField("g") for a in proto.attribute):
        return None
    tensors = [x for x in inputs if x is not None]
    if not tensors or any(not isinstance(x, np.ndarray) or x.dtype.kind not in ARRAY_KINDS for x in tensors):
        return None
    if not all(isinstance(x, np.ndarray | np.generic) for x in ours):
        return None
    written = tuple(sorted(a.SerializeToString(deterministic=True) for a in attributes_of(proto, attributes)))
    types = tuple(None if x is None else (x.dtype.name, x.ndim) for x in inputs)
    return proto.op_type, node.run_params["opsets"].get("", 0), written, types, tuple(map(bool, proto.output))


def _open_node(
    node: Any, attributes: Mapping[str, Any] | None, inputs: Sequence[Any], ours: Any
) -> _NodeSession | None:
    """Open the node as a session: in float64 if ONNX Runtime has a kernel, else in float32; None if in neither."""
    proto: NodeProto = node.onnx_node
    present = [n for n, x in enumerate(inputs) if x is not None]
    alone = standalone_node(proto, attributes)
    types = [x.dtype if name else None for x, name in zip(ours, proto.output, strict=False)]
    nodes, names = _with_carriers(alone, inputs, types)
    for dtype in ("float64", "float32"):
        feeds = [
            helper.make_tensor_value_info(f"x{n}", _type(inputs[n], dtype), [None] * inputs[n].ndim) for n in present
        ]
        graph = helper.make_graph(nodes, "alone", feeds, [onnx.ValueInfoProto(name=o) for o in names])
        opset = helper.make_opsetid("", node.run_params["opsets"][""])
        try:
            one = helper.make_model(graph, opset_imports=[opset], ir_version=10)
            session = sessions.unoptimized(one)
            runner = _NodeSession(session, dtype, present, types)
            runner.outputs(inputs)  # Some kernels reject a type only at run time.
        except REFUSALS:
            continue
        return runner
    return None


def _with_carriers(alone: NodeProto, inputs: Sequence[Any], types: Sequence[Any]) -> tuple[list[NodeProto], list[str]]:
    """Return the node with Casts around inputs and outputs of types that NumPy lacks, and its outputs."""
    before, after = list[NodeProto](), list[NodeProto]()
    for n, x in enumerate(inputs):
        if x is not None and carrier(x.dtype) != x.dtype:
            alone.input[n] = f"narrow{n}"
            to = int(helper.np_dtype_to_tensor_dtype(x.dtype))
            before.append(helper.make_node(ops.Cast, [f"x{n}"], [alone.input[n]], to=to))
    names = []
    for name, dtype in zip(alone.output, types, strict=False):
        if dtype is not None and carrier(dtype) != dtype:
            to = int(helper.np_dtype_to_tensor_dtype(carrier(dtype)))
            after.append(helper.make_node(ops.Cast, [name], [f"{name}.wide"], to=to))
            names.append(f"{name}.wide")
        elif name:
            names.append(name)
    return [*before, alone, *after], names


def _in_reference_type(x: Array, dtype: np.dtype[Any]) -> Array:
    """Convert an output of ONNX Runtime to the reference's type."""
    if carrier(dtype) != dtype:
        return x.astype(dtype)
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _in_carrier(x: Any) -> Any:
    return x.astype(carrier(x.dtype)) if isinstance(x, np.ndarray) else x


def _node_name(proto: NodeProto) -> str:
    return proto.name or next(o for o in proto.output if o)


def _type(x: Array, dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(_as(x[:0] if x.ndim else x, dtype).dtype))


def _as(x: Array, dtype: str) -> Array:
    """Return floats in `dtype`, types that NumPy lacks in their carrier, anything else unchanged."""
    with np.errstate(over="ignore"):
        return x.astype(dtype) if _is_wide(x) else np.asarray(_in_carrier(x))


def _wide(x: Array) -> np.dtype[Any]:
    return np.dtype(np.float64) if _is_wide(x) else x.dtype


def _is_wide(x: Array) -> bool:
    """Return whether it has the type in which the reference computes."""
    return x.dtype.kind == "f" and carrier(x.dtype) == x.dtype
