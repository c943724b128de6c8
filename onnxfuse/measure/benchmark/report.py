"""The result of a benchmark: for each set of shapes the times of each model at each setting, and the speed-up."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from onnxfuse.measure.benchmark.screen import screen
from onnxfuse.measure.timing.settings import ModelName, RefusedRun
from onnxfuse.measure.timing.stopwatch import Timing
from onnxfuse.options.functions import BENCHED
from onnxfuse.runtime.sessions.memory import MemoryUse
from onnxfuse.support.plurals import plural
from onnxfuse.support.screen import Blocks, Screen
from onnxfuse.support.units import Factor, digits

if TYPE_CHECKING:
    from onnxfuse.measure.benchmark.ceilings import Ceilings


MODELS: tuple[ModelName, ModelName] = ("original", "fused")


@dataclass(frozen=True)
class TimingRow:
    """One model at one setting."""

    model: ModelName
    setting: str
    timing: Timing
    memory: int | None
    """Increase of the card's memory in use while the session was opened and warmed up; None on the CPU, and if another
    process freed more of it meanwhile."""
    launches: int | None = None
    """Kernels per run, ours and ONNX Runtime's; None if they are not traced."""


@dataclass(frozen=True)
class WorkPerRun:
    """Work of one run of a model, counted from the graph."""

    bytes: int
    """Device-memory traffic: each node's inputs and outputs once."""
    flops: int
    floor: float
    """Lower bound in microseconds at the device's peak rates."""


@dataclass(frozen=True)
class ReportBlock:
    """All results for one set of shapes."""

    dimensions: Mapping[str, int]
    """The dynamic dimensions by name."""
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of each input."""
    items: int
    """The first extent of the first input that has one, which is the batch: the unit of throughput."""
    rows: tuple[TimingRow, ...]
    refused: tuple[RefusedRun, ...]
    work: Mapping[ModelName, WorkPerRun] = field(default_factory=dict)
    runs: int = 1
    rounds: int = 1
    """Timed runs per round, and rounds, that were made here."""
    memory: MemoryUse | None = None
    """What the fused model's session used of the GPU's memory after warming up; None where none of its ops runs as a
    kernel."""

    @property
    def name(self) -> str:
        """The dynamic dimensions, or the shapes if there are none."""
        shapes = {n: "x".join(map(str, s)) or "scalar" for n, s in self.shapes.items()}
        return " ".join(f"{k}={v}" for k, v in (self.dimensions or shapes).items()) or "no inputs"

    @property
    def factor(self) -> Factor:
        """How many times as long as the fused model the original takes, both at their best."""
        return self.best("original").timing.over(self.best("fused").timing)

    @property
    def speedup(self) -> float:
        """The original's best median over the fused model's."""
        return self.factor.medians

    @property
    def differs(self) -> bool:
        """Whether the two best medians differ by more than chance."""
        return self.factor.decided

    @property
    def verdict(self) -> str:
        """The speed-up in words, and its baseline."""
        return f"{self.factor} {'to' if self.factor.same else 'over'} {self.best('original').setting}"

    @property
    def measured(self) -> str:
        """The speed-up with both times, and what it may be if it is within the spread."""
        times = " -> ".join(digits(self.best(model).timing.p50) for model in MODELS)
        spread = "" if self.differs else f", {self.factor}"
        best = self.best("original").setting
        return f"{self.speedup:.4g}x over {best} at {self.name} (p50 {times} us){spread}"

    def best(self, model: ModelName) -> TimingRow:
        """Return the model's row with the smallest median."""
        return min((r for r in self.rows if r.model == model), key=lambda r: r.timing.p50)

    def roofline(self, row: TimingRow) -> float | None:
        """Return the share of the roofline that a row reaches; above 1 if data stays in a cache between nodes."""
        traffic = self.work.get(row.model)
        return traffic.floor / row.timing.p50 if traffic is not None else None

    def throughput(self, row: TimingRow) -> float:
        """Return items per second."""
        return self.items / row.timing.p50 * 1e6

    def as_dict(self) -> dict[str, Any]:
        """Return the block's facts as plain data for JSON; times are microseconds."""
        rows = [
            {"model": r.model, "setting": r.setting, **asdict(r.timing), "items_per_second": self.throughput(r),
             "memory_bytes": r.memory, "launches": r.launches, "roofline": self.roofline(r)}
            for r in self.rows
        ]  # fmt: skip
        return {
            "dimensions": dict(self.dimensions),
            "shapes": {n: list(s) for n, s in self.shapes.items()},
            "items": self.items,
            "speedup": self.speedup,
            "differs": self.differs,
            "faster": str(self.factor),
            "verdict": self.verdict,
            "measured": self.measured,
            "best_setting": self.best("original").setting,
            "fused_setting": self.best("fused").setting,
            "rows": rows,
            "refused": [asdict(r) for r in self.refused],
            "runs": self.runs,
            "rounds": self.rounds,
            "work": {
                model: {"bytes": w.bytes, "flops": w.flops, "floor_us": w.floor} for model, w in self.work.items()
            },
            "memory": None if self.memory is None else self.memory.as_dict(),
        }


