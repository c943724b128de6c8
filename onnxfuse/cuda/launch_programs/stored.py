"""Serialize a family in a form that can be extended later: what one process recorded, for the next one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from onnxfuse.codegen.emit.source import KernelSource, Section, template
from onnxfuse.cuda.launch_programs.family import Family, Key, Plan
from onnxfuse.cuda.launch_programs.leaf import Leaf, Map, mapped
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.expressions import Expression
from onnxfuse.symbolic.integer import Int, atom, of_terms, only_atom
from onnxfuse.symbolic.operations import NAME, REAL
from onnxfuse.symbolic.recording import DecisionNode

INTEGER, SUM = "integer", "sum"
"""Nodes that are no atom: a constant, and an integer's products, each its coefficient and its factors."""

PLANNERS = ("support", "symbolic", "ops", "model", "files", "codegen", "shapes", "graph", "cuda")
"""Packages whose code a plan may depend on: `cuda`, and all that it may import, directly or not."""


@dataclass
class _Nodes:
    """Expressions by index, each after its operands."""

    nodes: list[list[Any]] = field(default_factory=list)
    numbers: dict[Expression, int] = field(default_factory=dict)

    def number(self, value: Expression) -> int:
        """Return the index of an expression."""
        waiting = [value]
        while waiting:
            top = waiting[-1]
            if missing := [a for a in _operands(top) if a not in self.numbers]:
                waiting.extend(missing)
            elif waiting.pop() not in self.numbers:
                self.numbers[top] = len(self.nodes)
                self.nodes.append(self._node(top))
        return self.numbers[value]

    def _node(self, value: Expression) -> list[Any]:
        if isinstance(value, int):
            return [INTEGER, value]
        if isinstance(value, Int):
            return [SUM, *([c, *(self.numbers[f] for f in m)] for m, c in value.terms)]
        return [value.op, *(value.args if value.op in (NAME, REAL) else (self.numbers[a] for a in value.args))]


def _operands(value: Expression) -> Sequence[Expression]:
    if isinstance(value, Int):
        return [f for m, _ in value.terms for f in m]
    return () if isinstance(value, int) or value.op in (NAME, REAL) else value.args


def _restored(nodes: list[list[Any]]) -> list[Expression]:
    restored: list[Any] = []
    for op, *args in nodes:
        if op == INTEGER:
            restored.append(args[0])
        elif op == SUM:
            restored.append(of_terms(tuple((tuple(restored[f] for f in factors), c) for c, *factors in args)))
        elif op == NAME:
            restored.append(only_atom(Int.name(*args)))
        else:
            restored.append(atom(op, tuple(args if op == REAL else (restored[a] for a in args))))
    return restored


def key_of(op: FusedOp, key: Key, aligned: bool, arch: Arch) -> str:
    """Return the SHA-256 in hex of all that determines a family, including the planners' sources.

    Of the costs also those of this process: tests plan small tensors as large ones are planned.
    """
    small = asdict(launch_plan.small_costs(arch))
    facts = (*_facts(op), asdict(key), aligned, asdict(arch), planners(), small)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def digest_of(op: FusedOp) -> bytes:
    """Return the SHA-256 of an op's definition."""
    return hashlib.sha256(json.dumps(_facts(op)).encode()).digest()


def _facts(op: FusedOp) -> tuple[object, ...]:
    return (
        op.name, op.template, op.inputs, op.outputs, None if op.slot is None else asdict(op.slot),
        op.open_length, op.tf32, sorted(op.constants),
        hashlib.sha256(op.body.SerializeToString(deterministic=True)).hexdigest(),
        None if op.library is None else hashlib.sha256(op.library.SerializeToString(deterministic=True)).hexdigest(),
    )  # fmt: skip


@cache
def planners() -> str:
    """Return a hash of all code and costs that a plan may depend on, in hex."""
    digest = hashlib.sha256()
    waiting = [resources.files(f"onnxfuse.{package}") for package in PLANNERS]
    while waiting:
        at: Traversable = waiting.pop()
        if at.is_dir():
            waiting.extend(sorted(at.iterdir(), key=lambda f: f.name))
        elif at.name.endswith((".py", ".cu", ".cuh", ".toml")):
            digest.update(at.name.encode() + b"\0" + at.read_bytes())
    return digest.hexdigest()


def dumped(family: Family) -> bytes:
    """Serialize the family."""
    nodes = _Nodes()
    tree = _tree(family.root, nodes)
    kernels = [
        [k.entry, list(k.flags), [[s.file, None if _is_template(s) else s.text] for s in k.sections]]
        for k in family.kernels
    ]
    return json.dumps({
        "nodes": nodes.nodes, "tree": tree, "kernels": kernels,
        "answers": family.answers, "pins": list(family.pins),
    }).encode()  # fmt: skip


def _is_template(section: Section) -> bool:
    return not section.file.endswith("(generated)") and template(section.file) == section


def _tree(root: DecisionNode, nodes: _Nodes) -> list[list[Any]]:
    """Return the decisions, each with its children by index: a path may be longer than Python's stack."""
    rows: list[list[Any]] = []
    every = [root]
    for node in every:
        children = [[value, number] for number, value in enumerate(node.children, len(every))]
        every.extend(node.children.values())
        answer = None if node.answer is None else asdict(mapped(node.answer, nodes.number))
        rows.append([None if node.condition is None else nodes.number(node.condition), node.chooses, children, answer])
    return rows


def loaded(data: bytes, key: Key, plan: Plan) -> Family:
    """Deserialize a family written by `dumped`."""
    content = json.loads(data)
    family = Family(key, plan)
    family.root = _root(content["tree"], _restored(content["nodes"]))
    for entry, flags, sections in content["kernels"]:
        texts = (template(file) if text is None else Section(file, text) for file, text in sections)
        family.numbers[KernelSource(entry, tuple(texts), tuple(flags))] = len(family.kernels)
        family.kernels = list(family.numbers)
    family.answers, family.pins = content["answers"], dict.fromkeys(content["pins"])
    return family


def _root(rows: list[list[Any]], expressions: list[Expression]) -> DecisionNode:
    """Return the root of the tree that `_tree` wrote."""
    every = [
        DecisionNode(
            None if condition is None else expressions[condition],
            answer=None if answer is None else mapped(_leaf(answer), expressions.__getitem__),
            chooses=chooses,
        )
        for condition, chooses, _, answer in rows
    ]
    for node, (_, _, children, _) in zip(every, rows, strict=True):
        node.children.update({value: every[number] for value, number in children})
    return every[0]


def _leaf(fields: dict[str, Any]) -> Leaf:
    maps = [
        {**m, **{n: tuple(m[n]) for n in ("extents", "strides", "box")}, "window": _sides(m["window"])}
        for m in fields["tensor_maps"]
    ]
    return Leaf(
        fields["kernel"], tuple(fields["grid"]), tuple(fields["block"]), fields["shared_bytes"], fields["bits"],
        tuple(fields["parameters"]), tuple(tuple(s) for s in fields["output_shapes"]), tuple(Map(**m) for m in maps),
        fields["scratch_bytes"], fields["counter_bytes"], tuple(_leaf(after) for after in fields["then"]),
    )  # fmt: skip


def _sides(sides: Any) -> Any:
    return None if sides is None else tuple(tuple(side) for side in sides)
