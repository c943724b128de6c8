"""Match a pattern at a node: return a Match, or a Refusal with the furthest progress and its cause."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import onnx
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import schema
from onnxfuse.ops import Trait, named
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.refusal import Refusal as Refusal
from onnxfuse.rules.match.refusal import nearness
from onnxfuse.rules.match.trace import Bound as Bound
from onnxfuse.rules.match.trace import Labels
from onnxfuse.rules.match.trace import Match as Match
from onnxfuse.rules.match.trace import Trace as Trace
from onnxfuse.rules.pattern.pattern import NEWEST, Pattern, PatternNode, choices
from onnxfuse.support.plurals import plural

SMALL = 64
"""Maximum elements of constants that count as one value if they are equal: axes, scales, shapes."""

RELATIVE = 1e-3
"""Relative tolerance for matching constants and float attributes: 1.4142 in float16 is the square root of 2, and
exporters write it with four to eight digits. The nearest distinct constants of known formulas are 2% apart.
"""

HALF = 2
"""Bytes of the smallest element type whose rounded values still match: float8 has three bits of mantissa."""


STEPS = 10_000
"""Maximum node comparisons per attempt. The longest shipped pattern needs 700; each commutative operator doubles the
work for a tree of such operators: one of 63 Adds would take days.
"""


def is_beaten(pattern: Pattern, graph: Graph, node: Node, known: Refusal) -> bool:
    """Return whether an attempt provably stops at the root's operands, no further than `known` did.

    Most attempts, of hundreds of spellings, end here; none of them would be reported.
    """
    least = nearness(1, max(pattern.least - 1, 0), "operator", whole=False, held=0)
    if pattern.first is None or least > known.nearness or not has_other_operands(pattern, graph, node):
        return False
    index, operators = pattern.first
    # An attempt that looks through an elementwise node would get further: `between` reports it.
    makers = (graph.producer(v) for v in _first_operands(node, index))
    passed = (graph.producer(v) for p in makers if p is not None and p.is_elementwise for v in p.inputs)
    return not any(p is not None and p.op in operators for p in passed)


def has_other_operands(pattern: Pattern, graph: Graph, node: Node) -> bool:
    """Return whether an attempt provably stops at the root's operands: no node computes the first one as it should."""
    if pattern.first is None or schema.moved(node.op, node.domain, graph.opset):
        return False
    index, operators = pattern.first
    makers = (graph.producer(v) for v in _first_operands(node, index))
    return not any(p is not None and p.op in operators for p in makers)


def _first_operands(node: Node, index: int) -> tuple[str, ...]:
    return node.inputs if node.op in schema.COMMUTATIVE else node.inputs[index : index + 1]


def between(graph: Graph, trace: Trace, known: Refusal | None = None) -> Refusal | None:
    """Return the furthest refusal, with the matched nodes beyond the mismatch; None if `known` got as far.

    If an extra elementwise node precedes all expected ones, matching continues beyond it. If only an attribute differs,
    the refusal lists the nodes of the whole match. The cause stays: it is the first to be resolved.
    """
    further = _before(graph, trace)
    reached = trace.nearness if further is None else further.nearness
    if known is not None and reached <= known.nearness:
        return None
    refusal, node = further or trace.furthest, trace.at
    if refusal is None or node is None or trace.unlike is None:
        return refusal
    probe = Trace(trace.unlike[0])
    found = next(_match_node(trace.unlike[0], graph, node, trace.unlike[1], probe), None)
    # Another spelling of the rule may be the intended one: this adds nodes to the refusal without making it nearer.
    return refusal if found is None else refusal._replace(nodes=tuple(n.name for n in found.nodes.values()))


