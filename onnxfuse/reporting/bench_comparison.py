"""Compare two results of `onnxfuse bench --json`: what became slower or faster between them, beyond chance."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxfuse.support import json_fields
from onnxfuse.support.bounded_text import read_text
from onnxfuse.support.close_match import no_such_file
from onnxfuse.support.errors import UsageError
from onnxfuse.support.json_fields import JsonObject, as_integer
from onnxfuse.support.plurals import plural
from onnxfuse.support.screen import Blocks, Line, Rows, Screen, plain_table
from onnxfuse.support.units import Factor, digits

MODELS = ("original", "fused")
MOST = 2**63
VERDICTS = {"slower": "red", "faster": "green", "no difference": "dim", "undecided": "yellow"}


@dataclass(frozen=True)
class Median:
    """The best setting of a model at one set of shapes; microseconds per run."""

    setting: str
    p50: float
    low: float
    high: float
    """The interval of the median over the rounds."""


@dataclass(frozen=True)
class Compared:
    """One model at one set of shapes, in both results."""

    shapes: str
    model: str
    before: Median
    after: Median

    @property
    def interval(self) -> Factor:
        """How many times as fast it is after, with the range that the intervals of the medians leave."""
        return Factor.of(self.before, self.after)

    @property
    def factor(self) -> float:
        """How many times as fast it is after, by the medians."""
        return self.interval.medians

    @property
    def verdict(self) -> str:
        """`slower` or `faster` where the intervals are apart, else `no difference`, or `undecided` if it may be
        large."""
        if self.interval.decided:
            return "faster" if self.factor > 1 else "slower"
        return "no difference" if self.interval.same else "undecided"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return {**asdict(self), "factor": self.factor, "verdict": self.verdict}


@dataclass(frozen=True, repr=False)
class BenchComparison(Screen):
    """Two results at the shapes that both have."""

    names: tuple[str, str]
    rows: tuple[Compared, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    """Shapes that only the one result has, and only the other."""
    differs: tuple[str, ...]
    """Facts of the environment that differ, such as the device."""

    def slower(self, factor: float) -> list[Compared]:
        """Return the fused models that are slower beyond chance, by more than a factor."""
        return [r for r in self.rows if r.model == "fused" and r.verdict == "slower" and r.factor * factor < 1]

    def screen(self) -> Blocks:
        """Return a verdict, a row for each model and shape, and what makes the results hard to compare."""
        counts = {verdict: sum(r.verdict == verdict for r in self.rows if r.model == "fused") for verdict in VERDICTS}
        told = ", ".join(f"{verdict} at {plural(n, 'shape')}" for verdict, n in counts.items() if n)
        yield Line(f"[bold]fused, {self.names[0]} -> {self.names[1]}:[/] {told}", fold=True)
        table = plain_table("shapes", "model", "p50 us", "", "times as fast", "verdict", right=("times as fast",))
        for row in self.rows:
            settings = dict.fromkeys((row.before.setting, row.after.setting))
            table.add_row(
                row.shapes, row.model, f"{digits(row.before.p50)} -> {digits(row.after.p50)}", " -> ".join(settings),
                f"{row.factor:.2f}x" if row.interval.decided else row.interval.range,
                f"[{VERDICTS[row.verdict]}]{row.verdict}[/]",
            )  # fmt: skip
        yield Rows(table)
        for name, shapes in zip(self.names, self.only, strict=True):
            if shapes:
                yield Line(f"only in {name}: {', '.join(shapes)}", "dim", fold=True)
        if self.differs:
            yield Line(f"[yellow]not the same:[/] {'; '.join(self.differs)}", fold=True)

    def as_dict(self) -> dict[str, Any]:
        """Return every fact as plain data for JSON."""
        return {
            "before": self.names[0],
            "after": self.names[1],
            "rows": [row.as_dict() for row in self.rows],
            "only_before": list(self.only[0]),
            "only_after": list(self.only[1]),
            "differs": list(self.differs),
        }


def compare(before: Path, after: Path) -> BenchComparison:
    """Return the comparison of two files that `onnxfuse bench --json` wrote.

    Raises UsageError for another file, and if they have no shapes in common.
    """
    old, new = _read(before), _read(after)
    common = [shapes for shapes in old.blocks if shapes in new.blocks]
    if not common:
        raise UsageError(
            f"{before} and {after}: have no shapes in common",
            f"{before} has {', '.join(old.blocks)}; {after} has {', '.join(new.blocks)}.",
        )
    rows = tuple(
        Compared(shapes, model, old.blocks[shapes][model], new.blocks[shapes][model])
        for shapes in common
        for model in MODELS
    )
    only = tuple(tuple(s for s in one.blocks if s not in other.blocks) for one, other in ((old, new), (new, old)))
    facts = {**old.environment, **new.environment}
    differs = [
        f"{name} {old.environment.get(name, 'unknown')} -> {new.environment.get(name, 'unknown')}"
        for name in facts
        if old.environment.get(name) != new.environment.get(name)
    ]
    return BenchComparison((str(before), str(after)), rows, (only[0], only[1]), tuple(differs))


@dataclass(frozen=True)
class _Result:
    blocks: Mapping[str, Mapping[str, Median]]
    environment: Mapping[str, str]


def _read(path: Path) -> _Result:
    try:
        facts = json_fields.parse(read_text(path))
        if facts.text("command") != "bench":
            raise ValueError(f"is of onnxfuse {facts.text('command')}")
        blocks = [JsonObject(*one) for one in facts.list("blocks")]
        environment = facts.object("environment")
        return _Result(
            dict(_block(block) for block in blocks),
            {name: environment.text(name) for name in environment.all},
        )
    except FileNotFoundError:
        raise UsageError(no_such_file(path), "Write one: onnxfuse bench IN.onnx OUT.onnx --json > FILE") from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: is not a result of onnxfuse bench --json ({error})",
            "Write one: onnxfuse bench IN.onnx OUT.onnx --json > FILE",
        ) from None


def _block(block: JsonObject) -> tuple[str, dict[str, Median]]:
    """Return the shapes of a block by name, and the best setting of each model there."""
    dimensions, shapes = block.object("dimensions"), block.object("shapes")
    sizes = {name: dimensions.integer(name, 0, MOST) for name in dimensions.all}
    extents = {name: [as_integer(*one, 0, MOST) for one in shapes.list(name)] for name in shapes.all}
    whole = {name: "x".join(map(str, extent)) or "scalar" for name, extent in extents.items()}
    medians: dict[str, list[Median]] = {model: [] for model in MODELS}
    for one in block.list("rows"):
        row = JsonObject(*one)
        median = Median(row.text("setting"), row.number("p50"), row.number("low"), row.number("high"))
        if median.p50 <= 0:
            raise ValueError(f"{row.place}.p50 is {median.p50:g}, expected a time")
        medians.setdefault(row.text("model"), []).append(median)
    absent = next((model for model in MODELS if not medians[model]), None)
    if absent is not None:
        raise ValueError(f"{block.place} has no row of the model {absent}")
    name = " ".join(f"{k}={v}" for k, v in (sizes or whole).items()) or "no inputs"
    return name, {model: min(medians[model], key=lambda one: one.p50) for model in MODELS}
