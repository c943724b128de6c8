"""Measured times of a model: read from a tuning file or from the model, measured on request, and reported."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from onnxfuse.api.request.options import Options, TuningOptions
from onnxfuse.api.request.origin import Origin
from onnxfuse.cuda.dispatch import measurements as times
from onnxfuse.files.atomic_write import writable
from onnxfuse.files.model_source import Model, path_or_proto
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.support.progress import Steps, silent

if TYPE_CHECKING:
    from onnxfuse.measure.tune import Tuned


def tune(model: Model, tuning: TuningOptions, options: Options | None = None, progress: Steps = silent) -> "Tuned":
    """Return the measurements of the model and the decisions that follow; the model is not changed."""
    chosen = options or Options()
    check(tuning)
    return find(Origin(path_or_proto(model), chosen.strict_fp32).fresh(), tuning, chosen.chosen(), progress)


def check(options: TuningOptions) -> None:
    """Raise ModelError if the times are to be stored in a file that cannot be written."""
    if options.measure:
        writable(options.file)


def find(model: onnx.ModelProto, options: TuningOptions, rules: Sequence[Rule], progress: Steps = silent) -> "Tuned":
    """Return the measurements of `model`; if it is to be measured they are complete, and the file has them.

    The file is written after each measurement, so that an interrupted run can be resumed.
    """
    from onnxfuse.measure import tune as tuning  # ONNX Runtime is imported only when needed.

    sizes = tuple(dict(one) for one in options.sizes)
    if not options.measure:
        return tuning.reuse(model, rules, times.read(options.file), sizes, progress)
    book = times.read(options.file) if options.file.exists() else {}

    def keep(measured: times.Book) -> None:
        times.write(options.file, {**book, **measured})

    tuned = tuning.tune(model, rules, book, sizes or ({},), None, progress, keep)
    keep(tuned.book)
    return tuned


def carried(model: onnx.ModelProto, rules: Sequence[Rule], progress: Steps = silent) -> "Tuned | None":
    """Return the measurements that the model itself carries; None if there are none."""
    book = times.of_model(model)
    if not book:
        return None
    from onnxfuse.measure import tune as tuning

    return tuning.reuse(model, rules, book, (), progress)


def facts(tuned: "Tuned", file: Path | None) -> dict[str, Any]:
    """Return the decisions and the tuning file as plain data for JSON."""
    return {"file": None if file is None else str(file), **tuned.as_dict()}
