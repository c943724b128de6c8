"""A pattern: a small dataflow graph written in ONNX's own text syntax, with names for what it leaves open.

    (x, w, b) => (y) {
      c = Conv <_: string = @conv> (x, w, b)      # `_`: all attributes that are not written, kept under the label conv
      h = Constant <value = float {0.5}> ()       # matches any constant of that value, whatever its type or shape
      y = Mul (c, h)
    }

An attribute that is not written means the operator's default; `name: type = @label` leaves it open.
"""

import re
from dataclasses import dataclass

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


def parse(text: str, place: str) -> Pattern:
    """Return the pattern in `text`; `place` (file and line) begins the message of the RuleError for a mistake."""
    header = f'<domain: "pattern", opset_import: ["" : {NEWEST}, "com.microsoft" : 1]> pattern '
    try:
        function = onnx.parser.parse_function(header + text.strip())
    except onnx.parser.ParseError as error:
        raise RuleError(f"{place}: {_parse_message(error)}", "See rules/README.md, 'Patterns'.") from None
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
    return PatternNode(op, domain, tuple(proto.input), tuple(proto.output), written, labels, rest)


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
