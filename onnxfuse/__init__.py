"""Fuse ONNX models for NVIDIA GPUs: fewer kernels, the same numbers, proven.

    import onnx, onnxfuse

    onnx.save(onnxfuse.optimize("in.onnx"), "out.onnx")
    session = onnxfuse.session("out.onnx")

Importing this module imports neither ONNX Runtime nor CuPy; the functions do, when they need them. It imports next to
nothing at all: until the first line of a command runs (`onnxfuse.cli`), Python answers ^C by a traceback.
"""

from __future__ import annotations

from onnxfuse.model.errors import (
    CrashError,
    DeviceError,
    KernelError,
    ModelError,
    OnnxfuseError,
    RequirementError,
    RuleError,
    UsageError,
)

TYPE_CHECKING = False  # what `typing` calls so, without importing it
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any, Literal

    import onnx
    import onnxruntime

    from onnxfuse.api.ci import Held
    from onnxfuse.api.compiling import Compiled
    from onnxfuse.api.exporting import Exported
    from onnxfuse.api.optimizing import Optimized
    from onnxfuse.api.options import Options
    from onnxfuse.api.source import Model
    from onnxfuse.benchmark import Report as BenchReport
    from onnxfuse.profiling import Profile
    from onnxfuse.rewrite.report import Report
    from onnxfuse.runtime import Placement, Session
    from onnxfuse.runtime.capture import Capture
    from onnxfuse.runtime.runner import Runner
    from onnxfuse.tuning import Tuned
    from onnxfuse.verification import Report as VerifyReport

__version__ = "0.1.0"


def optimize(
    model: Model,
    *,
    rules: Sequence[str | Path] = (),
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    guard: bool = False,
    require: Sequence[str] = (),
    tuning: str | Path | None = None,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    strict_fp32: bool = False,
    freeze_initializers: bool = False,
    precision: str | None = None,
    inputs: Sequence[str | Path | Mapping[str, Any]] = (),
    tolerance: float | None = None,
    io_precision: str = "float32",
) -> onnx.ModelProto:
    """Return the optimized model; the one given is left as it is.

    `model`: a ModelProto, the path of an .onnx file, or an onnx-graphsurgeon Graph. `rules`: folders of rule files
    beside the shipped ones. `only`, `skip`: names of rules that apply alone, or not at all. `guard`: each fusion is
    checked by itself on `inputs`, and taken back where it leaves the error budget; a warning names it. `require`: what
    has to be fused, as `"gemm>=3"` or `"gemm==3"`. `shapes`: numbers for dynamic dimensions, or shapes of inputs, that
    the model is made for alone. `tuning`: a file of `onnxfuse optimize --tune`, whose times then decide; where they are
    not of this GPU, driver and ONNX Runtime, a warning says so and the rules decide. `strict_fp32`: no kernel is made
    that rounds float32 to TF32, and the model says so: `session`, `verify`, `bench` and `profile` then set ONNX
    Runtime's CUDA option `use_tf32` to 0, without which its own products round. A model that says so keeps to it.
    `freeze_initializers`: weights that are graph inputs, too, become constants; without it a caller may replace them,
    and a warning says so. A warning also names what was left alone because an op made of it would not be valid.
    `precision`: "float16", "bfloat16" or "mixed": converted to that first; what leaves its range, and the fewest nodes
    without which an output leaves the contract of lower precision, stay float32, and a warning says how many. `inputs`:
    files or arrays by name to measure that on, by default made-up ones. `tolerance`: the relative RMS error that
    outputs may have. `io_precision`: the type of float32 inputs and outputs. The full account is `.lowered` of
    what `onnxfuse.api.optimizing.optimize` returns.
    Raises ModelError for a model or tuning file that is not valid, RuleError for a rule file that is not, UsageError
    for an argument that is not what is expected, RequirementError where less is fused than `require` says, and why.
    """
    import warnings

    from onnxfuse.api import arguments, optimizing
    from onnxfuse.api.lowering import lowering
    from onnxfuse.api.options import Guarding, Options, Tuning, requirement, told

    given = arguments.given_inputs("inputs", inputs)
    within = None if tolerance is None else arguments.number("tolerance", tolerance)

    made = optimizing.optimize(
        model,
        Options(
            rules=arguments.paths("rules", rules),
            only=arguments.texts("only", only),
            skip=arguments.texts("skip", skip),
            require=tuple(requirement(r) for r in arguments.texts("require", require)),
            guard=Guarding(given) if arguments.flag("guard", guard) else None,
            shapes=arguments.shapes("shapes", shapes or {}),
            strict_fp32=arguments.flag("strict_fp32", strict_fp32),
            freeze_initializers=arguments.flag("freeze_initializers", freeze_initializers),
            tuning=None if tuning is None else Tuning(arguments.path("tuning", tuning)),
            precision=lowering(precision, given, within, io_precision),
        ),
    )
    if made.missed:
        why = [line for r in made.missed for line in optimizing.why(made.report, r)]
        raise RequirementError("; ".join(told(made.report, r) for r in made.missed), "\n".join(why))
    for note in made.notes:
        warnings.warn(note, stacklevel=2)
    for gone in () if made.guarded is None else made.guarded.undone:
        warnings.warn(f"taken back at {', '.join(gone.nodes)}: rule {gone.rule}: {gone.fault}", stacklevel=2)
    return made.model


