"""Report what prevents a CUDA graph of the optimized model, by the original names of its nodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfuse.api.optimize import optimizing
from onnxfuse.api.request.options import Options
from onnxfuse.files.model_source import Model
from onnxfuse.support.errors import CrashError, DeviceError, ModelError
from onnxfuse.support.isolation import Crash, isolated
from onnxfuse.support.progress import Progress, silent

if TYPE_CHECKING:
    from onnxfuse.runtime.sessions.capture import Capture


def explain_graph(
    model: Model,
    *,
    options: Options | None = None,
    rules: Sequence[str | Path] = (),
    progress: Progress = silent,
) -> "Capture":
    """Return what prevents a CUDA graph of the optimized `model`, which is not changed.

    ONNX Runtime's CUDA provider itself decides: it opens the model, and runs nothing. `rules`: folders of your own
    rules, or `options` with all that `optimize` accepts. Raises DeviceError if CUDA cannot be used, ModelError if ONNX
    Runtime does not open the model on it, CrashError if that ends the process.
    """
    from onnxfuse.runtime.engine.cuda_provider import cuda_unusable
    from onnxfuse.runtime.sessions.capture import capture  # ONNX Runtime is imported only when something is run.
    from onnxfuse.runtime.sessions.opening import ORT_ERRORS, reason

    chosen = options or Options(rules=tuple(Path(r) for r in rules))
    unusable = isolated(lambda _: cuda_unusable())
    if unusable is not None:
        raise DeviceError(
            f"finding what blocks a CUDA graph takes ONNX Runtime's CUDA provider, which cannot be used here: "
            f"{unusable}",
            "Use a machine with a GPU, and pip install 'onnxfuse[cuda]' there; onnxfuse doctor says what is missing.",
        )
    optimized = optimizing.optimize(model, chosen, lambda step: progress(step, 0, 0)).model
    progress("place on CUDA", 0, 0)
    try:
        outcome = isolated(lambda _: capture(optimized, chosen.rules))
    except ORT_ERRORS as error:
        raise ModelError(
            f"ONNX Runtime cannot open the optimized model on CUDA: {reason(error)}",
            "Check that the original runs there: onnxfuse verify.",
        ) from error
    if isinstance(outcome, Crash):
        raise CrashError(f"ONNX Runtime {outcome.how} when it opens the model on CUDA", "onnxfuse verify names the op.")
    return outcome
