"""Register in a CUDA session exactly the fused kernels that a model needs."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from onnxruntime import SessionOptions

from onnxfuse.cuda import Arch, is_template, reads_library_form
from onnxfuse.fusion.region.realize import Realized, realize
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.model.tf32 import is_strict_fp32
from onnxfuse.rules.language import pack, rule_file
from onnxfuse.runtime.engine.bridge import bridge
from onnxfuse.runtime.engine.cuda_provider import cuda_unusable
from onnxfuse.runtime.engine.launch import Row
from onnxfuse.runtime.kernels.ahead_of_time import AheadOfTime
from onnxfuse.runtime.kernels.loader import may_alias, no_kernel, no_plan, on_host, planner
from onnxfuse.runtime.kernels.packs import Kernels, LoadedPack, pack_of
from onnxfuse.runtime.kernels.variants import Variants, variants_of
from onnxfuse.runtime.sessions.placement import Model, Placement, node_counts, path_of, read
from onnxfuse.runtime.sessions.shape_math import shape_math
from onnxfuse.support.errors import ModelError, UsageError

MARK = "onnxfuse.registered"
"""Session config entry that marks options in which kernels were registered; ONNX Runtime ignores it."""

_ops = weakref.WeakKeyDictionary[SessionOptions, int]()
"""The engine's handle of the ops registered in session options."""


def ops_of(session_options: SessionOptions) -> int | None:
    """Return the engine's handle of the ops that are registered in these options; None without any."""
    return _ops.get(session_options)


def register(
    session_options: SessionOptions,
    model: Model,
    *,
    tf32: bool | None = None,
    rules: Sequence[str | Path] = (),
    kernels: Kernels = None,
) -> tuple[Placement, ...]:
    """Register the kernels of the model's fused ops in `session_options`, and return how each op runs.

    For callers who create the session themselves: the options are then for this model, and for a session whose
    providers include CUDA (a registered op has no other kernel). If CUDA cannot be used, nothing is registered and
    every placement says so. `tf32=False` goes with the provider option `use_tf32` 0: no kernel rounds float32 to TF32,
    matrix products keep float32 precision, and ops whose kernel would round run through their bodies; None is False for
    a file made with `--strict-fp32`. `rules` are the folders of your own rules that made attention, if any: its kernel
    runs what the rule recognizes in the body. `kernels` is the kernel pack, by default the one next to the model's
    file; False uses none. Raises DeviceError if CUDA can be used and the engine is missing.

    >>> options = onnxruntime.SessionOptions()
    >>> onnxfuse.register(options, "fused.onnx")
    >>> onnxruntime.InferenceSession("fused.onnx", options, providers=["CUDAExecutionProvider"])
    """
    fault = cuda_unusable()
    if fault is not None:
        return as_functions(model, f"CUDA cannot be used: {fault}")
    facts = read(model)
    strict = is_strict_fp32(facts)
    return register_kernels(
        session_options, facts, tf32=not strict if tf32 is None else tf32, rules=rules, path=path_of(model),
        kernels=kernels,
    )[0]  # fmt: skip


def register_kernels(
    session_options: SessionOptions,
    model: Model,
    *,
    library: bool = False,
    tf32: bool = True,
    rules: Sequence[str | Path] = (),
    path: Path | None = None,
    device: int | None = None,
    kernels: Kernels = None,
    waits: bool = True,
) -> tuple[tuple[Placement, ...], dict[str, FusedOp]]:
    """Register every fused op that has a kernel; the others run through their bodies, each with the reason.

    `library`: the caller substitutes library ops for those placed so, which are also returned, each with the form that
    its rule derives from its body. The form recorded in the file is not trusted. `tf32`, `rules` and `kernels`: as for
    `register`. `path` is that of the model's file, next to which external data and the kernel pack are. `device`: the
    GPU of the session, if known, for which kernels are loaded and compiled from now on; otherwise from the first run
    on. `waits`: runs wait for kernels to compile instead of using fallback kernels.
    """
    facts = read(model)
    ops, refusals = with_forms(facts, tf32, rules, path)
    variants = variants_of(facts)
    as_kernels = {name: op for name, op in ops.items() if refusals[name] is None}
    packed = pack_of(path, kernels, as_kernels)
    ahead_of_time = AheadOfTime(facts, as_kernels, variants, packed)
    rows = [_row(op, variants, ahead_of_time, packed, waits) for op in as_kernels.values()]
    if rows:
        _register(session_options, rows)
        weakref.finalize(session_options, ahead_of_time.stop).atexit = False
        if device is not None:
            ahead_of_time.start(device)
    counts = node_counts(facts)
    through = {n: op for n, op in ops.items() if library and refusals[n] is not None and op.library is not None}
    placements = tuple(_placement(op, counts[name], refusals[name]) for name, op in ops.items())
    return tuple(replace(p, runs_as="onnxruntime", reason="") if p.op in through else p for p in placements), through


