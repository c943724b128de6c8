"""Does a pattern stand at this node? The answer is a Match, or a Refusal: how far it got, and what stopped it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations

import numpy as np
import onnx

from onnxfuse.model import schema
from onnxfuse.model.graph import Graph, Node
from onnxfuse.rewrite.language.pattern import NEWEST, Pattern, PatternNode, choices

RELATIVE = 1e-3
"""Constants and float attributes match within this relative tolerance: 1.4142 in float16 is the square root of 2, and
exporters write it with four to eight digits. Nearest distinct constants of known formulas are 2% apart."""

Bound = str | np.ndarray
"""What a name of the pattern stands for: a value of the graph ("" for an absent one), or a constant that the model
holds as an attribute."""


@dataclass(frozen=True)
class Refusal:
    """Why a rule did not apply, at the point where the attempt got furthest."""

    node: str
    """Name of the graph node at which it stopped."""
    reason: str
    depth: int
    """How many nodes of the pattern had matched before."""
    other_op: bool = False
    """It stopped because another operator stood there: with nothing but the root matched, no near miss."""
    kind: str = ""
    """What stopped it, as a word for scripts and hints: `attribute`, `constant`, `operator`, `predicate`, ..."""
    subject: str = ""
    """The attribute, value or predicate that it is about."""
    seen: str = ""
    """What the model has there."""
    wanted: str = ""
    """What the rule wants there."""
    size: int = 0
    """How many nodes the pattern has, 0 where no pattern is behind it."""

    @property
    def far(self) -> bool:
        """Whether hardly anything was there: nothing but the root's operator of a pattern of three nodes and more."""
        return self.depth == 0 and self.size > 2

    @property
    def trivial(self) -> bool:
        """Whether it tells nothing: hardly more than the root's operator was there."""
        return self.other_op and self.depth <= 1


@dataclass(frozen=True)
class Match:
    """A place where a pattern stands."""

    pattern: Pattern
    """The pattern, with the spellings that stand here."""
    nodes: dict[PatternNode, Node] = field(default_factory=dict)
    values: dict[str, Bound] = field(default_factory=dict)
    """What each name of the pattern stands for."""
    labels: dict[str, schema.AttributeValue | tuple[onnx.AttributeProto, ...] | None] = field(default_factory=dict)
    """What each attribute label stands for."""


class Trace:
    """Remembers the furthest point that a matching attempt reached."""

    def __init__(self, size: int = 0) -> None:
        self.furthest: Refusal | None = None
        self.size = size

    def stop(
        self,
        node: Node,
        reason: str,
        depth: int,
        *,
        other_op: bool = False,
        kind: str = "",
        subject: str = "",
        seen: str = "",
        wanted: str = "",
    ) -> None:
        """Note that an attempt stopped here."""
        if self.furthest is None or depth > self.furthest.depth:
            # A named part counts as one node until its spelling is chosen: then more may have matched.
            size = max(self.size, depth)
            self.furthest = Refusal(node.name, reason, depth, other_op, kind, subject, seen, wanted, size)


def matches(pattern: Pattern, graph: Graph, node: Node, trace: Trace) -> Iterator[Match]:
    """Yield every way in which `pattern` stands in `graph` with its root at `node`; `trace` notes what stopped others.

    Looks only; changes nothing. Values that the pattern computes inside and that are read elsewhere do not match.
    """
    ends = (
        whole for m in _match_node(pattern.root, graph, node, Match(pattern), trace) for whole in _ends(graph, m, trace)
    )
    for found in ends:
        leak = _leak(graph, found)
        if leak is None:
            yield found
        else:
            kind = "graph output" if leak[1].endswith("is a graph output") else "read elsewhere"
            trace.stop(leak[0], leak[1], len(found.nodes), kind=kind, subject=leak[2])


def _ends(graph: Graph, match: Match, trace: Trace) -> Iterator[Match]:
    """Yield the ways in which the nodes that the root does not depend on stand too, as readers of what has matched."""
    missing = [n for n in match.pattern.nodes if n not in match.nodes and n.op != "Constant"]
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
    depth = len(match.nodes)
    if wanted in match.nodes:
        if match.nodes[wanted] is node:
            yield match
        return
    if node in match.nodes.values():
        return
    if (node.op, node.domain) != (wanted.op, wanted.domain):
        reason = f"is {_an(node.op)}, the rule wants {_an(wanted.op)}"
        trace.stop(node, reason, depth, other_op=True, kind="operator", seen=node.op, wanted=wanted.op)
        return
    bound = _match_attributes(wanted, graph, node, match)
    if isinstance(bound, _Attribute):
        trace.stop(
            node, bound.reason, depth, kind="attribute", subject=bound.name, seen=bound.seen, wanted=bound.wanted
        )
        return
    if any(v for v in node.outputs[len(wanted.outputs) :]):
        trace.stop(node, f"has {len(node.outputs)} outputs, the rule wants {len(wanted.outputs)}", depth, kind="arity")
        return
    for name, value in zip(wanted.outputs, node.outputs, strict=False):
        if name:
            bound.values[name] = value
    bound.nodes[wanted] = node
    operands = operands_of(graph, node)
    if len([o for o in operands[len(wanted.inputs) :] if not _absent(o)]) > 0:
        trace.stop(node, f"has {len(operands)} inputs, the rule wants {len(wanted.inputs)}", depth, kind="arity")
        return
    operands += [""] * (len(wanted.inputs) - len(operands))
    orders = [operands]
    if node.op in schema.COMMUTATIVE and node.domain == "":
        orders = [list(p) for p in permutations(operands)] if len(operands) <= 3 else [operands]
    for order in orders:
        yield from _match_operands(wanted.inputs, graph, node, order, bound, trace)


