"""User operators in the reference: run by ONNX Runtime in their own types, because there is no other implementation.

Only the library defines what such an operator computes. Its inputs are rounded to the types that it reads, and its
results are taken as exact: the reference has no more precision there, and the report says so.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnxml import load_op

from onnxfuse import ops
from onnxfuse.model import custom_ops
from onnxfuse.model.functions import called, functions_of
from onnxfuse.model.nested import nodes_of
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types
from onnxfuse.support.error_text import first_line
from onnxfuse.support.errors import ModelError
from onnxfuse.verification.run import sessions

GUESSES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
"""Input types tried if the type is unknown: acceptance by the operator decides."""

UNIMPLEMENTED = frozenset({ops.MaxRoiPool})
"""ONNX operators missing both in onnx's reference and in ours."""

REFUSALS: tuple[type[Exception], ...] = (ModelError, *sessions.ORT_ERRORS)


class CustomOperator(OpRun):
    """A node of such an operator; one subclass for each operator of a model."""

    types: Mapping[str, int] = {}
    """Known element types of the model's values."""
    library = True
    """Whether only a user's library provides it; else ONNX Runtime does."""

    def __init__(self, onnx_node: NodeProto, run_params: dict[str, Any], schema: Any = None) -> None:
        super().__init__(onnx_node, run_params, schema)
        self.dtype = ""
        """The narrowest floating-point type in which it was run; empty before the first run, and without floats."""
        self._opened: dict[bytes, tuple[Any, tuple[int, ...]]] = {}

    def run(self, *inputs: Any, linked_attributes: Mapping[str, Any] | None = None, **_unused: Any) -> tuple[Any, ...]:
        """Return the outputs, floats in float64. Raises NotImplementedError if no session opens."""
        alone = standalone_node(self.onnx_node, linked_attributes)
        key = alone.SerializeToString(deterministic=True)
        if key not in self._opened:
            self._opened[key] = self._open(alone, inputs)
        session, types = self._opened[key]
        feeds = {f"x{n}": _as(x, types[n]) for n, x in enumerate(inputs) if x is not None}
        results = sessions.run(session, feeds)
        arrays = [x for x in (*feeds.values(), *results.values()) if isinstance(x, np.ndarray)]
        floats = [x.dtype for x in arrays if x.dtype.kind in "fV"]
        self.dtype = str(min(floats, key=lambda d: d.itemsize)) if floats else ""
        wide = {
            n: x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind in "fV" else x
            for n, x in results.items()
        }
        return tuple(wide.get(o) for o in alone.output)

    def _run(self, *inputs: Any) -> tuple[Any, ...]:
        return self.run(*inputs)

    def _open(self, alone: NodeProto, inputs: tuple[Any, ...]) -> tuple[Any, tuple[int, ...]]:
        """Return a session of the node, and the types of its inputs there."""
        refusal = ""
        for guess in GUESSES:
            types = tuple(self._type(name, x, guess) for name, x in zip(self.onnx_node.input, inputs, strict=True))
            feeds = [
                helper.make_value_info(f"x{n}", _declared(x, types[n])) for n, x in enumerate(inputs) if x is not None
            ]
            graph = helper.make_graph([alone], "alone", feeds, [onnx.ValueInfoProto(name=o) for o in alone.output if o])
            opsets = [helper.make_opsetid(domain, version) for domain, version in self.run_params["opsets"].items()]
            try:
                return sessions.unoptimized(helper.make_model(graph, opset_imports=opsets, ir_version=10)), types
            except REFUSALS as error:
                refusal = refusal or first_line(error)
        raise NotImplementedError(f"{self.onnx_node.domain}.{self.onnx_node.op_type} does not run by itself: {refusal}")

    def _type(self, name: str, x: Any, guess: int) -> int:
        if isinstance(x, list):
            return self._type("", x[0], guess) if x else guess
        if not isinstance(x, np.ndarray | np.generic):
            return 0  # nothing, or a map
        declared = self.types.get(name, 0)
        return int(declared or guess if x.dtype.kind == "f" else helper.np_dtype_to_tensor_dtype(x.dtype))


