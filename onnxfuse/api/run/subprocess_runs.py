"""Verify, time and profile from any program in a separate process, which may crash.

The caller may hold a GPU, sessions and threads, so it cannot be forked, and a GPU error there would persist for all
that it does afterwards. A new process starts within a second, and runs everything as a command does.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import onnx

from onnxfuse.api.request.progress import progress_callback
from onnxfuse.api.request.settings import settings
from onnxfuse.api.run import cuda_graph_blockers, running
from onnxfuse.files import external, io
from onnxfuse.files.model_source import Model, Source, path_or_proto
from onnxfuse.model import custom_ops
from onnxfuse.support import isolation
from onnxfuse.support.errors import CrashError
from onnxfuse.support.isolation import Crash
from onnxfuse.support.progress import Progress, silent

if TYPE_CHECKING:
    from onnxfuse.measure.benchmark import BenchmarkReport as BenchReport
    from onnxfuse.measure.profile import Profile

T = TypeVar("T")

verify = running.verify
explain_graph = cuda_graph_blockers.explain_graph


def bench(*models: Any, **options: Any) -> "BenchReport":
    """Return the report of `running.bench` alone."""
    return running.bench(*models, **options).report


def profile(*models: Any, **options: Any) -> "Profile":
    """Return the report of `running.profile` alone."""
    return running.profile(*models, **options).report


def call_with_progress(
    task: Callable[..., T], name: str, models: Sequence["Model | None"], given: Mapping[str, Any]
) -> T:
    """Return what `task` returns for the models and options of a public function, with its operator libraries, and a
    progress bar if requested."""
    options = dict(given)
    with settings(custom_ops=options.pop("custom_ops")), progress_callback(options.pop("progress"), name) as show:
        return call(task, *models, progress=show, **options)


def call(
    task: Callable[..., T],
    *models: "Model | None",
    isolate: bool,
    progress: Progress | None = None,
    **options: Any,
) -> T:
    """Return `task(*models, **options)` for a function of this package; `isolate`: in a separate process.

    Raises its exceptions; CrashError if the process itself ends, UsageError for arguments that cannot be sent to it.
    """
    if not isolate:
        return task(*models, progress=progress or silent, **options)
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
        sent = [
            None if m is None else _sendable(path_or_proto(m), Path(folder) / f"{n}.onnx") for n, m in enumerate(models)
        ]
        outcome: T | Crash = isolation.in_new_process(
            _with_callers_settings,
            external.follows_links(),
            custom_ops.libraries(),
            task,
            *sent,
            progress=progress or silent,
            **options,
        )
    if isinstance(outcome, Crash):
        step = f", at the step '{outcome.step}'" * bool(outcome.step)
        raise CrashError(
            f"the process that was started for this {outcome.how}{step}",
            "Its output has the details. isolate=False works in the current process instead.",
        )
    return outcome


def _sendable(model: Source, file: Path) -> Source:
    """Return the model in a form for another process: through `file` if it is too big to be sent."""
    if not isinstance(model, onnx.ModelProto) or io.size(model) <= io.PROTOBUF_LIMIT:
        return model
    io.save(model, file)
    return file


def _with_callers_settings(
    links: bool, libraries: Sequence[Path], task: Callable[..., T], *models: Source | None, **options: Any
) -> T:
    """Work in the child under the caller's settings: symbolic links to data files allowed or not, and operator
    libraries."""
    with settings(follow_links=links, custom_ops=libraries):
        return task(*models, **options)
