"""Track which bodies of If, Loop and Scan a run enters, and generate inputs that reach the others.

ONNX Runtime's profiler reports every node that ran. Nodes in bodies get unique names in a copy that runs without
optimization. For a body that was not reached, each selector (an input of one element) is set to the constants that the
model compares with, their neighbors, 0, 1 and more, or both booleans; data inputs are zeroed or made of one sign.
"""

import itertools
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.ops import Trait, named
from onnxfuse.runtime.sessions.placement import node_counts
from onnxfuse.support.plurals import plural
from onnxfuse.verification.inputs.inputs import Array, Case, InputSpec, sizes_of
from onnxfuse.verification.run import sessions

COMPARISONS = named(Trait.COMPARISON)
SAME = named(Trait.KEEPS_ELEMENTS, Trait.CASTS)
"""Operators through which a comparison may read its constant."""
COUNTS = (0, 1, 2, 7)
"""Additional values of a selector: a Loop of no, one or several iterations."""
ATTEMPTS = 64
"""Largest number of input sets that are tried."""


def _negative(x: Array) -> Array:
    return -np.abs(x)


SIGNS: Mapping[str, Callable[[Array], Array]] = {
    "zero": np.zeros_like,
    "positive": np.abs,
    "negative": _negative,
}
"""Transformations of all inputs that are not selectors."""
Change = Callable[[Case], Case]
"""Derives a case of the same sizes from another."""
NAME = "onnxfuse body {} node {}"


@dataclass(frozen=True)
class Body:
    """A body of a control-flow node, in the main graph or nested."""

    name: str
    """Attribute and node: "then_branch of If 'select'"."""
    nodes: int

    @property
    def text(self) -> str:
        """Describe the body in words."""
        return f"{self.name} ({plural(self.nodes, 'node')})"


def only_in_bodies(model: ModelProto) -> frozenset[str]:
    """Return the fused ops that occur only in bodies of If, Loop and Scan."""
    above = {n.op_type for nodes in (model.graph.node, *(f.node for f in model.functions)) for n in nodes}
    return frozenset(node_counts(model)) - above


class Bodies:
    """The bodies of a model, and which of them have run."""

    def __init__(self, model: ModelProto) -> None:
        self._model = ModelProto()
        if any(_graphs(node) for node in model.graph.node):
            self._model.CopyFrom(model)
        self.every = tuple(_marked(self._model.graph, itertools.count()))
        self.ran: set[int] = set()

    @property
    def never(self) -> tuple[Body, ...]:
        """The bodies that no run has entered, largest first."""
        return tuple(sorted((b for n, b in enumerate(self.every) if n not in self.ran), key=lambda b: -b.nodes))

    def run(self, cases: Sequence[Case]) -> int | None:
        """Run the model on these cases and return how many bodies were newly entered.

        A case that is rejected enters none, wherever it stopped; None if all are rejected. Raises ModelError if ONNX
        Runtime cannot open the model on the CPU without optimization.
        """
        accepted, entered = self._profiled(cases)
        if len(accepted) < len(cases):
            _, entered = self._profiled(accepted)
        fresh = len(entered - self.ran)
        self.ran |= entered
        return fresh if accepted else None

    def _profiled(self, cases: Sequence[Case]) -> tuple[list[Case], set[int]]:
        """Return which of the cases the model accepts, and the bodies that they entered together."""
        accepted = []
        with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
            file = sessions.openable(self._model, self._model, folder)
            session = sessions.unoptimized(file, profile=f"{folder}/profile")
            for case in cases:
                try:
                    sessions.run(session, case.make())
                except sessions.ORT_ERRORS:
                    continue
                accepted.append(case)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        pattern = re.compile(NAME.format(r"(\d+)", r"\d+"))
        names = [e["name"] for e in events if e.get("cat") == "Node"]
        return accepted, {int(match[1]) for name in names if (match := pattern.search(name))}


def cases_entering(
    model: ModelProto,
    bodies: Bodies,
    specs: Sequence[InputSpec],
    base: Case,
    resized: Callable[[Change], Case | None],
    ended: Callable[[], bool],
) -> list[Case]:
    """Return cases, derived from `base`, that enter bodies not yet run, until `ended` returns True.

    `resized` returns a case of other sizes with which the model accepts a change that it rejects in `base`: another
    branch may need longer windows.
    """
    entering: list[Case] = []
    for change in itertools.islice(_changes(model, specs, base), ATTEMPTS):
        if not bodies.never or ended():
            break
        case = change(base)
        fresh = bodies.run([case])
        if fresh is None and (larger := resized(change)) is not None:
            case = change(larger)
            fresh = bodies.run([case])
        if fresh:
            entering.append(case)
    return entering


