"""Validation of fused op bodies read from a file, before kernels are planned from them.

Model files are untrusted: shape inference, ONNX Runtime and the plans divide by strides and count by `num_outputs`.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto
from onnx.external_data_helper import uses_external_data

from onnxfuse import ops
from onnxfuse.model import schema
from onnxfuse.ops import Trait
from onnxfuse.support.errors import ModelError
from onnxfuse.support.plurals import plural

MOST_NODES = 512
"""Maximum nodes of a body, not counting constants; the rules make bodies of up to 64."""
MOST_NAMES = 256
"""Maximum inputs or outputs of a body or of a node."""
MOST_ELEMENTS = 1 << 16
"""Maximum elements of a constant: bodies hold numbers, axes, shapes and short index lists."""
MOST_AXES = 64
"""Maximum rank of a tensor."""
MOST_SIZE = 1 << 20
"""Maximum window size, stride, padding, block size, and number of groups or heads."""
CHECKED = (AttributeProto.INT, AttributeProto.INTS)


def check(function: FunctionProto) -> None:
    """Raise ModelError unless `function` is valid ONNX, and each number in it valid for its operator."""
    try:
        _check(function.SerializeToString(deterministic=True))
    except ValueError as fact:
        raise ModelError(
            f"the function {function.domain}.{shown(function.name)} is not valid: {fact}",
            "The file is damaged, or no tool of ours wrote it; optimize the original model again.",
        ) from None


def overfull(function: FunctionProto) -> str | None:
    """Return which limit a body exceeds, None if it exceeds none; rules make no larger ones either."""
    if sum(n.op_type != ops.Constant for n in function.node) > MOST_NODES:
        return f"{plural(function.node, 'node')}, expected at most {MOST_NODES}"
    for one in (function, *function.node):
        for kind, names in (("inputs", one.input), ("outputs", one.output)):
            if len(names) > MOST_NAMES:
                of = f" of a {shown(one.op_type)}" if isinstance(one, NodeProto) else ""
                return f"{len(names)} {kind}{of}, expected at most {MOST_NAMES}"
    return None


def shown(text: str | bytes) -> str:
    """Return a string from a file formatted for a message; protobuf returns bytes for invalid UTF-8."""
    text = text if isinstance(text, str) else text.decode(errors="replace")
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= 80 else f"{text[:77]}..."


@lru_cache(maxsize=4096)
def _check(data: bytes) -> None:
    """Raise ValueError with the defect; results are cached by body."""
    function = FunctionProto.FromString(data)
    opsets = {o.domain: o.version for o in function.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if len(opsets) < len(function.opset_import) or not 1 <= opsets.get("", 1) <= newest:
        raise ValueError(f"operator sets {opsets}, expected one of each domain, of ONNX 1 to {newest}")
    if function.attribute or function.attribute_proto:
        raise ValueError("it has attributes")
    if (fact := overfull(function)) is not None:
        raise ValueError(fact)
    defined = set(function.input)
    if len(defined) < len(function.input) or "" in defined:
        raise ValueError("two inputs of one name, or one without")
    for node in function.node:
        _check_names(node, defined)
        _check_node(node, opsets)
    undefined = [o for o in function.output if o not in defined]
    if undefined or not function.output or len(set(function.output)) < len(function.output):
        raise ValueError(
            f"no node makes its output '{shown(undefined[0])}'" if undefined else "no outputs, or one twice"
        )


def _check_names(node: NodeProto, defined: set[str]) -> None:
    """Add the outputs of `node` to the defined values; it may read only defined values, and redefine none."""
    unknown = [i for i in node.input if i and i not in defined]
    if unknown:
        raise ValueError(f"{shown(node.op_type)} reads '{shown(unknown[0])}', which nothing before it makes")
    outputs = [o for o in node.output if o]
    if not outputs or len(set(outputs)) < len(outputs) or defined & set(outputs):
        raise ValueError(f"{shown(node.op_type)} makes a value that is there, or none")
    defined.update(outputs)


def _check_node(node: NodeProto, opsets: dict[str, int]) -> None:
    op = shown(node.op_type)
    if not isinstance(node.op_type, str) or not isinstance(node.domain, str):
        raise ValueError(f"{op} is no text")
    if node.domain not in opsets and not (node.domain == "ai.onnx" and "" in opsets):
        raise ValueError(f"{op} is of domain '{shown(node.domain)}', of which no version is named")
    for attribute in node.attribute:
        if attribute.ref_attr_name or attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            raise ValueError(f"{op} with an attribute '{shown(attribute.name)}' from elsewhere, or that is a graph")
        for text in (attribute.s, *attribute.strings):
            if "\ufffd" in text.decode(errors="replace"):
                raise ValueError(f"{op} with an attribute '{shown(attribute.name)}' that is no text: {text[:20]!r}")
    if node.op_type == ops.Constant:
        _check_constant(node)
    if node.domain in ("", "ai.onnx"):
        _check_schema(node, opsets.get("", 1))
    facts: dict[str, Any] = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.type in CHECKED}
    for name, value in facts.items():
        values = [value] if isinstance(value, int) else list(value)
        low, high = _RANGES.get(name, (-(2**62), 2**62)) if node.op_type != ops.Constant else (-(2**63), 2**63)
        wrong = [n for n in values if not low <= n <= high]
        if wrong:
            raise ValueError(f"{op} with {name} {wrong[0]}, expected {low} to {high}")
        if isinstance(value, list) and node.op_type != ops.Constant and len(value) > 2 * MOST_AXES:
            raise ValueError(f"{op} with {plural(value, 'number')} of {name}")
    entry = ops.operator(node.op_type)
    if entry is not None and Trait.SLIDES in entry.traits:
        _check_window(node, facts)
    elif node.op_type == ops.Transpose:
        _check_perm(facts)
    elif node.op_type == ops.Split:
        _check_split(node, facts)


def _check_schema(node: NodeProto, opset: int) -> None:
    """Check inputs, outputs and the types of attributes. An op newer than the opset is checked by its first version:
    ONNX Runtime supports some of them in every opset.
    """
    op_schema = schema.find(node.op_type, "", opset)
    if op_schema is None:
        newest = schema.find(node.op_type, "", onnx.defs.onnx_opset_version())
        if newest is None:
            return  # an ONNX Runtime operator; kernels that support it check their inputs
        opset = max(opset, next(s.since_version for s in _versions(node.op_type)))
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {"": opset, "ai.onnx": opset}
    try:
        onnx.checker.check_node(node, context)
    except (onnx.checker.ValidationError, RuntimeError, UnicodeDecodeError) as error:
        text = next((line.strip() for line in f"{error}".splitlines() if line.strip()), type(error).__name__)
        raise ValueError(shown(text)) from None


def _versions(op: str) -> list[onnx.defs.OpSchema]:
    """Return the versions of an ONNX operator, in ascending order."""
    all_of = [s for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == ""]
    return sorted(all_of, key=lambda s: s.since_version)


_AXIS, _SIZE = (-MOST_AXES, MOST_AXES), (1, MOST_SIZE)
_RANGES: dict[str, tuple[int, int]] = {
    "axis": _AXIS, "axes": _AXIS, "batch_dims": _AXIS, "perm": (0, MOST_AXES), "start": _AXIS, "end": _AXIS,
    "starts": (-(2**63), 2**63), "ends": (-(2**63), 2**63),  # exporters write the largest integer for "to the end"
    "kernel_shape": _SIZE, "strides": _SIZE, "dilations": _SIZE, "group": _SIZE, "num_groups": _SIZE,
    "num_outputs": (1, MOST_NAMES), "blocksize": _SIZE, "num_heads": _SIZE, "q_num_heads": _SIZE,
    "kv_num_heads": _SIZE, "pads": (-MOST_SIZE, MOST_SIZE), "output_padding": (0, MOST_SIZE),
    "to": (1, max(TensorProto.DataType.values())), "stash_type": (1, max(TensorProto.DataType.values())),
    "softmax_precision": (1, max(TensorProto.DataType.values())),
}  # fmt: skip
"""Valid range of attribute values, by attribute name, for all operators."""


def _check_window(node: NodeProto, facts: dict[str, Any]) -> None:
    """Require one size, stride and dilation for each dimension, and padding on both sides of it."""
    lists = {name: list(facts[name]) for name in ("kernel_shape", "strides", "dilations", "pads") if name in facts}
    ranks = {len(v) / (2 if name == "pads" else 1) for name, v in lists.items()}
    if len(ranks) > 1 or not ranks <= {1, 2, 3}:
        counts = ", ".join(f"{plural(v, 'number')} of {name}" for name, v in lists.items())
        raise ValueError(f"{node.op_type} with {counts}")
    if min(lists.get("pads", ()), default=0) < 0:
        raise ValueError(f"{node.op_type} with pads {lists['pads']}")


def _check_perm(facts: dict[str, Any]) -> None:
    perm = list(facts.get("perm", ()))
    if sorted(perm) != list(range(len(perm))):
        raise ValueError(f"Transpose by {perm}")


def _check_split(node: NodeProto, facts: dict[str, Any]) -> None:
    parts = {len(node.output), facts.get("num_outputs", len(node.output)), len(facts.get("split", node.output))}
    if len(parts) > 1:
        raise ValueError(f"Split in {max(parts)} with {plural(node.output, 'output')}")


def _check_constant(node: NodeProto) -> None:
    """Require a constant to hold exactly one complete value."""
    if len(node.attribute) != 1 or node.input:
        raise ValueError(f"Constant with {plural(node.attribute, 'attribute')}")
    value = onnx.helper.get_attribute_value(node.attribute[0])
    if isinstance(value, list) and len(value) > MOST_ELEMENTS:
        raise ValueError(f"a constant of {plural(value, 'element')}, expected at most {MOST_ELEMENTS}")
    if isinstance(value, TensorProto):
        if uses_external_data(value) or not all(0 <= d <= MOST_ELEMENTS for d in value.dims):
            raise ValueError(f"a constant of shape {list(value.dims)}, or with its data elsewhere")
        if math.prod(value.dims) > MOST_ELEMENTS:
            raise ValueError(f"a constant of shape {list(value.dims)}, expected at most {MOST_ELEMENTS} elements")
        try:
            array: np.ndarray = onnx.numpy_helper.to_array(value)
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise ValueError(f"a constant that cannot be read: {shown(f'{error}')}") from None
        if array.shape != tuple(value.dims):
            raise ValueError(f"a constant of shape {list(value.dims)} with {plural(array.size, 'element')}")
