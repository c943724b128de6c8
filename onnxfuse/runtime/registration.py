"""Register exactly the fused kernels that a model needs, for a session on CUDA."""

import weakref
from collections.abc import Mapping
from dataclasses import replace

import onnx
from onnxruntime import SessionOptions

from onnxfuse.kernels import is_template
from onnxfuse.model.errors import UsageError
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.model.tf32 import is_strict_fp32
from onnxfuse.runtime.bridge import bridge
from onnxfuse.runtime.cuda import cuda_unusable
from onnxfuse.runtime.placement import Model, Placement, node_counts, read
from onnxfuse.runtime.planner import may_alias, no_kernel, planner
from onnxfuse.runtime.shape_math import shape_math
from onnxfuse.runtime.table import Row
from onnxfuse.runtime.tuned import Variants, variants_of

MARK = "onnxfuse.registered"
"""Session config entry by which options show that kernels were registered in them; ONNX Runtime ignores it."""


def register(session_options: SessionOptions, model: Model, *, tf32: bool | None = None) -> tuple[Placement, ...]:
    """Register the kernels of the model's fused ops in `session_options`, and return what becomes of each op.

    For those who build the session themselves: the options are then for this model, and for a session whose providers
    contain CUDA (a registered op has no other kernel). Where CUDA cannot be used nothing is registered and every
    placement says so. `tf32=False` goes with the provider option `use_tf32` 0: what would round float32 to TF32 keeps
    its body; None is False for a file made with `--strict-fp32`. Raises DeviceError where CUDA can be used and the
    native bridge is missing.

    >>> options = onnxruntime.SessionOptions()
    >>> onnxfuse.register(options, "fused.onnx")
    >>> onnxruntime.InferenceSession("fused.onnx", options, providers=["CUDAExecutionProvider"])
    """
    missing = cuda_unusable()
    if missing is not None:
        return as_functions(model, f"CUDA cannot be used: {missing}")
    facts = read(model)
    return register_kernels(session_options, facts, tf32=not is_strict_fp32(facts) if tf32 is None else tf32)


def register_kernels(
    session_options: SessionOptions, model: Model, *, library: bool = False, tf32: bool = True
) -> tuple[Placement, ...]:
    """Register every fused op that has a kernel; the others keep their bodies, each with the reason.

    `library`: the caller lets the library compute those without a kernel that have such a form. `tf32`: as for
    `register`.
    """
    facts = read(model)
    ops = fused_ops(facts)
    refusals = _refusals(facts, ops, tf32)
    variants = variants_of(facts)
    rows = [_row(op, variants) for name, op in ops.items() if refusals[name] is None]
    if rows:
        _register(session_options, rows)
    counts = node_counts(facts)
    placements = (_placement(op, counts[name], refusals[name]) for name, op in ops.items())
    return tuple(
        replace(p, runs_as="library", reason="")
        if library and p.runs_as == "function" and ops[p.op].library is not None
        else p
        for p in placements
    )


def as_functions(model: Model, reason: str) -> tuple[Placement, ...]:
    """Return the placements of a session in which nothing is registered."""
    facts = read(model)
    counts = node_counts(facts)
    return tuple(_placement(op, counts[name], reason) for name, op in fused_ops(facts).items())


def _refusals(model: onnx.ModelProto, ops: Mapping[str, FusedOp], tf32: bool) -> dict[str, str | None]:
    """Return for each op why its body has to run, None where the kernel can."""
    on_host = dict.fromkeys(shape_math(model.graph), "works on shapes, which ONNX Runtime keeps on the CPU")
    return {name: on_host.get(name) or _library_alone(op) or no_kernel(op, tf32) for name, op in ops.items()}


def _library_alone(op: FusedOp) -> str | None:
    if op.library is None or is_template(op.template):
        return None
    return "ONNX Runtime's own op computes it in sessions that onnxfuse.session opens"


def _register(session_options: SessionOptions, rows: list[Row]) -> None:
    if _is_marked(session_options):
        raise UsageError(
            "these session options already hold the fused kernels of a model",
            "Make new onnxruntime.SessionOptions for each model.",
        )
    native = bridge()
    # A session holds its options: without both nobody asks for a plan any more.
    weakref.finalize(session_options, native.forget, native.stage(rows)).atexit = False
    session_options.register_custom_ops_library(native.__file__)
    session_options.add_session_config_entry(MARK, "1")


def _is_marked(session_options: SessionOptions) -> bool:
    try:
        return bool(session_options.get_session_config_entry(MARK))
    except RuntimeError:  # ONNX Runtime's answer for a key that is not there
        return False


def _placement(op: FusedOp, nodes: int, reason: str | None) -> Placement:
    if reason is None:
        return Placement(op.name, op.rule, nodes, "kernel", "")
    return Placement(op.name, op.rule, nodes, "function", reason)


def _row(op: FusedOp, variants: Variants) -> Row:
    return Row(op.name, op.inputs, op.outputs, may_alias(op), planner(op, variants))
