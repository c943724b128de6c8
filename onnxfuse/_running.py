"""Functions of `import onnxfuse` that run models: every argument is validated before anything is done."""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any, Literal

    import onnx
    import onnxruntime

    from onnxfuse.api.request.model_source import Model
    from onnxfuse.api.run.ci import CiResult
    from onnxfuse.measure.benchmark import BenchmarkReport as BenchReport
    from onnxfuse.measure.profile import Profile
    from onnxfuse.runtime import Placement, Provider, Session
    from onnxfuse.runtime.sessions.capture import Capture
    from onnxfuse.runtime.sessions.runner import Runner
    from onnxfuse.verification import RealInputs, Tolerance, VerifyReport
    from onnxfuse.viewing import View


def session(
    model: onnx.ModelProto | bytes | str | Path,
    providers: Sequence[Provider] | None = None,
    session_options: onnxruntime.SessionOptions | None = None,
    *,
    rules: Sequence[str | Path] = (),
    kernels: str | Path | Literal[False] | None = None,
    custom_ops: Sequence[str | Path] = (),
    wait_for_kernels: bool = False,
    dump: str | Path | None = None,
    provider_options: Sequence[Mapping[str, Any]] | None = None,
    disabled_optimizers: Sequence[str] | None = None,
) -> Session:
    """Return an `onnxruntime.InferenceSession` in which the fused ops of `model` run as kernels on CUDA.

    Its attribute `fused` says for each op whether it runs as a kernel or through its body, and why. `providers`,
    `session_options`, `provider_options` and `disabled_optimizers` are ONNX Runtime's own; without `providers`, CUDA is
    taken where it works and the CPU elsewhere. `rules`: the folders of your own rules that made the model, if they have
    a `realize`. `kernels`: the kernel pack that `compile` wrote, by default the one beside a model in a file; False
    uses none. `custom_ops`: libraries with operators of your own, for ONNX Runtime to load. `wait_for_kernels`: a run
    of a new shape waits until its kernels are compiled; by default another kernel that gives the same bits serves until
    then, where there is one (never with the provider's `enable_cuda_graph`). `dump`: a folder for every fused op's
    body, kernel and launch plan. Raises DeviceError where CUDA is asked for and does not work, UsageError.
    """
    arguments = locals()
    from onnxfuse.api.request.arguments import opened_model, parse_arguments, providers_with_options
    from onnxfuse.runtime import session as open_session

    given = parse_arguments(session, arguments, model=opened_model, providers=providers_with_options)
    more = {key: given.pop(key) for key in ("provider_options", "disabled_optimizers")}
    return open_session(**given, **{key: value for key, value in more.items() if value is not None})


def runner(
    model: onnx.ModelProto | bytes | str | Path,
    *,
    graphs: int = 8,
    providers: Sequence[Provider] | None = None,
    rules: Sequence[str | Path] = (),
    kernels: str | Path | Literal[False] | None = None,
) -> Runner:
    """Return the model as a function of arrays that captures CUDA graphs by itself: `runner(model)({"x": x})["y"]`.

    Arrays are NumPy's, CuPy's, torch's, or speak DLPack; outputs are of the kind of the first input. Shapes that come
    again get a CUDA graph, at most `graphs` at a time. What cannot be captured runs plainly, and `.why_not` says why;
    `.bind(inputs)` is a graph with its memory, which copies nothing. `providers`, `rules`, `kernels`: as for `session`.
    """
    arguments = locals()
    from onnxfuse.api.request.arguments import opened_model, parse_arguments, providers_with_options
    from onnxfuse.runtime.sessions.runner import Runner

    return Runner(**parse_arguments(runner, arguments, model=opened_model, providers=providers_with_options))


def explain_graph(model: Model, *, rules: Sequence[str | Path] = (), isolate: bool = True) -> Capture:
    """Return what blocks a CUDA graph of what `optimize` makes of the model: `.ok`, `.blocking`, `.frozen`.

    Each reason has `.nodes`, `.why` and `.mend`. `rules`: folders of rule files beside the shipped ones. ONNX Runtime's
    CUDA provider is asked, in a new process where `isolate` is True. Raises DeviceError where CUDA cannot be used,
    ModelError where the model does not open on it.
    """
    arguments = locals()
    from onnxfuse.api.request.arguments import parse_arguments
    from onnxfuse.api.run import subprocess_runs

    given = parse_arguments(explain_graph, arguments)
    return subprocess_runs.call(subprocess_runs.explain_graph, given.pop("model"), **given)


