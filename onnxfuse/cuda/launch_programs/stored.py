"""Serialize a family in a form that can be extended later: what one process recorded, for the next one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from onnxfuse.codegen.emit.source import KernelSource, Section, template
from onnxfuse.cuda.launch_programs.family import Family, Key, Plan
from onnxfuse.cuda.launch_programs.leaf import Leaf, Map
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.expressions import REAL, Value
from onnxfuse.symbolic.recording import DecisionNode


def key_of(op: FusedOp, key: Key, aligned: bool, arch: Arch) -> str:
    """Return the SHA-256 in hex of everything that determines a family, including the planners' sources."""
    facts = (*_facts(op), asdict(key), aligned, asdict(arch), planners())
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
    """Return a hash of the planners' source files, in hex."""
    found = hashlib.sha256()
    waiting = [resources.files(f"onnxfuse.{package}") for package in ("symbolic", "codegen", "cuda")]
    while waiting:
        at: Traversable = waiting.pop()
        if at.is_dir():
            waiting.extend(sorted(at.iterdir(), key=lambda f: f.name))
        elif at.name.endswith((".py", ".cu", ".cuh")):
            found.update(at.name.encode() + b"\0" + at.read_bytes())
    return found.hexdigest()


def dumped(family: Family) -> bytes:
    """Serialize the family."""
    nodes = [
        [op, *(a.hex() if op == REAL and isinstance(a, float) else a for a in args)] for op, args in family.graph.nodes
    ]
    kernels = [
        [k.entry, list(k.flags), [[s.file, None if _is_template(s) else s.text] for s in k.sections]]
        for k in family.kernels
    ]
    return json.dumps({
        "nodes": nodes, "factors": list(family.graph.factors.items()), "tree": _tree(family.root), "kernels": kernels,
        "answers": family.answers, "pins": list(family.pins),
    }).encode()  # fmt: skip


def _is_template(section: Section) -> bool:
    return not section.file.endswith("(generated)") and template(section.file) == section


def _tree(node: DecisionNode) -> Any:
    children = [[value, _tree(child)] for value, child in node.children.items()]
    return [node.asked, node.chooses, children, None if node.answer is None else asdict(node.answer)]


def loaded(data: bytes, key: Key, plan: Plan) -> Family:
    """Deserialize a family written by `dumped`."""
    told = json.loads(data)
    made = Family(key, plan)
    for op, *args in told["nodes"]:
        values: list[Value] = [float.fromhex(args[0])] if op == REAL else args
        made.graph.node(op, *values)
    made.graph.factors = {int(n): tuple(parts) for n, parts in told["factors"]}
    made.root = _node(told["tree"])
    for entry, flags, sections in told["kernels"]:
        texts = (template(file) if text is None else Section(file, text) for file, text in sections)
        made.numbers[KernelSource(entry, tuple(texts), tuple(flags))] = len(made.kernels)
        made.kernels = list(made.numbers)
    made.answers, made.pins = told["answers"], dict.fromkeys(told["pins"])
    return made


def _node(told: Any) -> DecisionNode:
    asked, chooses, children, answer = told
    return DecisionNode(asked, {v: _node(c) for v, c in children}, None if answer is None else _leaf(answer), chooses)


def _leaf(told: dict[str, Any]) -> Leaf:
    maps = [
        {**m, **{n: tuple(m[n]) for n in ("extents", "strides", "box")}, "window": _sides(m["window"])}
        for m in told["tensor_maps"]
    ]
    return Leaf(
        told["kernel"], tuple(told["grid"]), tuple(told["block"]), told["shared_bytes"], told["bits"],
        tuple(told["parameters"]), tuple(tuple(s) for s in told["output_shapes"]), tuple(Map(**m) for m in maps),
        told["scratch_bytes"], told["passing"], tuple(_leaf(after) for after in told["then"]),
    )  # fmt: skip


def _sides(told: Any) -> Any:
    return None if told is None else tuple(tuple(side) for side in told)