def guard(model: Model, inputs: Sequence[str | Path] = (), options: Options | None = None, **how: Any) -> Optimized:
    """Return what `optimize` makes of the model without what leaves the error budget: each fusion checked by itself.

    `.model`, `.guarded.undone` (each with rule, nodes and fault), `.report`. `inputs`: files with real inputs, by
    default made-up ones of every kind. `options`: an `onnxfuse.Options`. `progress(step)` is called along the way.
    Raises ModelError, RuleError, UsageError where the model runs on none of the inputs.
    """
    from dataclasses import replace
    from pathlib import Path

    from onnxfuse.api.optimizing import optimize as make
    from onnxfuse.api.options import Guarding, Options

    guarding = Guarding(tuple(Path(i) for i in inputs))
    return make(model, replace(options or Options(), guard=guarding), **how)


def dump(
    model: Model,
    folder: str | Path,
    *,
    arch: str | None = None,
    shapes: Mapping[str, int] | None = None,
    options: Options | None = None,
    **how: Any,
) -> Optimized:
    """Return what `optimize` makes of the model, with every phase and every kernel of it as files in a new `folder`.

    `.model`, `.dumped.ops` (each with folder, registers, spilled bytes, and why it has no kernel). `arch`: what kernels
    are compiled for, as sm_90a, by default the GPU here, or an H200. `shapes`: sizes of dynamic dimensions.
    `options`: an `onnxfuse.Options`. Raises ModelError for a folder that is not empty, UsageError.
    """
    from dataclasses import replace
    from pathlib import Path

    from onnxfuse.api.optimizing import optimize as make
    from onnxfuse.api.options import Dump, Options

    asked = Dump(Path(folder), arch, dict(shapes or {}))
    return make(model, replace(options or Options(), dump=asked), **how)


def tune(
    model: Model,
    file: str | Path,
    *,
    sizes: Sequence[Mapping[str, int]] = (),
    options: Options | None = None,
    **how: Any,
) -> Tuned:
    """Return every way to do each fused op's work with its time on this GPU, all kept in `file`, and what it decides.

    `optimize(model, tuning=file)` then chooses by it, on any machine. `sizes`: the sets of sizes of the dynamic
    dimensions. What the file tells of this GPU already is not measured again. `options`: an `onnxfuse.Options`.
    Raises DeviceError without a GPU, UsageError for a dynamic dimension without a size.
    """
    from pathlib import Path

    from onnxfuse.api.options import Tuning
    from onnxfuse.api.tuning import tune as measure

    return measure(model, Tuning(Path(file), measure=True, sizes=tuple(sizes)), options, **how)


