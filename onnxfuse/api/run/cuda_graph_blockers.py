"""What blocks a CUDA graph of a model as `optimize` makes it, by the names that its nodes had before."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfuse.api.optimize import optimizing
from onnxfuse.api.request.model_source import Model
from onnxfuse.api.request.options import Options
from onnxfuse.api.run.running import quiet
from onnxfuse.support.errors import CrashError, DeviceError, ModelError
from onnxfuse.support.isolation import Crash, Progress, isolated

if TYPE_CHECKING:
    from onnxfuse.runtime.sessions.capture import Capture


def explain_graph(
    model: Model,
    *,
    options: Options | None = None,
    rules: Sequence[str | Path] = (),
    progress: Progress = quiet,
) -> "Capture":
    """Return what stands in the way of a CUDA graph of what `optimize` makes of `model`; the model is left as it is.

    ONNX Runtime's CUDA provider itself is asked: it opens the model, and runs nothing. `rules`: folders of your own
    rules, or `options` with all that `optimize` takes. Raises DeviceError where CUDA cannot be used, ModelError where
    ONNX Runtime does not open the model on it, CrashError where that ends the process.
    """
    from onnxfuse.runtime.engine.cuda_provider import cuda_unusable
    from onnxfuse.runtime.sessions.capture import capture  # ONNX Runtime is imported where something is to be run.
    from onnxfuse.runtime.sessions.opening import ORT_ERRORS, reason

    asked = options or Options(rules=tuple(Path(r) for r in rules))
    missing = isolated(lambda _: cuda_unusable())
    if missing is not None:
        raise DeviceError(
            f"what blocks a CUDA graph is asked of ONNX Runtime's CUDA provider, which cannot be used here: {missing}",
            "Ask on a machine with a GPU and pip install 'onnxfuse[cuda]'; onnxfuse doctor says what is missing.",
        )
    made = optimizing.optimize(model, asked, lambda step: progress(step, 0, 0)).model
    progress("place on CUDA", 0, 0)
    try:
        found = isolated(lambda _: capture(made, asked.rules))
    except ORT_ERRORS as error:
        raise ModelError(
            f"ONNX Runtime does not open the optimized model on CUDA: {reason(error)}",
            "Check that the original runs there: onnxfuse verify.",
        ) from error
    if isinstance(found, Crash):
        raise CrashError(f"ONNX Runtime {found.how} when it opens the model on CUDA", "onnxfuse verify names the op.")
    return found
