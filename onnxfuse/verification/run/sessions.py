"""ONNX Runtime sessions: the unmodified original, the fused model with its kernels, the reference on the CPU."""

import ctypes
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto

from onnxfuse import runtime
from onnxfuse.files import io
from onnxfuse.model.tf32 import is_strict_fp32
from onnxfuse.model.validate import FEWER_AXES, MOST_AXES
from onnxfuse.runtime.sessions.opening import ORT_ERRORS as ORT_ERRORS
from onnxfuse.runtime.sessions.opening import SILENT as SILENT
from onnxfuse.runtime.sessions.opening import load_custom_ops, next_step, ort_value, unregistered
from onnxfuse.support.error_text import first_line
from onnxfuse.support.errors import DeviceError, DeviceLostError, ModelError
from onnxfuse.verification.run import ml_types
from onnxfuse.verification.run.tensors import is_composite, output_of, tensors_of, values_of

Arrays = dict[str, npt.NDArray[Any]]
Source = str | Path | bytes | onnx.ModelProto
"""Model forms that `verify` accepts."""
Model = Path | onnx.ModelProto
"""Model forms that sessions open."""

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

CRASHES_IN_HALF = "NchwcTransformer"
"""A graph optimizer of ONNX Runtime's CPU provider that crashes on some float16 models: a ViT's patch Conv (1.31.1,
2026-11). It rearranges float32 convolutions alone, so a float16 model loses nothing without it."""

PRECISE = "session.x64quantprecision"
"""ONNX Runtime's option against saturating products of uint8 and int8 on x86 processors without VNNI."""

DEFAULTS: Mapping[str, str] = MappingProxyType({})
"""No provider options."""


def ort_session(
    model: Model,
    providers: Sequence[str],
    options: onnxruntime.SessionOptions | None = None,
    cuda: Mapping[str, str] = DEFAULTS,
) -> onnxruntime.InferenceSession:
    """Open a plain ONNX Runtime session, as a user would. Raises ModelError, DeviceError.

    `cuda` are options of the CUDA provider.
    """
    safe = without_crashes(model, providers)
    session = _open(model, options or _quiet(), with_options(providers, cuda), "the original model", **safe)
    if CUDA in providers and CUDA not in session.get_providers():
        raise no_cuda("ONNX Runtime does not load the provider")
    return session


def low_memory_session(model: Model, providers: Sequence[str]) -> onnxruntime.InferenceSession:
    """Open a plain ONNX Runtime session that holds each weight once. Raises ModelError, DeviceError."""
    return ort_session(model, providers, _frugal())


def unoptimized(
    model: Model, profile: str = "", providers: Sequence[str] = (CPU,), cuda: Mapping[str, str] = DEFAULTS
) -> onnxruntime.InferenceSession:
    """Open a session, by default on the CPU, that runs the graph without optimization. Raises ModelError.

    `profile` is the file name prefix of a profile of the executed nodes.
    """
    options = _frugal()
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _open(model, options, with_options(providers, cuda), "the original without graph optimization")


def precise(model: Model, providers: Sequence[str]) -> onnxruntime.InferenceSession:
    """Open a session as a user would whose products of uint8 and int8 do not saturate. Raises ModelError."""
    options = _frugal()
    options.add_session_config_entry(PRECISE, "1")
    return ort_session(model, providers, options)


def without_optimizers(
    model: Model, providers: Sequence[str], cuda: Mapping[str, str], names: Sequence[str]
) -> onnxruntime.InferenceSession:
    """Open a session as a user would, without some of ONNX Runtime's optimizers. Raises ModelError."""
    disabled = [*names, *without_crashes(model, providers).get("disabled_optimizers", ())]
    return _open(model, _frugal(), with_options(providers, cuda), "the original model", disabled_optimizers=disabled)


def with_kernels(
    model: Model,
    providers: Sequence[str],
    cuda: Mapping[str, str] = DEFAULTS,
    rules: Sequence[str | Path] = (),
) -> runtime.Session:
    """Open the session of a fused model as `onnxfuse.session` does. Raises ModelError, DeviceError.

    `cuda` are options of the CUDA provider, `rules` the folders of rules that the model was made with, in addition to
    ours.
    """
    safe = without_crashes(model, providers)
    try:
        return runtime.session(
            model, with_options(providers, cuda), _quiet(), rules=rules, wait_for_kernels=True, **safe
        )
    except ORT_ERRORS as error:
        raise_if_lost(error)
        raise unregistered(error) or ModelError(
            f"ONNX Runtime cannot open the fused model: {first_line(error)}",
            next_step(error, "Optimize the original again."),
        ) from error


