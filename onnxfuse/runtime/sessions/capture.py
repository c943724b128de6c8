"""Check whether ONNX Runtime can capture a model in a CUDA graph, and report the nodes that prevent it.

With `enable_cuda_graph` ONNX Runtime requires (onnxruntime/core/session/inference_session.cc, 1.31; relaxed to this by
its pull request 16491): no node with a subgraph, and no node that copies between CPU and GPU. CPU nodes by themselves
are no obstacle: shape arithmetic is placed there on purpose (`model/host_values.py`), and kernels read its
results as launch arguments. CPU nodes do not run again in a replay; for the same shapes they would produce the same
values.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnx
import onnxruntime

from onnxfuse.files.external import elements_of
from onnxfuse.graph.concrete_shapes import open_dims
from onnxfuse.graph.graph import Node
from onnxfuse.model import host_values
from onnxfuse.model.fused import DOMAIN, fused_ops, replaced_nodes
from onnxfuse.model.nested import bodies
from onnxfuse.model.schema import RANDOM
from onnxfuse.ops import Trait, named
from onnxfuse.runtime.engine.cuda_provider import PROVIDER
from onnxfuse.runtime.sessions.capture_screen import screen
from onnxfuse.runtime.sessions.inference import CPU, Session, session
from onnxfuse.runtime.sessions.opening import ORT_ERRORS, SILENT, reason
from onnxfuse.shapes.inference import shell
from onnxfuse.shapes.onnx_inference import infer_shapes
from onnxfuse.shapes.types import value_types
from onnxfuse.support.plurals import plural
from onnxfuse.support.screen import LIMIT, Blocks, Screen

Kind = Literal["control flow", "no kernel", "copied shape", "waits", "read at capture", "random", "refused"]

COPIES = frozenset({"MemcpyFromHost", "MemcpyToHost"})
"""Copy nodes that ONNX Runtime inserts between CPU and GPU nodes."""

WAITS = named(Trait.SIZE_FROM_DATA)
"""Operators whose CUDA kernels synchronize, which invalidates a capture."""

INSERTED = "InsertedPrecisionFreeCast"
"""Name prefix of the Casts that ONNX Runtime inserts around a CPU node, because it has few float16 kernels there."""

RECORD = "session.record_ep_graph_assignment_info"
"""Session option that makes ONNX Runtime report the provider of each node."""


@dataclass(frozen=True)
class Blocker:
    """One reason, with all nodes to which it applies."""

    kind: Kind
    nodes: tuple[str, ...]
    """As "Op name", by the names in the caller's model; inputs by their names."""
    why: str
    mend: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"kind": self.kind, "nodes": list(self.nodes), "why": self.why, "mend": self.mend}


