"""The mutable graph: nodes in topological order, with the producer and the readers of each value.

Protobuf messages are parsed once on load and written back once (`Graph.commit`).
"""

import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from heapq import heappop, heappush
from operator import attrgetter, is_
from typing import NamedTuple, cast

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.files import detached
from onnxfuse.model import schema
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.nested import bodies as bodies
from onnxfuse.model.nested import captured as captured
from onnxfuse.model.nested import every_name
from onnxfuse.ops.inputs import Data
from onnxfuse.shapes.types import UNKNOWN, ValueType, shapes_differ, type_of, value_info, value_types
from onnxfuse.support.errors import ModelError

APART = 1 << 20
"""Spacing of the nodes' order keys: so many nodes can be inserted in between before others are renumbered."""


LARGEST_ATTRIBUTE = 1 << 10
"""Bytes of an attribute up to which nodes are compared by it."""

BODIES = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)

SMALL, KEPT = 1 << 16, 1 << 28
"""Bytes. Constants of up to SMALL are parsed once, and larger ones until they take KEPT together: keeping every one
would hold the weights in memory twice.
"""


class QueryRecord(NamedTuple):
    """What queries of a graph were about, by value, in their order."""

    values: dict[str, None]
    """Values whose producer, type, or being a constant or an output was asked for."""
    readers: dict[str, None]
    """Values whose readers were asked for."""
    data: dict[str, None]
    """Constants whose elements were asked for."""


class _Gap:
    """The place of a node that is gone, until the list of nodes is read."""

    __slots__ = ("order",)

    def __init__(self, order: int) -> None:
        self.order = order


class Node:
    """One node: a read-only view of its message, its order key, and the values that its subgraphs capture."""

    __slots__ = (
        "_attributes", "_data", "_signature", "_written", "captures", "domain", "entry", "inputs", "name", "op",
        "order", "outputs", "proto", "reads", "repeatable",
    )  # fmt: skip

    def __init__(self, proto: NodeProto) -> None:
        self.proto = proto
        self.op: str = proto.op_type
        self.domain: str = proto.domain
        self.entry: ops.Operator | None = ops.operator(self.op, self.domain)
        """What is known of its operator, None for one of another library."""
        self.inputs: tuple[str, ...] = tuple(proto.input)
        self.outputs: tuple[str, ...] = tuple(proto.output)
        self.name: str = proto.name or next(filter(None, self.outputs), self.op)
        """The node's name, or if empty its first output."""
        self.captures: tuple[str, ...] = tuple(captured(proto)) if proto.attribute else ()
        self.reads: tuple[str, ...] = tuple(filter(None, (*self.inputs, *self.captures)))
        """All values that the node depends on, including captures of its subgraphs."""
        self.order = -1
        self.repeatable: bool | None = None
        """What `constant_folding.is_repeatable` has found of it."""
        self._written: dict[str, schema.AttributeValue] | None = None
        self._attributes: tuple[int, dict[str, schema.AttributeValue]] | None = None
        self._data: dict[int, str] | None = None
        self._signature: Hashable | None = None

    @property
    def signature(self) -> Hashable:
        """What the node is but for names: equal for nodes of one operator with equal attributes; computed once.

        A node with subgraphs, or that holds a large tensor, equals itself alone.
        """
        if self._signature is None:
            attributes = self.proto.attribute
            if any(a.type in BODIES or a.ByteSize() > LARGEST_ATTRIBUTE for a in attributes):
                self._signature = self
            else:
                written = tuple([a.SerializeToString(deterministic=True) for a in attributes])
                absent = tuple([not v for v in (*self.inputs, *self.outputs)])
                self._signature = self.op, self.domain, written, len(self.inputs), absent
        return self._signature

    @property
    def is_elementwise(self) -> bool:
        """Whether it computes each element of its output from one of each input."""
        entry = self.entry
        if entry is None or entry.meaning is None:
            return False
        return ops.Trait.QUANTIZES not in entry.traits or "axis" not in self.written

    @property
    def data(self) -> Mapping[int, str]:
        """Its inputs that are data, by position: neither counts nor indices nor conditions; found once."""
        if self._data is None:
            entry = self.entry
            self._data = {i: v for i, v in enumerate(self.inputs) if v and entry and isinstance(entry.role(i), Data)}
        return self._data

    def has(self, *traits: ops.Trait) -> bool:
        """Return whether its operator has any of these traits."""
        entry = self.entry
        return entry is not None and not entry.traits.isdisjoint(traits)

    @property
    def written(self) -> Mapping[str, schema.AttributeValue]:
        """The attributes in its message; parsed once, as each of hundreds of spellings reads them."""
        if self._written is None:
            self._written = {a.name: onnx.helper.get_attribute_value(a) for a in self.proto.attribute}
        return self._written

    def attributes(self, opset: int) -> Mapping[str, schema.AttributeValue]:
        """Return its attributes with the schema's defaults; also computed once."""
        if self._attributes is None or self._attributes[0] != opset:
            self._attributes = opset, {**schema.defaults(self.op, self.domain, opset), **self.written}
        return self._attributes[1]

    def call(self, name: str) -> None:
        """Give the node another name."""
        self.proto.name = name
        self.name = name or next(filter(None, self.outputs), self.op)

    def __repr__(self) -> str:
        return f"<{self.op} {self.name}>"


