"""Functions of `import onnxfuse` that run models: their options are `onnxfuse.options.functions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from onnxfuse._public import opened_model, public
from onnxfuse.options import functions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import onnx
    import onnxruntime

    from onnxfuse.api.run.ci import CiResult
    from onnxfuse.files.model_source import Model
    from onnxfuse.measure.benchmark import BenchmarkReport as BenchReport
    from onnxfuse.measure.profile import Profile
    from onnxfuse.options.functions import Provider
    from onnxfuse.runtime import Placement, Session
    from onnxfuse.runtime.sessions.capture import Capture
    from onnxfuse.runtime.sessions.runner import Runner
    from onnxfuse.verification import VerifyReport
    from onnxfuse.viewing import View


@public(functions.OpenSession, model=opened_model)
def session(
    model: onnx.ModelProto | bytes | str | Path,
    providers: Sequence[Provider] | None = None,
    session_options: onnxruntime.SessionOptions | None = None,
    **given: Unpack[functions.OpenSession],
) -> Session:
    """Return an `onnxruntime.InferenceSession` in which the fused ops of `model` run as kernels on CUDA.

    Its attribute `fused` says for each op whether it runs as a kernel or through its body, and why; `memory()` is what
    it uses of the GPU's. `providers` and `session_options` are ONNX Runtime's own; without `providers`, CUDA is taken
    where it works and the CPU elsewhere. Raises DeviceError where CUDA is asked for and does not work, UsageError.
    """
    from onnxfuse.runtime import session as open_session

    options: dict[str, Any] = {**given}
    for name in ("provider_options", "disabled_optimizers"):  # ONNX Runtime takes no None
        if options[name] is None:
            del options[name]
    return open_session(model, providers, session_options, **options)


@public(functions.Runner, model=opened_model)
def runner(model: onnx.ModelProto | bytes | str | Path, **given: Unpack[functions.Runner]) -> Runner:
    """Return the model as a function of arrays that captures CUDA graphs by itself: `runner(model)({"x": x})["y"]`.

    Arrays are NumPy's, CuPy's, torch's, or speak DLPack; outputs are of the kind of the first input. Shapes that come
    again get a CUDA graph. What cannot be captured runs plainly, and `.why_not` says why; `.bind(inputs)` is a graph
    with its memory, which copies nothing; `.memory()` is what it uses of the GPU's.
    """
    from onnxfuse.runtime.sessions.runner import Runner

    return Runner(model, **given)


@public(functions.ExplainGraph)
def explain_graph(model: Model, **given: Unpack[functions.ExplainGraph]) -> Capture:
    """Return what blocks a CUDA graph of what `optimize` makes of the model: `.ok`, `.blocking`, `.frozen`.

    Each reason has `.nodes`, `.why` and `.mend`. ONNX Runtime's CUDA provider is asked. Raises DeviceError where CUDA
    cannot be used, ModelError where the model does not open on it.
    """
    from onnxfuse.api.run import subprocess_runs

    return subprocess_runs.call(subprocess_runs.explain_graph, model, **given)


@public(functions.Register, model=opened_model)
def register(
    session_options: onnxruntime.SessionOptions,
    model: onnx.ModelProto | bytes | str | Path,
    **given: Unpack[functions.Register],
) -> tuple[Placement, ...]:
    """Register the kernels that `model` needs with `session_options`, for those who open CUDA sessions themselves.

    Returns where each fused op runs. Use it for CUDA sessions alone: a registered op has no CPU kernel.
    """
    from onnxfuse.runtime import register as register_kernels

    return register_kernels(session_options, model, **given)


@public(functions.Verify)
def verify(original: Model, fused: Model, **given: Unpack[functions.Verify]) -> VerifyReport:
    """Return the report of running both models on the same inputs: `.ok` if `fused` is as accurate as `original`.

    Custom operators give the truth what they give themselves, and the report says so. Raises ModelError, UsageError,
    DeviceError.
    """
    from onnxfuse.api.run import subprocess_runs

    return subprocess_runs.call_with_progress(subprocess_runs.verify, "verify", (original, fused), given)


@public(functions.Bench)
def bench(original: Model, fused: Model | None = None, **given: Unpack[functions.Bench]) -> BenchReport:
    """Return the report of timing both models, interleaved, the original at each of ONNX Runtime's settings that
    matter.

    Without `fused`, the original is optimized. In a new process, a setting at which the original crashes or hangs is
    left out, and the report says so. Raises ModelError, UsageError, DeviceError, CrashError that names the op of a
    crash.
    """
    from onnxfuse.api.run import subprocess_runs

    return subprocess_runs.call_with_progress(subprocess_runs.bench, "bench", (original, fused), given)


@public(functions.Profile)
def profile(model: Model, fused: Model | None = None, **given: Unpack[functions.Profile]) -> Profile:
    """Return how bytes, operations and time of one run of `model` are distributed, and those of `fused` for comparison.

    A model that has fused ops is profiled alone. Raises ModelError, UsageError, DeviceError, KernelError, CrashError
    that names the op of a crash.
    """
    from onnxfuse.api.run import subprocess_runs

    given["isolate"] = given["isolate"] and given["time"]
    return subprocess_runs.call_with_progress(subprocess_runs.profile, "profile", (model, fused), given)


@public(functions.Ci)
def ci(config: str | Path | None = None, **given: Unpack[functions.Ci]) -> CiResult:
    """Return the results of the models that `config` names: `.exit_code`, `.outcomes` (one per model), `.as_dict()`.

    Without `config` it is the nearest onnxfuse.toml. The lock file is written if all models pass. Raises UsageError
    for a mistake in the file.
    """
    from onnxfuse.api.request.progress import stepping
    from onnxfuse.api.request.settings import settings
    from onnxfuse.api.run.ci import ci as check
    from onnxfuse.options.schema import part

    with settings(custom_ops=given["custom_ops"]), stepping(given["progress"], "ci") as show:
        return check(config, progress=show, **part(functions.CiChecks, given))


@public(functions.View)
def view(model: Model, fused: Model | None = None, **given: Unpack[functions.View]) -> View:
    """Return the page of the model before and after fusion, being served: `.url`, and `.close()` or `with` ends it.

    Without `fused`, the model is optimized in memory; one that has fused ops is shown alone. By default sizes are those
    of the profile, else 1 for the first dimension of an input and 128 for others. In a notebook the result shows a
    link. Raises ModelError, RuleError, UsageError.
    """
    from onnxfuse.options.kinds import extents
    from onnxfuse.viewing import view as serve

    shapes = None if given["shapes"] is None else extents(given["shapes"])
    return serve(
        model, fused, profile=given["profile"], shapes=shapes, rules=given["rules"], host=given["host"],
        port=given["port"], browser=given["browser"],
    )  # fmt: skip
