"""Substitute a rewrite's replacement for a match; parts of constants alone are evaluated here, in float64."""

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import replace

import numpy as np
import onnx
from onnx import NodeProto, TensorProto
from onnx.defs import OpSchema
from onnx.helper import np_dtype_to_tensor_dtype

from onnxfuse import ops
from onnxfuse.graph.constant_folding import FEW, FILLED, SPREAD
from onnxfuse.graph.evaluate import REFUSALS, evaluate
from onnxfuse.graph.float8 import is_float8_matrix
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import schema
from onnxfuse.model.attributes import set_attribute
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Match, Refusal
from onnxfuse.rules.pattern.pattern import NEWEST, Pattern, PatternNode
from onnxfuse.shapes.onnx_inference import infer_node
from onnxfuse.shapes.size_bounds import result_elements
from onnxfuse.shapes.types import ValueType, type_of, value_info
from onnxfuse.support.error_text import first_line
from onnxfuse.support.errors import ModelError
from onnxfuse.symbolic import element_types

FOLDED = 1 << 16
"""Maximum elements of a constant that `to` may compute from anything it reads; more if the match has larger ones."""

PRODUCTS = (ops.Trait.CONTRACTION, ops.Trait.INTEGER_PRODUCT)
"""Traits of what is a product or a convolution, of numbers or of integers."""

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def instantiate(target: Pattern, graph: Graph, match: Match, optional: Mapping[str, float]) -> list[Node] | Refusal:
    """Return the nodes of `target` for `match`, their constants added to `graph`; the graph's nodes are not changed.

    Folded constants are computed in float64 and rounded once, to the element type that their use requires: that of the
    node's other operands, or the type of the match's first output if those do not determine it. Refuses if a folded
    weight would overflow that type, or if a node cannot be expressed in the model's operator set.
    """
    root = next(iter(match.nodes.values()))
    target = _of_the_match(target, match)
    constants = _constant_inputs(target, graph, match, optional)
    # An output keeps a node that computes it, even from constants alone: constant folding handles that.
    ends = set(target.outputs)
    eight = {v for v in constants if isinstance(name := match.values[v], str) and is_float8_matrix(graph, name)}
    folded = [n for n in target.nodes if ends.isdisjoint(n.outputs) and _mark_folded(n, constants, eight)]
    kept = [n for n in target.nodes if n not in folded]
    names = {name: value for name, value in match.values.items() if isinstance(value, str)}
    names.update({o: str(match.values[o]) for o in target.outputs})
    base = root.outputs[0]
    made = {o for n in folded for o in n.outputs}  # a name that is also in `from` refers to the value in `to`
    own = made | {v for v in constants if v not in names} | _absent(match, optional)
    asked = _asked(kept, folded, graph, match, target, own, set(constants))
    computed = _fold(folded, constants, list(dict.fromkeys(v for _, v in asked)), match)
    if isinstance(computed, Refusal):
        return computed
    constant: dict[tuple[str, int], str] = {}
    for name, element in dict.fromkeys((v, e) for v in computed for (_, read), e in asked.items() if v == read):
        stored = _store(computed[name], element)
        if isinstance(stored, str):
            return match.refusal(Cause("too large", seen=stored))
        constant[name, element] = graph.fresh(f"{base}.{name}")
        graph.add_constant(constant[name, element], stored)
    for output in (o for n in kept for o in n.outputs if o and o not in target.outputs):
        # A model value keeps its name, even if `from` has an interior value of that name: reusing the name in `to`
        # states only that the types are equal.
        fresh = graph.fresh(f"{base}.{output}")
        if output in names:
            graph.types[fresh] = graph.type(names[output])
        names[output] = fresh
    protos = []
    for node in kept:
        proto = node_proto(node, {**names, **{v: constant[v, e] for (at, v), e in asked.items() if at is node}}, match)
        reason = _write_as_of(proto, graph)
        if reason:
            return match.refusal(Cause("opset", seen=reason))
        protos.append(proto)
    _keep_names(protos, match)
    return [Node(proto) for proto in protos]


