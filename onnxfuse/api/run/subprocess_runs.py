"""Verify, time and profile from any program: in a process of its own, which may crash.

The caller may hold a GPU, sessions and threads, so nothing can be forked of it, and what breaks the GPU there is broken
for all that it does afterwards. A new process starts in a second, and there everything happens as in a command.
"""

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import onnx

from onnxfuse.api.request.model_source import Model, Source, path_or_proto
from onnxfuse.api.request.progress import progress_callback
from onnxfuse.api.run import cuda_graph_blockers, running
from onnxfuse.files import external, io
from onnxfuse.model import custom_ops
from onnxfuse.support import isolation
from onnxfuse.support.errors import CrashError
from onnxfuse.support.isolation import Crash, Progress

if TYPE_CHECKING:
    from onnxfuse.benchmark import BenchmarkReport as BenchReport
    from onnxfuse.profiling import Profile

T = TypeVar("T")

verify = running.verify
explain_graph = cuda_graph_blockers.explain_graph


def bench(*models: Any, **options: Any) -> "BenchReport":
    """Return the report of `running.bench` alone."""
    return running.bench(*models, **options).report


def profile(*models: Any, **options: Any) -> "Profile":
    """Return the report of `running.profile` alone."""
    return running.profile(*models, **options).report


def shown(work: Callable[..., T], name: str, given: Mapping[str, Any]) -> T:
    """Return what `call` does of the arguments of a public function, with its libraries, and a bar where one is due."""
    options = dict(given)
    models = [options.pop(key) for key in ("model", "original", "fused") if key in options]
    with custom_ops.using(options.pop("custom_ops")), progress_callback(options.pop("progress"), name) as show:
        return call(work, *models, progress=show, **options)


def call(
    work: Callable[..., T],
    *models: "Model | None",
    isolate: bool,
    progress: Progress | None = None,
    **options: Any,
) -> T:
    """Return `work(*models, **options)`, one of the functions here; `isolate`: from a process of its own.

    Raises what it raises; CrashError where that process itself ends, UsageError for what cannot be sent to it.
    """
    if not isolate:
        return work(*models, progress=progress or running.quiet, **options)
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
        given = [
            None if m is None else _sent(path_or_proto(m), Path(folder) / f"{n}.onnx") for n, m in enumerate(models)
        ]
        found: T | Crash = isolation.apart(
            _as_here,
            external.follows_links(),
            custom_ops.libraries(),
            work,
            *given,
            progress=progress or running.quiet,
            **options,
        )
    if isinstance(found, Crash):
        step = f", at the step '{found.step}'" * bool(found.step)
        raise CrashError(
            f"the process that was started for this {found.how}{step}",
            "What it printed says more. isolate=False does the work in the caller's own process.",
        )
    return found


def _sent(model: Source, file: Path) -> Source:
    """Return the model as another process can have it: in `file` where it is too big to be sent."""
    if not isinstance(model, onnx.ModelProto) or io.size(model) <= io.PROTOBUF_LIMIT:
        return model
    io.save(model, file)
    return file


def _as_here(
    links: bool, libraries: Sequence[Path], work: Callable[..., T], *models: Source | None, **options: Any
) -> T:
    """Do the work there as here: with or without data files that are links, and with the user's own operators."""
    with external.following_links() if links else contextlib.nullcontext(), custom_ops.using(libraries):
        return work(*models, **options)
