"""Fuse ONNX models for NVIDIA GPUs: fewer kernels, the same numbers, proven.

    import onnx, onnxfuse

    onnx.save(onnxfuse.optimize("in.onnx"), "out.onnx")
    session = onnxfuse.session("out.onnx")

Importing this module imports neither ONNX Runtime nor CuPy; the functions do, when they need them.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxfuse.model.errors import DeviceError, KernelError, ModelError, OnnxfuseError, RuleError, UsageError

if TYPE_CHECKING:
    import onnx
    import onnx_graphsurgeon
    import onnxruntime

    from onnxfuse.benchmark import Report as BenchReport
    from onnxfuse.profiling import Profile
    from onnxfuse.rewrite.language.rule_file import Rule
    from onnxfuse.rewrite.report import Report
    from onnxfuse.runtime import Placement, Session
    from onnxfuse.tuning import Tuned
    from onnxfuse.verification import Report as VerifyReport

    Model: TypeAlias = "onnx.ModelProto | onnx_graphsurgeon.Graph | str | Path"

__version__ = "0.1.0"


@dataclass(frozen=True)
class _Options:
    """What a caller chooses of how a model is optimized."""

    strict_fp32: bool = False
    freeze: bool = False


def optimize(
    model: "Model",
    *,
    rules: Sequence[str | Path] = (),
    tuning: str | Path | None = None,
    strict_fp32: bool = False,
    freeze_initializers: bool = False,
) -> "onnx.ModelProto":
    """Return the optimized model; the one given is left as it is.

    `model`: a ModelProto, the path of an .onnx file, or an onnx-graphsurgeon Graph. `rules`: folders of rule files
    beside the shipped ones. `tuning`: a file of `onnxfuse optimize --tune`, whose times then decide; where they are
    not of this GPU, driver and ONNX Runtime, a warning says so and the rules decide. `strict_fp32`: no kernel is made
    that rounds float32 to TF32, and the model says so: `session`, `verify`, `bench` and `profile` then set ONNX
    Runtime's CUDA option `use_tf32` to 0, without which its own products round. A model that says so keeps to it.
    `freeze_initializers`: weights that are graph inputs, too, become constants; without it a caller may replace them,
    and a warning says so. A warning also names what was left alone because an op made of it would not be valid.
    Raises ModelError for a model or tuning file that is not valid, RuleError for a rule file that is not.
    """
    options = _Options(strict_fp32, freeze_initializers)
    made, report = _run(model, rules, options, None if tuning is None else Path(tuning))
    for note in report.notes:
        warnings.warn(note, stacklevel=2)
    return made


def explain(model: "Model", *, rules: Sequence[str | Path] = ()) -> "Report":
    """Return what `optimize` would do to the model, what it would not, and why; the model is left as it is."""
    return _run(model, rules, _Options())[1]


def unfuse(model: "Model") -> "onnx.ModelProto":
    """Return the model with every fused op replaced by the nodes that it stands for; the one given is left as it is.

    What was folded into weights or rewritten stays so: it is the same computation. The result needs no onnxfuse and
    holds no functions of its domain. Raises ModelError where ONNX Runtime opens `model` and not the result.
    """
    from onnxfuse.model.tf32 import set_strict_fp32
    from onnxfuse.rewrite.unfuse import unfuse as undo
    from onnxfuse.runtime.opening import require

    plain = _own(model)
    came = require(plain)
    undo(plain)
    set_strict_fp32(plain, strict=False)
    came(plain)
    return plain


def session(
    model: "onnx.ModelProto | bytes | str | Path",
    providers: "Sequence[str | tuple[str, Mapping[str, Any]]] | None" = None,
    session_options: "onnxruntime.SessionOptions | None" = None,
    **options: Any,
) -> "Session":
    """Return an `onnxruntime.InferenceSession` in which the fused ops of `model` run as kernels on CUDA.

    Its attribute `fused` tells for each op whether it runs as a kernel or through its body, and why. `providers` and
    `session_options` are ONNX Runtime's own; without `providers`, CUDA is taken where it works and the CPU elsewhere.
    `rules=` names the folders of your own rules that made the model, if they have a `realize`.
    Raises DeviceError where CUDA is asked for and does not work.
    """
    from onnxfuse.runtime import session as open_session

    return open_session(model, providers, session_options, **options)


def register(
    session_options: "onnxruntime.SessionOptions",
    model: "onnx.ModelProto | bytes | str | Path",
    *,
    tf32: bool | None = None,
    rules: Sequence[str | Path] = (),
) -> "tuple[Placement, ...]":
    """Register the kernels that `model` needs with `session_options`, for those who open CUDA sessions themselves.

    Returns where each fused op runs. Use it for CUDA sessions alone: a registered op has no CPU kernel. `tf32=False`
    goes with the provider option `use_tf32` 0: what would round float32 to TF32 keeps its body; None is False for a
    model made with `strict_fp32`. `rules` are the folders of your own rules that made attention, if any did.
    """
    from onnxfuse.runtime import register as register_kernels

    return register_kernels(session_options, model, tf32=tf32, rules=rules)


def verify(original: "Model", fused: "Model", **options: Any) -> "VerifyReport":
    """Return the report of running both models on the same inputs: `.ok` where `fused` is as exact as `original`.

    For the options see `onnxfuse.verification.verify`. Raises ModelError, UsageError, DeviceError.
    """
    from onnxfuse.verification import verify as compare

    return compare(_source(original), _source(fused), **options)


def bench(original: "Model", fused: "Model", **options: Any) -> "BenchReport":
    """Return the report of timing both models in turns, the original at each of ONNX Runtime's settings that matter.

    For the options see `onnxfuse.benchmark.bench`. Raises ModelError, UsageError, DeviceError.
    """
    from onnxfuse.benchmark import bench as compare

    return compare(_source(original), _source(fused), **options)


def profile(model: "Model", fused: "Model | None" = None, **options: Any) -> "Profile":
    """Return where the bytes, the operations and the time of one run of `model` go, and beside it those of `fused`.

    For the options see `onnxfuse.profiling.profile`. Raises ModelError, UsageError, DeviceError, KernelError.
    """
    from onnxfuse.profiling import profile as look

    return look(_source(model), None if fused is None else _source(fused), **options)


def _run(
    model: "Model", rules: Sequence[str | Path], options: "_Options", tuning: Path | None = None
) -> "tuple[onnx.ModelProto, Report]":
    from onnxfuse.model.tf32 import set_strict_fp32
    from onnxfuse.rewrite import pipeline
    from onnxfuse.rewrite.language import rule_file
    from onnxfuse.runtime.opening import refusal

    def fresh() -> "onnx.ModelProto":
        own = _own(model)
        if options.strict_fp32:
            set_strict_fp32(own)
        return own

    own, chosen = fresh(), rule_file.select(Path(r) for r in rules)
    tuned = None if tuning is None else _tuned(own, chosen, tuning)
    choices = None if tuned is None else tuned.choices(own, chosen)
    report = pipeline.run(own, chosen, choices=choices, opens=refusal, again=fresh, freeze=options.freeze)
    if tuned is not None:
        tuned.attach(own)
    return own, report


def _tuned(model: "onnx.ModelProto", rules: "Sequence[Rule]", file: Path) -> "Tuned":
    from onnxfuse import tuning
    from onnxfuse.kernels import measurements

    found = tuning.reuse(model, rules, measurements.read(file))
    if found.note:
        warnings.warn(found.note, stacklevel=4)
    return found


def _own(model: "Model") -> "onnx.ModelProto":
    """Return a model that is ours to change."""
    from onnxfuse.model import io
    from onnxfuse.model.validate import validate

    source = _source(model)
    if isinstance(source, str | Path):
        return io.load(source)
    validate(source)
    return io.without_weights(source, lambda weight: weight)


def _source(model: "Model") -> "Model":
    """Return a path or a ModelProto; a graph of onnx-graphsurgeon is exported."""
    import onnx

    if isinstance(model, str | Path | onnx.ModelProto):
        return model
    from onnx_graphsurgeon import export_onnx

    return export_onnx(model, do_type_check=False)


__all__ = [
    "DeviceError",
    "KernelError",
    "ModelError",
    "OnnxfuseError",
    "RuleError",
    "UsageError",
    "bench",
    "explain",
    "optimize",
    "profile",
    "register",
    "session",
    "unfuse",
    "verify",
]