def _of_the_match(target: Pattern, match: Match) -> Pattern:
    """Return `target` with operator classes replaced by the matched operators, by label."""
    there = {wanted.rest: node.op for wanted, node in match.nodes.items() if wanted.is_class}
    nodes = tuple(replace(n, op=there[n.rest]) if n.is_class else n for n in target.nodes)
    return replace(target, nodes=nodes) if there else target


def _keep_names(protos: list[NodeProto], match: Match) -> None:
    """Give new nodes the names of matched ones of the same operator, each once, and products those of other products.

    In reports a product is found under one name from the file to the fused op, also where it becomes one of integers;
    without a name it has that of its first output.
    """
    old, products = [*match.nodes.values()], list[NodeProto]()
    for proto in protos:
        found = next((o for o in old if o.op == proto.op_type), None)
        is_product = Node(proto).has(*PRODUCTS)
        if found is not None:
            proto.name = found.name if is_product else found.proto.name
            old.remove(found)
        elif is_product:
            products.append(proto)
    for proto, found in zip(products, [o for o in old if o.has(*PRODUCTS)], strict=False):
        proto.name = found.name


def _constant_inputs(
    target: Pattern, graph: Graph, match: Match, optional: Mapping[str, float]
) -> dict[str, np.ndarray | None]:
    """Return the target's constant inputs; their data are read only if something is folded from them."""
    found: dict[str, np.ndarray | None] = {}
    for name in target.inputs:
        value = match.values[name]
        if isinstance(value, np.ndarray):
            found[name] = value
        elif value == "" and name in optional:
            found[name] = np.array(optional[name], np.float64)
        elif value and graph.is_constant(value):
            found[name] = graph.constant(value)
    return found


def _absent(match: Match, optional: Mapping[str, float]) -> set[str]:
    return {name for name in optional if isinstance(match.values[name], str) and match.values[name] == ""}


def _mark_folded(node: PatternNode, constants: dict[str, np.ndarray | None], eight: Collection[str]) -> bool:
    """Return whether a node is computed here; what reads `eight`, matrices of float8, is not: kernels do."""
    if any(v and (v not in constants or v in eight) for v in node.inputs):
        return False
    constants.update(dict.fromkeys(node.outputs, None))
    return True


