"""Choose by measurement: time every way to do each fused op's work, keep the times in a file, and let them decide.

`tune` measures on the GPU; `reuse` decides by a file, on any machine. Both leave the model as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnx import ModelProto

from onnxfuse.cuda.planning import measurements
from onnxfuse.cuda.planning.measurements import Book, MeasuredVariants
from onnxfuse.fusion.region.choices import Choices
from onnxfuse.graph.concrete_shapes import with_sizes
from onnxfuse.passes.pipeline import Progress
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.runtime.kernels.variants import usable
from onnxfuse.support.errors import UsageError
from onnxfuse.tuning.candidates import candidates, measured
from onnxfuse.tuning.decide import Decided, Decisions, Sizes, decide
from onnxfuse.tuning.stopwatch import Stopwatch, on_gpu
from onnxfuse.tuning.work import TuningTask


@dataclass(frozen=True)
class Tuned:
    """What is known of one model, and what follows from it."""

    rules: tuple[Rule, ...]
    sizes: Sizes
    decisions: Decisions
    book: Book
    """All that holds here, with what was measured now."""
    note: str = ""
    """In one line, what of a file is not used and why."""

    def choices(self, model: ModelProto, rules: Sequence[Rule]) -> Choices:
        """Return what the pipeline needs to optimize `model` by `rules`: all, or some left out."""
        if tuple(rules) == self.rules:
            return self.decisions.choices
        return decide(model, rules, measurements.pooled(self.book), self.sizes).choices

    def attach(self, model: ModelProto) -> None:
        """Let the optimized model carry what decided about it: its sessions find the variants there, `explain` all."""
        measurements.attach(
            model, measurements.about(self.book, {m.key for d in self.decisions.decided for m in d.measured})
        )


def tune(
    model: ModelProto,
    rules: Sequence[Rule],
    book: Book,
    sizes: Sizes = ({},),
    stopwatch: Stopwatch | None = None,
    progress: Progress = lambda _: None,
    keep: Callable[[Book], None] = lambda _: None,
) -> Tuned:
    """Measure what `book` does not tell of this machine yet, at each of the sets of sizes, and decide.

    `stopwatch` is by default that of the first GPU; `keep` gets all times of this machine after each measurement.
    Raises DeviceError without a GPU, UsageError where the size of a dynamic dimension is not said.
    """
    _check(model, sizes)
    watch = on_gpu() if stopwatch is None else stopwatch
    known = dict(book.get(watch.machine, {}))

    def measure(work: TuningTask) -> MeasuredVariants:
        found = measured(work, watch.time(work, candidates(work, rules, watch.machine, watch.arch)))
        known[found.key] = found
        keep({watch.machine: known})
        return found

    decisions = decide(model, rules, measurements.pooled({watch.machine: dict(known)}), sizes, measure, progress)
    return Tuned(tuple(rules), sizes, decisions, {watch.machine: known})


def reuse(
    model: ModelProto,
    rules: Sequence[Rule],
    book: Book,
    sizes: Sizes = (),
    progress: Progress = lambda _: None,
) -> Tuned:
    """Decide by what `book` tells of this machine, without a GPU by what it tells of all; measure nothing.

    Without `sizes`, a model of dynamic shapes is decided by all shapes that were measured.
    """
    if sizes:
        _check(model, sizes)
    here, note = usable(book)
    decisions = decide(model, rules, measurements.pooled(here), sizes, None, progress)
    return Tuned(tuple(rules), sizes, decisions, here, note)


def _check(model: ModelProto, sizes: Sizes) -> None:
    """Raise UsageError unless each of the sets gives each dynamic dimension a size, and nothing else."""
    _, dynamic = with_sizes(model, {})
    for one in sizes:
        unknown, missing = [n for n in one if n not in dynamic], [n for n in dynamic if n not in one]
        if unknown:
            there = f"There are: {', '.join(dynamic)}." if dynamic else "All its shapes are fixed."
            raise UsageError(f"the model has no dynamic dimension called '{unknown[0]}'", there)
        if missing:
            raise UsageError(
                f"dimensions are dynamic ({', '.join(missing)}), and times hold for one size each",
                f"Say which: {' '.join(f'--shape {name}=8' for name in missing)}",
            )


__all__ = ["Decided", "Decisions", "Sizes", "Stopwatch", "Tuned", "decide", "on_gpu", "reuse", "tune"]