def _before(graph: Graph, trace: Trace) -> Refusal | None:
    """Return how far the pattern matches beyond the elementwise node that stopped it, None if not at all."""
    node = trace.at
    if node is None or trace.missed is None or not node.is_elementwise:
        return None
    wanted, match = trace.missed
    for before in (p for v in node.inputs if v and (p := graph.producer(v)) is not None):
        if before.op not in wanted.operators or before.domain != wanted.domain:
            continue
        probe = Trace()
        found = next(_match_node(wanted, graph, before, match, probe), None)
        matched = None if found is None else tuple(n.name for n in found.nodes.values())
        if matched is None and (stopped := probe.furthest) is not None:
            matched = stopped.nodes
        if matched is not None and len(matched) > len(match.nodes) and (refusal := trace.furthest) is not None:
            cause = Cause("between", f"{before.op} {before.name}", node.op, wanted.op)
            size = max(refusal.size, len(matched))
            return refusal._replace(cause=cause, depth=len(matched), size=size, nodes=matched)
    return None


def matches(pattern: Pattern, graph: Graph, node: Node, trace: Trace) -> Iterator[Match]:
    """Yield every match of `pattern` in `graph` with its root at `node`; `trace` records what stopped the others.

    The graph is not changed. Interior values of the pattern that are also read elsewhere do not match, nor does an
    input of the pattern that is bound to a value that the match itself computes.
    """
    ends = (
        whole for m in _match_node(pattern.root, graph, node, Match(pattern), trace) for whole in _ends(graph, m, trace)
    )
    for found in ends:
        leak = _leak(graph, found) or _own_value(found)
        if leak is None:
            yield found
        else:
            trace.stop(*leak, found, whole=True)


def _ends(graph: Graph, match: Match, trace: Trace) -> Iterator[Match]:
    """Yield extensions of a match by pattern nodes downstream of it, on which the root does not depend."""
    missing = [n for n in match.pattern.nodes if n not in match.nodes and n.op != ops.Constant]
    if not missing:
        yield match
        return
    for wanted in missing:
        value = next((v for name in wanted.inputs if isinstance(v := match.values.get(name), str) and v), None)
        if value is not None:
            for reader in graph.readers(value):
                for found in _match_node(wanted, graph, reader, match, trace):
                    yield from _ends(graph, found, trace)
            return


def _match_node(wanted: PatternNode, graph: Graph, node: Node, match: Match, trace: Trace) -> Iterator[Match]:
    if wanted in match.nodes:
        if match.nodes[wanted] is node:
            yield match
        return
    trace.steps += 1
    if node in match.nodes.values() or trace.steps > STEPS:
        return
    if node.domain != wanted.domain or node.op not in wanted.operators:
        if trace.stop(node, Cause("operator", "", node.op, wanted.op), match):
            trace.missed = wanted, match
        return
    bound = _match_outputs(wanted, graph, node, match, trace)
    if bound is None:
        return
    operands = operands_of(graph, node)
    if len(operands) > len(wanted.inputs):
        trace.stop(node, Cause("arity", "", plural(operands, "input"), str(len(wanted.inputs))), match)
        return
    operands += [""] * (len(wanted.inputs) - len(operands))
    if node.op in schema.COMMUTATIVE and node.domain == "" and len(operands) <= 3:
        for order in permutations(operands):
            yield from _match_operands(wanted.inputs, graph, node, order, bound, trace)
    else:
        yield from _match_operands(wanted.inputs, graph, node, operands, bound, trace)


def _match_outputs(wanted: PatternNode, graph: Graph, node: Node, match: Match, trace: Trace) -> Match | None:
    """Return a match with the node, its attributes and its outputs bound; None, noted in `trace`, if they do not fit.

    The lenient node of the trace fits whatever its attributes are, and its outputs if none is lacking.
    """
    labels = _match_attributes(wanted, graph, node, match)
    if isinstance(labels, Cause):
        if trace.stop(node, labels, match, there=True):
            trace.unlike = wanted, match
        if wanted is not trace.lenient:
            return None
        labels = match.labels
    lacking = wanted.outputs[len(node.outputs) :]
    lacks = bool(lacking) and not match.pattern.needed.isdisjoint(lacking)
    if lacks or any(node.outputs[len(wanted.outputs) :]):
        cause = Cause("arity", "", plural(node.outputs, "output"), str(len(wanted.outputs)))
        if trace.stop(node, cause, match, there=True):
            trace.unlike = wanted, match
        if lacks or wanted is not trace.lenient:
            return None
    bound = Match(match.pattern, {**match.nodes, wanted: node}, {**match.values}, labels)
    for name, value in zip(wanted.outputs, node.outputs, strict=False):
        if name:
            bound.values[name] = value
    return bound


