"""The result of profiling: for each model its traffic, its nodes, its kernels and the idle time between them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from onnxfuse.measure.profile.screen import screen
from onnxfuse.measure.profile.traffic import ModelTraffic, Removed, TrafficRow, pairs, removed, rows
from onnxfuse.measure.profile.work import CONTROL
from onnxfuse.support.screen import LIMIT, Blocks, Screen
from onnxfuse.support.units import flops_text, size_text

if TYPE_CHECKING:
    from onnxfuse.measure.profile.kernels import TracedKernel
    from onnxfuse.measure.profile.nodes import NodeTime, Ran


@dataclass(frozen=True)
class KindTime:
    """All nodes of one kind."""

    kind: str
    """The operator; for a fused op its rule and its operators."""
    count: int
    """Nodes per run."""
    us: float
    """Microseconds per run: on the device if kernels are traced, else of the node."""
    bytes: int
    """Inputs and outputs, each once; 0 if unknown."""

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second; None if bytes or time are unknown."""
        return self.bytes / self.us * 1e6 if self.bytes and self.us else None


@dataclass(frozen=True)
class KernelTime:
    """All launches of one kernel."""

    name: str
    copy: bool
    """Whether it is a copy or a fill by the driver."""
    count: int
    """Launches per run."""
    us: float
    """Microseconds per run."""
    share: float
    """Share of the time of all kernels."""
    gap_us: float
    """Idle microseconds of the device before its launches, per run."""
    bytes: int | None
    """Bytes of the nodes that launch only this kernel; None if a node launches several kernels, or is unknown."""
    kinds: tuple[str, ...]
    """Kinds of the nodes that launch it."""
    nodes: tuple[str, ...]

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second."""
        return None if self.bytes is None or not self.us else self.bytes / self.us * 1e6


@dataclass(frozen=True)
class RunTime:
    """One run on the device, medians over all runs, in microseconds."""

    span: float
    """From the start of the first kernel to the end of the last one."""
    busy: float
    """Time in which at least one kernel runs."""
    launches: int
    """Number of kernels; copies and fills by the driver are not counted."""
    unknown: int
    """Kernels, copies and fills without a known node."""

    @property
    def idle(self) -> float:
        """Idle time between kernels."""
        return max(self.span - self.busy, 0.0)


@dataclass(frozen=True)
class ModelProfile:
    """One model."""

    work: ModelTraffic
    nodes: tuple["NodeTime", ...] = ()
    """As ONNX Runtime ran them; empty if nothing was run."""
    kinds: tuple[KindTime, ...] = ()
    """By descending time."""
    each: tuple[KindTime, ...] = ()
    """The same for each single node, by its name, with its kind."""
    kernels: tuple[KernelTime, ...] | None = None
    """By descending time; None if kernels are not traced."""
    run: RunTime | None = None
    """The run on the device."""
    example: tuple[Sequence["Ran"], Sequence["TracedKernel"]] = ((), ())
    """One run, for a trace: nodes on the host and kernels; no nodes in a CUDA graph."""
    note: str = ""
    """Remarks on the times."""

    @property
    def us(self) -> float | None:
        """Microseconds per run, of all kernels or else all nodes; None if nothing was run."""
        return sum(k.us for k in self.kinds) if self.kinds else None

    def as_dict(self) -> dict[str, Any]:
        """Return every fact for JSON."""
        return {
            "work": self.work.as_dict(),
            "us": self.us,
            "nodes": [asdict(n) for n in self.nodes],
            "kinds": [{**asdict(k), "bytes_per_second": k.bandwidth} for k in self.kinds],
            "kernels": None
            if self.kernels is None
            else [{**asdict(k), "bytes_per_second": k.bandwidth} for k in self.kernels],
            "run": None if self.run is None else {**asdict(self.run), "idle": self.run.idle},
            "note": self.note,
        }


INPUTS_TOLD = 3
"""Number of input shapes in the verdict of a model without dynamic dimensions; the JSON has all."""


@dataclass(frozen=True, repr=False)
class Profile(Screen):
    """The result of `profile`."""

    provider: str
    """Execution provider of the models; empty if nothing was run."""
    setting: str
    """Setting of ONNX Runtime for the times on the device."""
    dimensions: Mapping[str, int]
    """The dynamic dimensions by name."""
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of each input."""
    assumed: tuple[str, ...]
    """Dynamic dimensions without a given size, which were 1."""
    before: ModelProfile
    after: ModelProfile | None
    """The fused model; None if there is only one model."""
    environment: Mapping[str, str]
    runs: int
    seconds: float
    untimed: str = ""
    """Why nothing was timed although it was requested: kernels cannot be traced."""

    @property
    def sides(self) -> dict[str, ModelProfile]:
        """Return the models by name."""
        return {"before": self.before} if self.after is None else {"before": self.before, "after": self.after}

    @property
    def rows(self) -> tuple[TrafficRow, ...]:
        """Traffic by kind of node, before and after; for a single model both are equal."""
        return rows(pairs(self.before.work, (self.after or self.before).work))

    @property
    def node_rows(self) -> tuple[TrafficRow, ...]:
        """The same for each single node, under its name."""
        return rows(pairs(self.before.work, (self.after or self.before).work), one_by_one=True)

    @property
    def removed(self) -> Removed:
        """The intermediate values eliminated by fusion."""
        return removed(self.before.work, (self.after or self.before).work)

    def screen(self, top: int = LIMIT, *, nodes: bool = False) -> Blocks:
        """Return traffic and times: up to `top` rows for each table, one for each kind of node, or for each of
        `nodes`."""
        return screen(self, top, nodes=nodes)

    @property
    def at(self) -> str:
        """The dimension sizes of the figures."""
        shapes = {n: "x".join(map(str, s)) or "scalar" for n, s in self.shapes.items()}
        sizes = dict(self.dimensions) if self.dimensions or len(shapes) > INPUTS_TOLD else shapes
        return " ".join(f"{k}={v}" for k, v in sizes.items())

    @property
    def portable(self) -> str:
        """What was timed where no kernel can run, and how it compares; empty on CUDA, and for a single model."""
        if not self.provider or self.provider.startswith("CUDA") or self.after is None:
            return ""
        before, after = self.before.us or 0.0, self.after.us or 0.0
        ratio_text = f": its nodes take {after / before:.2f}x the time of the original's" if before else ""
        return (
            f"no kernel runs on the CPU; after is the portable form, the bodies of the fused ops{ratio_text} "
            "(onnxfuse bench: whole runs, with their spread)"
        )

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        before = self.before.work
        left_out = ", ".join(dict.fromkeys(n.op for n in before.nodes if n.op in CONTROL))
        at = f" at {self.at}" if self.at else ""
        title = f"device memory per run{at} without {left_out}" if left_out else f"device memory per run{at}"
        if self.after is None:
            return f"{title}: {size_text(before.bytes)}; {flops_text(before.flops)}"
        after = self.after.work
        share = f" ({after.bytes / before.bytes:.0%})" if before.bytes else ""
        flops = flops_text(before.flops)
        changed = "" if flops_text(after.flops) == flops else f" -> {flops_text(after.flops)}"
        return f"{title}: {size_text(before.bytes)} -> {size_text(after.bytes)}{share}; {flops}{changed}"

    def as_dict(self) -> dict[str, Any]:
        """Return every fact for JSON; times are microseconds."""
        return {
            "summary": self.summary,
            "provider": self.provider,
            "setting": self.setting,
            "dimensions": dict(self.dimensions),
            "shapes": {n: list(s) for n, s in self.shapes.items()},
            "assumed": list(self.assumed),
            "before": self.before.as_dict(),
            "after": None if self.after is None else self.after.as_dict(),
            "rows": [asdict(r) for r in self.rows],
            "removed": asdict(self.removed),
            "environment": dict(self.environment),
            "runs": self.runs,
            "seconds": self.seconds,
            "untimed": self.untimed,
            "portable": self.portable,
        }
