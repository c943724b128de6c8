"""Functions of `import onnxfuse` that make models: every argument is validated before anything is done."""

from __future__ import annotations

from onnxfuse.support.errors import RequirementError

TYPE_CHECKING = False  # as in `typing`, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    import onnx

    from onnxfuse.api.deploy.compiling import Compiled
    from onnxfuse.api.deploy.exporting import Exported
    from onnxfuse.api.optimize.optimizing import Optimized
    from onnxfuse.api.request.model_source import Model
    from onnxfuse.api.request.options import Options
    from onnxfuse.measure.tune import Tuned
    from onnxfuse.rules.match.report import OptimizeReport


def optimize(
    model: Model,
    *,
    rules: Sequence[str | Path] = (),
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    also: Sequence[str] = (),
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
    keep_fp32: Sequence[str] = (),
    seconds: float | None = None,
    custom_ops: Sequence[str | Path] = (),
    progress: Callable[[str], Any] | bool | None = None,
) -> onnx.ModelProto:
    """Return the optimized model; `model` is not changed.

    `model`: a ModelProto, the path of an .onnx file, or an onnx-graphsurgeon Graph. `rules`: folders of rule files
    beside the shipped ones. `only`, `skip`: names of rules that apply alone, or not at all. `also`: optional rules,
    which apply only on request. `guard`: each fusion is checked by itself on `inputs`, and reverted if it exceeds the
    error budget; a warning names it. `require`: what has to be fused, as `"gemm>=3"` or `"gemm==3"`. `shapes`: numbers
    for dynamic dimensions, or shapes of inputs, that the model is made for alone. `tuning`: a file of `onnxfuse
    optimize --tune`, whose times then decide; where they are not of this GPU, driver and ONNX Runtime, a warning says
    so and the rules decide. `strict_fp32`: no kernel is made that rounds float32 to TF32, and the model says so:
    `session`, `verify`, `bench` and `profile` then set ONNX Runtime's CUDA option `use_tf32` to 0, without which its
    own products round. A model that says so keeps to it. `freeze_initializers`: weights that are graph inputs, too,
    become constants; without it a caller may replace them, and a warning says so. A warning also names what was left
    alone because an op made of it would not be valid. `precision`: "float16", "bfloat16" or "mixed": converted to that
    first; what exceeds its range, and the fewest nodes without which an output breaks the contract of lower precision,
    stay float32, and a warning says how many. `inputs`: files or arrays by name to measure that on, by default
    generated ones. `tolerance`: the relative RMS error that outputs may have. `io_precision`: the type of float32
    inputs and outputs. `keep_fp32`: nodes that stay float32 whatever was measured: names, values, operators, or
    patterns of these. `seconds`: for measuring, and as much for trying what may be converted, by default 300.
    `custom_ops`: libraries with operators of your own, for ONNX Runtime to load: it infers the types of their results,
    and runs them for `guard`. `progress`: True shows a bar, False none, None one in a notebook alone; a function is
    called with each step. Every fact is in `.lowered` of what `onnxfuse.api.optimize.optimizing.optimize` returns.
    Raises ModelError for a model or tuning file that is not valid, RuleError for a rule file that is not, UsageError
    for an argument that is not what is expected, RequirementError where less is fused than `require` says, and why.
    """
    arguments = locals()
    import warnings

    from onnxfuse.api.optimize import optimizing
    from onnxfuse.api.optimize.lowering import lowering
    from onnxfuse.api.request.arguments import parse_arguments
    from onnxfuse.api.request.options import Guarding, Options, TuningOptions, requirement, requirement_line
    from onnxfuse.api.request.progress import stepping

    given = parse_arguments(optimize, arguments)
    options = Options(
        rules=given["rules"],
        only=given["only"],
        skip=given["skip"],
        also=given["also"],
        require=tuple(requirement(r) for r in given["require"]),
        guard=Guarding(given["inputs"]) if guard else None,
        shapes=given["shapes"] or {},
        strict_fp32=strict_fp32,
        freeze_initializers=freeze_initializers,
        tuning=None if tuning is None else TuningOptions(given["tuning"]),
        precision=lowering(
            precision, given["inputs"], given["tolerance"], io_precision, given["seconds"], given["keep_fp32"]
        ),
        custom_ops=given["custom_ops"],
    )
    with stepping(progress, "optimize") as show:
        made = optimizing.optimize(model, options, show)
    if made.missed:
        why = [line for r in made.missed for line in optimizing.why(made.report, r)]
        raise RequirementError("; ".join(requirement_line(made.report, r) for r in made.missed), "\n".join(why))
    for note in made.notes:
        warnings.warn(note, stacklevel=2)
    for gone in () if made.guarded is None else made.guarded.undone:
        warnings.warn(f"reverted at {', '.join(gone.nodes)}: rule {gone.rule}: {gone.fault}", stacklevel=2)
    return made.model