def _match_operands(
    names: Sequence[str], graph: Graph, reader: Node, operands: Sequence[Bound], match: Match, trace: Trace
) -> Iterator[Match]:
    """Yield extensions of a match in which the operands are what the pattern names by `names`.

    Only operands that the pattern computes can be matched in several ways: the others are bound in the loop.
    """
    for index, (name, operand) in enumerate(zip(names, operands, strict=True)):
        wanted = match.pattern.producer(name)
        if not name or name in match.values or wanted is None or wanted.op == ops.Constant:
            found = _match_leaf(wanted, name, graph, reader, operand, match, trace)
            if found is None:
                return
            match = found
            continue
        rest = names[index + 1 :], graph, reader, operands[index + 1 :]
        for found in _match_computed(wanted, name, graph, reader, operand, match, trace):
            if rest[0]:
                yield from _match_operands(*rest, found, trace)
            else:
                yield found
        return
    yield match


def _match_leaf(
    wanted: PatternNode | None, name: str, graph: Graph, reader: Node, operand: Bound, match: Match, trace: Trace
) -> Match | None:
    """Return a match with an operand bound that is bound already, an input of the pattern, or a constant."""
    if not name:
        if _absent(operand):
            return match
        cause = Cause("arity", "", f"the optional input {_show(operand)}", "none")
    elif name in match.values:
        if _same(graph, match.values[name], operand):
            return match
        cause = Cause("other value", name, _show(operand), _show(match.values[name]))
    elif _absent(operand) and name not in match.pattern.optional:
        cause = Cause("missing", name)
    elif wanted is None:
        return match.binding(name, operand)
    else:
        bound = _match_constant(wanted, name, graph, operand, match)
        if isinstance(bound, Match):
            return bound
        cause = bound
    trace.stop(reader, cause, match)
    return None


def _match_computed(
    wanted: PatternNode, name: str, graph: Graph, reader: Node, operand: Bound, match: Match, trace: Trace
) -> Iterator[Match]:
    """Yield extensions of a match by an operand that the pattern computes, in each of its spellings."""
    if wanted.alternatives:
        for spelled in choices(match.pattern, wanted):
            other = Match(spelled, match.nodes, match.values, match.labels)
            yield from _match_operands((name,), graph, reader, (operand,), other, trace)
    elif _absent(operand) and name not in match.pattern.optional:
        trace.stop(reader, Cause("missing", name), match)
    elif isinstance(operand, str) and (producer := graph.producer(operand)) is not None:
        for found in _match_node(wanted, graph, producer, match, trace):
            if found.values.get(name) == operand:
                yield found
    else:
        constant = isinstance(operand, np.ndarray) or graph.is_constant(operand)
        what = "a constant" if constant else "an input of the graph"
        trace.stop(reader, Cause("operand", _show(operand), what, wanted.op), match)


def _match_constant(wanted: PatternNode, name: str, graph: Graph, operand: Bound, match: Match) -> Match | Cause:
    array = array_of(graph, operand)
    if array is None:
        return Cause("not constant", str(operand))
    bound = match.binding(name, operand)
    expected = wanted.constant
    if expected is None:
        if array.size != 1:
            return Cause("number", name, str(list(array.shape)))
        (label,) = wanted.open.values()
        return replace(bound, labels={**match.labels, label: array.reshape(-1)[0].item()})
    if array.size != expected.size or not _are_these(array.reshape(-1), expected.reshape(-1)):
        one = array.size == expected.size == 1
        return Cause("constant" if one else "list", name, _number(array), _number(expected))
    return bound


