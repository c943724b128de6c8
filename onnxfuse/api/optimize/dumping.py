"""Dump the graph at each phase and after each pass, and every fused op with its kernel, as files."""

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from onnxfuse.api.request.options import Dump
from onnxfuse.cuda.dispatch.dump import Dumped, dump, phases
from onnxfuse.cuda.planning.arch import H200, Arch, named
from onnxfuse.files.atomic_write import as_model_error, at_failure
from onnxfuse.graph.graph import Graph
from onnxfuse.graph.graph_pass import Named, observing
from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.support.progress import Steps


@dataclass(frozen=True)
class Dumping:
    """Follows one run of the pipeline and writes dumps into a folder."""

    request: Dump
    arch: Arch

    def following(self, model: onnx.ModelProto, progress: Steps) -> Steps:
        """Return a progress function that also writes the current graph before each phase.

        Call it with "result" at the end, and `write` after that.
        """
        with as_model_error(self.request.folder):
            state = phases(self.request.folder / "phases", model)

        def step(phase: str) -> None:
            if phase != "result":
                progress(phase)
            with as_model_error(self.request.folder):
                state(phase)

        return step

    @contextlib.contextmanager
    def passes(self) -> Iterator[None]:
        """Write the graph after each pass that changes it, and each rewrite rule that is applied, as text without
        weights: passes/NUMBER-NAME.txt."""
        folder, counter = self.request.folder / "passes", itertools.count()

        def write(one: Named, graph: Graph) -> None:
            with as_model_error(self.request.folder):
                path = folder / f"{next(counter):03d}-{one.name}.txt"
                path.write_text(onnx.printer.to_text(graph.without_weights()) + "\n", encoding="utf-8")

        with as_model_error(self.request.folder):
            folder.mkdir(parents=True, exist_ok=True)
        with observing(write):
            yield

    def write(self, model: onnx.ModelProto) -> "WrittenDump":
        """Write every fused op of `model`, and return what was written."""
        with as_model_error(self.request.folder):
            return WrittenDump(self, dump(model, self.request.folder, self.arch, self.request.sizes))


@dataclass(frozen=True)
class WrittenDump:
    """A folder that was written."""

    dumping: Dumping
    ops: tuple[Dumped, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return what was written, as plain data for JSON."""
        return {
            "folder": str(self.dumping.request.folder),
            "arch": self.dumping.arch.name,
            "ops": [asdict(d) for d in self.ops],
        }


def dumping(request: Dump) -> Dumping:
    """Prepare to fill the folder. Raises ModelError for one that is not empty, UsageError for an unknown GPU."""
    from onnxfuse.runtime.engine.cuda_provider import arch_here  # ONNX Runtime is imported only when something is run.

    arch = (arch_here() or H200) if request.arch is None else named(request.arch)
    if arch is None:
        raise UsageError(f"--arch {request.arch} is not of the form sm_90 or sm_90a")
    folder = request.folder
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder}: is not a folder", "Name a folder that is new or empty.")
    if folder.is_dir() and any(folder.iterdir()):
        raise ModelError(f"{folder}: is not empty", "Give --dump a new folder, so that nothing stale is in it.")
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    at_failure(partial(_remove, folder, existing))
    return Dumping(request, arch)


def _remove(folder: Path, existing: Path) -> None:
    """Remove what was written into `folder`, and the folders that were created for it in `existing`."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for parent in (folder, *folder.parents):
        if parent == existing or not parent.is_dir():
            return
        parent.rmdir()