def _changes(model: ModelProto, specs: Sequence[InputSpec], base: Case) -> Iterator[Change]:
    selectors = [s for s in specs if math.prod(base.shapes[s.name]) == 1 and s.array_type.kind in "biuf"]
    compared = sorted(compared_constants(model.graph))
    sizes = sizes_of(specs, base.shapes)
    values = [[(s.name, v) for v in selector_values(s, compared, sizes)] for s in selectors]
    several = math.prod(map(len, values)) <= ATTEMPTS
    sets = itertools.product(*values) if several else ((pair,) for one in values for pair in one)
    for chosen in sets if selectors else ():
        yield partial(_branch, dict(chosen), "")
    for sign in SIGNS:
        yield partial(_branch, {}, sign)


def _branch(values: Mapping[str, float], sign: str, base: Case) -> Case:
    return Case("branch", base.seed, base.shapes, partial(_changed, base, values, sign))


def _changed(base: Case, values: Mapping[str, float], sign: str) -> dict[str, Array]:
    """Return the inputs of `base` with these selector values, and the others transformed by `sign`."""
    arrays = base.make()
    for name, value in values.items():
        arrays[name] = np.full_like(arrays[name], value)
    if sign:
        arrays = {n: np.asarray(SIGNS[sign](x)) if x.dtype.kind in "fV" else x for n, x in arrays.items()}
    return arrays


def selector_values(spec: InputSpec, compared: Sequence[float], sizes: Mapping[str, int]) -> list[float]:
    """Return the values tried for a selector, as far as its type and role allow."""
    if spec.array_type.kind == "b":
        return [0, 1]
    neighbors = [v + d for v in compared for d in (0, -1, 1)]
    every = list(dict.fromkeys([*neighbors, *COUNTS]))
    if spec.array_type.kind == "f":
        return every
    low, high = float(np.iinfo(spec.array_type).min), float(np.iinfo(spec.array_type).max)
    if spec.role.points:
        low, high = spec.role.ends(sizes) or (low, high)
    return [v for v in every if v == int(v) and low <= v <= high]


def compared_constants(graph: GraphProto) -> set[float]:
    """Return the scalar constants that comparisons read, including those in bodies."""
    constants: dict[str, float] = {}
    read: list[str] = []

    def note(name: str, tensor: TensorProto) -> None:
        if math.prod(tensor.dims) == 1 and tensor.data_type not in (TensorProto.STRING, TensorProto.BOOL):
            constants[name] = float(numpy_helper.to_array(tensor).reshape(-1)[0])

    def walk(inner: GraphProto) -> None:
        for tensor in inner.initializer:
            note(tensor.name, tensor)
        for node in inner.node:
            for attribute in node.attribute:
                if node.op_type == ops.Constant and attribute.name == "value":
                    note(node.output[0], attribute.t)
                elif node.op_type == ops.Constant and attribute.name in ("value_int", "value_float"):
                    constants[node.output[0]] = float(onnx.helper.get_attribute_value(attribute))
            threshold = node.op_type in COMPARISONS or node.op_type in (ops.Mod, ops.Where)
            read.extend(node.input if threshold else ())
            if node.op_type in SAME and node.input[0] in constants:
                constants[node.output[0]] = constants[node.input[0]]
            for _, body in _graphs(node):
                walk(body)

    walk(graph)
    return {constants[name] for name in read if name in constants and math.isfinite(constants[name])}


def _marked(graph: GraphProto, counter: Iterator[int]) -> Iterator[Body]:
    """Give the nodes in the bodies of a graph unique names, in place; yield the bodies in index order."""
    for node in graph.node:
        for attribute, body in _graphs(node):
            name = f"{attribute} of {node.op_type} '{node.name or next(iter(node.output), '')}'"
            working = sum(n.op_type != ops.Constant for n in body.node)
            if working:
                body_index = next(counter)
                # Nested bodies are reported by the original names of their nodes: yield them first.
                inner = list(_marked(body, counter))
                for n, one in enumerate(body.node):
                    one.name = NAME.format(body_index, n)
                yield Body(name, working)
                yield from inner


def _graphs(node: onnx.NodeProto) -> list[tuple[str, GraphProto]]:
    return [(a.name, a.g) for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
