"""Where the time and the bytes go: traffic counted from shapes, time per node, and every kernel on the GPU.

>>> report = profile("in.onnx", "out.onnx", shapes={"batch": (32,)})
>>> report.summary
'device memory per run: 616 MB -> 329 MB (53%); 11.2 GFLOP'
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx

from onnxfuse.profiling.report import KernelTime, KindTime, ModelProfile, Profile, RunTime

__all__ = ["KernelTime", "KindTime", "ModelProfile", "Profile", "RunTime", "profile"]

Source = str | Path | bytes | onnx.ModelProto

RUNS = 10
"""Runs that are profiled."""


def profile(
    model: Source,
    fused: Source | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    providers: Sequence[str] | None = None,
    time: bool = True,
    cuda_graph: bool = False,
    use_tf32: bool | None = None,
    runs: int = RUNS,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Return where the bytes, the operations and the time of one run of `model` go; beside it those of `fused`.

    Each may be a path, bytes or a ModelProto. `shapes` gives a dimension name its size, `{"batch": (32,)}`, or an input
    its shape; a dynamic dimension that nothing is said about is 1. `time=False` counts from shapes alone, and runs
    nothing. `providers` are ONNX Runtime's, by default CUDA where it works. On CUDA each kernel is seen through CUPTI,
    in sessions at the default setting, or from a CUDA graph; without CUPTI the bytes are counted, and the report says
    why nothing is timed, unless `providers` asks for CUDA. `use_tf32` is ONNX Runtime's CUDA option: by default 0 for
    what was made with `--strict-fp32`, else 1. `progress(step)` is called along the way.

    Raises ModelError, UsageError, DeviceError, KernelError.
    """
    from onnxfuse.profiling.measure import measure  # ONNX Runtime is imported when something is to be run.

    return measure(
        model, fused, shapes or {}, providers, time=time, cuda_graph=cuda_graph, use_tf32=use_tf32,
        runs=runs, seed=seed, progress=progress or _silent,
    )  # fmt: skip


def _silent(step: str) -> None:
    """Show no progress."""