def as_functions(model: Model, reason: str) -> tuple[Placement, ...]:
    """Return the placements of a session in which no kernel is registered."""
    facts = read(model)
    counts = node_counts(facts)
    return tuple(_placement(op, counts[name], reason) for name, op in fused_ops(facts).items())


def with_forms(
    model: onnx.ModelProto, tf32: bool, rules: Sequence[str | Path], path: Path | None, arch: Arch | None = None
) -> tuple[dict[str, FusedOp], dict[str, str | None]]:
    """Return the fused ops of `model`, and for each why its body or the library must run; None if the kernel can.

    An op gets a library form only where that matters, and then the one that its rule derives from its body. `arch`: the
    target GPU, by default the first one here.
    """
    ops_by_name = fused_ops(model)
    ops = {name: replace(op, library=None, tf32=tf32) for name, op in ops_by_name.items()}
    why = "works on shapes, which ONNX Runtime keeps on the CPU"
    refusals: dict[str, str | None] = dict.fromkeys(shape_math(model), why)
    for name, op in ops.items():
        if name not in refusals and (ops_by_name[name].library is None or not reads_library_form(op.template)):
            refusals[name] = no_kernel(op, arch)
    candidates = {
        name: op for name, op in ops_by_name.items() if op.library is not None and refusals.get(name, "") is not None
    }
    candidates |= {name: op for name, op in ops_by_name.items() if _reads_body(op) and refusals[name] is None}
    for name, realized in _realized(model, candidates, rules, path).items():
        if ops_by_name[name].library is None:
            ops[name] = replace(ops[name], open_length=_is_open(realized))
            refusals[name] = _no_plan(ops[name], realized, arch)
            continue
        ops[name] = replace(ops[name], library=realized.form, open_length=_is_open(realized))
        reason = refusals.get(name)
        if reason is None:
            reason = (
                realized.reason
                or _library_alone(ops[name])
                or no_kernel(ops[name], arch)
                or _no_plan(ops[name], realized, arch)
            )
        refusals[name] = f"{reason}; {realized.reason}" if realized.reason and reason != realized.reason else reason
        if reason is not None and not realized.runs:
            ops[name] = replace(ops[name], library=None)
    return ops, refusals


def _reads_body(op: FusedOp) -> bool:
    """Return whether a kernel of a template that reads library forms computes the body of an op without one."""
    return op.library is None and is_template(op.template) and reads_library_form(op.template)


def _realized(
    model: onnx.ModelProto, ops: Mapping[str, FusedOp], rules: Sequence[str | Path], path: Path | None
) -> dict[str, Realized]:
    if not ops:
        return {}
    custom = [r for folder in rules for r in rule_file.load(Path(folder))]
    rule_names = {*rule_file.shipped_files(), *(r.name for r in custom)}
    if any(op.rule not in rule_names for op in ops.values()):
        custom += pack.rules()
    try:
        return realize(model, ops, custom, path)
    except ModelError as error:  # if ONNX Runtime opens it all the same, its bodies run
        return dict.fromkeys(ops, Realized(None, f"{error}", ()))


def _library_alone(op: FusedOp) -> str | None:
    if is_template(op.template):
        return None
    return "ONNX Runtime's own op computes it in sessions that onnxfuse.session opens"


def _is_open(realized: Realized) -> bool:
    """Return whether some node of the op has dynamic extents other than the batch."""
    return any(s is None or not all(isinstance(n, int) for n in s[1:]) for shapes in realized.shapes for s in shapes)


def _no_plan(op: FusedOp, realized: Realized, arch: Arch | None) -> str | None:
    """Return why some node of the op may have no plan on the GPU; unknown shapes count as having none."""
    return next((r for shapes in realized.shapes if (r := no_plan(op, shapes, arch)) is not None), None)


def _register(session_options: SessionOptions, rows: list[Row]) -> None:
    if _is_marked(session_options):
        raise UsageError(
            "these session options already hold the fused kernels of a model",
            "Make new onnxruntime.SessionOptions for each model.",
        )
    native = bridge()
    # A session keeps its options alive; when both are gone, nobody requests a plan any more.
    _ops[session_options] = ops = native.stage(rows)
    weakref.finalize(session_options, native.forget, ops).atexit = False
    try:
        session_options.register_custom_ops_library(str(native.path))
    finally:
        native.unstage()
    session_options.add_session_config_entry(MARK, "1")


def _is_marked(session_options: SessionOptions) -> bool:
    try:
        return bool(session_options.get_session_config_entry(MARK))
    except RuntimeError:  # ONNX Runtime's error for a missing key
        return False


def _placement(op: FusedOp, nodes: int, reason: str | None) -> Placement:
    if reason is None:
        return Placement(op.name, op.rule, nodes, "kernel", "")
    return Placement(op.name, op.rule, nodes, "body", reason)


def _row(op: FusedOp, variants: Variants, ahead_of_time: AheadOfTime, packed: LoadedPack | None, waits: bool) -> Row:
    answers = planner(op, variants, ahead_of_time, packed, waits=waits)
    return Row(op.name, op.inputs, op.outputs, may_alias(op), answers, on_host(op))
