"""A pattern: a small dataflow graph written in ONNX's own text syntax, with names for what it leaves open.

    (x, w, b) => (y) {
      c = Conv <_: string = @conv> (x, w, b)      # `_`: all attributes that are not written, kept under the label conv
      h = Constant <value = float {0.5}> ()       # matches any constant of that value, whatever its type or shape
      y = Mul (c, h)
    }

An attribute that is not written means the operator's default; `name: type = @label` leaves it open.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from onnxfuse.model import schema
from onnxfuse.model.errors import RuleError

NEWEST = onnx.defs.onnx_opset_version()
"""The opset in which patterns are written; older spellings in a model are matched all the same."""

REST = "_"
"""The attribute name that stands for all attributes that a pattern node does not write."""


@dataclass(frozen=True)
class PatternNode:
    """One operator of a pattern."""

    op: str
    domain: str
    inputs: tuple[str, ...]
    """Names of the values it reads, "" where an optional input must be absent."""
    outputs: tuple[str, ...]
    attributes: dict[str, schema.AttributeValue]
    """The attributes that must have this value."""
    open: dict[str, str]
    """The attributes whose value is bound: {attribute: label}."""
    rest: str | None
    """The label under which all other attributes are kept; None where they must be the defaults."""
    floats: frozenset[str]
    """The open attributes that are declared as float: a whole number bound to them is written as one."""

    @property
    def constant(self) -> np.ndarray | None:
        """The value that a Constant node of the pattern wants, None for any other operator."""
        if self.op != "Constant" or not self.attributes:
            return None
        (value,) = self.attributes.values()
        return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True)
class Pattern:
    """A pattern with the values that it takes and yields."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[PatternNode, ...]
    text: str
    optional: frozenset[str] = frozenset()
    """Inputs that a model may lack."""

    def producer(self, value: str) -> PatternNode | None:
        """Return the node of the pattern that yields `value`, None for an input of the pattern."""
        return next((n for n in self.nodes if value in n.outputs), None)

    @property
    def root(self) -> PatternNode:
        """The node that yields the first output; matching starts here."""
        return next(n for n in self.nodes if self.outputs[0] in n.outputs)

    @property
    def values(self) -> frozenset[str]:
        """Every name in the pattern."""
        return frozenset(self.inputs) | {v for n in self.nodes for v in (*n.inputs, *n.outputs) if v}

    @property
    def labels(self) -> frozenset[str]:
        """Every label that an attribute is bound to."""
        return frozenset(label for n in self.nodes for label in (*n.open.values(), *([n.rest] if n.rest else [])))


@dataclass(frozen=True)
class Alternative:
    """One spelling of a part that a rule has named: a pattern that is put in the place of a call of that name."""

    function: onnx.FunctionProto
    where: tuple[str, ...]
    let: Mapping[str, str]


@dataclass(frozen=True)
class Spelling:
    """A pattern with one choice made for every named part, and what those choices ask and bind."""

    pattern: Pattern
    where: tuple[str, ...] = ()
    let: Mapping[str, str] = field(default_factory=dict)


Parts = Mapping[str, Sequence[Alternative]]


def parse(text: str, place: str) -> Pattern:
    """Return the pattern in `text`; `place` (file and line) begins the message of the RuleError for a mistake."""
    (spelling,) = spellings(text, place, {})
    return spelling.pattern


def spellings(text: str, place: str, parts: Parts) -> tuple[Spelling, ...]:
    """Return every pattern that `text` stands for: a node whose operator is a name in `parts` is one of its spellings.

    Arguments are matched by position; what a spelling reads beyond them becomes an input of the pattern. Its inner
    names stay as they are, unless the pattern has them already.
    """
    found = _choose(parse_function(text, place), parts, place)
    return tuple(Spelling(_pattern(function, text, place), where, let) for function, where, let in found)


def parse_function(text: str, place: str) -> onnx.FunctionProto:
    """Return `(inputs) => (outputs) { nodes }` as ONNX reads it; raises RuleError that begins with `place`."""
    header = f'<domain: "pattern", opset_import: ["" : {NEWEST}, "com.microsoft" : 1]> pattern '
    try:
        return onnx.parser.parse_function(header + text.strip())
    except onnx.parser.ParseError as error:
        raise RuleError(f"{place}: {_parse_message(error)}", "See rules/README.md, 'Patterns'.") from None


_Choice = tuple[onnx.FunctionProto, tuple[str, ...], Mapping[str, str]]