def guard(
    model: Model,
    inputs: Sequence[str | Path | Mapping[str, Any]] = (),
    options: Options | None = None,
    *,
    progress: Callable[[str], Any] | bool | None = None,
) -> Optimized:
    """Return the optimized model without the fusions that exceed the error budget, each checked by itself.

    `.model`, `.guarded.undone` (each with rule, nodes and fault), `.report`. `inputs`: real ones, in files or as arrays
    by name, by default generated ones of every kind. `options`: an `onnxfuse.Options`. `progress`: as for `optimize`.
    Raises ModelError, RuleError, UsageError where the model runs on none of the inputs.
    """
    arguments = locals()
    from dataclasses import replace

    from onnxfuse.api.optimize.optimizing import optimize as make
    from onnxfuse.api.request.arguments import parse_arguments
    from onnxfuse.api.request.options import Guarding, Options
    from onnxfuse.api.request.progress import stepping

    given = parse_arguments(guard, arguments)
    with stepping(progress, "guard") as show:
        return make(model, replace(options or Options(), guard=Guarding(given["inputs"])), show)


def dump(
    model: Model,
    folder: str | Path,
    *,
    arch: str | None = None,
    shapes: Mapping[str, int] | None = None,
    options: Options | None = None,
    progress: Callable[[str], Any] | bool | None = None,
) -> Optimized:
    """Return the optimized model, and write every phase and kernel as files into a new `folder`.

    `.model`, `.dumped.ops` (each with folder, registers, spilled bytes, and why it has no kernel). `arch`: what kernels
    are compiled for, as sm_90a, by default the GPU here, or an H200. `shapes`: sizes of dynamic dimensions.
    `options`: an `onnxfuse.Options`. `progress`: as for `optimize`. Raises ModelError for a folder that is not empty,
    UsageError.
    """
    arguments = locals()
    from dataclasses import replace

    from onnxfuse.api.optimize.optimizing import optimize as make
    from onnxfuse.api.request.arguments import parse_arguments, sizes
    from onnxfuse.api.request.options import Dump, Options
    from onnxfuse.api.request.progress import stepping

    given = parse_arguments(dump, arguments, shapes=sizes)
    asked = Dump(given["folder"], arch, given["shapes"] or {})
    with stepping(progress, "dump") as show:
        return make(model, replace(options or Options(), dump=asked), show)


def tune(
    model: Model,
    file: str | Path,
    *,
    sizes: Sequence[Mapping[str, int]] = (),
    options: Options | None = None,
    progress: Callable[[str], Any] | bool | None = None,
) -> Tuned:
    """Return the time of every candidate for each fused op on this GPU, stored in `file`, and the decisions.

    `optimize(model, tuning=file)` then chooses by it, on any machine. `sizes`: the sets of sizes of the dynamic
    dimensions. What the file already has for this GPU is not measured again. `options`: an `onnxfuse.Options`.
    `progress`: as for `optimize`. Raises DeviceError without a GPU, UsageError for a dynamic dimension without a size.
    """
    arguments = locals()
    from onnxfuse.api.optimize.tuning import tune as measure
    from onnxfuse.api.request.arguments import parse_arguments
    from onnxfuse.api.request.options import TuningOptions
    from onnxfuse.api.request.progress import stepping

    given = parse_arguments(tune, arguments)
    with stepping(progress, "tune") as show:
        return measure(model, TuningOptions(given["file"], measure=True, sizes=given["sizes"]), options, show)


