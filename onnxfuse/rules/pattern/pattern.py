"""Patterns: small dataflow graphs in ONNX's text syntax, with labels for open attributes.

    (x, w, b) => (y) {
      c = Conv <_: string = @conv> (x, w, b)      # `_`: all attributes that are not written, under the label conv
      h = Constant <value = float {0.5}> ()       # matches any constant of that value, whatever its type or shape
      y = Mul (c, h)
    }

An omitted attribute must have the operator's default; `name: type = @label` matches any value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse import cuda, ops
from onnxfuse.model import schema
from onnxfuse.rules.pattern import expression
from onnxfuse.rules.pattern.shapes import NO_SHAPES, Shapes
from onnxfuse.support import bounded_text as model_text
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import ModelError, RuleError
from onnxfuse.support.plurals import plural

NEWEST = onnx.defs.onnx_opset_version()
"""Opset in which patterns are written; older forms in a model match as well."""

CLASSES: dict[str, frozenset[str]] = {
    "Pointwise": cuda.pointwise_ops(),
    "Variadic": ops.named(ops.Trait.IDENTITY_OF_ONE),
    "Reduction": frozenset(s.name for s in onnx.defs.get_all_schemas() if not s.domain and s.name.startswith("Reduce")),
}
"""Words for operator classes; in `to`, under the same label, the matched operator."""

REST = "_"
"""Attribute name for all attributes that a pattern node does not write."""


@dataclass(frozen=True)
class Line:
    """A line of `where` or `let`, with its file and line number."""

    text: str
    place: str
    shapes: Shapes = NO_SHAPES
    """The shapes of its table, whose axes it may use."""


@dataclass(frozen=True, eq=False)
class PatternNode:
    """One operator of a pattern."""

    op: str
    domain: str
    inputs: tuple[str, ...]
    """Names of its input values, "" where an optional input must be absent."""
    outputs: tuple[str, ...]
    attributes: dict[str, schema.AttributeValue]
    """Attributes with required values."""
    open: dict[str, str]
    """Attributes whose values are bound: {attribute: label}."""
    rest: str | None
    """Label that captures all other attributes; None if they must have their defaults."""
    floats: frozenset[str]
    """Open attributes declared as float: an integer bound to one is written as a float."""
    alternatives: tuple["Alternative", ...] = ()
    """Spellings of a named part, if the node is a call of one; it then has no operator."""

    @cached_property
    def is_class(self) -> bool:
        """Whether it matches any operator of a class."""
        return not self.domain and self.op in CLASSES and not self.alternatives

    @cached_property
    def operators(self) -> frozenset[str]:
        """Operators that it matches: its own, or those of its class."""
        return CLASSES[self.op] if self.is_class else frozenset({self.op})

    @cached_property
    def constant(self) -> np.ndarray | None:
        """Required value of a Constant node, None for other operators."""
        if self.op != ops.Constant or not self.attributes:
            return None
        (value,) = self.attributes.values()
        return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


@dataclass(frozen=True, eq=False)
class Pattern:
    """A pattern with its inputs and outputs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[PatternNode, ...]
    text: str
    optional: frozenset[str] = frozenset()
    """Inputs that may be absent; for an anchor and a part also outputs."""
    keep: frozenset[str] = frozenset()
    """Computed values that may be read outside a match: the nodes upstream of them stay."""
    place: str = ""
    """File and line, the prefix of every error."""
    shapes: Shapes = NO_SHAPES
    """The shapes that its own table gives its values."""
    spelled: tuple[Shapes, ...] = ()
    """Shapes of the spellings chosen so far."""
    where: tuple["Line", ...] = ()
    """Conditions of the spellings chosen so far."""
    let: Mapping[str, "Line"] = field(default_factory=dict)
    """Labels that they bind."""
    realize: tuple[PatternNode, ...] = ()
    """Nodes that they add to the library form."""

    def producer(self, value: str) -> PatternNode | None:
        """Return the pattern node that computes `value`, None for an input."""
        return self._producers.get(value)

    @cached_property
    def _producers(self) -> dict[str, PatternNode]:
        return {o: n for n in reversed(self.nodes) for o in n.outputs}

    @cached_property
    def root(self) -> PatternNode:
        """The node that computes the first output; matching starts here."""
        return next(n for n in self.nodes if self.outputs[0] in n.outputs)

    @cached_property
    def staying(self) -> frozenset[PatternNode]:
        """The nodes that a rewrite leaves in place: those that compute the kept values, and all upstream of them."""
        waiting, nodes = list(self.keep), set[PatternNode]()
        while waiting:
            node = self.producer(waiting.pop())
            if node is not None and node not in nodes:
                nodes.add(node)
                waiting += node.inputs
        return frozenset(nodes)

    @cached_property
    def first(self) -> tuple[int, frozenset[str]] | None:
        """The root's first input that the pattern computes, and the operators that may compute it; None for any."""
        for index, name in enumerate(self.root.inputs):
            if name and (node := self.producer(name)) is not None and node.op != ops.Constant:
                operators = _last(node, node.outputs.index(name))
                return None if operators is None else (index, operators)
        return None

    @cached_property
    def values(self) -> frozenset[str]:
        """Every name that a match binds; until all spellings are chosen, also the inputs of calls."""
        return frozenset(self.outputs) | {v for n in self.nodes for v in (*n.inputs, *n.outputs) if v}

    @cached_property
    def needed(self) -> frozenset[str]:
        """Outputs that a match must have."""
        return frozenset(self.outputs) - self.optional

    @cached_property
    def calls(self) -> tuple[PatternNode, ...]:
        """Calls whose spelling is still to be chosen."""
        return tuple(n for n in self.nodes if n.alternatives)

    @cached_property
    def opened(self) -> int:
        """Number of operators with the longest spelling of each part."""
        return sum(max((a.pattern.opened for a in n.alternatives), default=1) for n in self.nodes)

    @cached_property
    def least(self) -> int:
        """Number of operators with the shortest spelling of each part; constants do not count."""
        return sum(
            min((a.pattern.least for a in n.alternatives), default=1) for n in self.nodes if n.op != ops.Constant
        )

    @cached_property
    def ends(self) -> int:
        """Number of expansions in which the root is an operator."""
        root = self.producer(self.outputs[0])
        return 1 if root is None else sum(a.pattern.ends for a in root.alternatives) or 1

    @cached_property
    def rests(self) -> frozenset[str]:
        """Labels that capture all other attributes of a node."""
        return frozenset(n.rest for n in self.nodes if n.rest)

    @cached_property
    def labels(self) -> frozenset[str]:
        """Every label that an attribute is bound to."""
        return frozenset(label for n in self.nodes for label in (*n.open.values(), *([n.rest] if n.rest else [])))