def _choose(function: onnx.FunctionProto, parts: Parts, place: str) -> Iterator[_Choice]:
    index = next((i for i, n in enumerate(function.node) if n.op_type in parts and not n.domain), None)
    if index is None:
        yield function, (), {}
        return
    for alternative in parts[function.node[index].op_type]:
        for chosen, where, let in _choose(_with(function, index, alternative.function, place), parts, place):
            yield chosen, (*alternative.where, *where), {**alternative.let, **let}


def _with(function: onnx.FunctionProto, index: int, part: onnx.FunctionProto, place: str) -> onnx.FunctionProto:
    """Return `function` with the nodes of `part` in the place of its node number `index`."""
    call = function.node[index]
    if len(call.input) > len(part.input) or len(call.output) != len(part.output):
        raise RuleError(
            f"{place}: {call.op_type} is used as {_arity(call)}; a spelling of it has {_arity(part)}",
            "See rules/README.md, 'Patterns'.",
        )
    names = dict(zip(part.input, call.input, strict=False)) | dict(zip(part.output, call.output, strict=True))
    more = part.input[len(call.input) :]
    taken = {*function.input, *(v for n in function.node for v in (*n.input, *n.output))}
    names.update((v, v) for v in more)
    for inner in (o for n in part.node for o in n.output if o and o not in names):
        names[inner] = inner
        while names[inner] in taken:
            names[inner] = f"{call.output[0]}_{names[inner]}"
    nodes = []
    for node in part.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [names.get(v, v) for v in node.input]
        copy.output[:] = [names.get(v, v) for v in node.output]
        nodes.append(copy)
    whole = onnx.FunctionProto()
    whole.CopyFrom(function)
    del whole.node[:]
    whole.node.extend([*function.node[:index], *nodes, *function.node[index + 1 :]])
    whole.input.extend(v for v in more if v not in function.input)
    return whole


def _arity(of: onnx.NodeProto | onnx.FunctionProto) -> str:
    return f"({', '.join(of.input)}) => ({', '.join(of.output)})"


def _pattern(function: onnx.FunctionProto, text: str, place: str) -> Pattern:
    nodes = tuple(_node(n, place) for n in function.node)
    pattern = Pattern(tuple(function.input), tuple(function.output), nodes, text.strip())
    for output in pattern.outputs:
        if pattern.producer(output) is None:
            raise RuleError(f"{place}: output '{output}' is computed by no node of the pattern")
    unknown = {v for n in nodes for v in n.inputs if v} - set(pattern.inputs) - {o for n in nodes for o in n.outputs}
    if unknown:
        raise RuleError(f"{place}: '{min(unknown)}' is neither an input of the pattern nor computed before its use")
    return pattern


def _node(proto: onnx.NodeProto, place: str) -> PatternNode:
    op, domain = proto.op_type, proto.domain
    found = schema.find(op, domain, NEWEST) if domain == "" else None
    if domain == "" and found is None:
        names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
        raise RuleError(f"{place}: '{op}' is not an ONNX operator.{did_you_mean(op, names)}")
    written = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute if not a.ref_attr_name}
    labels = {a.name: a.ref_attr_name for a in proto.attribute if a.ref_attr_name}
    rest = labels.pop(REST, None)
    for name in (*written, *labels):
        if found is not None and name not in found.attributes and name not in _older_attributes(op):
            known = set(found.attributes) | _older_attributes(op)
            raise RuleError(f"{place}: {op} has no attribute '{name}'.{did_you_mean(name, known)}")
    floats = frozenset(a.name for a in proto.attribute if a.ref_attr_name and a.type == onnx.AttributeProto.FLOAT)
    return PatternNode(op, domain, tuple(proto.input), tuple(proto.output), written, labels, rest, floats)


def _older_attributes(op: str) -> set[str]:
    return {
        a for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == "" for a in s.attributes
    }


def did_you_mean(word: str, known: "set[str] | frozenset[str]") -> str:
    """Return " Did you mean X?" for the known word nearest to `word`, or "" where none is near."""
    import difflib

    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]}?" if near else ""


def _parse_message(error: Exception) -> str:
    raw = error.args[0]
    text = raw.decode() if isinstance(raw, bytes) else str(raw)
    context = re.search(r"Error context: (.*)", text)
    expected = text.strip().splitlines()[-1]
    return f"{expected} Near: {context.group(1).strip()}" if context else expected
