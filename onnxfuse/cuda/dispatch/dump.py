"""Dump fused ops as readable files: one folder per fused op with body, CUDA source, cubin and plan."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from onnx import NodeProto

from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.dispatch.dispatch import is_template, plan, supports
from onnxfuse.cuda.planning.arch import H200, Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.files.atomic_write import check_no_links
from onnxfuse.graph import concrete_shapes
from onnxfuse.model import provenance
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import ValueType, value_info
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic.strides import Shape

WITHOUT_BODIES = "attach bodies"
"""The phase before which the model cannot be read: its fused ops have no bodies yet."""

NAME_LIMIT = 100
"""Maximum length of a folder's name; file systems allow 255 bytes, but people read fewer."""


@dataclass(frozen=True)
class Resources:
    """Resources of a compiled kernel, as reported by the assembler."""

    registers: int
    """Per thread."""
    shared_bytes: int
    """Static shared memory of a block; that of the plan is additional."""
    stack_bytes: int
    spill_stores: int
    """Bytes per thread spilled to local memory due to register pressure."""
    spill_loads: int


@dataclass(frozen=True)
class Dumped:
    """The folder of one fused op."""

    op: str
    rule: str
    folder: str
    """Its name, under `ops/`."""
    layers: tuple[str, ...]
    """The nodes of the model that are this op."""
    plans: int
    """Number of launch plans written, one per distinct set of input shapes."""
    registers: int | None
    """Maximum over all its kernels; None if none was compiled."""
    spill_bytes: int | None
    note: str
    """Why there is no kernel, or no plan."""


def resources(log: str) -> Resources:
    """Parse the assembler's log (`-Xptxas=-v`) of a kernel; raises ValueError for other text."""
    used = re.search(r"Used (\d+) registers", log)
    stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if used is None or stack is None:
        raise ValueError(f"no resource usage in the compiler's log: {log!r}")
    shared = re.search(r"(\d+) bytes smem", log)
    frame, stores, loads = map(int, stack.groups())
    return Resources(int(used[1]), int(shared[1]) if shared else 0, frame, stores, loads)