class RuntimeOperator(CustomOperator):
    """An operator that ONNX Runtime provides and onnx's reference lacks: run by it in float32."""

    library = False


def in_runtime(model: onnx.ModelProto) -> tuple[type[CustomOperator], ...]:
    """Return a class for each operator of the model that ONNX Runtime provides and onnx's reference lacks."""
    functions = {(f.domain, f.name) for f in model.functions}
    operators_used = {(n.domain, n.op_type) for n in _nodes(model) if not custom_ops.is_custom(n)} - functions
    return tuple(
        type(op, (RuntimeOperator,), {"op_domain": domain})
        for domain, op in sorted(operators_used)
        if _is_missing(domain, op)
    )


def _is_missing(domain: str, op: str) -> bool:
    """Return whether onnx's reference lacks the operator, and its entry has no meaning that is computed instead."""
    entry = ops.operator(op, domain)
    if entry is not None and domain and (entry.meaning or entry.rows):
        return False
    if domain in ("", "ai.onnx"):
        return op in UNIMPLEMENTED or not onnx.defs.has(op)
    if domain != "ai.onnx.ml":
        return not onnx.defs.has(op, domain)
    try:
        load_op(domain, op, version=None)
    except NotImplementedError:
        return True
    return False


def operators(model: onnx.ModelProto) -> tuple[type[CustomOperator], ...]:
    """Return a class for each operator of the model outside the domains of ONNX and ONNX Runtime."""
    functions = functions_of(model)
    nodes_by_operator = {
        (n.domain, n.op_type): n for n in _nodes(model) if custom_ops.is_custom(n) and called(n) not in functions
    }
    if not nodes_by_operator:
        return ()
    types = {name: t.dtype for name, t in value_types(infer(model).graph).items()}
    return tuple(type(op, (CustomOperator,), {"op_domain": domain, "types": types}) for domain, op in nodes_by_operator)


def _nodes(model: onnx.ModelProto) -> Iterator[NodeProto]:
    return (node for graph in (model.graph, *model.functions) for node in nodes_of(graph))


def standalone_node(proto: NodeProto, outer: Mapping[str, Any] | None) -> NodeProto:
    """Return a node with inputs x0, x1 ... and outputs y0, y1 ..., and the attributes of the original node.

    `outer` are the attributes passed to the enclosing function, for references to them.
    """
    alone = NodeProto(op_type=proto.op_type, domain=proto.domain)
    alone.input.extend(f"x{n}" if name else "" for n, name in enumerate(proto.input))
    alone.output.extend(f"y{n}" if name else "" for n, name in enumerate(proto.output))
    alone.attribute.extend(attributes(proto, outer))
    return alone


def attributes(proto: NodeProto, outer: Mapping[str, Any] | None) -> list[onnx.AttributeProto]:
    """Return the node's attributes, with references resolved to those passed to the enclosing function."""
    return [
        helper.make_attribute(a.name, (outer or {})[a.ref_attr_name]) if a.ref_attr_name else a for a in proto.attribute
    ]


def _declared(x: Any, dtype: int) -> onnx.TypeProto:
    """Return the type of an input that holds `x`, its floats as `dtype`."""
    if isinstance(x, dict):
        keys = TensorProto.STRING if isinstance(next(iter(x), 0), str) else TensorProto.INT64
        return helper.make_map_type_proto(keys, helper.make_tensor_type_proto(TensorProto.FLOAT, ()))
    tensor = helper.make_tensor_type_proto(dtype, None)
    return helper.make_sequence_type_proto(tensor) if isinstance(x, list) else tensor


def _as(x: Any, dtype: int) -> Any:
    if isinstance(x, list):
        return [_as(one, dtype) for one in x]
    if isinstance(x, dict) or x.dtype.kind != "f":
        return x
    with np.errstate(over="ignore"):
        return x.astype(helper.tensor_dtype_to_np_dtype(dtype))