def _match_operands(
    names: tuple[str, ...], graph: Graph, reader: Node, operands: list[Bound], match: Match, trace: Trace
) -> Iterator[Match]:
    if not names:
        yield match
        return
    for found in _match_value(names[0], graph, reader, operands[0], match, trace):
        yield from _match_operands(names[1:], graph, reader, operands[1:], found, trace)


def _match_value(name: str, graph: Graph, reader: Node, operand: Bound, match: Match, trace: Trace) -> Iterator[Match]:
    depth = len(match.nodes)
    if not name:
        if _absent(operand):
            yield match
        else:
            reason = f"has the optional input {_show(operand)}, the rule wants none"
            trace.stop(reader, reason, depth, kind="arity", seen=_show(operand), wanted="none")
        return
    if name in match.values:
        if _same(graph, match.values[name], operand):
            yield match
        else:
            seen, again = _show(operand), _show(match.values[name])
            reason = f"reads {seen} where the rule wants {again} again"
            trace.stop(reader, reason, depth, kind="other value", subject=name, seen=seen, wanted=again)
        return
    wanted = match.pattern.producer(name)
    if wanted is not None and wanted.alternatives:
        for spelled in choices(match.pattern, wanted):
            yield from _match_value(name, graph, reader, operand, replace(match, pattern=spelled), trace)
    elif _absent(operand) and name not in match.pattern.optional:
        trace.stop(reader, f"lacks the input '{name}' of the rule", depth, kind="arity", subject=name)
    elif wanted is None:
        yield replace(match, values={**match.values, name: operand})
    elif wanted.op == "Constant":
        yield from _match_constant(wanted, name, graph, reader, operand, match, trace)
    elif isinstance(operand, str) and (producer := graph.producer(operand)) is not None:
        found = _match_node(wanted, graph, producer, match, trace)
        yield from (m for m in found if m.values.get(name) == operand)
    else:
        constant = isinstance(operand, np.ndarray) or graph.is_constant(operand)
        what = "a constant" if constant else "an input of the graph"
        reason = f"reads {_show(operand)}, {what}, where the rule wants {_an(wanted.op)}"
        trace.stop(reader, reason, depth, other_op=True, kind="operator", seen=what, wanted=wanted.op)


def _match_constant(
    wanted: PatternNode, name: str, graph: Graph, reader: Node, operand: Bound, match: Match, trace: Trace
) -> Iterator[Match]:
    depth = len(match.nodes)
    array = array_of(graph, operand)
    if array is None:
        reason = f"reads {_show(operand)}, which is not a constant"
        trace.stop(reader, reason, depth, kind="not constant", subject=_show(operand).strip("'"))
        return
    values = {**match.values, name: operand}
    expected = wanted.constant
    if expected is None:
        if array.size != 1:
            reason = f"reads a constant of shape {list(array.shape)}, the rule wants one number"
            trace.stop(reader, reason, depth, kind="constant", seen=f"shape {list(array.shape)}", wanted="one number")
            return
        (label,) = wanted.open.values()
        yield replace(match, values=values, labels={**match.labels, label: array.reshape(-1)[0].item()})
        return
    if array.size != expected.size or not np.allclose(
        array.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1), rtol=RELATIVE, atol=0
    ):
        seen, number = _number(array), _number(expected)
        reason = f"has the constant {seen}, the rule wants {number}"
        trace.stop(reader, reason, depth, kind="constant", subject=name, seen=seen, wanted=number)
        return
    yield replace(match, values=values)


@dataclass(frozen=True)
class _Attribute:
    """An attribute that does not fit."""

    name: str
    seen: str
    wanted: str
    reason: str


