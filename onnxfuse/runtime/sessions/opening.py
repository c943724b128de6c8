"""Check that ONNX Runtime opens a model.

Applied to every generated model, to the file written from it, and to models that ONNX's checker rejects. A file can
crash the process while ONNX Runtime opens it (1.31.1 does for a function that calls LayerNormalization below opset 17),
so commands perform the check in a child process.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from onnxfuse.files import detached, io
from onnxfuse.files.trial import is_utf8
from onnxfuse.graph.validity import Refused
from onnxfuse.model import custom_ops
from onnxfuse.model.functions import called, functions_of
from onnxfuse.shapes.inference import shell
from onnxfuse.support import isolation
from onnxfuse.support.error_text import first_line
from onnxfuse.support.errors import ModelError, UsageError

ORT_ERRORS: tuple[type[Exception], ...] = (
    errors.EPFail, errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.InvalidProtobuf, errors.NoModel,
    errors.NoSuchFile, errors.NotImplemented, errors.RuntimeException,
)  # fmt: skip
"""Exceptions raised by ONNX Runtime, which have no common base class."""

UNREGISTERED = "is not a registered function/op"
"""ONNX Runtime's message for an operator that would need a library of the user's."""
_NAMED = re.compile(rf"([\w.\-]*):(\w+)\(-?\d+\) {UNREGISTERED}")

SHAPES_OUTSIDE = "Cannot parse data from external tensors"
"""Message of ONNX's shape inference for targets, sizes or axes that are not in the model file."""

PATIENCE = 120.0
"""Seconds until opening times out: 2 GB of weights take ten."""

SILENT = 4
"""ONNX Runtime's log severity for no output at all: failures are raised and reported by us."""


CARRIERS: Mapping[np.dtype[Any], type[np.unsignedinteger[Any]]] = {
    np.dtype(ml_dtypes.bfloat16): np.uint16,
    np.dtype(ml_dtypes.float8_e4m3fn): np.uint8,
    np.dtype(ml_dtypes.float8_e5m2): np.uint8,
}
"""Element types that NumPy lacks, and those whose arrays ONNX Runtime takes in their place."""


def ort_value(x: npt.NDArray[Any]) -> onnxruntime.OrtValue:
    """Wrap an array, which must outlive the value, as a value of ONNX Runtime."""
    carrier = CARRIERS.get(x.dtype)
    if carrier is not None:
        type_ = helper.np_dtype_to_tensor_dtype(x.dtype)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(x.view(carrier), type_)
    return onnxruntime.OrtValue.ortvalue_from_numpy(x)


def next_step(error: BaseException, otherwise: str) -> str:
    """Return what a user can do if ONNX Runtime does not open a model; `otherwise` if its message gives no hint."""
    if SHAPES_OUTSIDE in f"{error}":
        return (
            "What says shapes, such as the target of a Reshape, is in the model's data file, where shape inference "
            "does not look: onnxfuse optimize writes them into the model, as onnx.save does at its own size_threshold."
        )
    return otherwise


def reason(error: BaseException) -> str:
    """Return the first line of ONNX Runtime's message, without the leading error code."""
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", first_line(error))


def load_custom_ops(options: onnxruntime.SessionOptions, libraries: Sequence[Path] | None = None) -> None:
    """Register the user's operator libraries, by default those of `--custom-ops`, in session options.

    Raises UsageError for a library that ONNX Runtime does not load.
    """
    for library in custom_ops.libraries() if libraries is None else libraries:
        try:
            options.register_custom_ops_library(str(library))
        except ORT_ERRORS as error:
            raise UsageError(f"--custom-ops {library}: {first_line(error)}", custom_ops.HINT) from error


def unregistered(error: Exception) -> ModelError | None:
    """Return the error for an operator that no library provides, if that is why ONNX Runtime opens no session."""
    match = _NAMED.search(f"{error}")
    if match is None:
        return None
    library_names = ", ".join(library.name for library in custom_ops.libraries())
    return ModelError(
        f"operator {match[2]} of domain '{match[1]}' is neither ONNX Runtime's nor in "
        + (f"the given libraries: {library_names}" if library_names else "a library that was given"),
        custom_ops.NAME_IT,
    )