@dataclass(frozen=True, eq=False)
class Alternative:
    """One spelling of a named part: the expansion of a call."""

    pattern: Pattern
    """Its nodes; an output that none of them computes matches any value."""
    shapes: Shapes = NO_SHAPES
    where: tuple[Line, ...] = ()
    let: Mapping[str, Line] = field(default_factory=dict)
    realize: tuple[PatternNode, ...] = ()
    """Its addition to the library form: computes arguments from the spelling's values, or its output from them."""


def _last(node: PatternNode, output: int) -> frozenset[str] | None:
    """Return the operators that may compute an output of a node or of its expansions; None for any."""
    if not node.alternatives:
        return node.operators
    result = frozenset[str]()
    for pattern in (a.pattern for a in node.alternatives):
        last = pattern.producer(name := pattern.outputs[output])
        operators = None if last is None else _last(last, last.outputs.index(name))
        if operators is None:
            return None
        result |= operators
    return result


Parts = Mapping[str, tuple[Alternative, ...]]


MOST_OPERATORS = 64
"""Maximum size of a pattern with expanded parts, which may nest. The longest shipped one has 33."""

MOST_ENDS = 1000
"""Maximum expansions of a pattern's root, each of which is a separate anchor."""


def parse(text: str, origin: str, parts: Parts | None = None, *, part: bool = False) -> Pattern:
    """Return the pattern in `text`; `origin` (file and line) begins the message of the RuleError for a mistake.

    A node whose operator is a name in `parts` is a call: it expands to one of the part's spellings. A `part` may leave
    its output unbound.
    """
    return _pattern(parse_function(text, origin), text, origin, parts or {}, part)


@cache
def choices(pattern: Pattern, call: PatternNode) -> tuple[Pattern, ...]:
    """Return `pattern` with `call` expanded to each of its spellings.

    Arguments are matched by position; further inputs of a spelling become inputs of the pattern. Its own names and
    labels are kept unless they conflict.
    """
    return tuple(_with(pattern, call, alternative) for alternative in call.alternatives)


def chosen(pattern: Pattern) -> Pattern:
    """Return `pattern` with the first spelling of every unexpanded part."""
    while pattern.calls:
        pattern = choices(pattern, pattern.calls[0])[0]
    return pattern


