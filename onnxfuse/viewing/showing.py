"""What is shown of one or two models: the page, made at once, and what takes longer, made when it is asked for."""

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import NodeProto, TensorProto

from onnxfuse import reporting
from onnxfuse.api import misses
from onnxfuse.api.costs import Costs, costs
from onnxfuse.api.dumping import arch_here
from onnxfuse.api.explaining import Explained, explain
from onnxfuse.api.options import Options, Progress
from onnxfuse.api.source import Model, Source, plain
from onnxfuse.kernels import SUPPORTED
from onnxfuse.model import concrete_shapes, external, io
from onnxfuse.model.errors import ModelError, UsageError
from onnxfuse.model.fused import DOMAIN, FusedOp, fused_ops
from onnxfuse.model.types import infer
from onnxfuse.viewing.kernel_text import Shapes, kernel_text
from onnxfuse.viewing.times import Times, read_times

Question = Mapping[str, str]
Facts = Mapping[str, Any]


@dataclass
class Showing:
    """A page, and the answers to what it asks."""

    page: str
    policy: str
    summary: str
    explaining: Callable[[], Explained]
    """What tells why nodes are as they are: takes as long as to optimize, once."""
    ops: Mapping[str, FusedOp]
    shapes: Mapping[str, Shapes | None]
    """Of the inputs of each fused node, by its first output; None where one is not known."""
    _known: dict[object, Facts] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def answers(self) -> dict[str, Callable[[Question], Facts]]:
        """What makes facts of a question, by its first word."""
        return {"kernel": self.kernel, "why": self.why}

    def kernel(self, asked: Question) -> Facts:
        """Return the source of the kernels of the fused node that makes `value`, for the GPU `arch`."""
        value, name = asked.get("value", ""), asked.get("arch", "")
        arch = next((a for a in SUPPORTED if a.name == name), None)
        op = self.ops.get(asked.get("op", ""))
        if arch is None or op is None or value not in self.shapes:
            raise UsageError("there is no such fused node, or no such GPU")
        shapes = self.shapes[value]
        return self._once((op.name, shapes, name), partial(kernel_text, op, shapes, arch))

    def why(self, asked: Question) -> Facts:
        """Return why the plain node called `node` is as it is, in one line."""
        node = asked.get("node", "")
        found = self._once(None, lambda: {"explained": self.explaining()})["explained"]
        return self._once(("why", node), lambda: {"why": found.cause(node)})

    def _once(self, key: object, make: Callable[[], Facts]) -> Facts:
        with self._lock:
            if key not in self._known:
                self._known[key] = make()
            return self._known[key]


def show(
    model: Model,
    fused: "Model | None",
    options: Options,
    profile: Path | None,
    sizes: Mapping[str, Sequence[int]],
    call: str,
    environment: Mapping[str, str],
    progress: Progress,
) -> Showing:
    """Return what is served of `model` and `fused`, of what optimizing makes of it without one.

    A model that has fused ops is shown alone. `profile`: a file of `onnxfuse profile --json`, whose times colour the
    nodes, and whose sizes count where `sizes` says nothing.
    """
    times = None if profile is None else read_times(profile)
    source = plain(model)
    progress("load")
    before = _light(source)
    sides, found = {"before": before}, None
    if fused is not None:
        sides["after"] = _light(plain(fused))
    elif fused_ops(before):
        sides = {"after": before}
    else:
        found = explain(source, options, progress=progress)
        assert found.made is not None
        sides["after"] = io.without_weights(found.made, _told)
        found = dataclasses.replace(found, made=None)  # its weights may be gigabytes
    progress("draw")
    if times is not None:
        times.check({side: {n.name or next(iter(n.output), "") for n in m.graph.node} for side, m in sides.items()})
        sizes = sizes or times.shapes
    counted = {side: _costs(m, sizes) for side, m in sides.items()}
    notes = [c for c in counted.values() if isinstance(c, str)]
    graphs = {side: _graph(m, counted[side], times, side) for side, m in sides.items()}
    name = "model" if isinstance(source, onnx.ModelProto) else Path(source).name
    summary = f"{name}: {_counted(sides)}"
    last = sides.get("after", before)
    known = next((c for c in counted.values() if not isinstance(c, str)), None)
    facts = {
        "name": name,
        "summary": summary,
        "archs": [a.name for a in SUPPORTED],
        "arch": arch_here().name,
        "sizes": {} if known is None else dict(known.sizes),
        "notes": [*notes, *([] if found is None else found.report.notes)],
        "near": [] if found is None else misses.facts(misses.ranked(found.report), found.report),
        "rules": None if found is None else dict(found.report.by_rule()),
    }
    html = reporting.page("view", facts, {"": graphs}, call, environment)
    return Showing(
        html,
        f"{reporting.policy()}; frame-ancestors 'none'",
        summary,
        (lambda: explain(source, options)) if found is None else (lambda: found),
        fused_ops(last),
        _shapes(last, known),
    )


def _light(source: Source) -> onnx.ModelProto:
    return source if isinstance(source, onnx.ModelProto) else io.outline(source)


def _told(weight: TensorProto) -> TensorProto:
    """Return a weight that is not small without its numbers, as one of a file that is not read."""
    if io.tensor_bytes(weight) <= external.SMALL:
        return weight
    told = TensorProto(name=weight.name, data_type=weight.data_type, dims=weight.dims)
    told.data_location = TensorProto.EXTERNAL
    return told


def _costs(model: onnx.ModelProto, sizes: Mapping[str, Sequence[int]]) -> Costs | str:
    """Return what its nodes cost, or why that cannot be told."""
    try:
        return costs(model, sizes)
    except ModelError as error:
        return f"bytes cannot be estimated: {error}"


def _graph(model: onnx.ModelProto, counted: Costs | str, times: Times | None, side: str) -> dict[str, Any]:
    facts = {} if isinstance(counted, str) else {fact["name"]: fact for fact in counted.facts()}
    timed = {} if times is None else times.sides.get(side, {})
    each = [{"name": name, **facts.get(name, {}), **timed.get(name, {})} for name in {**facts, **timed}]
    return reporting.graph_of(model, each)


def _counted(sides: Mapping[str, onnx.ModelProto]) -> str:
    counts = [str(sum(n.op_type != "Constant" for n in m.graph.node)) for m in sides.values()]
    fused = sum(n.domain == DOMAIN for n in sides["after"].graph.node) if "after" in sides else 0
    return f"{' nodes -> '.join(counts)}{' nodes' if len(counts) == 1 else ''}, {fused} of them fused"


def _shapes(model: onnx.ModelProto, known: Costs | None) -> dict[str, Shapes | None]:
    """Return the shapes that each fused node of the main graph sees."""
    nodes: list[NodeProto] = [n for n in model.graph.node if n.domain == DOMAIN]
    if known is None:
        return {n.output[0]: None for n in nodes}
    light, _ = concrete_shapes.with_sizes(model, known.sizes)
    types = concrete_shapes.every_type(infer(light).graph)
    return {n.output[0]: concrete_shapes.input_shapes(n, types) for n in nodes}