def register(
    session_options: onnxruntime.SessionOptions,
    model: onnx.ModelProto | bytes | str | Path,
    *,
    tf32: bool | None = None,
    rules: Sequence[str | Path] = (),
    kernels: str | Path | Literal[False] | None = None,
) -> tuple[Placement, ...]:
    """Register the kernels that `model` needs with `session_options`, for those who open CUDA sessions themselves.

    Returns where each fused op runs. Use it for CUDA sessions alone: a registered op has no CPU kernel. `tf32=False`
    goes with the provider option `use_tf32` 0: no kernel rounds float32 to TF32, products keep its digits, and what
    else would round keeps its body; None is False for a model made with `strict_fp32`. `rules` are the folders of your
    own rules that made attention, if any did. `kernels` is the kernel pack, by default the one beside a model in a
    file; False uses none.
    """
    arguments = locals()
    from onnxfuse.api.request.arguments import opened_model, parse_arguments
    from onnxfuse.runtime import register as register_kernels

    return register_kernels(**parse_arguments(register, arguments, model=opened_model))


def verify(
    original: Model,
    fused: Model,
    *,
    inputs: RealInputs | Sequence[RealInputs] | None = None,
    seeds: Sequence[int] = (0,),
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    providers: Sequence[str] | None = None,
    fused_providers: Sequence[str] | None = None,
    truth: Literal["auto", "float64", "float32"] = "auto",
    rtol: Tolerance = None,
    atol: Tolerance = None,
    nan: Literal["equal", "fail"] = "equal",
    top_k: Sequence[int] | None = None,
    use_tf32: bool | None = None,
    seconds: float | None = None,
    memory: int | None = None,
    save_inputs: str | Path | None = None,
    bisect: str | Path | None = None,
    rules: Sequence[str | Path] = (),
    custom_ops: Sequence[str | Path] = (),
    isolate: bool = True,
    progress: Callable[[str, int, int], Any] | bool | None = None,
) -> VerifyReport:
    """Return the report of running both models on the same inputs: `.ok` if `fused` is as accurate as `original`.

    `inputs`: real ones (.npz, .npy, .json, .pb, test_data_set_*, or arrays by name), one or a list, in place of
    generated ones for each of `seeds`. `shapes`: what dynamic dimensions are, as `{"batch": (1, 7)}`, or an input and
    its shape. `providers`: ONNX Runtime's, by default CUDA where it works; there every fused op must run as its kernel;
    `fused_providers`: where the fused model runs, if elsewhere. `truth`: the precision that errors are measured
    against. `rtol`, `atol`: in place of the error budget, for all outputs or by name or type. `nan="fail"` makes a
    value that is not finite a fault. `top_k`: how often these many best of the last axis agree. `use_tf32`: ONNX
    Runtime's CUDA option, for both. `seconds` for the cases, by default 300, and as much again for doubtful ones;
    `memory`: bytes that the values of one may take, by default half of what is free. `save_inputs`: a folder or an .npz
    for the inputs. `bisect`: after a mismatch, a folder for the smallest failing model; the report names the op or the
    rule at fault. `rules`: folders of your own rules that made the fused model. `custom_ops`: libraries with operators
    of your own; the truth has there what they give themselves, and the report says so. `isolate`: they run in a new
    process, which takes a second to start, so that a crash of ONNX Runtime or of the GPU is a report that names the op,
    as `onnxfuse verify` gives it, and leaves this process and its GPU as they are. False runs them here. `progress`:
    True shows a bar, False none, None one in a notebook alone; a function is called with each step, how much of it is
    done and of what. Raises ModelError, UsageError, DeviceError.
    """
    arguments = locals()
    from onnxfuse.api.request.arguments import one_or_more_inputs, parse_arguments
    from onnxfuse.api.run import subprocess_runs

    return subprocess_runs.call_with_progress(
        subprocess_runs.verify, "verify", parse_arguments(verify, arguments, inputs=one_or_more_inputs)
    )


