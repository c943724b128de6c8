"""What a benchmark found: for each set of shapes the times of each model at each setting, and the speed-up."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from onnxfuse.profiling.settings import ModelName

if TYPE_CHECKING:
    from onnxfuse.benchmark.ceilings import Ceilings


@dataclass(frozen=True)
class Timing:
    """Microseconds per run."""

    p50: float
    p90: float
    p99: float
    min: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timing":
        """Return the percentiles, interpolated between the two nearest runs."""
        return cls(*(float(p) * 1e6 for p in np.percentile(seconds, (50, 90, 99, 0))))


@dataclass(frozen=True)
class Row:
    """One model at one setting."""

    model: ModelName
    setting: str
    timing: Timing
    memory: int | None
    """Bytes by which the use of the card's memory grew while the session was opened and warmed up; None on the CPU, and
    where another process freed more of it meanwhile."""
    launches: int | None = None
    """Kernels of one run, whoever's; None where they are not seen."""


@dataclass(frozen=True)
class Refused:
    """A setting at which a model was not timed."""

    model: ModelName
    setting: str
    reason: str
    kind: Literal["refused", "crashed", "hangs"] = "refused"
    """ONNX Runtime does not take it; it ended the process or broke the GPU; it gave no answer in time."""


@dataclass(frozen=True)
class Work:
    """What one run of a model has to do, counted from the graph."""

    bytes: int
    """Of device memory: each node's inputs and outputs once."""
    flops: int
    floor: float
    """Microseconds that its nodes take at the least, at what the device can do."""


@dataclass(frozen=True)
class Block:
    """All that ran on one set of shapes."""

    dimensions: Mapping[str, int]
    """The dynamic dimensions by name."""
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of each input."""
    items: int
    """The first extent of the first input that has one, which is the batch: what throughput counts."""
    rows: tuple[Row, ...]
    refused: tuple[Refused, ...]
    work: Mapping[ModelName, Work] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The dynamic dimensions, or the shapes where there are none."""
        shapes = {n: "x".join(map(str, s)) or "scalar" for n, s in self.shapes.items()}
        return " ".join(f"{k}={v}" for k, v in (self.dimensions or shapes).items()) or "no inputs"

    @property
    def speedup(self) -> float:
        """The original's best median over the fused model's."""
        return self.best("original").timing.p50 / self.best("fused").timing.p50

    def best(self, model: ModelName) -> Row:
        """Return the model's row with the smallest median."""
        return min((r for r in self.rows if r.model == model), key=lambda r: r.timing.p50)

    def roofline(self, row: Row) -> float | None:
        """Return the share of the roofline that a row reaches; above 1 where data stays in a cache between nodes."""
        work = self.work.get(row.model)
        return work.floor / row.timing.p50 if work is not None else None

    def throughput(self, row: Row) -> float:
        """Return items per second."""
        return self.items / row.timing.p50 * 1e6

    def as_dict(self) -> dict[str, Any]:
        """Return the block's facts for JSON; times are microseconds."""
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
            "best_setting": self.best("original").setting,
            "fused_setting": self.best("fused").setting,
            "rows": rows,
            "refused": [asdict(r) for r in self.refused],
            "work": {
                model: {"bytes": w.bytes, "flops": w.flops, "floor_us": w.floor} for model, w in self.work.items()
            },
        }


@dataclass(frozen=True)
class FusedOps:
    """How the fused model's own ops ran."""

    nodes: int
    """Nodes that are fused ops."""
    kernels: int
    """Those of them that run as kernels."""
    bodies: int
    """Those that run as their bodies; what is left runs as ops of ONNX Runtime's own."""
    launches: int | None
    """Launches of our kernels in one run, counted; None on the CPU."""
    reasons: tuple[str, ...]
    """Why those run as their bodies."""


@dataclass(frozen=True)
class Report:
    """The result of `bench`."""

    provider: str
    """The execution provider that both models ran on."""
    blocks: tuple[Block, ...]
    assumed: tuple[str, ...]
    """Dynamic dimensions that nothing was said about, and that were 1."""
    nodes: Mapping[ModelName, Mapping[str, int]]
    """Nodes that one run executes by provider, after ONNX Runtime's own optimization at its default setting."""
    fused_ops: FusedOps
    environment: Mapping[str, str]
    runs: int
    """Timed runs per round."""
    rounds: int
    seconds: float
    ceilings: "Ceilings | None" = None
    """What the device can do."""
    peak: float | None = None
    """FLOPs per second of the element type that most of the original's products are in; None without products."""
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
            verdict = f"{self.speedup:.2f}x over" if self.speedup >= 1 else f"slower, {self.speedup:.2f}x of"
            return f"{verdict} ONNX Runtime's best ({self.blocks[0].best('original').setting})"
        most = max(b.speedup for b in self.blocks)
        return f"{self.speedup:.2f}x to {most:.2f}x over ONNX Runtime's best settings, {len(self.blocks)} shapes"

    def missed(self, least: float) -> tuple[Block, ...]:
        """Return the shapes whose speed-up is below `least`."""
        return tuple(b for b in self.blocks if b.speedup < least)

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
            "seconds": self.seconds,
            "ceilings": None
            if self.ceilings is None
            else {
                "bytes_per_second": self.ceilings.bytes_per_second,
                "flops_per_second": self.peak,
                "by_type": dict(self.ceilings.flops_per_second),
            },
            "uncounted": self.uncounted,
        }