def every_spelling(pattern: Pattern) -> Iterator[Pattern]:
    """Yield fully expanded patterns that together cover each spelling of each part."""
    yield chosen(pattern)
    waiting, seen = [pattern], set[tuple[str, Alternative]]()
    while waiting:
        one = waiting.pop()
        for call in one.calls:
            for alternative, other in zip(call.alternatives, choices(one, call), strict=True):
                if (call.outputs[0], alternative) not in seen:
                    seen.add((call.outputs[0], alternative))
                    waiting.append(other)
                    yield chosen(other)


def calls_inside(pattern: Pattern) -> Iterator[PatternNode]:
    """Yield the uses of parts in a pattern, and those in the spellings of its parts."""
    for call in pattern.calls:
        yield call
        for alternative in call.alternatives:
            yield from calls_inside(alternative.pattern)


def roots(pattern: Pattern) -> Iterator[Pattern]:
    """Yield the expansions of `pattern` with an operator at the root."""
    root = pattern.root
    if not root.alternatives:
        yield pattern
        return
    for other in choices(pattern, root):
        yield from roots(other)


@lru_cache(1 << 12)
def realized(target: Pattern, pattern: Pattern) -> Pattern:
    """Return the library form `target` with the additions of the chosen spellings of `pattern`, in order."""
    used = pattern.values | set(pattern.inputs) | {v for n in pattern.realize for v in (*n.inputs, *n.outputs)}
    inner = {o for n in target.nodes for o in n.outputs} - set(target.outputs)
    names = {o: f"whole_{o}" for o in inner & used}
    own = [_renamed(n, names, {}) for n in target.nodes]
    waiting, nodes, ready_values = [*pattern.realize, *own], list[PatternNode](), set[str]()
    later = {o for n in waiting for o in n.outputs}
    while waiting:
        ready = next((n for n in waiting if not {v for v in n.inputs if v in later} - ready_values), None)
        if ready is None:
            word = waiting[0].inputs[0]
            raise RuleError(f"{pattern.place}: the parts of `realize` need each other: '{word}' is never computed")
        waiting.remove(ready)
        nodes.append(ready)
        ready_values.update(ready.outputs)
    inputs = dict.fromkeys(v for n in nodes for v in n.inputs if v and v not in ready_values)
    outputs = pattern.outputs if ready_values.issuperset(pattern.outputs) else target.outputs
    return replace(target, inputs=tuple(inputs), outputs=outputs, nodes=tuple(nodes))


def _with(pattern: Pattern, call: PatternNode, alternative: Alternative) -> Pattern:
    part = alternative.pattern
    if len(call.inputs) > len(part.inputs) or len(call.outputs) != len(part.outputs):
        raise RuleError(
            f"{pattern.place}: {call.op} is used as {_arity(call)}; a spelling of it has {_arity(part)}",
            "See onnxfuse docs rule-language, 'Patterns'.",
        )
    more = part.inputs[len(call.inputs) :]
    names = dict(zip(part.inputs, call.inputs, strict=False)) | dict(zip(part.outputs, call.outputs, strict=True))
    used = pattern.values | set(pattern.inputs) | {v for n in pattern.realize for v in (*n.inputs, *n.outputs)}
    computed = [o for n in (*part.nodes, *alternative.realize) for o in n.outputs if o]
    names.update({v: _free(v, used, call) for v in (*more, *computed) if v not in names})
    labels = {label: _free(label, pattern.labels, call) for label in part.labels}
    nodes = tuple(_renamed(n, names, labels) for n in part.nodes)
    extra = [names[v] for v in part.outputs if part.producer(v) is None]
    index = pattern.nodes.index(call)
    return replace(
        pattern,
        inputs=tuple(dict.fromkeys((*pattern.inputs, *(names[v] for v in more), *extra))),
        nodes=(*pattern.nodes[:index], *nodes, *pattern.nodes[index + 1 :]),
        optional=pattern.optional | {names[v] for v in part.optional},
        spelled=(*pattern.spelled, *([alternative.shapes.renamed(names)] if alternative.shapes.written else [])),
        where=(*pattern.where, *(_reworded(line, {**names, **labels}) for line in alternative.where)),
        let={**pattern.let, **{k: _reworded(text, {**names, **labels}) for k, text in alternative.let.items()}},
        realize=(*pattern.realize, *(_renamed(n, names, labels) for n in alternative.realize)),
    )


def _free(name: str, used: frozenset[str] | set[str], call: PatternNode) -> str:
    while name in used:
        name = f"{call.outputs[0]}_{name}"
    return name


def _renamed(node: PatternNode, names: Mapping[str, str], labels: Mapping[str, str]) -> PatternNode:
    return replace(
        node,
        inputs=tuple(names.get(v, v) for v in node.inputs),
        outputs=tuple(names.get(v, v) for v in node.outputs),
        open={attribute: labels.get(label, label) for attribute, label in node.open.items()},
        rest=labels.get(node.rest, node.rest) if node.rest else None,
    )