def phases(folder: Path, model: onnx.ModelProto) -> Callable[[str], None]:
    """Return a callback for the start of each phase, which writes the current graph into `folder`.

    Call it with "result" at the end. Each state is NUMBER-before-PHASE.onnx, without its weights, and the same as text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    states: list[str] = []

    def write(phase: str) -> None:
        if phase == WITHOUT_BODIES:
            return
        moment = phase if phase == "result" else f"before-{phase.replace(' ', '-')}"
        light = infer(model)
        stem = folder / f"{len(states)}-{moment}"
        stem.with_suffix(".onnx").write_bytes(light.SerializeToString(deterministic=True))
        stem.with_suffix(".txt").write_text(onnx.printer.to_text(light) + "\n", encoding="utf-8")
        states.append(phase)

    return write


def dump(
    model: onnx.ModelProto, folder: Path, arch: Arch | None = None, sizes: Mapping[str, int] | None = None
) -> tuple[Dumped, ...]:
    """Write one folder per fused op of `model` under `folder`/ops, and `folder`/index.json; return what was written.

    `sizes` fixes dynamic dimensions by name; others count as 1, and the index says so. Kernels are compiled for `arch`,
    by default an H200's. Raises OSError if the folder cannot be written.
    """
    arch = arch or H200
    for path in (folder / "index.json", folder / "ops", *(folder / "ops").rglob("*")):
        check_no_links(path, folder)
    (folder / "ops").mkdir(parents=True, exist_ok=True)
    light, assumed = concrete_shapes.with_sizes(model, sizes or {})
    graph = infer(light).graph
    types, nodes = concrete_shapes.every_type(graph), concrete_shapes.fused_nodes(graph)
    ops = fused_ops(model)
    dumped = tuple(_op(folder / "ops", op, nodes.get(name, []), types, arch) for name, op in ops.items())
    index = {"schema": 1, "arch": arch.name, "assumed": assumed, "ops": [asdict(d) for d in dumped]}
    _json(folder / "index.json", index)
    return dumped


def _op(folder: Path, op: FusedOp, nodes: list[NodeProto], types: Mapping[str, ValueType], arch: Arch) -> Dumped:
    layers = tuple(n.name or n.output[0] for n in nodes)
    target = folder / folder_name(op, layers)
    target.mkdir(exist_ok=True)
    (target / "nodes.txt").write_text("".join(f"{_provenance(n)}\n" for n in nodes), encoding="utf-8")
    (target / "body.txt").write_text(onnx.printer.to_text(op.body) + "\n", encoding="utf-8")
    (target / "body.onnx").write_bytes(_model(op, nodes, types).SerializeToString(deterministic=True))
    if op.library is not None:
        (target / "library.txt").write_text(onnx.printer.to_text(op.library) + "\n", encoding="utf-8")
    if not is_template(op.template):
        return Dumped(
            op.name, op.rule, target.name, layers, 0, None, None, "an op of ONNX Runtime's own runs in its place"
        )
    reason = supports(op, lambda: arch)
    if reason is not None:
        return Dumped(op.name, op.rule, target.name, layers, 0, None, None, reason)
    shapes = {s: None for n in nodes if (s := concrete_shapes.input_shapes(n, types)) is not None}
    compiled: dict[str, Resources] = {}
    note = "" if shapes else "the shapes of its inputs are not known"
    for number, shape in enumerate(shapes):
        try:
            first = plan(op, shape, True, arch)
            for part, launch in enumerate((first, *first.then)):
                stem = f"kernel{number or ''}" + (f".{part}" if part else "")
                _write_plan(target, stem, shape, launch, arch, compiled)
        except KernelError as error:
            note = f"{error}"
    spills = [r.spill_stores + r.spill_loads for r in compiled.values()]
    registers = [r.registers for r in compiled.values()]
    return Dumped(op.name, op.rule, target.name, layers, len(shapes), max(registers, default=None),
                  max(spills, default=None), note)  # fmt: skip


def folder_name(op: FusedOp, layers: tuple[str, ...]) -> str:
    """Return a descriptive folder name: rule, first node, op with its hash."""
    rule, name = (_word(part)[: NAME_LIMIT // 2 - 8] for part in (op.rule, op.name))
    room = NAME_LIMIT - len(rule) - len(name) - 4
    return f"{rule}--{_word(layers[0] if layers else 'unused')[-max(room, 8) :]}--{name}"


def _word(text: str) -> str:
    """Sanitize a name from a file for use in a file name, without path components."""
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII).strip("_.") or "nameless"


def _write_plan(
    target: Path, stem: str, shapes: tuple[Shape, ...], launch: LaunchPlan, arch: Arch, compiled: dict[str, Resources]
) -> None:
    """Write source, cubin and plan under the name `stem`; equal sources are compiled and written once."""
    text = launch.kernel.text
    facts: dict[str, Any] = {
        "inputs": [list(s) for s in shapes],
        "outputs": [list(s) for s in launch.output_shapes],
        "grid": list(launch.grid),
        "block": list(launch.block),
        "dynamic_shared_bytes": launch.shared_bytes,
        "scratch_bytes": launch.scratch_bytes,
        "parameters": launch.parameters.hex(),
        "tensor_maps": [asdict(m) for m in launch.tensor_maps],
        "entry": launch.kernel.entry,
        "flags": list(launch.kernel.flags),
        "arch": arch.name,
    }
    _json(target / f"{stem}.plan.json", facts)
    source = next((f for f in sorted(target.glob("*.cu")) if f.read_text(encoding="utf-8") == text), None)
    if source is None:
        source = target / f"{stem}.cu"
        source.write_text(text, encoding="utf-8")
    if text not in compiled:
        cubin, log = nvrtc.build(launch.kernel, arch, ("-Xptxas=-v",))
        (target / f"{stem}.cubin").write_bytes(cubin)
        (target / f"{stem}.ptxas.txt").write_text(log, encoding="utf-8")
        compiled[text] = resources(log)
    _json(target / f"{stem}.plan.json", {**facts, "source": source.name, **asdict(compiled[text])})


def _json(path: Path, facts: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _provenance(node: NodeProto) -> str:
    """Return the node and the original nodes in it, on one line."""
    return f"{node.name or node.output[0]}: {', '.join(provenance.names(node, 'nodes') or ())}"


def _model(op: FusedOp, nodes: list[NodeProto], types: Mapping[str, ValueType]) -> onnx.ModelProto:
    """Return the body as a model of its own, with the types and shapes of its first node."""
    value_types = [types.get(v) for n in nodes[:1] for v in (*n.input, *n.output)] or [None] * 99
    elements = (*op.inputs, *op.outputs)
    values = [
        value_info(name, replace(t, dtype=e) if t is not None else ValueType(e, None))
        for name, e, t in zip((*op.body.input, *op.body.output), elements, value_types, strict=False)
    ]
    count = len(op.body.input)
    graph = onnx.helper.make_graph(list(op.body.node), op.name, values[:count], values[count:])
    return onnx.helper.make_model(graph, opset_imports=list(op.body.opset_import), ir_version=8)