@dataclass(frozen=True, repr=False)
class Capture(Screen):
    """Whether a model can be captured in a CUDA graph, and what prevents it."""

    blocking: tuple[Blocker, ...]
    """Reasons that prevent a capture; empty if there are none."""
    frozen: tuple[Blocker, ...] = ()
    """Values that a replay reuses as they were at the capture, although the capture succeeds."""
    on_cpu: int = 0
    """CPU nodes that do not prevent a capture: shape arithmetic."""
    dims: tuple[str, ...] = ()
    """Dynamic input dimensions: each set of sizes needs a graph of its own."""
    software: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the model can be captured."""
        return not self.blocking

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        at = f"ONNX Runtime {self.software['onnxruntime']} on CUDA"
        if self.ok:
            return f"can be captured in a CUDA graph by {at}"
        count = sum(len(b.nodes) for b in self.blocking)
        return f"no CUDA graph: {plural(count, 'node')} in the way, {plural(self.blocking, 'reason')}; {at}"

    def screen(self, limit: int | None = LIMIT) -> Blocks:
        """Return the reasons, those that prevent a capture first, each with advice and up to `limit` nodes."""
        return screen(self, limit)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "ok": self.ok,
            "blocking": [b.as_dict() for b in self.blocking],
            "frozen": [b.as_dict() for b in self.frozen],
            "shape_nodes_on_cpu": self.on_cpu,
            "dims": list(self.dims),
            **self.software,
        }


def capture(model: onnx.ModelProto, rules: Sequence[str | Path] = ()) -> Capture:
    """Return what prevents a CUDA graph of `model`, given how a CUDA session places its nodes.

    A real session is opened twice without large weights: once to obtain the placement of each node, once with CUDA
    graphs enabled, whose result decides. Nothing is run. `rules` are the folders of your own rules that made the model.
    Raises DeviceError if CUDA cannot be used, and ONNX Runtime's error if it does not open the model.
    """
    light = shell(model)
    light.ClearField("metadata_props")
    light.metadata_props.extend(model.metadata_props)
    _name_all(light.graph.node)
    placement, refused = _Placed.of(light, rules), _refusal(light, rules)
    names = _Names(light)
    weights = {i.name for i in light.graph.input} - {i.name for i in model.graph.input}
    blockers = [*_control_flow(light, names), *placement.no_kernel(names), *placement.copied_shapes(names)]
    if refused and not blockers:
        blockers.append(Blocker("refused", (), f"ONNX Runtime says: {refused}", "Please report it with the model."))
    if not refused:
        blockers = []  # ONNX Runtime's answer decides
    return Capture(
        (*blockers, *placement.waits(names)),
        (*placement.read_at_capture(weights), *placement.random(names)),
        0 if refused else sum(p == CPU for p in placement.providers.values()),
        open_dims(model),
        {"onnxruntime": onnxruntime.__version__},
    )


def _refusal(light: onnx.ModelProto, rules: Sequence[str | Path]) -> str:
    """Return why ONNX Runtime refuses a session with CUDA graphs; empty if it opens one."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    try:
        session(light, [(PROVIDER, {"enable_cuda_graph": "1"}), CPU], options, rules=rules, kernels=False)
    except ORT_ERRORS as error:
        return reason(error)
    return ""


def _name_all(nodes: Iterable[onnx.NodeProto]) -> None:
    """Name every unnamed node of this copy after its output, by which it is reported."""
    for node in nodes:
        node.name = Node(node).name