def _fold(
    folded: list[PatternNode], constants: dict[str, np.ndarray | None], wanted: list[str], match: Match
) -> dict[str, np.ndarray] | Refusal:
    """Return the constants that are `wanted`; a refusal if an intermediate one is disproportionately larger than the
    match's constants: a rule of 300 bytes can request terabytes, and hours.
    """
    if not wanted:
        return {}
    inputs = {k: _wide(v) for k, v in constants.items() if v is not None}
    names = {v: v for n in folded for v in (*n.inputs, *n.outputs)}
    given = {name: inputs[name] for name in wanted if name in inputs}
    rest = [name for name in wanted if name not in given]
    if not rest:
        return given
    known, there = dict(inputs), sum(a.size for a in inputs.values())
    most = max(FOLDED, 2 * there, min(SPREAD * there, FILLED // 8))
    try:
        for node in folded:
            proto = _promoted(node_proto(node, names, match))
            elements = result_elements(proto, known)
            elements = _inferred_elements(proto, known) if elements is None else elements
            if elements is None or elements > most:
                return match.refusal(_out_of_proportion(node, elements, most))
            arrays = {v: known[v] for v in proto.input if v}
            known.update(zip(proto.output, evaluate([proto], arrays, list(proto.output), NEWEST), strict=True))
    except REFUSALS as error:
        weights = ", ".join(f"'{v}'" for name in inputs if isinstance(v := match.values.get(name), str) and v)
        raise ModelError(
            f"the weights {weights} do not fit each other: {first_line(error)}",
            "The model would fail whenever it is run: fix the export.",
        ) from error
    return {**given, **{name: known[name] for name in rest}}


def _inferred_elements(node: NodeProto, known: Mapping[str, np.ndarray]) -> int | None:
    """Return the number of elements that a node computes by ONNX's inference, None if unknown."""
    arrays = {v: known[v] for v in node.input if v}
    types = {v: value_info(v, ValueType(np_dtype_to_tensor_dtype(a.dtype), a.shape)).type for v, a in arrays.items()}
    few = {v: onnx.numpy_helper.from_array(a, v) for v, a in arrays.items() if a.size <= FEW}
    found = [type_of(t).static_shape for t in infer_node(node, types, few, NEWEST).values()]
    sizes = [math.prod(shape) for shape in found if shape is not None]
    return sum(sizes) if sizes and len(sizes) == len(found) else None


def _out_of_proportion(node: PatternNode, elements: int | None, most: int) -> Cause:
    many = "an unknown number of" if elements is None else f"{elements:,}".replace(",", " ")
    return Cause("too many", node.op, many, str(most))


def _wide(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def _promoted(node: NodeProto) -> NodeProto:
    """Promote a rule's literal constants, and its casts to other float types, to float64 as well."""
    if node.op_type == ops.Cast and any(a.name == "to" and a.i in FLOATS for a in node.attribute):
        return onnx.helper.make_node(ops.Cast, list(node.input), list(node.output), to=TensorProto.DOUBLE)
    if node.op_type == ops.Constant and node.attribute[0].name in ("value_float", "value_floats"):
        array = np.asarray(onnx.helper.get_attribute_value(node.attribute[0]), np.float64)
        return onnx.helper.make_node(ops.Constant, [], list(node.output), value=onnx.numpy_helper.from_array(array))
    return node


def _store(array: np.ndarray, element: int) -> np.ndarray | str:
    if array.dtype.kind != "f" or not element:
        return array
    with np.errstate(over="ignore"):
        stored: np.ndarray = array.astype(onnx.helper.tensor_dtype_to_np_dtype(element))
    if np.isfinite(array).all() and not np.isfinite(stored.astype(np.float64)).all():
        name = TensorProto.DataType.Name(element).lower()
        return f"a folded weight reaches {np.abs(array).max():g}, too large for {name}"
    return stored


def _asked(
    kept: list[PatternNode],
    folded: list[PatternNode],
    graph: Graph,
    match: Match,
    target: Pattern,
    own: set[str],
    constants: set[str],
) -> dict[tuple[PatternNode, str], int]:
    """Return the stored constants of each node, and their required element type: everything from `own` that it reads,
    and weights of the model that it reads in another float type than theirs.

    The type is that of the operands with the same type variable; the result of a Cast has the type that it names.
    """
    default = _float_type(graph, match)
    cast = {o: to for n in folded if n.op == ops.Cast and (to := _cast_to(n, match)) in FLOATS for o in n.outputs}
    names = {v: name for v in target.values if isinstance(name := match.values.get(v), str) and name}
    types = {v: t for v, n in names.items() if v not in own | constants and (t := graph.type(n).dtype)}
    asked: dict[tuple[PatternNode, str], int] = {}
    for node in kept:
        reads, yields = schema.type_variables(node.op, node.domain, NEWEST, len(node.inputs), len(node.outputs))
        bound = {variable: types[v] for v, variable in zip(node.inputs, reads, strict=True) if variable and v in types}
        for v, variable in zip(node.inputs, reads, strict=True):
            if variable and v in cast:
                bound.setdefault(variable, cast[v])
        for v, variable in zip(node.inputs, reads, strict=True):
            # Another variable than the operands': an exponent, which is of its base's type.
            element = found if (found := bound.get(variable, next(iter(bound.values()), 0))) in FLOATS else 0
            if v in own:
                asked[node, v] = element or default
            elif node.op == ops.CastLike and v != node.inputs[0]:
                continue  # says a type, and is not read
            elif v in constants and element and (stored := graph.type(names[v]).dtype) in FLOATS and stored != element:
                asked[node, v] = element
        for v, variable in zip(node.outputs, yields, strict=True):
            if element := _cast_to(node, match) if node.op == ops.Cast else bound.get(variable, 0):
                types[v] = element
    return asked


def _cast_to(node: PatternNode, match: Match) -> int:
    """Return the target type of a Cast, 0 if it is among attributes that a pattern captured together."""
    value = node.attributes.get("to", match.labels.get(node.open.get("to", ""), 0))
    return value if isinstance(value, int) else 0


def _float_type(graph: Graph, match: Match) -> int:
    """Return the element type of the match's first output, or if unknown of its first floating constant, or the one to
    which it casts."""
    values = [v for v in match.values.values() if isinstance(v, str) and v]
    types = [graph.type(next(iter(match.nodes.values())).outputs[0]).dtype, *(graph.type(v).dtype for v in values)]
    casts = [n.written.get("to") for n in match.nodes.values() if n.has(ops.Trait.CASTS)]
    return next((t for t in (*types, *casts) if isinstance(t, int) and t in FLOATS), 0)


def _write_as_of(node: NodeProto, graph: Graph) -> str | None:
    """Convert a node from its newest form to the operator set of `graph`; return why that is impossible.

    Inputs that were attributes there become attributes again if constant: the axes of a reduction. A Split into as many
    parts as outputs needs no attribute.
    """
    opset, old = graph.opset, schema.find(node.op_type, node.domain, graph.opset)
    if old is None:
        return _not_in_opset(node.op_type, node.domain, len(node.input), set(), opset)
    for name, index in schema.moved(node.op_type, node.domain, opset).items():
        value = node.input[index] if index < len(node.input) else ""
        array = graph.constant(value)
        if array is not None:
            several = old.attributes[name].type in (OpSchema.AttrType.INTS, OpSchema.AttrType.FLOATS)
            numbers = array.reshape(-1).tolist() if several else array.item()
            node.attribute.append(onnx.helper.make_attribute(name, numbers))
            node.input[index] = ""
        elif value:
            return f"{node.op_type} of opset {opset} cannot compute its {name}"
    while node.input and not node.input[-1]:
        del node.input[-1]
    if node.op_type == ops.Split and "num_outputs" not in old.attributes:
        set_attribute(node, "num_outputs", None)
    for index, value in enumerate(node.input):
        dtype = graph.type(value).dtype if value and not node.domain else 0
        newly = dtype and schema.takes(node.op_type, NEWEST, index, dtype)
        if newly and not schema.takes(node.op_type, opset, index, dtype):
            return f"{node.op_type} of opset {opset} reads no {element_types.name(dtype)}"
    return _not_in_opset(node.op_type, node.domain, len(node.input), {a.name for a in node.attribute}, opset)


def not_in_opset(node: PatternNode, opset: int) -> str | None:
    """Return why a pattern node is not expressible in version `opset` of the default domain, None if it is."""
    return _not_in_opset(node.op, node.domain, len(node.inputs), {*node.attributes, *node.open}, opset)


def _not_in_opset(op: str, domain: str, inputs: int, attributes: Set[str], opset: int) -> str | None:
    if domain or op == ops.Constant:
        return None
    found = schema.find(op, "", opset)
    if found is None:
        return f"{op} does not exist in opset {opset}"
    if found.deprecated:
        return f"{op} is deprecated in opset {opset}"
    # Gemm's bias is optional since opset 11.
    if not found.min_input <= inputs <= found.max_input or not attributes <= found.attributes.keys():
        return f"{op} of opset {opset} cannot be written this way"
    return None


def node_proto(node: PatternNode, names: Mapping[str, str], match: Match) -> NodeProto:
    """Return the graph node for a pattern node, given the values of its names."""
    proto = NodeProto(op_type=node.op, domain=node.domain)
    proto.input.extend(names[v] if v else "" for v in node.inputs)
    proto.output.extend(names[v] if v else "" for v in node.outputs)
    proto.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in node.attributes.items())
    for name, label in node.open.items():
        value = match.labels[label]
        if name in ("value_ints", "value_floats") and isinstance(value, int | float):
            value = [value]
        if name == "value_ints":  # before opset 12 a Constant holds a tensor only
            name, value = "value", onnx.numpy_helper.from_array(np.asarray(value, np.int64))
        if name in node.floats and isinstance(value, int):
            value = float(value)
        if value is not None:
            proto.attribute.append(onnx.helper.make_attribute(name, value))
    if node.rest is not None:
        rest = match.labels[node.rest]
        assert isinstance(rest, tuple), node.rest
        proto.attribute.extend(rest)
    return proto