def declare_custom_ops(model: onnx.ModelProto) -> None:
    """Declare in `model` the output types of the user's own operators, as their libraries infer them.

    Existing declarations are not changed; if ONNX Runtime does not open the model, nothing is added. Shapes are added
    where a library infers them. Without these types, everything computed from such a value would be untyped.
    """
    declared = {v.name for v in (*model.graph.value_info, *model.graph.output)}
    functions = functions_of(model)
    custom_nodes = [n for n in model.graph.node if custom_ops.is_custom(n) and called(n) not in functions]
    names = [o for n in custom_nodes for o in n.output if o and o not in declared]
    if not names:
        return
    light = shell(model)
    light.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    outcome = isolation.isolated(lambda _: _types(light, names), patience=PATIENCE)
    for name, (dtype, shape) in {} if isinstance(outcome, isolation.Crash) else outcome.items():
        # ONNX Runtime reports an unknown shape as having no dimensions.
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, dtype, shape or None))


def refusal(model: onnx.ModelProto) -> Refused | None:
    """Return why ONNX Runtime does not open `model` on the CPU with optimizations off; None if it does.

    Weights are omitted, so this needs no memory for them; if one is required, a second attempt includes them, provided
    the model fits a protobuf message.
    """
    light = shell(model)
    refused = _refusal(light)
    if (
        refused is None
        or len(light.graph.initializer) == len(model.graph.initializer)
        or io.size(model) > io.PROTOBUF_LIMIT
    ):
        return refused
    return _refusal(io.without_weights(model, detached.attached))


def require(model: onnx.ModelProto) -> Callable[[onnx.ModelProto], None]:
    """Return a check that raises ModelError if a model made of `model` does not open although `model` does."""
    source = shell(model)

    def check(optimized: onnx.ModelProto) -> None:
        refused = refusal(optimized)
        if refused is not None and refusal(source) is None:
            raise ModelError(
                f"ONNX Runtime cannot open the optimized model: {refused.why}",
                "Please report it: the fault is onnxfuse's.",
            )

    return check


def require_written(model: onnx.ModelProto, source: Path | onnx.ModelProto | None = None) -> Callable[[Path], None]:
    """Return a check that raises ModelError if a file written from `model` does not open although `model` or `source`
    does.

    `source` is what `model` was made of. It is not decisive where a kernel is missing: a model in lower precision may
    have none on the CPU.
    """

    def check(file: Path) -> None:
        refused = _refusal(file)
        if refused is None:
            return
        if refusal(model) is None or (not refused.lacking and source is not None and _opens(source)):
            raise ModelError(
                f"ONNX Runtime cannot open the file that was written: "
                f"{refused.why.replace(f'Load model from {file} ', '')}",
                "The old file was not replaced. Please report it: the fault is onnxfuse's.",
            )

    return check


def _opens(source: Path | onnx.ModelProto) -> bool:
    return (_refusal(source) if isinstance(source, Path) else refusal(source)) is None


def _refusal(model: onnx.ModelProto | Path) -> Refused | None:
    """Return ONNX Runtime's error message, or how the process ended."""
    outcome = isolation.isolated(lambda _: _opened(model), patience=PATIENCE)
    return (
        Refused(f"ONNX Runtime {outcome.how} when it opens it", False)
        if isinstance(outcome, isolation.Crash)
        else outcome
    )


def _opened(model: onnx.ModelProto | Path) -> Refused | None:
    try:
        if isinstance(model, Path):
            with _named(model) as name:
                _session(name)
        else:
            _session(model.SerializeToString())
    except ORT_ERRORS as error:
        why = first_line(error)
        return Refused(why, isinstance(error, errors.NotImplemented) or UNREGISTERED in why)
    return None


@contextlib.contextmanager
def _named(file: Path) -> Iterator[str]:
    """Yield a UTF-8 path under which ONNX Runtime opens the file and finds its external data."""
    if is_utf8(file):
        yield f"{file}"
        return
    inside = is_utf8(Path(file.name))
    handle = os.open(file.parent if inside else file, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{handle}{f'/{file.name}' * inside}"
    finally:
        os.close(handle)


def _types(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, tuple[int, list[int | str | None]]]:
    try:
        outputs = _session(model.SerializeToString()).get_outputs()
    except ORT_ERRORS:
        return {}  # whoever runs it reports why
    tensors = ((o, re.fullmatch(r"tensor\((\w+)\)", o.type)) for o in outputs if o.name in names)
    return {o.name: (onnx.TensorProto.DataType.Value(t[1].upper()), o.shape) for o, t in tensors if t is not None}


def _session(model: bytes | str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = SILENT
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    load_custom_ops(options)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