def _reworded(line: Line, names: Mapping[str, str]) -> Line:
    try:
        return replace(line, text=expression.renamed(line.text, names), shapes=line.shapes.renamed(names))
    except RuleError as error:
        raise RuleError(f"{line.place}: {error}", error.hint) from None


def parse_function(text: str, origin: str) -> onnx.FunctionProto:
    """Return `(inputs) => (outputs) { nodes }` as parsed by ONNX; errors are RuleErrors that begin with `origin`."""
    header = f'<domain: "pattern", opset_import: ["" : {NEWEST}, "com.microsoft" : 1]> pattern '
    try:
        return model_text.parse_function(header + text.strip())
    except ModelError as error:
        raise RuleError(f"{origin}: {error}", "See onnxfuse docs rule-language, 'Patterns'.") from None


def _arity(of: PatternNode | Pattern) -> str:
    return f"({', '.join(of.inputs)}) => ({', '.join(of.outputs)})"


def _pattern(function: onnx.FunctionProto, text: str, origin: str, parts: Parts, part: bool) -> Pattern:
    nodes = tuple(_node(n, origin, parts) for n in function.node)
    pattern = Pattern(tuple(function.input), tuple(function.output), nodes, text.strip(), place=origin)
    if not pattern.outputs:
        raise RuleError(f"{origin}: the pattern yields nothing", "Name its output: (x) => (y) { ... }")
    for what, count, most in (("operators", pattern.opened, MOST_OPERATORS), ("spellings", pattern.ends, MOST_ENDS)):
        if pattern.calls and count > most:
            raise RuleError(
                f"{origin}: its parts open to {count:.3g} {what}, at most {most} are read", "Name fewer parts."
            )
    for output in pattern.outputs:
        if pattern.producer(output) is None and not part:
            raise RuleError(f"{origin}: output '{output}' is computed by no node of the pattern")
    unknown = {v for n in nodes for v in n.inputs if v} - set(pattern.inputs) - {o for n in nodes for o in n.outputs}
    if unknown:
        raise RuleError(f"{origin}: '{min(unknown)}' is neither an input of the pattern nor computed before its use")
    return pattern


def _node(proto: onnx.NodeProto, origin: str, parts: Parts) -> PatternNode:
    op, domain = proto.op_type, proto.domain
    if not domain and op in parts:
        return PatternNode(
            op, domain, tuple(proto.input), tuple(proto.output), {}, {}, None, frozenset(), tuple(parts[op])
        )
    definition, entry = schema.find(op, domain, NEWEST) if domain == "" else None, ops.operator(op, domain)
    if domain == "" and op in CLASSES:
        odd = next((a.name for a in proto.attribute if a.name != REST or not a.ref_attr_name), None)
        if odd is not None:
            raise RuleError(
                f"{origin}: {op} stands for any of {plural(len(CLASSES[op]), 'operator')}, which "
                f"have no '{odd}' in common.",
                f"<{REST}: string = @label> takes all attributes.",
            )
    elif domain == "" and definition is None and entry is None:
        names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""} | set(parts) | set(CLASSES)
        raise RuleError(f"{origin}: '{op}' is not an ONNX operator.{did_you_mean(op, names)}")
    written = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute if not a.ref_attr_name}
    for name, tensor in written.items():
        if isinstance(tensor, onnx.TensorProto) and not _is_whole(tensor):
            raise RuleError(f"{origin}: the {name} of {op} has other numbers than its extents {list(tensor.dims)} say")
    labels = {a.name: a.ref_attr_name for a in proto.attribute if a.ref_attr_name}
    rest = labels.pop(REST, None)
    for name in (*written, *labels):
        if definition is not None and name not in definition.attributes and name not in _older_attributes(op):
            names_of = set(definition.attributes) | _older_attributes(op)
            raise RuleError(f"{origin}: {op} has no attribute '{name}'.{did_you_mean(name, names_of)}")
    floats = frozenset(a.name for a in proto.attribute if a.ref_attr_name and a.type == onnx.AttributeProto.FLOAT)
    return PatternNode(op, domain, tuple(proto.input), tuple(proto.output), written, labels, rest, floats)


def _is_whole(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor literal has as many elements as its shape."""
    try:
        return numpy_helper.to_array(tensor).shape == tuple(tensor.dims)
    except ValueError:
        return False


def _older_attributes(op: str) -> set[str]:
    return {
        a for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == "" for a in s.attributes
    }
