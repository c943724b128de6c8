"""Content of the page for one or two models: the page itself, and slower data computed on request."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from onnx import ModelProto, NodeProto

from onnxfuse import reporting
from onnxfuse.api.request.options import Options
from onnxfuse.cuda import SUPPORTED
from onnxfuse.cuda.planning.arch import H200
from onnxfuse.explanation.explaining import Explained, explain
from onnxfuse.files import io
from onnxfuse.files.model_source import Source
from onnxfuse.graph import concrete_shapes
from onnxfuse.measure.profile.estimated_costs import Costs, costs
from onnxfuse.model.fused import DOMAIN, fused_ops
from onnxfuse.model.nested import nodes_of
from onnxfuse.rules.match import near_misses
from onnxfuse.shapes.inference import infer
from onnxfuse.support.errors import ModelError, OnnxfuseError, UsageError
from onnxfuse.support.plurals import plural
from onnxfuse.support.progress import Steps, silent
from onnxfuse.viewing.kernel_text import Shapes, kernel_text
from onnxfuse.viewing.times import Times

Question = Mapping[str, str]
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class ViewRequest:
    """What to show, and how."""

    source: Source
    fused: Source | None
    options: Options
    times: Times | None
    sizes: Mapping[str, Sequence[int]]
    call: str
    environment: Mapping[str, str]


PATIENCE = 3.0
"""Seconds that the page waits for the optimized model; until a slower one is ready, the original is shown."""


LARGE = 1000
"""Node count beyond which the original is shown at once, because optimizing takes longer than that."""


class ViewPage:
    """A page, and the data that it requests; while the model is being optimized, the page of the original."""

    policy = f"{reporting.policy()}; frame-ancestors 'none'"

    def __init__(self, request: ViewRequest, progress: Steps) -> None:
        self.asked = request
        self.step = "load"
        self.failed: BaseException | None = None
        """The exception that ended the work behind the page."""
        self._explained: Explained | None = None
        self._drawn: dict[str, dict[str, Any]] = {}
        self._counted: dict[str, Costs | str] = {}
        """By side, the data that does not change when the other side becomes available."""
        self._known: dict[object, Facts] = {}
        self._lock = threading.Lock()
        self._tell: Steps = progress
        first = _light(request.source)
        if request.fused is not None:
            self._draw({"before": first, "after": _light(request.fused)})
        elif fused_ops(first):
            self._draw({"after": first})
        else:
            self._begin(first)
        self._tell = silent

    def _begin(self, first: ModelProto) -> None:
        """Optimize in a thread; if that takes long, a preliminary page is shown. Raises what ends it early."""
        thread = threading.Thread(target=self._make, args=(first,), name="onnxfuse view: optimize", daemon=True)
        large = len(first.graph.node) > LARGE
        if large:  # in parallel both would take as long as in sequence
            self._draw({"before": first}, pending=True)
        thread.start()
        thread.join(0 if large else PATIENCE)
        if self.failed is not None:
            raise self.failed
        if thread.is_alive() and not large:
            self._draw({"before": first}, pending=True)

    @property
    def answers(self) -> dict[str, Callable[[Question], Facts]]:
        """Request handlers by keyword."""
        return {"kernel": self.kernel, "why": self.why, "state": self.state}

    def state(self, _: Question) -> Facts:
        """Return the current step; none if everything is ready."""
        failed = "" if self.failed is None else " ".join(filter(None, (f"{self.failed}", _hint(self.failed))))
        return {"step": self.step, "failed": failed}

    def kernel(self, question: Question) -> Facts:
        """Return the source of the kernels of the fused node that produces `value`, for the GPU `arch`."""
        value, name = question.get("value", ""), question.get("arch", "")
        arch = next((a for a in SUPPORTED if a.name == name), None)
        op = self.ops.get(question.get("op", ""))
        if arch is None or op is None or value not in self.shapes:
            raise UsageError("there is no such fused node, or no such GPU")
        shapes = self.shapes[value]
        return self._once((op.name, shapes, name), partial(kernel_text, op, shapes, arch))

    def why(self, question: Question) -> Facts:
        """Return why the plain node called `node` is unchanged, in one line; the first call takes as long as
        optimizing."""
        node = question.get("node", "")
        return self._once(("why", node), lambda: {"why": self._explanation().cause(node)})

    def _once(self, key: object, make: Callable[[], Facts]) -> Facts:
        with self._lock:
            if key not in self._known:
                self._known[key] = make()
            return self._known[key]

    def _explanation(self) -> Explained:
        if self._explained is None:
            self._explained = explain(self.asked.source, self.asked.options)
        return self._explained

    def _make(self, first: ModelProto) -> None:
        """Optimize the model, and replace the page by that of both models."""

        def follow(step: str) -> None:
            self.step = step
            self._tell(step)

        try:
            explained = explain(self.asked.source, self.asked.options, progress=follow)
            assert explained.optimized is not None
            self._explained = explained
            follow("draw")
            self._draw({"before": first, "after": explained.optimized})
        except BaseException as error:  # raised again by `wait`
            self.failed = error

    def _draw(self, sides: Mapping[str, ModelProto], *, pending: bool = False) -> None:
        """Draw the page; `pending` if another one will replace it."""
        from onnxfuse.runtime.engine.cuda_provider import (
            arch_here,  # ONNX Runtime is imported only when something is run.
        )

        request, explained, times = self.asked, None if pending else self._explained, self.asked.times
        sizes = request.sizes or ({} if times is None else times.shapes)
        if times is not None and not pending:
            times.check(sides)
        counted = {side: self._counted.get(side) or _costs(m, sizes) for side, m in sides.items()}
        self._counted = counted
        counted_costs = next((c for c in counted.values() if not isinstance(c, str)), None)
        name = "model" if isinstance(request.source, ModelProto) else Path(request.source).name
        summary = f"{name}: {_counted(sides)}{', being optimized' if pending else ''}"
        facts = {
            "name": name,
            "summary": summary,
            "served": {"archs": [a.name for a in SUPPORTED], "arch": (arch_here() or H200).name, "pending": pending},
            "sizes": {} if counted_costs is None else dict(counted_costs.sizes),
            "notes": [
                *dict.fromkeys(c for c in counted.values() if isinstance(c, str)),
                *([] if explained is None else explained.report.notes),
            ],
            "near": []
            if explained is None
            else near_misses.facts(near_misses.ranked(explained.report), explained.report),
            "rules": None if explained is None else dict(explained.report.by_rule()),
        }
        for side, m in sides.items():
            if side not in self._drawn:
                self._drawn[side] = _graph(m, counted[side], times, side)
        graphs = {side: self._drawn[side] for side in sides}
        last = sides.get("after")
        by_name = {} if last is None else fused_ops(last)
        shapes = {} if last is None else _shapes(last, counted_costs)
        page = reporting.page("view", facts, {"": graphs}, request.call, request.environment)
        with self._lock:
            if pending and not self.step:
                return  # ready by now
            self.page, self.summary, self.ops, self.shapes = page, summary, by_name, shapes
            self.step = self.step if pending else ""


def _hint(error: BaseException) -> str:
    return error.hint if isinstance(error, OnnxfuseError) else ""


def drawn(
    model: ModelProto, side: str, sizes: Mapping[str, Sequence[int]] | None = None, times: Times | None = None
) -> dict[str, Any]:
    """Return the graph of a model for a page, with the estimated cost of each node, and the measured `times` of this
    side."""
    return _graph(model, _costs(model, sizes or {}), times, side)


def _light(source: Source) -> ModelProto:
    return source if isinstance(source, ModelProto) else io.outline(source)


def _costs(model: ModelProto, sizes: Mapping[str, Sequence[int]]) -> Costs | str:
    """Return the estimated costs of its nodes, or why there are none."""
    try:
        return costs(model, sizes)
    except ModelError as error:
        return f"bytes cannot be estimated: {error}"


def _graph(model: ModelProto, counted: Costs | str, times: Times | None, side: str) -> dict[str, Any]:
    facts = {} if isinstance(counted, str) else {fact["name"]: fact for fact in counted.facts()}
    timed = {} if times is None else times.named(side, model)
    each = [{"name": name, **facts.get(name, {}), **timed.get(name, {})} for name in {**facts, **timed}]
    return reporting.graph_of(model, each)


def _counted(sides: Mapping[str, ModelProto]) -> str:
    first, *other_counts = (sum(1 for _ in nodes_of(m.graph)) for m in sides.values())
    count_text = " -> ".join([plural(first, "node"), *map(str, other_counts)])
    fused = sum(n.domain == DOMAIN for n in sides["after"].graph.node) if "after" in sides else None
    return count_text if fused is None else f"{count_text}, including {plural(fused, 'fused op')}"


def _shapes(model: ModelProto, estimated: Costs | None) -> dict[str, Shapes | None]:
    """Return the shapes that each fused node of the main graph sees."""
    nodes: list[NodeProto] = [n for n in model.graph.node if n.domain == DOMAIN]
    if estimated is None:
        return {n.output[0]: None for n in nodes}
    light, _ = concrete_shapes.with_sizes(model, estimated.sizes)
    types = concrete_shapes.every_type(infer(light).graph)
    return {n.output[0]: concrete_shapes.input_shapes(n, types) for n in nodes}