def with_options(providers: Sequence[str], cuda: Mapping[str, str]) -> list[runtime.Provider]:
    """Return the providers in ONNX Runtime's format, CUDA's with its options."""
    return [(p, dict(cuda)) if p == CUDA and cuda else p for p in providers]


def tf32_options(requested: bool | None, fused: onnx.ModelProto) -> Mapping[str, str]:
    """Return the CUDA option for float32 products: as requested, else as the fused file says.

    Empty if neither says anything: ONNX Runtime's default is 1.
    """
    if requested is None:
        return {"use_tf32": "0"} if is_strict_fp32(fused) else DEFAULTS
    return {"use_tf32": str(int(requested))}


def openable(source: Source, model: onnx.ModelProto, folder: str) -> Model:
    """Return the source for sessions: the file itself, else the model, through a file in `folder` if it is too big."""
    if isinstance(source, str | Path):
        return Path(source)
    if io.size(model) <= io.PROTOBUF_LIMIT:
        return model
    file = Path(folder) / f"{id(model):x}.onnx"
    io.save(model, file)
    return file


def chosen_providers(providers: Sequence[str] | None) -> list[str]:
    """Return the providers to run on: those given, else CUDA (followed by the CPU) if it works here, else the CPU.

    Raises DeviceError for a requested CUDA provider that does not work.
    """
    unusable = runtime.cuda_unusable()
    if providers is None:
        return [CPU] if unusable else [CUDA, CPU]
    if CUDA in providers and unusable:
        raise no_cuda(unusable)
    return list(providers)


def no_cuda(reason: str) -> DeviceError:
    """Return the error for a requested but unavailable CUDA provider."""
    return DeviceError(
        f"CUDA was requested but cannot be used: {reason}",
        "Check nvidia-smi and the CUDA libraries (pip install 'onnxfuse[cuda]'), or stay on the CPU: --provider cpu.",
    )


def run(
    session: onnxruntime.InferenceSession,
    inputs: Mapping[str, npt.NDArray[Any]],
    outputs: Sequence[str] | None = None,
) -> Arrays:
    """Return the outputs by name, all or those requested. Raises ONNX Runtime's errors, DeviceLostError, ModelError.

    bfloat16 passes as `ml_dtypes.bfloat16`, eight-bit types as theirs, and smaller integers are returned as int8 and
    uint8.
    """
    try:
        return _run(session, inputs, outputs)
    except ORT_ERRORS as error:
        raise_if_lost(error)
        raise
    except UnicodeDecodeError as error:
        raise ModelError(
            f"an output holds a text that is not UTF-8: {error.object[:40]!r}",
            "Python cannot take it from ONNX Runtime.",
        ) from None
    except ValueError as error:
        if "number of dimensions" not in f"{error}":
            raise
        raise ModelError(f"an output has more than {MOST_AXES} axes, and no array of NumPy has", FEWER_AXES) from None