def _are_these(array: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether constants equal the pattern's numbers, or those numbers rounded to the constants' type.

    float16 has 1e-05 as 1.00136e-05, and bfloat16 has eight bits. A number that rounds to 0 or infinity does not match.
    """
    have = array.astype(np.float64)
    if np.allclose(have, expected.astype(np.float64), rtol=RELATIVE, atol=0):
        return True
    if array.dtype.kind in "iub" or array.dtype.itemsize < HALF:
        return False
    with np.errstate(over="ignore"):
        rounded = expected.astype(array.dtype).astype(np.float64)
    kept = np.isfinite(rounded) & ((rounded != 0) | (expected == 0))
    return bool(np.all(kept & (have == rounded)))


def _match_attributes(wanted: PatternNode, graph: Graph, node: Node, match: Match) -> Labels | Cause:
    """Return the match's labels and those of the node's attributes, or the cause of the mismatch."""
    have, moved = graph.attributes(node), schema.moved(node.op, node.domain, graph.opset)
    if not (have or wanted.attributes or wanted.open) and wanted.rest is None:
        return match.labels
    if moved:
        have = {k: v for k, v in have.items() if k not in moved}
    newest = schema.defaults(node.op, node.domain, NEWEST)
    labels = match.labels if not wanted.open and wanted.rest is None else {**match.labels}
    for name, value in wanted.attributes.items():
        plain = _letters if name == "equation" else _itself
        if not _equal(plain(have.get(name, newest.get(name))), plain(value)):
            shown = have.get(name, newest.get(name))
            seen, expected = _named(node.op, name, shown), _named(node.op, name, value)
            return Cause("attribute", name, seen, expected, node.op)
    for name, label in wanted.open.items():
        found = have.get(name, newest.get(name))
        if label in labels and not _equal(labels[label], found):
            return Cause("same attribute", name, _plain(found), _plain(labels[label]), node.op)
        labels[label] = found
    others = {k: v for k, v in have.items() if k not in wanted.attributes and k not in wanted.open}
    if wanted.rest is not None:
        labels[wanted.rest] = tuple(a for a in node.proto.attribute if a.name in others)
        return labels
    for name, value in others.items():
        if node.op == ops.Transpose and name not in node.written:
            continue  # the default order, which the rank tells
        default = newest.get(name, _NEUTRAL.get(name))
        if not _equal(default, value) and not _fills(node.op, name, value):
            default_text = "no such attribute" if default is None else _plain(default)
            return Cause("attribute", name, _plain(value), default_text, node.op)
    return labels


def _named(operator: str, name: str, value: object) -> str:
    """Return an attribute's value as text: an element type by its name."""
    if operator == ops.Cast and name == "to" and isinstance(value, int) and value in TensorProto.DataType.values():
        return str(TensorProto.DataType.Name(value)).lower()
    return _plain(value)


def _itself(value: schema.AttributeValue | None) -> object:
    return value


def _letters(equation: schema.AttributeValue | None) -> object:
    """Return an Einsum's equation with letters renamed in order of occurrence, without spaces."""
    letters: dict[str, str] = {}
    return re.sub(
        "[A-Za-z]", lambda x: letters.setdefault(x[0], chr(97 + len(letters))), _plain(equation).replace(" ", "")
    )


_NEUTRAL: dict[str, schema.AttributeValue] = {"consumed_inputs": [], "spatial": 1, "is_test": 1}
"""Attributes of old versions that have no effect at these values."""

_FILLED: dict[str, int] = {"pads": 0, "dilations": 1, "strides": 1}
"""Default fill values of window attributes whose length depends on the input's rank, which the schema cannot
express.
"""


WINDOWS = named(Trait.SLIDES)


def _fills(op: str, name: str, value: schema.AttributeValue) -> bool:
    """Return whether an attribute without a schema default has its default value."""
    number = _FILLED.get(name) if op in WINDOWS else None
    return number is not None and isinstance(value, list) and all(v == number for v in value)


def operands_of(graph: Graph, node: Node) -> list[Bound]:
    """Return a node's inputs as in its newest version: attributes that became inputs are listed as inputs."""
    operands: list[Bound] = list(node.inputs)
    moved = schema.moved(node.op, node.domain, graph.opset)
    if moved:
        attributes = graph.attributes(node)
        for name, index in sorted(moved.items(), key=lambda item: item[1]):
            if name in attributes:
                operands += [""] * (index + 1 - len(operands))
                operands[index] = schema.as_constant(attributes[name])
    while operands and isinstance(operands[-1], str) and not operands[-1]:
        operands.pop()
    return operands


def _leak(graph: Graph, match: Match) -> tuple[Node, Cause] | None:
    """Return node and reason if an interior value of the match is read outside it, or is a graph output."""
    inside, staying = set(match.nodes.values()), match.pattern.staying
    for wanted, node in match.nodes.items():
        if wanted in staying:
            continue
        for name, value in zip(wanted.outputs, node.outputs, strict=False):
            if name in match.pattern.outputs or not value:
                continue
            if graph.is_output(value):
                return node, Cause("graph output", value)
            reader = next((r for r in graph.readers(value) if r not in inside), None)
            if reader is not None:
                return node, Cause("read elsewhere", value, f"{reader.op} {reader.name}")
    return None


def _own_value(match: Match) -> tuple[Node, Cause] | None:
    """Return node and reason if an input of the pattern is bound to a value that the match computes.

    # (x, part, shape): e = Expand(part, shape), y = Mul(x, e)   at   Mul(e, e)

    The replacement would read a value that was removed with the match, or that it computes itself.
    """
    makers = {value: node for node in match.nodes.values() for value in node.outputs if value}
    for name, value in match.values.items():
        if isinstance(value, str) and value in makers and match.pattern.producer(name) is None:
            return makers[value], Cause("own value", name, value)
    return None


def array_of(graph: Graph, operand: Bound) -> np.ndarray | None:
    """Return the constant that a pattern name is bound to, None if it is not one."""
    if isinstance(operand, np.ndarray):
        return operand
    if graph.element_count(operand) is None:
        return None
    return graph.constant(operand)


def _same(graph: Graph, a: Bound, b: Bound) -> bool:
    """Return whether two operands are one value: by name, or as two equal small constants.

    Exporters write the axes of each reduction of a norm as a constant of its own.
    """
    if isinstance(a, str) and isinstance(b, str):
        if a == b or not (a and b and graph.is_constant(a) and graph.is_constant(b)):
            return a == b
        if not all((graph.element_count(v) or 0) in range(1, SMALL) for v in (a, b)):
            return False
    first, second = array_of(graph, a), array_of(graph, b)
    if first is None or second is None:
        return False
    return np.array_equal(first, second) and (
        isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or first.dtype == second.dtype
    )


def _equal(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= RELATIVE * max(abs(a), abs(b))
    if isinstance(a, bytes | str) and isinstance(b, bytes | str):
        return _plain(a) == _plain(b)
    if isinstance(a, onnx.TensorProto) or isinstance(b, onnx.TensorProto):
        return a is b
    return list(a) == list(b) if isinstance(a, list | tuple) and isinstance(b, list | tuple) else a == b


def _absent(operand: Bound) -> bool:
    return isinstance(operand, str) and operand == ""


def _show(operand: Bound) -> str:
    return f"'{operand}'" if isinstance(operand, str) else _number(operand)


def _number(array: np.ndarray) -> str:
    return (
        f"{float(array.reshape(-1)[0]):g}" if array.size == 1 else np.array2string(array.reshape(-1)[:4], threshold=4)
    )


def _plain(value: object) -> str:
    return (
        value.decode(errors="replace")
        if isinstance(value, bytes)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