_order = attrgetter("order")


class Graph:
    """A main graph or the body of an If, Loop or Scan, with def-use indices.

    `nodes` is always in topological order. `parent` is the graph whose values a body may capture, `holder` the node of
    it that contains the body.
    """

    def __init__(
        self,
        proto: GraphProto,
        inferred: GraphProto,
        opset: int,
        parent: "Graph | None" = None,
        holder: NodeProto | None = None,
    ) -> None:
        self.proto = proto
        self.opset = opset
        self.parent = parent
        self.place: tuple[str | int, ...] = (
            () if parent is None or holder is None else (*parent.place, *_place(holder, proto))
        )
        """Where the body is: for each node around it, outermost first, its first output and which of its bodies."""
        self.in_function: bool = parent is not None and parent.in_function
        """Whether ONNX Runtime inlines the body from a function, as of SequenceMap: nested functions are not expanded
        there.
        """
        if holder is not None:
            self.in_function |= schema.is_function(holder.op_type, holder.domain, opset)
        self.types = {**value_types(proto), **value_types(inferred)}
        self.initializers: dict[str, TensorProto] = {t.name: t for t in proto.initializer}
        self.inputs = frozenset(i.name for i in proto.input)
        self.outputs: tuple[str, ...] = tuple(o.name for o in proto.output)
        self._slots: list[Node | _Gap] = [Node(n) for n in proto.node]
        self._gaps = 0
        self._lent = False
        """Whether `nodes` has returned the list itself."""
        self.producers: dict[str, Node] = {}
        self._readers: dict[str, dict[Node, int]] = {}
        self._names = Counter[str]()
        self.version = 0
        """Number of changes so far."""
        self.redefined: dict[str, int] = {}
        """The last change of a value's producer, type or data, by its name."""
        self.rerouted: dict[str, int] = {}
        """The last change of a value's readers."""
        for index, node in enumerate(self.nodes):
            node.order = index * APART
            self._index(node)
        self._counts: dict[str, int] = {}
        self._freed: dict[str, list[int]] = {}
        self._element_counts: dict[str, tuple[TensorProto, int]] = {}
        """Of constants that were asked about, each with its tensor."""
        self._constants: dict[str, np.ndarray | None] = {}
        self._kept = 0
        self.record()
        self.reserved: set[str] = set()
        """Names of values that a rewriter is about to define."""
        self._read = len(self.types), [*self.initializers.values()]
        self._committed: int | None = None
        """The version that the message holds, once it was written."""
        self._check_order()

    # ---- queries

    @property
    def nodes(self) -> list[Node]:
        """The nodes in topological order: a list that later changes of the graph do not affect."""
        if self._gaps:
            self._slots, self._gaps = [n for n in self._slots if isinstance(n, Node)], 0
        self._lent = True
        return cast(list[Node], self._slots)

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self._slots) - self._gaps

    def record(self) -> "QueryRecord":
        """Return a new record of what queries are about from now on: what their answers depend on."""
        queries = QueryRecord({}, {}, {})
        self._queried, self._queried_readers, self._queried_data = queries
        return queries

    def producer(self, value: str) -> Node | None:
        """Return the node of this graph that computes `value`; None for inputs, weights and captured values."""
        self._queried[value] = None
        return self.producers.get(value)

    def readers(self, value: str) -> list[Node]:
        """Return the nodes that read `value`, in topological order, each once."""
        self._queried_readers[value] = None
        readers = self._readers.get(value, ())
        return sorted(readers, key=_order) if len(readers) > 1 else [*readers]

    def is_read(self, value: str) -> bool:
        """Return whether a node reads `value`."""
        self._queried_readers[value] = None
        return bool(self._readers.get(value))

    def only_reader(self, value: str) -> Node | None:
        """Return the only reader of `value`, which reads it once; None for a graph output."""
        self._queried_readers[value] = None
        readers = self._readers.get(value, {})
        if len(readers) != 1 or self.is_output(value):
            return None
        ((reader, times),) = readers.items()
        return reader if times == 1 else None

    def is_output(self, value: str) -> bool:
        """Return whether `value` is an output of the graph."""
        self._queried[value] = None
        return value in self._output_set

    def is_read_outside(self, value: str, nodes: Collection[Node]) -> bool:
        """Return whether nodes other than `nodes` read `value`, or it is a graph output."""
        self._queried_readers[value] = None
        return value in self._output_set or not all(map(nodes.__contains__, self._readers.get(value, ())))

    def inputs_of(self, nodes: Collection[Node]) -> list[str]:
        """Return the values that `nodes` read from outside, each once, in order of first use."""
        ordered = sorted(nodes, key=_order)
        inside = {o for n in ordered for o in n.outputs}
        return list(dict.fromkeys(v for n in ordered for v in n.reads if v not in inside))

    def outputs_of(self, nodes: Collection[Node], replaced: Collection[Node] = ()) -> list[str]:
        """Return the values of `nodes` that are read outside, or are graph outputs, in order.

        `replaced` are nodes of the graph in whose place some of `nodes` would stand: they do not count as outside.
        """
        return list(self._outputs_of(nodes, replaced))

    def has_more_outputs(self, nodes: Collection[Node], most: int) -> bool:
        """Return whether `nodes` have more than `most` outputs; looks at no more than it has to, of a Split of many."""
        return next(itertools.islice(self._outputs_of(nodes), most, None), None) is not None

    def _outputs_of(self, nodes: Collection[Node], replaced: Collection[Node] = ()) -> Iterator[str]:
        ordered = sorted(set(nodes), key=_order)
        members = {*nodes, *replaced}
        return (v for n in ordered for v in n.outputs if v and self.is_read_outside(v, members))

    def type(self, value: str) -> ValueType:
        """Return the type of `value`, as far as known."""
        self._queried[value] = None
        if value in self.types:
            return self.types[value]
        return self.parent.type(value) if self.parent is not None else UNKNOWN

    def is_constant(self, value: str) -> bool:
        """Return whether `value` is a weight or the output of a Constant node, here or in an outer graph."""
        self._queried[value] = None
        if value in self.initializers:
            return value not in self.inputs
        node = self.producers.get(value)
        if node is not None:
            return node.op == ops.Constant and node.domain == ""
        return self.parent is not None and value not in self.inputs and self.parent.is_constant(value)

    def is_let_go(self, value: str) -> bool:
        """Return whether `value` is a constant of this graph with a single reader, with which it can be removed."""
        here = self.is_constant(value) and (value in self.initializers or value in self.producers)
        return here and self.only_reader(value) is not None

    def constant(self, value: str) -> np.ndarray | None:
        """Return the value of a constant; None if it is not one, or its data was not loaded."""
        if not value or not self.is_constant(value):
            return None
        self._queried_data[value] = None
        if value in self._constants:
            return self._constants[value]
        array = self._read_constant(value)
        large = 0 if array is None or array.nbytes <= SMALL else array.nbytes
        if self._kept + large <= KEPT:
            self._constants[value] = array
            self._kept += large
        return array

    def constant_tensor(self, value: str) -> TensorProto | None:
        """Return the tensor of a constant, exactly as stored in the model."""
        self._queried_data[value] = None
        return self._constant_tensor(value)

    def _constant_tensor(self, value: str) -> TensorProto | None:
        self._queried[value] = None
        if value in self.initializers:
            return self.initializers[value]
        node = self.producers.get(value)
        if node is not None:
            return _tensor_of(node.proto)
        return self.parent._constant_tensor(value) if self.parent is not None else None

    def element_count(self, value: str) -> int | None:
        """Return the number of elements of a constant without reading its data; None if it is not a constant."""
        if not value or not self.is_constant(value):
            return None
        tensor = self._constant_tensor(value)
        if tensor is None:
            return None
        known = self._element_counts.get(value)
        if known is None or known[0] is not tensor:
            known = self._element_counts[value] = tensor, math.prod(tensor.dims)
        return known[1]

    def attributes(self, node: Node) -> Mapping[str, schema.AttributeValue]:
        """Return the attributes of `node`, with the schema's defaults; a Transpose reverses the axes by default."""
        attributes = node.attributes(self.opset)
        if node.op == ops.Transpose and "perm" not in attributes and not node.domain:
            rank = self.type(node.inputs[0]).rank
            return attributes if rank is None else {**attributes, "perm": list(range(rank))[::-1]}
        return attributes

    def subgraphs(self) -> Iterator[GraphProto]:
        """Yield the nodes' subgraphs."""
        for node in self.nodes:
            yield from bodies(node.proto)

    @cached_property
    def _inner_names(self) -> set[str]:
        """Names of values in nested bodies: reusing one in this graph would shadow it."""
        return every_name(self.proto)

    @cached_property
    def _output_set(self) -> frozenset[str]:
        return frozenset(self.outputs)

    # ---- rewriting

    def fresh(self, base: str) -> str:
        """Return an unused value name that starts with `base`, unique here and in outer graphs."""
        # The lowest free number. All below the count were taken when last asked; those gone since are in the heap.
        freed = self._freed.get(base, [])
        while freed:
            if not self._taken(name := _numbered(base, freed[0])):
                return name
            heappop(freed)
        count = self._counts.get(base, 0)
        while self._taken(name := _numbered(base, count)):
            count += 1
        self._counts[base] = count
        return name

    def _free(self, name: str) -> None:
        """Let `fresh` give a name again that is not taken any more."""
        base, _, number = name.rpartition("_")
        for of, count in ((name, 0), (base, int(number) if number.isdecimal() and number.isascii() else 0)):
            if count < self._counts.get(of, 0):
                heappush(self._freed.setdefault(of, []), count)

    def add_constant(self, name: str, array: np.ndarray) -> None:
        """Add a weight called `name`, which must be unused."""
        self.version += 1
        self.redefined[name] = self.version
        if array.nbytes > detached.LEAST and detached.is_detaching() and self.parent is None:
            dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            self.initializers[name] = detached.detach(name, dtype, array.shape, lambda: array)
        else:
            self.initializers[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        self.types[name] = ValueType(self.initializers[name].data_type, tuple(array.shape))

    def retype(self, value: str, known: ValueType) -> None:
        """Set the type of a value whose definition changed, in the model's declaration as well."""
        self.version += 1
        self.redefined[value] = self.version
        self.types[value] = known
        if value in self._declarations:
            self._declarations[value].CopyFrom(value_info(value, known))

    @cached_property
    def _declarations(self) -> dict[str, onnx.ValueInfoProto]:
        return {info.name: info for info in self.proto.value_info}

    def replace(self, old: Collection[Node], new: Sequence[Node]) -> None:
        """Replace `old` by `new` (in topological order); every value that is still read must be among their outputs.

        Topological order is maintained: the new nodes stand where the first old one stood, and dependencies of theirs
        move before them. A removed node has the order -1. The cost grows neither with the span of `old` nor, where one
        node replaces several, with the graph.
        """
        self.version += 1
        if self._lent:
            self._slots, self._lent = [*self._slots], False
        slots = self._slots
        gone = set(old)
        low, high = min(n.order for n in gone), max(n.order for n in gone)
        needed = self._ancestors({v for n in new for v in n.reads}, floor=low) - gone
        before = sorted((n for n in needed if n.order <= high), key=_order)
        first, *others = sorted(bisect_left(slots, n.order, key=_order) for n in (*gone, *before))
        for index in others:
            slots[index] = _Gap(slots[index].order)
        for node in gone:
            self._unindex(node)
            node.order = -1
        for node in new:
            self._name(node)
            self._index(node)
        placed: list[Node | _Gap] = [*before, *new] or [_Gap(low)]
        self._gaps += len(others) + isinstance(placed[0], _Gap)
        # Orders below this one are taken: nodes that have them are renumbered, gaps are closed.
        end = first + 1
        while end < len(slots) and slots[end].order < low + len(placed):
            if isinstance(slots[end], Node):
                placed.append(slots[end])
            else:
                self._gaps -= 1
            end += 1
        slots[first:end] = placed
        for order, slot in enumerate(placed, low):
            slot.order = order

    def draft(self, old: Node, new: Sequence[Node]) -> None:
        """Give new nodes the order of `old` and names as in its place; the graph keeps `old`."""
        for node in new:
            self._name(node, old.proto.name)
            node.order = old.order

    def is_reroutable(self, value: str) -> bool:
        """Return whether every reader of `value` can read another value: it is no graph output, and not captured."""
        return not self.is_output(value) and all(value not in r.captures for r in self._readers.get(value, ()))

    def reroute(self, value: str, source: str) -> bool:
        """Let every reader of `value` read `source`, which is defined before them; return whether that was possible.

        A graph output keeps its name, and captures by subgraphs are not changed.
        """
        if not self.is_reroutable(value):
            return False
        self.reroute_all({value: source})
        return True

    def reroute_all(self, sources: Mapping[str, str]) -> None:
        """Reroute several values, all reroutable, to sources that are none of them: each reader is rewritten once."""
        readers = {r: None for value in sources for r in self._readers.get(value, ())}
        for reader in readers:
            proto = NodeProto()
            proto.CopyFrom(reader.proto)
            del proto.input[:]
            proto.input.extend(sources.get(v, v) for v in reader.inputs)
            self.replace([reader], [Node(proto)])

    def is_as_read(self) -> bool:
        """Return whether it is what its message holds, and no name was chosen: reading that again gives the same."""
        count, weights = self._read
        if self.version or self._counts or len(self.types) != count or len(self.proto.initializer) != len(weights):
            return False
        return all(map(is_, self.proto.initializer, weights))

    def commit(self) -> None:
        """Write nodes and weights back into the message; weights without readers are dropped."""
        if self._committed == self.version:
            return
        self._committed = self.version
        if self.version:
            protos = [n.proto for n in self.nodes]
            del self.proto.node[:]
            self.proto.node.extend(protos)
        used = {v for n in self.nodes for v in n.reads} | set(self.outputs) | self.inputs
        kept: set[str] = set()
        for index in range(len(self.proto.initializer) - 1, -1, -1):
            name = self.proto.initializer[index].name
            if name in used and self.initializers.get(name) is self.proto.initializer[index]:
                kept.add(name)
            else:
                del self.proto.initializer[index]
        for name in [n for n in self.initializers if n in used and n not in kept]:
            # The message owns a copy: the first one is let go at once, as weights may be gigabytes.
            self.proto.initializer.append(self.initializers[name])
            self.initializers[name] = self.proto.initializer[-1]
            self._element_counts.pop(name, None)
        values = {v for n in self.nodes for v in n.outputs}
        infos = {i.name: i for i in self.proto.value_info if i.name in values}
        infos.update({v: value_info(v, self.types[v]) for v in self._undeclared() if v not in infos})
        del self.proto.value_info[:]
        self.proto.value_info.extend(infos.values())
        vars(self).pop("_declarations", None)
        if self.parent is not None:
            self._declare_outputs()

    def eliminate_dead_code(self) -> int:
        """Remove nodes without readers of any output (dead code); return how many were removed."""
        count = 0
        for node in reversed(self.nodes):
            if not self._output_set.isdisjoint(node.outputs) or any(map(self._readers.get, node.outputs)):
                continue
            self.version += not count
            self._unindex(node)
            node.order = -1
            count += 1
        if count:
            self._slots, self._lent = [n for n in self._slots if n.order >= 0], False
        return count

    def snapshot(self) -> "Graph":
        """Return a graph of the same nodes, types and weights, which later changes of this one do not affect."""
        twin = copy(self)
        twin.types, twin.initializers = dict(self.types), dict(self.initializers)
        twin._slots, twin._lent = [copy(n) for n in self.nodes], False
        twin._gaps = 0  # `nodes` has closed them
        twin.producers, twin._readers, twin._names = {}, {}, Counter()
        twin.redefined, twin.rerouted = dict(self.redefined), dict(self.rerouted)
        for node in twin.nodes:
            twin._index(node)
        twin._counts, twin._freed = dict(self._counts), {base: list(freed) for base, freed in self._freed.items()}
        twin._element_counts = dict(self._element_counts)
        twin._constants, twin.reserved = dict(self._constants), set(self.reserved)
        twin.record()
        return twin

    def restore(self, snapshot: "Graph") -> None:
        """Become what the snapshot holds, which is used up."""
        vars(self).update(vars(snapshot))

    # ---- index maintenance

    def _name(self, node: Node, replaced: str = "") -> None:
        """Name a node by its output if another node has its name: ONNX Runtime refuses two of one name.

        One node may be called `replaced`: that in whose place it would stand.
        """
        if node.proto.name and self._names[node.proto.name] > (node.proto.name == replaced):
            output = next((v for v in node.outputs if v), node.proto.name)
            names = itertools.chain([output], (f"{output}.{n}" for n in itertools.count()))
            node.call(next(n for n in names if self._names[n] <= 0))

    def _index(self, node: Node) -> None:
        self._names[node.proto.name] += 1
        for value in node.outputs:
            if value:
                self.producers[value] = node
                self.redefined[value] = self.version
        for value in node.reads:
            self.rerouted[value] = self.version
            readers = self._readers.setdefault(value, {})
            readers[node] = readers.get(node, 0) + 1

    def _unindex(self, node: Node) -> None:
        self._names[node.proto.name] -= 1
        for value in node.outputs:
            if self.producers.get(value) is node:
                del self.producers[value]
                self.redefined[value] = self.version
                self._free(value)
        for value in node.reads:
            self.rerouted[value] = self.version
            self._readers.get(value, {}).pop(node, None)

    def _check_order(self) -> None:
        """Raise ModelError unless each value is computed once, and before it is read."""
        for node in self.nodes:
            twice = next((v for v in node.outputs if v and self.producers[v] is not node), None)
            late = next((v for v in node.reads if v in self.producers and self.producers[v].order >= node.order), None)
            if twice is not None or late is not None:
                fact = f"'{twice}' is computed twice" if late is None else f"'{late}' is read before it is computed"
                raise ModelError(f"the model is not valid: {fact}, at {node.op} {node.name}", "Export it again.")

    def _ancestors(self, values: set[str], floor: int) -> set[Node]:
        found: set[Node] = set()
        waiting = list(values)
        while waiting:
            node = self.producers.get(waiting.pop())
            if node is not None and node.order >= floor and node not in found:
                found.add(node)
                waiting.extend(node.reads)
        return found

    def _undeclared(self) -> Iterator[str]:
        """Yield the outputs of fused ops: ONNX Runtime reads their shapes from declarations in the file only."""
        for node in self.nodes:
            if node.domain == DOMAIN:
                yield from (v for v in node.outputs if v not in self._output_set and self.type(v).shape is not None)

    def _declare_outputs(self) -> None:
        """Correct a body's declared outputs that are computed by fused ops, where the file contradicts them.

        ONNX Runtime infers the shapes of its own operators; for the results of other ops it allocates as declared.
        """
        for info in self.proto.output:
            node, known = self.producers.get(info.name), self.type(info.name)
            if node is not None and node.domain == DOMAIN and shapes_differ(known.shape, type_of(info.type).shape):
                info.CopyFrom(value_info(info.name, known))

    def without_weights(self) -> GraphProto:
        """Return the current graph message, without initializers."""
        return onnx.helper.make_graph(
            [n.proto for n in self.nodes], self.proto.name or "graph", list(self.proto.input), list(self.proto.output)
        )

    def _taken(self, name: str) -> bool:
        here = name in self.producers or name in self.initializers or name in self.inputs or name in self.types
        here = here or name in self._inner_names or name in self.reserved
        return here or (self.parent is not None and self.parent._taken(name))

    def _read_constant(self, value: str) -> np.ndarray | None:
        tensor = self.constant_tensor(value)
        # Strings are not numeric, and ONNX Runtime does not require them to be UTF-8.
        return None if tensor is None or tensor.data_type == TensorProto.STRING else detached.array_of(tensor)


def _place(holder: NodeProto, body: GraphProto) -> tuple[str, int]:
    return holder.output[0], next(i for i, one in enumerate(bodies(holder)) if one is body)


def _numbered(base: str, count: int) -> str:
    return f"{base}_{count}" if count else base


def _tensor_of(node: NodeProto) -> TensorProto | None:
    """Return the tensor of a Constant node, None for strings and sparse tensors."""
    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor: TensorProto = attribute.t
        return tensor
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    if attribute.name not in kinds:
        return None
    array = np.asarray(onnx.helper.get_attribute_value(attribute), kinds[attribute.name])
    return numpy_helper.from_array(array, node.output[0])
