"""`optimize --dump DIR`: the graph at each phase, and every fused op with its kernel, as files to look at."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx

from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.dump import H200, Dumped, dump, phases
from onnxfuse.model.errors import ModelError, UsageError
from onnxfuse.rewrite.pipeline import Progress


class Dumping:
    """Follows one run of the pipeline and writes what it sees into a folder."""

    def __init__(self, folder: Path, arch: str | None, shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        several = next((f"{name}={','.join(map(str, sizes))}" for name, sizes in shapes if len(sizes) != 1), None)
        if several is not None:
            raise UsageError(f"--shape {several}: a dump has one size for each dimension", "Say --shape batch=8.")
        if arch is not None and not re.fullmatch(r"sm_\d+[af]?", arch):
            raise UsageError(f"--arch {arch} is not of the form sm_90 or sm_90a")
        if folder.exists() and not folder.is_dir():
            raise ModelError(f"{folder}: is not a folder", "Give --dump the name of a folder.")
        if folder.is_dir() and any(folder.iterdir()):
            raise ModelError(f"{folder}: is not empty", "Give --dump a new folder, so that nothing stale is in it.")
        self.folder = folder
        self.arch = _arch_here() if arch is None else Arch(arch, H200.sm_count)
        self.sizes = {name: sizes[0] for name, sizes in shapes}
        self.found: tuple[Dumped, ...] = ()

    def following(self, model: onnx.ModelProto, progress: Progress) -> Progress:
        """Return a progress function that also writes the graph as it stands before each phase."""
        try:
            self.state = phases(self.folder / "phases", model)
        except OSError as error:
            raise ModelError(
                f"{self.folder}: cannot be written: {error.strerror}", "Give --dump a folder that can be written."
            ) from None

        def step(phase: str) -> None:
            progress(phase)
            self.state(phase)

        return step

    def write(self, model: onnx.ModelProto) -> None:
        """Write the result and every fused op."""
        self.state("result")
        self.found = dump(model, self.folder, self.arch, self.sizes)

    def facts(self) -> dict[str, Any]:
        """Return what was written, for JSON."""
        ops = [asdict(d) for d in self.found]
        return {"folder": str(self.folder), "arch": self.arch.name, "ops": ops}


def _arch_here() -> Arch:
    """Return the GPU's own architecture where CUDA can be used, an H200's elsewhere."""
    from onnxfuse.runtime.cuda import cuda_unusable

    if cuda_unusable() is not None:
        return H200
    from onnxfuse.kernels import arch_of

    return arch_of(0)