def compile(
    model: Model,
    *,
    archs: Sequence[str] = (),
    shapes: Mapping[str, int | tuple[int, int]] | None = None,
    ptx: bool | None = None,
    rules: Sequence[str | Path] = (),
    target: str | Path | None = None,
    **how: Any,
) -> Compiled:
    """Write the kernel pack of a fused model, which its sessions find: they plan and compile nothing in its ranges.

    `model`: an optimized one; beside its file is the pack, or in `target`. `archs`: as sm_90a; by default the GPU here,
    without one all that kernels are made for. `shapes`: of each dimension of the inputs a number or (least, greatest);
    those left out go from 1 to 32 where they are the first of an input, to 512 elsewhere. `ptx`: kernels for later GPUs
    are in it, too. `rules`: as for `session`. `step(what, done, of)` is called along the way. No GPU is needed.
    Raises ModelError for a model without fused ops, UsageError for a name or range that is none, DeviceError without
    the engine, KernelError without NVRTC.
    """
    from pathlib import Path

    from onnxfuse.api.compiling import compile as make
    from onnxfuse.api.options import Compiling

    ranges = {n: (s, s) if isinstance(s, int) else s for n, s in (shapes or {}).items()}
    return make(model, Compiling(tuple(archs), ranges, ptx, tuple(Path(r) for r in rules)), target, **how)


def export_library(
    model: Model,
    folder: str | Path,
    *,
    archs: Sequence[str] = (),
    shapes: Mapping[str, int | tuple[int, int]] | None = None,
    ptx: bool = True,
    at: str | None = None,
    batch: bool | None = None,
    rules: Sequence[str | Path] = (),
    **how: Any,
) -> Exported:
    """Write a folder that serves a fused model without Python: to C++, C#, Java, and NVIDIA Triton Inference Server.

    It holds the model with ONNX Runtime's own ops where `session` would put them, the library, the kernel pack, a
    manifest, a `config.pbtxt` and a README. `archs`, `shapes`, `ptx`, `rules`: as for `compile`. `at`: where the server
    sees the folder. `batch`: whether Triton joins requests along the dimension that all inputs and outputs begin with,
    by default where there is one. Raises what `compile` raises, UsageError for a folder of other things.
    """
    from pathlib import Path

    from onnxfuse.api.exporting import export_library as export
    from onnxfuse.api.options import Compiling, Exporting

    ranges = {n: (s, s) if isinstance(s, int) else s for n, s in (shapes or {}).items()}
    compiling = Compiling(tuple(archs), ranges, ptx, tuple(Path(r) for r in rules))
    return export(model, folder, Exporting(compiling, at, batch), **how)


def ci(config: str | Path | None = None, **how: Any) -> Held:
    """Return what became of the models that `config` names: `.exit_code`, `.outcomes` (one per model), `.as_dict()`.

    Without `config` it is the nearest onnxfuse.toml.
    For the options see `onnxfuse.api.ci.ci`. Raises UsageError for a mistake in the file.
    """
    from onnxfuse.api.ci import ci as hold

    return hold(config, **how)


def explain(model: Model, *, rules: Sequence[str | Path] = ()) -> Report:
    """Return what `optimize` would do to the model, what it would not, and why; the model is left as it is.

    Where the model carries what was measured of it, that decides.
    """
    from pathlib import Path

    from onnxfuse.api.explaining import explain as tell
    from onnxfuse.api.options import Options

    return tell(model, Options(rules=tuple(Path(r) for r in rules))).report


def explain_graph(model: Model, *, rules: Sequence[str | Path] = (), isolate: bool = True) -> Capture:
    """Return what blocks a CUDA graph of what `optimize` makes of the model: `.ok`, `.blocking`, `.frozen`.

    Each reason has `.nodes`, `.why` and `.mend`. ONNX Runtime's CUDA provider is asked, by default in a new process.
    Raises DeviceError where CUDA cannot be used, ModelError where the model does not open on it.
    """
    from onnxfuse.api import apart

    return apart.call(apart.explain_graph, model, isolate=isolate, rules=tuple(rules))


def unfuse(model: Model) -> onnx.ModelProto:
    """Return the model with every fused op replaced by the nodes that it stands for; the one given is left as it is.

    What was folded into weights or rewritten stays so: it is the same computation. The result needs no onnxfuse and
    holds no functions of its domain. Raises ModelError where ONNX Runtime opens `model` and not the result.
    """
    from onnxfuse.api.optimizing import undo

    return undo(model).model