@dataclass(frozen=True)
class FusedOps:
    """How the fused ops of the fused model ran."""

    nodes: int
    """Number of nodes that are fused ops."""
    kernels: int
    """Number of those that run as kernels."""
    bodies: int
    """Number of those that run as their bodies; the others run as ONNX Runtime's own ops."""
    launches: int | None
    """Kernel launches of fused ops per run, counted; None on the CPU."""
    reasons: tuple[str, ...]
    """Why those run as their bodies."""


@dataclass(frozen=True, repr=False)
class BenchmarkReport(Screen):
    """The result of `bench`."""

    provider: str
    """The execution provider of both models."""
    blocks: tuple[ReportBlock, ...]
    assumed: tuple[str, ...]
    """Dynamic dimensions without a given size, which were 1."""
    nodes: Mapping[ModelName, Mapping[str, int]]
    """Nodes that one run executes by provider, after ONNX Runtime's own optimization at its default setting."""
    fused_ops: FusedOps
    environment: Mapping[str, str]
    runs: int
    """Timed runs per round, at most."""
    rounds: int
    """Rounds, at most."""
    seconds: float
    ceilings: "Ceilings | None" = None
    """Measured peak rates of the device."""
    peak: float | None = None
    """FLOPs per second of the element type of most of the original's products; None without products."""
    limit: float = BENCHED
    """Time limit in seconds for the timed runs."""
    uncounted: str = ""
    """Why launches were not counted on CUDA."""

    @property
    def speedup(self) -> float:
        """The smallest speed-up over all shapes."""
        return min(b.speedup for b in self.blocks)

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        if len(self.blocks) == 1:
            factor, best = self.blocks[0].factor, f"ONNX Runtime's best ({self.blocks[0].best('original').setting})"
            if factor.same:
                return f"no difference to {best}: {factor.range}"
            if not factor.decided:
                return f"undecided: {factor.range} over {best}; the rounds vary by more than the models differ"
            return f"{factor} over {best}" if self.speedup >= 1 else f"slower, {factor} of {best}"
        same = [b for b in self.blocks if b.factor.same]
        undecided = [b for b in self.blocks if not b.differs and b not in same]
        if len(same) == len(self.blocks):
            return f"no difference to ONNX Runtime's best settings at any of {plural(same, 'shape')}"
        speedups = [b.speedup for b in self.blocks if b.differs]
        parts = []
        if speedups:
            range_ = f"{min(speedups):.2f}x" + (f" to {max(speedups):.2f}x" if len(speedups) > 1 else "")
            parts.append(f"{range_} over ONNX Runtime's best settings, {plural(self.blocks, 'shape')}")
        if same:
            parts.append(f"no difference at {', '.join(b.name for b in same)}")
        if undecided:
            parts.append(f"undecided at {', '.join(f'{b.name} ({b.factor.range})' for b in undecided)}")
        return "; ".join(parts)

    @property
    def portable(self) -> str:
        """What was timed where no kernel can run; empty on CUDA, and without fused ops."""
        if self.provider.startswith("CUDA") or not self.fused_ops.nodes:
            return ""
        return "no kernel runs on the CPU, so this times the portable form, the bodies of the fused ops"

    def screen(self, not_met: Sequence[str] = (), *, memory: bool = False) -> Blocks:
        """Return the times of each setting, in microseconds per run, and how they were measured; `not_met`:
        requirements that were missed. `memory`: what the fused model uses of the GPU's memory as well."""
        return screen(self, not_met, memory=memory)

    def missed(self, required: float) -> tuple[ReportBlock, ...]:
        """Return the shapes whose speed-up is below `required`."""
        return tuple(b for b in self.blocks if b.speedup < required)

    def as_dict(self) -> dict[str, Any]:
        """Return every fact for JSON."""
        return {
            "summary": self.summary,
            "speedup": self.speedup,
            "provider": self.provider,
            "blocks": [b.as_dict() for b in self.blocks],
            "assumed": list(self.assumed),
            "nodes": {model: dict(counts) for model, counts in self.nodes.items()},
            "fused_ops": asdict(self.fused_ops),
            "environment": dict(self.environment),
            "runs": self.runs,
            "rounds": self.rounds,
            "limit": self.limit,
            "seconds": self.seconds,
            "ceilings": None
            if self.ceilings is None
            else {
                "bytes_per_second": self.ceilings.bytes_per_second,
                "flops_per_second": self.peak,
                "by_type": dict(self.ceilings.flops_per_second),
            },
            "uncounted": self.uncounted,
            "portable": self.portable,
        }