def _match_attributes(wanted: PatternNode, graph: Graph, node: Node, match: Match) -> Match | _Attribute:
    """Return a match with the node's attributes bound, or the reason why they do not fit."""
    moved = schema.moved(node.op, node.domain, graph.opset)
    have = {k: v for k, v in graph.attributes(node).items() if k not in moved}
    newest = schema.defaults(node.op, node.domain, NEWEST)
    labels = dict(match.labels)
    for name, value in wanted.attributes.items():
        plain = _letters if name == "equation" else _itself
        if not _equal(plain(have.get(name, newest.get(name))), plain(value)):
            shown = have.get(name, newest.get(name))
            reason = f"{node.op} has {name} = {_plain(shown)}, the rule wants {_plain(value)}"
            return _Attribute(name, _plain(shown), _plain(value), reason)
    for name, label in wanted.open.items():
        found = have.get(name, newest.get(name))
        if label in labels and not _equal(labels[label], found):
            reason = f"{node.op} has {name} = {_plain(found)}, another node of the match {_plain(labels[label])}"
            return _Attribute(name, _plain(found), _plain(labels[label]), reason)
        labels[label] = found
    others = {k: v for k, v in have.items() if k not in wanted.attributes and k not in wanted.open}
    if wanted.rest is not None:
        labels[wanted.rest] = tuple(a for a in node.proto.attribute if a.name in others)
        return replace(match, nodes=dict(match.nodes), values=dict(match.values), labels=labels)
    for name, value in others.items():
        default = newest.get(name, _NEUTRAL.get(name))
        if not _equal(default, value) and not _fills(node.op, name, value):
            default_text = "no such attribute" if default is None else _plain(default)
            reason = f"{node.op} has {name} = {_plain(value)}, the rule wants {default_text}"
            return _Attribute(name, _plain(value), default_text, reason)
    return replace(match, nodes=dict(match.nodes), values=dict(match.values), labels=labels)


def _itself(value: schema.AttributeValue | None) -> object:
    return value


def _letters(equation: schema.AttributeValue | None) -> object:
    """Return an Einsum's equation with a for its first letter, b for the second, without spaces."""
    letters: dict[str, str] = {}
    return re.sub(
        "[A-Za-z]", lambda x: letters.setdefault(x[0], chr(97 + len(letters))), _plain(equation).replace(" ", "")
    )


_NEUTRAL: dict[str, schema.AttributeValue] = {"consumed_inputs": [], "spatial": 1, "is_test": 1}
"""Attributes of old versions that change nothing at these values."""

_FILLED: dict[str, int] = {"pads": 0, "dilations": 1, "strides": 1}
"""Defaults of windows that are as long as the input has axes, so that the schema cannot hold them: all this number."""


def _fills(op: str, name: str, value: schema.AttributeValue) -> bool:
    """Return whether an attribute that no schema gives a default for is at its default."""
    number = _FILLED.get(name) if op.startswith(("Conv", "MaxPool", "AveragePool", "LpPool")) else None
    return number is not None and isinstance(value, list) and all(v == number for v in value)


def operands_of(graph: Graph, node: Node) -> list[Bound]:
    """Return what a node reads as its newest version would: attributes that became inputs stand among the inputs."""
    operands: list[Bound] = list(node.inputs)
    moved = schema.moved(node.op, node.domain, graph.opset)
    if moved:
        attributes = graph.attributes(node)
        for name, index in sorted(moved.items(), key=lambda item: item[1]):
            if name in attributes:
                operands += [""] * (index + 1 - len(operands))
                operands[index] = schema.as_constant(attributes[name])
    while operands and _absent(operands[-1]):
        operands.pop()
    return operands


def _leak(graph: Graph, match: Match) -> tuple[Node, str, str] | None:
    """Return node, reason and value where a value inside the match is read outside it, or is a graph output."""
    inside = set(match.nodes.values())
    for wanted, node in match.nodes.items():
        for name, value in zip(wanted.outputs, node.outputs, strict=False):
            if name in match.pattern.outputs or not value:
                continue
            if graph.is_output(value):
                return node, f"value '{value}' is a graph output", value
            reader = next((r for r in graph.readers(value) if r not in inside), None)
            if reader is not None:
                return node, f"value '{value}' is also read by {reader.op} {reader.name}", value
    return None


def array_of(graph: Graph, operand: Bound) -> np.ndarray | None:
    """Return the constant that a name of the pattern stands for, None where it is not one."""
    if isinstance(operand, np.ndarray):
        return operand
    if graph.element_count(operand) is None:
        return None
    return graph.constant(operand)


def _same(graph: Graph, a: Bound, b: Bound) -> bool:
    if isinstance(a, str) and isinstance(b, str):
        return a == b
    first, second = array_of(graph, a), array_of(graph, b)
    return first is not None and second is not None and np.array_equal(first, second)


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
    return f"{array.reshape(-1)[0]:g}" if array.size == 1 else np.array2string(array.reshape(-1)[:4], threshold=4)


def _plain(value: object) -> str:
    return (
        value.decode(errors="replace")
        if isinstance(value, bytes)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _an(word: str) -> str:
    return f"an {word}" if word[:1] in "AEIOU" else f"a {word}"