def session(
    model: onnx.ModelProto | bytes | str | Path,
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
    session_options: onnxruntime.SessionOptions | None = None,
    **options: Any,
) -> Session:
    """Return an `onnxruntime.InferenceSession` in which the fused ops of `model` run as kernels on CUDA.

    Its attribute `fused` tells for each op whether it runs as a kernel or through its body, and why. `providers` and
    `session_options` are ONNX Runtime's own; without `providers`, CUDA is taken where it works and the CPU elsewhere.
    `rules=` names the folders of your own rules that made the model, if they have a `realize`. `kernels=` is the kernel
    pack that `compile` wrote, by default the one beside a model in a file; False uses none.
    Raises DeviceError where CUDA is asked for and does not work.
    """
    from onnxfuse.runtime import session as open_session

    return open_session(model, providers, session_options, **options)


def runner(
    model: onnx.ModelProto | bytes | str | Path,
    *,
    graphs: int = 8,
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
    rules: Sequence[str | Path] = (),
    kernels: str | Path | Literal[False] | None = None,
) -> Runner:
    """Return the model as a function of arrays that captures CUDA graphs by itself: `runner(model)({"x": x})["y"]`.

    Arrays are NumPy's, CuPy's, torch's, or speak DLPack; outputs are of the kind of the first input. Shapes that come
    again get a CUDA graph, at most `graphs` at a time. What cannot be captured runs plainly, and `.why_not` says why;
    `.bind(inputs)` is a graph with its memory, which copies nothing. The rest is as for `session`.
    """
    from onnxfuse.runtime.runner import Runner

    return Runner(model, graphs=graphs, providers=providers, rules=rules, kernels=kernels)


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
    goes with the provider option `use_tf32` 0: what would round float32 to TF32 keeps its body; None is False for a
    model made with `strict_fp32`. `rules` are the folders of your own rules that made attention, if any did.
    `kernels` is the kernel pack, by default the one beside a model in a file; False uses none.
    """
    from onnxfuse.runtime import register as register_kernels

    return register_kernels(session_options, model, tf32=tf32, rules=rules, kernels=kernels)


def verify(original: Model, fused: Model, *, isolate: bool = True, **options: Any) -> VerifyReport:
    """Return the report of running both models on the same inputs: `.ok` where `fused` is as exact as `original`.

    `isolate`: they run in a new process, which takes a second to start, so that a crash of ONNX Runtime or of the GPU
    is a report that names the op, as `onnxfuse verify` gives it, and leaves this process and its GPU as they are.
    False runs them here. For the other options see `onnxfuse.api.running.verify`. Raises ModelError, UsageError,
    DeviceError.
    """
    from onnxfuse.api import apart

    return apart.call(apart.verify, original, fused, isolate=isolate, **options)


def bench(original: Model, fused: Model | None = None, *, isolate: bool = True, **options: Any) -> BenchReport:
    """Return the report of timing both models in turns, the original at each of ONNX Runtime's settings that matter.

    Without `fused`, the original is optimized. `isolate`: in a new process, as `verify`; a setting at which the
    original crashes or hangs is then left out, and the report says so. For the other options see
    `onnxfuse.api.running.bench`. Raises ModelError, UsageError, DeviceError, CrashError that names the op of a crash.
    """
    from onnxfuse.api import apart

    return apart.call(apart.bench, original, fused, isolate=isolate, **options)


def profile(model: Model, fused: Model | None = None, *, isolate: bool = True, **options: Any) -> Profile:
    """Return where the bytes, the operations and the time of one run of `model` go, and beside it those of `fused`.

    `isolate`: in a new process, as `verify`, unless `time=False` runs nothing. For the other options see
    `onnxfuse.api.running.profile`. Raises ModelError, UsageError, DeviceError, KernelError, CrashError that names the
    op of a crash.
    """
    from onnxfuse.api import apart

    return apart.call(apart.profile, model, fused, isolate=isolate and options.get("time", True), **options)


def __getattr__(name: str) -> Any:
    """Return `Options`, whose module imports ONNX: it is imported when it is asked for."""
    if name != "Options":
        raise AttributeError(f"module 'onnxfuse' has no attribute '{name}'")
    from onnxfuse.api.options import Options

    return Options


__all__ = [
    "CrashError",
    "DeviceError",
    "KernelError",
    "ModelError",
    "OnnxfuseError",
    "Options",
    "RequirementError",
    "RuleError",
    "UsageError",
    "bench",
    "ci",
    "compile",
    "dump",
    "explain",
    "explain_graph",
    "export_library",
    "guard",
    "optimize",
    "profile",
    "register",
    "runner",
    "session",
    "tune",
    "unfuse",
    "verify",
]