def compile(
    model: Model,
    *,
    archs: Sequence[str] = (),
    shapes: Mapping[str, int | tuple[int, int]] | None = None,
    ptx: bool | None = None,
    rules: Sequence[str | Path] = (),
    target: str | Path | None = None,
    progress: Callable[[str, int, int], Any] | bool | None = None,
) -> Compiled:
    """Write the kernel pack of a fused model, which its sessions find: within its ranges they plan and compile nothing.

    `model`: an optimized one; beside its file is the pack, or in `target`. `archs`: as sm_90a; by default the GPU here,
    without one all that kernels are made for. `shapes`: of each dimension of the inputs a number or (least, greatest);
    those left out go from 1 to 32 where they are the first of an input, to 512 elsewhere. `ptx`: kernels for later GPUs
    are in it, too. `rules`: as for `session`. `progress`: True shows a bar, False none, None one in a notebook
    alone; a function is called with each step, how much of it is done and of what. No GPU is needed.
    Raises ModelError for a model without fused ops, UsageError for a name or range that is none, DeviceError without
    the engine, KernelError without NVRTC.
    """
    arguments = locals()
    from onnxfuse.api.deploy.compiling import compile as make
    from onnxfuse.api.request.arguments import parse_arguments, ranges
    from onnxfuse.api.request.options import Compiling
    from onnxfuse.api.request.progress import progress_callback
    from onnxfuse.support.progress import silent

    given = parse_arguments(compile, arguments, shapes=ranges)
    asked = Compiling(given["archs"], given["shapes"] or {}, ptx, given["rules"])
    with progress_callback(progress, "compile") as show:
        return make(model, asked, given["target"], show or silent)


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
    progress: Callable[[str, int, int], Any] | bool | None = None,
) -> Exported:
    """Write a folder that serves a fused model without Python: to C++, C#, Java, and NVIDIA Triton Inference Server.

    It holds the model with ONNX Runtime's own ops where `session` would put them, the library, the kernel pack, a
    manifest, a `config.pbtxt` and a README. `archs`, `shapes`, `ptx`, `rules`, `progress`: as for `compile`. `at`:
    where the server sees the folder. `batch`: whether Triton joins requests along the dimension that all inputs and
    outputs begin with, by default where there is one. Raises what `compile` raises, UsageError for a folder of other
    things.
    """
    arguments = locals()
    from onnxfuse.api.deploy.exporting import export_library as export
    from onnxfuse.api.request.arguments import parse_arguments, ranges
    from onnxfuse.api.request.options import Compiling, Exporting
    from onnxfuse.api.request.progress import progress_callback
    from onnxfuse.support.progress import silent

    given = parse_arguments(export_library, arguments, shapes=ranges)
    compiling = Compiling(given["archs"], given["shapes"] or {}, ptx, given["rules"])
    with progress_callback(progress, "export") as show:
        return export(model, given["folder"], Exporting(compiling, at, batch), show or silent)


def explain(model: Model, *, rules: Sequence[str | Path] = (), custom_ops: Sequence[str | Path] = ()) -> OptimizeReport:
    """Return what `optimize` would do to the model, what it would not, and why; the model is not changed.

    Where the model carries what was measured of it, that decides. `rules`, `custom_ops`: as for `optimize`. Raises
    ModelError, RuleError, UsageError.
    """
    arguments = locals()
    from onnxfuse.api.explain.explaining import explain as tell
    from onnxfuse.api.request.arguments import parse_arguments
    from onnxfuse.api.request.options import Options

    given = parse_arguments(explain, arguments)
    return tell(model, Options(rules=given["rules"], custom_ops=given["custom_ops"])).report


def unfuse(model: Model) -> onnx.ModelProto:
    """Return the model with every fused op replaced by the nodes of its body; `model` is not changed.

    Folded weights and rewritten nodes remain: they compute the same, and a warning says which and how
    often (`.undone` of what `onnxfuse.api.optimize.optimizing.undo` returns has every fact). The result needs no
    onnxfuse and holds no functions of its domain. Raises ModelError where ONNX Runtime opens `model` and not
    the result.
    """
    arguments = locals()
    import warnings

    from onnxfuse.api.optimize.optimizing import undo
    from onnxfuse.api.request.arguments import parse_arguments

    parse_arguments(unfuse, arguments)
    made = undo(model)
    if made.undone is not None and made.undone.known and not made.undone.whole:
        warnings.warn(f"{made.undone}", stacklevel=2)
    return made.model