def refusal(session: onnxruntime.InferenceSession, inputs: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return why ONNX Runtime rejects these inputs, in one line; empty if it runs them."""
    try:
        run(session, inputs)
    except ORT_ERRORS as error:
        return first_line(error)
    return ""


def tensors(
    session: onnxruntime.InferenceSession, inputs: Mapping[str, npt.NDArray[Any]], names: Collection[str] | None = None
) -> Arrays:
    """Return the tensors of the outputs as `tensors_of` names them, all or the existing ones of these names.

    Raises what `run` raises.
    """
    declared = {o.name: o.type for o in session.get_outputs()}
    owners = None if names is None else list(dict.fromkeys(output_of(n, declared) for n in names))
    optional = [n for n, type_ in declared.items() if type_.startswith("optional(")]
    map_types = {n: dtype for n, type_ in declared.items() if (dtype := _map_values(type_)) is not None}
    every = tensors_of(run(session, inputs, owners), optional, map_types)
    return every if names is None else {n: every[n] for n in names if n in every}


def _map_values(type_: str) -> np.dtype[Any] | None:
    """Return the element type of a map's numbers from ONNX Runtime's name of its type; None for other types."""
    match = re.search(r"map\(\w+,tensor\((\w+)\)\)", type_)
    if match is None:
        return None
    named = {"float": np.float32, "double": np.float64, "string": object}
    return np.dtype(named.get(match[1], match[1]))


def raise_if_lost(error: Exception) -> None:
    """Raise DeviceLostError if the GPU is broken for this process: `error` is then its cause, not a refusal."""
    fault = runtime.device_fault()
    if fault is not None:
        raise DeviceLostError(
            f"breaks the GPU's context ({fault})", "This process cannot use the GPU any more."
        ) from error


def _run(
    session: onnxruntime.InferenceSession,
    inputs: Mapping[str, npt.NDArray[Any]],
    outputs: Sequence[str] | None,
) -> Arrays:
    names = [o.name for o in session.get_outputs()] if outputs is None else list(outputs)
    types = {i.name: i.type for i in session.get_inputs()}
    narrow = next((v for v in (*session.get_inputs(), *session.get_outputs()) if v.type in ml_types.IN_ORT), None)
    if narrow is None:
        return dict(zip(names, session.run(names, values_of(inputs, types)), strict=True))
    composite = next((n for n, type_ in types.items() if is_composite(type_)), None)
    if composite is not None:
        raise ModelError(
            f"input '{composite}' is of type {types[composite]}, and '{narrow.name}' of type {narrow.type}",
            "ONNX Runtime's Python interface takes such types one without the other.",
        )
    values = session.run_with_ort_values(names, {n: ort_value(x) for n, x in inputs.items()})
    return {n: _array(v) for n, v in zip(names, values, strict=True)}


def _open(
    model: Model,
    options: onnxruntime.SessionOptions,
    providers: Sequence[runtime.Provider],
    what: str,
    **session_options: Any,
) -> onnxruntime.InferenceSession:
    if isinstance(model, onnx.ModelProto) and io.size(model) > io.PROTOBUF_LIMIT:
        # The file may be deleted once the session is open: ONNX Runtime's memory mappings remain valid.
        with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
            return _open(openable(model, model, folder), options, providers, what, **session_options)
    source = io.name_in_utf8(model) if isinstance(model, Path) else model.SerializeToString()
    try:
        return onnxruntime.InferenceSession(
            source, options, providers=list(providers), enable_fallback=0, **session_options
        )
    except ORT_ERRORS as error:
        raise_if_lost(error)
        raise unregistered(error) or ModelError(
            f"ONNX Runtime cannot open {what} on {providers[0]}: {first_line(error)}",
            next_step(error, "Check that the original runs in plain ONNX Runtime there."),
        ) from error


def without_crashes(model: Model, providers: Sequence[str]) -> dict[str, Any]:
    """Return session options that disable crashing optimizers; no options if none apply."""
    if CUDA in providers:
        return {}
    graph = (model if isinstance(model, onnx.ModelProto) else io.outline(model)).graph
    half = any(t.data_type == TensorProto.FLOAT16 for t in graph.initializer)
    return {"disabled_optimizers": [CRASHES_IN_HALF]} if half else {}


def _quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    # ONNX Runtime's log would quote the file, raw and with colors; failures are raised, and reported by us.
    options.log_severity_level = SILENT
    # Threads that spin after a run take the cores from the reference, and vice versa: without spinning, a case of
    # ResNet-50 in 64 x 64 took 0.14 s on two cores instead of 0.49.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    load_custom_ops(options)
    return options


def _frugal() -> onnxruntime.SessionOptions:
    options = _quiet()
    # Prepacked copies of weights only pay off over many runs.
    options.add_session_config_entry("session.disable_prepacking", "1")
    # Nor does memory cached for runs of the same shapes.
    options.enable_cpu_mem_arena = False
    return options


def _array(value: onnxruntime.OrtValue) -> npt.NDArray[Any]:
    kind = ml_types.IN_ORT.get(value.data_type())
    if kind is None:
        return np.asarray(value.numpy())
    # ONNX Runtime returns no array of a type that NumPy lacks: read the bytes.
    return ml_types.decode(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()), kind, tuple(value.shape()))
