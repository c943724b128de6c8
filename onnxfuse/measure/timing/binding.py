"""Sessions with inputs and outputs bound to device memory: no copies between timed runs."""

import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

from onnxfuse import runtime
from onnxfuse.files import io
from onnxfuse.measure.timing.settings import ModelName, Setting
from onnxfuse.measure.timing.stopwatch import warm
from onnxfuse.runtime.sessions.opening import load_custom_ops, ort_value, reason, unregistered
from onnxfuse.support.error_text import first_line
from onnxfuse.support.errors import DeviceError, ModelError, UsageError
from onnxfuse.verification.inputs.inputs import Array
from onnxfuse.verification.run.sessions import (
    CPU,
    CUDA,
    ORT_ERRORS,
    SILENT,
    Model,
    no_cuda,
    raise_if_lost,
    with_options,
    without_crashes,
)

Values = Mapping[str, onnxruntime.OrtValue]

ON_GPU = (CUDA, CPU)
"""The providers of a session on the GPU: the CPU's runs what is arithmetic on shapes."""

REFUSALS: tuple[type[Exception], ...] = (*ORT_ERRORS, RuntimeError)
"""Exceptions of ONNX Runtime for an unsupported setting; RuntimeError where it has no class of its own."""


@dataclass(frozen=True)
class DeviceBinding:
    """A session with its bound inputs and outputs."""

    session: onnxruntime.InferenceSession
    binding: Any
    unbound: tuple[str, ...] = ()
    """Outputs that ONNX Runtime allocates anew in each run, on the session's device."""

    def run(self) -> None:
        """Run once and synchronize with the device."""
        for name in self.unbound:
            self.binding.bind_output(name, _device(self.session))
        try:
            self.session.run_with_iobinding(self.binding)
        except REFUSALS as error:
            raise_if_lost(error)
            raise


def opened(
    model: Model, setting: Setting, providers: Sequence[str], *, fused: bool, profile: str = ""
) -> onnxruntime.InferenceSession:
    """Open the session of a model, with its profile written to `profile`. Raises ONNX Runtime's error, DeviceError."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT  # the reason is raised, and reported
    options.intra_op_num_threads = setting.threads
    load_custom_ops(options)
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    chosen = with_options(providers, setting.options)
    safe = without_crashes(model, providers)
    if fused:
        return runtime.session(model, chosen, options, rules=setting.rules, wait_for_kernels=True, **safe)
    source = io.name_in_utf8(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=chosen, enable_fallback=0, **safe)
    if CUDA in providers and CUDA not in session.get_providers():
        raise no_cuda("ONNX Runtime does not load the provider")
    return session


def ort_values(arrays: Mapping[str, Array]) -> dict[str, onnxruntime.OrtValue]:
    """Wrap arrays as ONNX Runtime values; the arrays must outlive the values."""
    return {name: ort_value(x) for name, x in arrays.items()}


def bind(session: onnxruntime.InferenceSession, inputs: Values, outputs: Values) -> DeviceBinding:
    """Bind `session` to `inputs`, copied once to where the model reads them, and to preallocated `outputs`.

    An output whose declared shape differs from the actual one is allocated by ONNX Runtime, which then only warns; a
    CUDA graph requires all outputs to be bound, and such a session refuses to run.
    """
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    options = session.get_provider_options().get(CUDA, {})
    declared = {} if options.get("enable_cuda_graph") == "1" else {o.name: o.shape for o in session.get_outputs()}
    unbound = tuple(n for n, v in outputs.items() if n in declared and not _fits(v.shape(), declared[n]))
    for name, value in outputs.items():
        if name not in unbound:
            binding.bind_ortvalue_output(name, value)
    return DeviceBinding(session, binding, unbound)


def warmed(session: onnxruntime.InferenceSession, inputs: Values, outputs: Values) -> DeviceBinding:
    """Return the session, bound and run so often that nothing but its work takes time."""
    bound = bind(session, inputs, outputs)
    warm([bound.run])
    return bound


def _fits(shape: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    if not declared:  # unknown shapes, too, which ONNX Runtime does not enforce
        return True
    same_rank = len(shape) == len(declared)
    return same_rank and all(not isinstance(d, int) or n == d for n, d in zip(shape, declared, strict=True))


def _device(session: onnxruntime.InferenceSession) -> str:
    return "cuda" if CUDA in session.get_providers() else "cpu"


def outputs_of(session: onnxruntime.InferenceSession, inputs: Values, model: str) -> dict[str, onnxruntime.OrtValue]:
    """Return the outputs of one run of the session, on its device. Raises UsageError if `model` does not run."""
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    names = list(dict.fromkeys(o.name for o in session.get_outputs()))  # a model may list an output twice
    for name in names:
        binding.bind_output(name, _device(session))
    try:
        session.run_with_iobinding(binding)
    except REFUSALS as error:
        raise_if_lost(error)
        shapes = " ".join(f"{n}={'x'.join(map(str, v.shape())) or 'scalar'}" for n, v in inputs.items())
        raise UsageError(
            f"the {model} model does not run on {shapes}: {reason(error)}",
            "Give sizes for its dynamic dimensions: --shape name=8,32.",
        ) from error
    by_name = dict(zip(names, binding.get_outputs(), strict=True))
    for name, value in by_name.items():
        if not value.is_tensor():
            raise UsageError(f"output '{name}' is a {value.data_type()}: only tensors can be bound to a device")
    return by_name


def profiled(
    model: Model, setting: Setting, providers: Sequence[str], inputs: Values, name: ModelName
) -> tuple[onnxruntime.InferenceSession, Counter[str]]:
    """Return a profiling session, and the number of nodes that one run executes by provider."""
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
        try:
            session = opened(model, setting, providers, fused=name == "fused", profile=f"{folder}/profile")
        except REFUSALS as error:
            raise_if_lost(error)
            raise unregistered(error) or ModelError(
                f"ONNX Runtime cannot open the {name} model on {providers[0]}: {reason(error)}",
                "Check that it runs there: onnxfuse verify.",
            ) from error
        outputs_of(session, inputs, name)
        events = events_of(session)
    ran = (e["args"].get("provider") for e in events if e.get("cat") == "Node")
    return session, Counter(p.removesuffix("ExecutionProvider") for p in ran if p)


def events_of(session: onnxruntime.InferenceSession) -> list[dict[str, Any]]:
    """Return the profile events of a session, and end profiling; raises DeviceError if the profile is truncated.

    ONNX Runtime does not report what it could not write.
    """
    file = Path(session.end_profiling())
    try:
        events: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DeviceError(
            f"{file}: ONNX Runtime's profile is truncated: {first_line(error)}",
            "Is the folder for temporary files full? Free some space, or set TMPDIR to another folder.",
        ) from error
    file.unlink()
    return events
