"""Functions of `import onnxfuse` that make models: their options are `onnxfuse.options.functions`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from onnxfuse._public import public
from onnxfuse.options import functions
from onnxfuse.support.errors import RequirementError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from onnxfuse.api.optimize.optimizing import Optimized
    from onnxfuse.api.request.options import Options
    from onnxfuse.deploy.compiling import Compiled
    from onnxfuse.deploy.exporting import Exported
    from onnxfuse.files.model_source import Model
    from onnxfuse.measure.tune import Tuned
    from onnxfuse.options.kinds import Inputs
    from onnxfuse.rules.match.report import OptimizeReport

CALLER = 3
"""Frames from a warning to the caller's line."""


@public(functions.Optimize)
def optimize(model: Model, **given: Unpack[functions.Optimize]) -> onnx.ModelProto:
    """Return the optimized model; `model` is not changed.

    `model`: a ModelProto, the path of an .onnx file, or an onnx-graphsurgeon Graph. Warnings name each fusion that the
    guard reverted, what was left alone because an op made of it would not be valid, weights that callers may replace,
    and how many nodes stayed float32. Every fact is in `.lowered` of what
    `onnxfuse.api.optimize.optimizing.optimize` returns. Raises ModelError for a model or tuning file that is not valid,
    RuleError for a rule file that is not, UsageError for an argument that is not what is expected, RequirementError
    where less is fused than `require` says, and why.
    """
    from onnxfuse.api.optimize import optimizing
    from onnxfuse.api.request.options import Options, requirement_line
    from onnxfuse.api.request.progress import stepping

    with stepping(given["progress"], "optimize") as show:
        made = optimizing.optimize(model, Options.of(given), show)
    if made.missed:
        why = [line for r in made.missed for line in optimizing.why(made.report, r)]
        raise RequirementError("; ".join(requirement_line(made.report, r) for r in made.missed), "\n".join(why))
    for note in made.notes:
        warnings.warn(note, stacklevel=CALLER)
    for gone in () if made.guarded is None else made.guarded.undone:
        warnings.warn(f"reverted at {', '.join(gone.nodes)}: rule {gone.rule}: {gone.fault}", stacklevel=CALLER)
    return made.model


@public(functions.Guard)
def guard(
    model: Model, inputs: Sequence[Inputs] = (), options: Options | None = None, **given: Unpack[functions.Guard]
) -> Optimized:
    """Return the optimized model without the fusions that exceed the error budget, each checked by itself.

    `.model`, `.guarded.undone` (each with rule, nodes and fault), `.report`. `inputs`: real ones, in files or as arrays
    by name, by default generated ones of every kind. `options`: an `onnxfuse.Options`. Raises ModelError, RuleError,
    UsageError where the model runs on none of the inputs.
    """
    from onnxfuse.api.optimize.optimizing import optimize as make
    from onnxfuse.api.request.options import Guarding, Options
    from onnxfuse.api.request.progress import stepping

    with stepping(given["progress"], "guard") as show:
        return make(model, replace(options or Options(), guard=Guarding(tuple(inputs))), show)


@public(functions.Dump)
def dump(
    model: Model, folder: str | Path, *, options: Options | None = None, **given: Unpack[functions.Dump]
) -> Optimized:
    """Return the optimized model, and write every phase and kernel as files into a new `folder`.

    `.model`, `.dumped.ops` (each with folder, registers, spilled bytes, and why it has no kernel). `options`: an
    `onnxfuse.Options`. Raises ModelError for a folder that is not empty, UsageError.
    """
    from onnxfuse.api.optimize.optimizing import optimize as make
    from onnxfuse.api.request.options import Dump, Options
    from onnxfuse.api.request.progress import stepping

    request = Dump(Path(folder), given["arch"], given["shapes"] or {})
    with stepping(given["progress"], "dump") as show:
        return make(model, replace(options or Options(), dump=request), show)


@public(functions.Tune)
def tune(model: Model, file: str | Path, *, options: Options | None = None, **given: Unpack[functions.Tune]) -> Tuned:
    """Return the time of every candidate for each fused op on this GPU, stored in `file`, and the decisions.

    `optimize(model, tuning=file)` then chooses by it, on any machine. What the file already has for this GPU is not
    measured again. `options`: an `onnxfuse.Options`. Raises DeviceError without a GPU, UsageError for a dynamic
    dimension without a size.
    """
    from onnxfuse.api.optimize.tuning import tune as measure
    from onnxfuse.api.request.options import TuningOptions
    from onnxfuse.api.request.progress import stepping

    request = TuningOptions(Path(file), measure=True, sizes=tuple(given["sizes"]))
    with stepping(given["progress"], "tune") as show:
        return measure(model, request, options, show)


@public(functions.Compile)
def compile(model: Model, **given: Unpack[functions.Compile]) -> Compiled:
    """Write the kernel pack of a fused model, which its sessions find: within its ranges they plan and compile nothing.

    `model`: an optimized one. No GPU is needed. Raises ModelError for a model without fused ops, UsageError for a name
    or range that is none, DeviceError without the engine, KernelError without NVRTC.
    """
    from onnxfuse.api.request.progress import progress_callback
    from onnxfuse.deploy.compiling import Compiling
    from onnxfuse.deploy.compiling import compile as make
    from onnxfuse.support.progress import silent

    with progress_callback(given["progress"], "compile") as show:
        return make(model, Compiling.of(given), given["target"], show or silent)


@public(functions.ExportLibrary)
def export_library(model: Model, folder: str | Path, **given: Unpack[functions.ExportLibrary]) -> Exported:
    """Write a folder that serves a fused model without Python: to C++, C#, Java, and NVIDIA Triton Inference Server.

    It holds the model with ONNX Runtime's own ops where `session` would put them, the library, the kernel pack, a
    manifest, a `config.pbtxt` and a README. Raises what `compile` raises, UsageError for a folder of other things.
    """
    from onnxfuse.api.request.progress import progress_callback
    from onnxfuse.deploy.compiling import Compiling
    from onnxfuse.deploy.exporting import export_library as export
    from onnxfuse.support.progress import silent

    with progress_callback(given["progress"], "export") as show:
        return export(model, folder, Compiling.of(given), at=given["at"], batch=given["batch"], step=show or silent)


@public(functions.Explain)
def explain(model: Model, **given: Unpack[functions.Explain]) -> OptimizeReport:
    """Return what `optimize` would do to the model, what it would not, and why; the model is not changed.

    Where the model carries what was measured of it, that decides. Raises ModelError, RuleError, UsageError.
    """
    from onnxfuse.api.request.options import Options
    from onnxfuse.explanation.explaining import explain as explained

    return explained(model, Options.of(given)).report


@public(functions.Unfuse)
def unfuse(model: Model, **given: Unpack[functions.Unfuse]) -> onnx.ModelProto:
    """Return the model with every fused op replaced by the nodes of its body; `model` is not changed.

    Folded weights and rewritten nodes remain: they compute the same, and a warning says which and how often (`.undone`
    of what `onnxfuse.api.optimize.optimizing.undo` returns has every fact). The result needs no onnxfuse and holds no
    functions of its domain. Raises ModelError where ONNX Runtime opens `model` and not the result.
    """
    from onnxfuse.api.optimize.optimizing import undo

    made = undo(model)
    if made.undone is not None and made.undone.known and not made.undone.whole:
        warnings.warn(f"{made.undone}", stacklevel=CALLER)
    return made.model
