"""Time a fused model against its original at ONNX Runtime's best settings.

>>> report = bench("in.onnx", "out.onnx", shapes={"batch": (1, 32)})
>>> report.summary
"1.58x to 1.69x over ONNX Runtime's best settings, 2 shapes"
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from onnxfuse.measure.benchmark.leaving_out import Earlier
from onnxfuse.measure.benchmark.report import BenchmarkReport, FusedOps, ReportBlock, TimingRow
from onnxfuse.measure.timing.settings import RefusedRun
from onnxfuse.measure.timing.stopwatch import Timing
from onnxfuse.options.functions import BENCHED, PATIENCE, ROUNDS, RUNS
from onnxfuse.support.progress import Progress, silent

__all__ = ["BenchmarkReport", "FusedOps", "RefusedRun", "ReportBlock", "Timing", "TimingRow", "bench"]

Source = str | Path | bytes | onnx.ModelProto


def bench(
    original: Source,
    fused: Source,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    providers: Sequence[str] | None = None,
    use_tf32: bool | None = None,
    runs: int = RUNS,
    rounds: int = ROUNDS,
    seconds: float = BENCHED,
    seed: int = 0,
    rules: Sequence[str | Path] = (),
    patience: float = PATIENCE,
    progress: Progress | None = None,
    earlier: Earlier | None = None,
) -> BenchmarkReport:
    """Return the times of `fused`, and of `original` at each of ONNX Runtime's settings that affects speed.

    Both may be a path, bytes or a ModelProto. `shapes` maps a dimension name to the sizes it takes in turn, `{"batch":
    (1, 32)}`, or an input to its shape; other dynamic dimensions are 1. `providers` are ONNX Runtime's, by default CUDA
    if it works. `use_tf32` is ONNX Runtime's CUDA option, for both models: by default 0 if the fused file was made with
    `--strict-fp32`, else 1. All sessions run on the same seeded inputs, which are bound to the device, in `rounds`
    interleaved rounds of `runs` timed runs each, or fewer of them if all would take more than about `seconds`. `rules`
    are the folders of your own rules that made the fused model, as for `onnxfuse.session`. `patience` is the time limit
    in seconds for opening and warming up a non-default setting of the original, if this runs in a child
    (`leaving_out.raced`, whose `earlier` lists the settings to skip).
    `progress(step, done, total)` is called along the way, never while anything is timed.

    Raises ModelError, UsageError, DeviceError, KernelError.
    """
    from onnxfuse.measure.benchmark.compare import compare  # ONNX Runtime is imported only when something is run.

    return compare(
        original, fused, shapes or {}, providers, use_tf32, runs, rounds, seconds, seed, progress or silent, rules,
        patience, earlier,
    )  # fmt: skip