def bench(
    original: Model,
    fused: Model | None = None,
    *,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    providers: Sequence[str] | None = None,
    use_tf32: bool | None = None,
    runs: int = 20,
    rounds: int = 10,
    patience: float = 60.0,
    seed: int = 0,
    plot: str | Path | None = None,
    rules: Sequence[str | Path] = (),
    custom_ops: Sequence[str | Path] = (),
    isolate: bool = True,
    progress: Callable[[str, int, int], Any] | bool | None = None,
) -> BenchReport:
    """Return the report of timing both models, interleaved, the original at each of ONNX Runtime's settings that
    matter.

    Without `fused`, the original is optimized. `shapes`: sizes of dynamic dimensions, taken in turn, or an input and
    its shape. `seed`: of the inputs. `runs` timed runs of each in each of `rounds` rounds. `patience`: seconds after
    which a setting of the original that does not respond is skipped. `plot`: a .png, .svg or .pdf for latency by shape
    and the roofline. `isolate`: in a new process, as `verify`; a setting at which the original crashes or hangs is then
    left out, and the report says so. `providers`, `use_tf32`, `rules`, `custom_ops`, `progress`: as for `verify`.
    Raises ModelError, UsageError, DeviceError, CrashError that names the op of a crash.
    """
    arguments = locals()
    from onnxfuse.api.request.arguments import parse_arguments
    from onnxfuse.api.run import subprocess_runs

    return subprocess_runs.call_with_progress(subprocess_runs.bench, "bench", parse_arguments(bench, arguments))


def profile(
    model: Model,
    fused: Model | None = None,
    *,
    alone: bool = True,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    providers: Sequence[str] | None = None,
    time: bool = True,
    cuda_graph: bool = False,
    use_tf32: bool | None = None,
    runs: int = 10,
    seed: int = 0,
    trace: str | Path | None = None,
    custom_ops: Sequence[str | Path] = (),
    isolate: bool = True,
    progress: Callable[[str, int, int], Any] | bool | None = None,
) -> Profile:
    """Return how bytes, operations and time of one run of `model` are distributed, and those of `fused` for comparison.

    Unless `alone`, a model without fused ops is optimized, and compared with the result. `shapes`: sizes of
    dynamic dimensions, or an input and its shape. `seed`: of the inputs. `time=False` counts bytes and operations and
    runs nothing. `cuda_graph`: kernels are timed in a CUDA graph. `runs`: those that are profiled. `trace`: a file for
    one run as a Chrome trace. `isolate`: in a new process, as `verify`, unless nothing is run. `providers`, `use_tf32`,
    `custom_ops`, `progress`: as for `verify`. Raises ModelError, UsageError, DeviceError, KernelError, CrashError that
    names the op of a crash.
    """
    arguments = locals()
    from onnxfuse.api.request.arguments import parse_arguments
    from onnxfuse.api.run import subprocess_runs

    given = parse_arguments(profile, arguments)
    return subprocess_runs.call_with_progress(
        subprocess_runs.profile, "profile", {**given, "isolate": isolate and time}
    )


def ci(
    config: str | Path | None = None,
    *,
    update: bool = False,
    locked: bool = False,
    names: Sequence[str] = (),
    bench: bool = True,
    custom_ops: Sequence[str | Path] = (),
    progress: Callable[[str], Any] | bool | None = None,
) -> CiResult:
    """Return the results of the models that `config` names: `.exit_code`, `.outcomes` (one per model), `.as_dict()`.

    Without `config` it is the nearest onnxfuse.toml. `update` writes the lock file as things are now, where all models
    hold; with `locked` any difference to it counts. `names`: these models alone. `bench=False` leaves the timing out.
    `custom_ops`: as for `verify`. `progress`: True shows a bar, False none, None one in a notebook alone; a function is
    called with each step. Raises UsageError for a mistake in the file.
    """
    arguments = locals()
    from onnxfuse.api.request.arguments import parse_arguments
    from onnxfuse.api.request.progress import stepping
    from onnxfuse.api.run.ci import ci as hold
    from onnxfuse.model.custom_ops import using

    given = parse_arguments(ci, arguments)
    del given["progress"]
    with using(given.pop("custom_ops")), stepping(progress, "ci") as show:
        return hold(**given, progress=show)


def view(
    model: Model,
    fused: Model | None = None,
    *,
    profile: Profile | str | Path | None = None,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    rules: Sequence[str | Path] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    browser: bool = False,
) -> View:
    """Return the page of the model before and after fusion, being served: `.url`, and `.close()` or `with` ends it.

    Without `fused`, the model is optimized in memory; one that has fused ops is shown alone. `profile`: what
    `onnxfuse.profile` returned, or a file of `onnxfuse profile --json`, of the same models, colours the nodes by time.
    `shapes`: sizes of dynamic dimensions, or shapes of inputs, for bytes and kernels; by default those of the profile,
    else 1 for the first dimension of an input and 128 for others. `rules`: folders of rule files beside the shipped
    ones. `host`: by default reachable from this machine only. `port`: by default a free one. `browser`: open it. In a
    notebook the result shows a link. Raises ModelError, RuleError, UsageError.
    """
    arguments = locals()
    from onnxfuse.api.request.arguments import parse_arguments
    from onnxfuse.viewing import view as call_with_progress

    return call_with_progress(**parse_arguments(view, arguments))
