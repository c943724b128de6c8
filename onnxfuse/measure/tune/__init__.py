"""Tuning: time every implementation of each fused op, store the times in a file, and select by them.

`tune` measures on the GPU; `reuse` selects from a file, on any machine. Neither changes the model.
"""

from collections.abc import Callable, Sequence

from onnx import ModelProto

from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.dispatch.measurements import Book, MeasuredVariants
from onnxfuse.graph.concrete_shapes import with_sizes
from onnxfuse.measure.tune.candidate_times import Stopwatch, on_gpu
from onnxfuse.measure.tune.candidates import candidates, measured
from onnxfuse.measure.tune.decide import Decided, Decisions, Sizes, decide
from onnxfuse.measure.tune.report import Tuned
from onnxfuse.measure.tune.work import TuningTask
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.runtime.kernels.variants import usable
from onnxfuse.support.errors import UsageError
from onnxfuse.support.progress import Steps, silent


def tune(
    model: ModelProto,
    rules: Sequence[Rule],
    book: Book,
    sizes: Sizes = ({},),
    stopwatch: Stopwatch | None = None,
    progress: Steps = silent,
    keep: Callable[[Book], None] = lambda _: None,
) -> Tuned:
    """Measure what `book` lacks for this machine, at each of the sets of sizes, and decide.

    `stopwatch` defaults to that of the first GPU; `keep` receives all times of this machine after each measurement.
    Raises DeviceError without a GPU, UsageError if a dynamic dimension has no size.
    """
    _check(model, sizes)
    watch = on_gpu() if stopwatch is None else stopwatch
    earlier = dict(book.get(watch.machine, {}))

    def measure(task: TuningTask) -> MeasuredVariants:
        result = measured(task, watch.time(task, candidates(task, rules, watch.machine, watch.arch)))
        earlier[result.key] = result
        keep({watch.machine: earlier})
        return result

    decisions = decide(model, rules, measurements.pooled({watch.machine: dict(earlier)}), sizes, measure, progress)
    return Tuned(tuple(rules), sizes, decisions, {watch.machine: earlier})


def reuse(
    model: ModelProto,
    rules: Sequence[Rule],
    book: Book,
    sizes: Sizes = (),
    progress: Steps = silent,
) -> Tuned:
    """Decide by the measurements in `book` for this machine (without a GPU, for all machines); measure nothing.

    Without `sizes`, a model of dynamic shapes is decided by all measured shapes.
    """
    if sizes:
        _check(model, sizes)
    usable_here, note = usable(book)
    decisions = decide(model, rules, measurements.pooled(usable_here), sizes, None, progress)
    return Tuned(tuple(rules), sizes, decisions, usable_here, note)


def _check(model: ModelProto, sizes: Sizes) -> None:
    """Raise UsageError unless each set gives a size to each dynamic dimension, and to nothing else."""
    _, dynamic = with_sizes(model, {})
    for one in sizes:
        unknown, lacking = [n for n in one if n not in dynamic], [n for n in dynamic if n not in one]
        if unknown:
            available = f"There are: {', '.join(dynamic)}." if dynamic else "All its shapes are fixed."
            raise UsageError(f"the model has no dynamic dimension called '{unknown[0]}'", available)
        if lacking:
            raise UsageError(
                f"dimensions are dynamic ({', '.join(lacking)}), and a time holds for one size of each",
                f"Choose them: {' '.join(f'--shape {name}=8' for name in lacking)}",
            )


__all__ = ["Decided", "Decisions", "Sizes", "Stopwatch", "Tuned", "decide", "on_gpu", "reuse", "tune"]