class _Names:
    """Map from nodes of a session's graph to nodes of the caller's model."""

    def __init__(self, light: onnx.ModelProto) -> None:
        by_name = fused_ops(light)
        fused = [n for n in light.graph.node if n.domain == DOMAIN and n.op_type in by_name]
        self.nodes = {n.name: replaced_nodes(n, by_name[n.op_type]) for n in fused}
        self.ops: dict[str, tuple[str, ...]] = {}
        for n in fused:
            self.ops[n.op_type] = (*self.ops.get(n.op_type, ()), *self.nodes[n.name])

    def __call__(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """Return the original nodes as "Op name"; for a node inlined from a fused op's body, the candidates.

        The name of an inlined node, or of its output, identifies the function that it comes from.
        """
        name = Node(node).name
        if name in self.nodes:
            return self.nodes[name]
        for op, replaced in self.ops.items():
            if op in name:
                return tuple(r for r in replaced if r.split()[0] == node.op_type) or replaced
        return (f"{node.op_type} {name}",)


def _control_flow(light: onnx.ModelProto, names: _Names) -> list[Blocker]:
    nodes = tuple(n for node in light.graph.node if any(True for _ in bodies(node)) for n in names(node))
    return [
        Blocker(
            "control flow", nodes, "ONNX Runtime captures no model in which a node has a graph inside",
            "Export with fixed branches and unrolled loops, or take that part out: onnx.utils.extract_model.",
        )
    ] * bool(nodes)  # fmt: skip


class _Placed:
    """The graph that a session made of a model, copies included, with the provider of each node."""

    def __init__(self, opened: Session, graph: onnx.GraphProto, light: onnx.ModelProto) -> None:
        self.session = opened
        self.opsets = {o.domain: o.version for o in light.opset_import}
        types = value_types(infer_shapes(light).graph)
        self.nodes = list(graph.node)
        self.types = {**types, **value_types(graph)}
        self.small = {t.name for t in graph.initializer if elements_of(t) <= host_values.SMALL}
        self.inputs = {i.name for i in graph.input}
        values = {
            (node.op_type, node.name): part.ep_name
            for part in opened.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        }
        self.providers = {
            i: values.get((n.op_type, n.name), CPU if n.name.startswith(INSERTED) else PROVIDER)
            for i, n in enumerate(self.nodes)
        }
        self.written = {n.name: n for n in light.graph.node}
        self.producer = {o: i for i, n in enumerate(self.nodes) for o in n.output if o}
        self.readers: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for value in dict.fromkeys(node.input):
                self.readers.setdefault(value, []).append(i)
        self.shapes = self._arithmetic_on_shapes()

    @classmethod
    def of(cls, light: onnx.ModelProto, rules: Sequence[str | Path]) -> "_Placed":
        with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = SILENT
            options.add_session_config_entry(RECORD, "1")
            options.optimized_model_filepath = f"{folder}/placed.onnx"
            opened = session(light, [PROVIDER, CPU], options, rules=rules, kernels=False)
            return cls(opened, onnx.load(f"{folder}/placed.onnx").graph, light)

    def no_kernel(self, names: _Names) -> list[Blocker]:
        """Return the CPU nodes that have no CUDA kernel and whose values are copied."""
        kinds: dict[tuple[str, str], list[str]] = {}
        for i in self._islands():
            node = self.nodes[i]
            if i not in self.shapes and not node.name.startswith(INSERTED):
                kinds.setdefault((node.op_type, self._type(node)), []).extend(names(node))
        version = onnxruntime.__version__
        return [
            Blocker(
                "no kernel", tuple(dict.fromkeys(nodes)),
                f"ONNX Runtime {version} has no CUDA kernel for {op} of opset {self.opsets.get('', 1)}"
                f"{of and f' in {of}'} with these attributes: it runs on the CPU, and its values are copied",
                f"Export it to an older opset or another element type, or as operators that have one; "
                f"onnxfuse explain --at '{nodes[0].split(maxsplit=1)[-1]}' tells why no rule took it.",
            )
            for (op, of), nodes in kinds.items()
        ]  # fmt: skip

    def copied_shapes(self, names: _Names) -> list[Blocker]:
        """Return shape arithmetic whose result a kernel reads as data, so that it is copied to the GPU."""
        found: dict[tuple[str, str], None] = {}
        of_inputs: dict[tuple[str, str], None] = {}
        pulled: dict[str, None] = {}
        for node in self.nodes:
            if node.op_type == "MemcpyFromHost":
                i, value = self.producer.get(node.input[0]), node.input[0]
                if i is not None and i in self.shapes:
                    (of_inputs if self._reads_an_input(i) else found).update(
                        ((name, reader), None) for name in names(self.nodes[i])
                        for r in self.readers.get(node.output[0], ()) for reader in names(self.nodes[r])[:1]
                    )  # fmt: skip
                elif value in self.inputs:
                    pulled |= dict.fromkeys(n for r in self.readers[value] if r in self.shapes and self._on_cpu(r)
                                            for n in names(self.nodes[r]))  # fmt: skip
        mend = "Fix the sizes that it is computed from: onnxfuse optimize --shape NAME=SIZE makes it a constant."
        fixed = "Make that input a constant if it never changes; a replay would not see it change."
        copied = [
            Blocker(
                "copied shape", tuple(dict.fromkeys(n for n, _ in pairs)),
                f"{kind}, on the CPU, is copied to the GPU, where it is data: "
                f"{', '.join(dict.fromkeys(r for _, r in pairs))}", why,
            )
            for pairs, kind, why in (
                (found, "a number computed from shapes", mend),
                (of_inputs, "a number computed from shapes and from an input of the model", fixed),
            ) if pairs
        ]  # fmt: skip
        blocker = Blocker(
            "copied shape", tuple(pulled), "it reads a number computed from shapes beside an input of the model, and "
            "nothing else: ONNX Runtime keeps it on the CPU for that, whatever the input's size, and copies the input",
            mend,
        )  # fmt: skip
        return copied + [blocker] * bool(pulled)

    def waits(self, names: _Names) -> list[Blocker]:
        """Return the CUDA nodes that synchronize with the GPU; ONNX Runtime rejects them only during capture."""
        nodes = [n for i, node in enumerate(self.nodes) if self.providers[i] == PROVIDER
                 and node.op_type in WAITS and not node.domain for n in names(node)]  # fmt: skip
        return [
            Blocker(
                "waits", tuple(nodes), "the size of its output depends on data: its kernel asks the GPU and waits, "
                "which no capture allows; ONNX Runtime opens the session, and the run that captures fails",
                "Take it out of the model (post-processing by itself), or export with a fixed number of results.",
            )
        ] * bool(nodes)  # fmt: skip

    def read_at_capture(self, weights: set[str]) -> list[Blocker]:
        """Return the inputs that are read on the host: a replay uses their values at the capture."""
        if any(n.op_type in COPIES for n in self.nodes):
            return []
        nodes = [name for name in host_inputs(self.session) if name not in weights and self.readers.get(name)]
        return [
            Blocker(
                "read at capture", tuple(nodes), "the input is read on the CPU, not by a kernel: each replay computes "
                "with its values as they were at the capture, whatever is bound later",
                "Make it a constant if it never changes, or capture anew for each value of it.",
            )
        ] * bool(nodes)  # fmt: skip

    def random(self, names: _Names) -> list[Blocker]:
        """Return the nodes that draw random numbers: the seed is a launch argument, so each replay draws the same."""
        nodes = [n for node in self.nodes if node.op_type in RANDOM and not node.domain for n in names(node)]
        return [
            Blocker("random", tuple(nodes), "each replay draws the same random numbers", "Give them as an input.")
        ] * bool(nodes)

    def _islands(self) -> list[int]:
        """Return the CPU nodes with a copy to or from them, and the CPU nodes connected to those."""
        island: set[int] = set()
        feeding = [i for i in self.providers if self._on_cpu(i) and self._beside_a_copy(i)]
        while feeding:
            i = feeding.pop()
            if i not in island:
                island.add(i)
                feeding += [j for j in self._around(i) if self._on_cpu(j) and i not in self.shapes]
        return sorted(island)

    def _on_cpu(self, i: int) -> bool:
        return self.providers[i] == CPU and self.nodes[i].op_type not in COPIES

    def _around(self, i: int) -> list[int]:
        node = self.nodes[i]
        before = [self.producer[v] for v in node.input if v in self.producer]
        return before + [r for v in node.output for r in self.readers.get(v, ())]

    def _beside_a_copy(self, i: int) -> bool:
        shared = [r for v in self.nodes[i].input if v in self.inputs for r in self.readers[v]]
        return any(self.nodes[j].op_type in COPIES for j in (*self._around(i), *shared))

    def _arithmetic_on_shapes(self) -> set[int]:
        def dtype(value: str) -> int:
            type_ = self.types.get(value)
            return type_.dtype if type_ is not None else 0

        on_host = host_values.computed_on_host(self.nodes, lambda v: v in self.small or v in self.inputs, dtype)
        return {i for i, n in enumerate(self.nodes) if not on_host.isdisjoint(n.output)}

    def _reads_an_input(self, i: int) -> bool:
        """Return whether elements of a model input, not only its shape, enter shape arithmetic."""
        visited, waiting = {i}, [i]
        while waiting:
            node = self.nodes[waiting.pop()]
            if node.domain == "" and node.op_type in host_values.SHAPE_READERS:
                continue
            if any(v in self.inputs for v in node.input):
                return True
            before = {self.producer[v] for v in node.input if v in self.producer} - visited
            visited |= before
            waiting += before
        return False

    def _type(self, node: onnx.NodeProto) -> str:
        node = self.written.get(node.name, node)  # the node before Casts were inserted around it
        value = next((self.types[v] for v in (*node.input, *node.output) if v in self.types), None)
        return "" if value is None else str(value).split("[")[0]


def host_inputs(opened: onnxruntime.InferenceSession) -> tuple[str, ...]:
    """Return the inputs of a session that are read on the CPU."""
    pairs = zip(opened.get_inputs(), opened.get_input_memory_infos(), strict=True)
    return tuple(i.name for i, where in pairs if where.name == "Cpu")
