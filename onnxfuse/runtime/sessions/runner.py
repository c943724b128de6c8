"""Serving session: binds memory, captures a CUDA graph per set of recurring shapes, and replays it."""

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from onnxfuse.model.nested import nodes_of
from onnxfuse.model.schema import RANDOM
from onnxfuse.runtime.engine.cuda_provider import PROVIDER, device_fault
from onnxfuse.runtime.kernels.packs import Kernels
from onnxfuse.runtime.sessions.capture import WAITS, host_inputs
from onnxfuse.runtime.sessions.inference import CPU, Provider, Session, session
from onnxfuse.runtime.sessions.memory import MemoryUse
from onnxfuse.runtime.sessions.opening import ORT_ERRORS, SILENT, ort_value, reason
from onnxfuse.runtime.sessions.placement import Model, Placement, read
from onnxfuse.support.errors import DeviceLostError, UsageError

GRAPHS = 8
"""Default number of graphs whose buffers are retained."""

CAPTURES = 8
"""Limit of captures, as a multiple of the retained graphs: ONNX Runtime 1.31 frees a graph only with its session
(`release_captured_graph` does nothing on CUDA), so shapes that never recur eventually run without graphs."""

REFUSALS: tuple[type[Exception], ...] = (*ORT_ERRORS, RuntimeError)
"""Exceptions of ONNX Runtime where it cannot capture."""

GRAPH_ID = "gpu_graph_id"
"""Run option with the id of a graph; -1 neither captures nor replays (onnxruntime_run_options_config_keys.h)."""

LEGACY_STREAM = 1
"""The CUDA stream on which ONNX Runtime copies, in DLPack's encoding; producers of arrays order their work
before it."""

ON_CPU = 1
"""Device type of the CPU in DLPack."""

Array = Any
"""A NumPy or CuPy array, a torch tensor, or any other object that supports DLPack."""

Values = Mapping[str, onnxruntime.OrtValue]

Key = tuple[int, tuple[tuple[int, ...], ...]]
"""Thread and input shapes: ONNX Runtime's graphs belong to the thread that captured them."""


@dataclass(frozen=True)
class BoundIO:
    """A captured graph with the device memory that it reads and writes: `inputs` and `outputs` by name.

    The values support DLPack: `torch.from_dlpack(bound.inputs["x"])` is that memory itself. Write the inputs, call the
    object, and read the outputs before the next call; only the thread that created it may call it. It copies nothing.
    """

    inputs: Mapping[str, onnxruntime.OrtValue]
    outputs: Mapping[str, onnxruntime.OrtValue]
    session: Session
    binding: Any
    options: onnxruntime.RunOptions
    thread: int

    def __call__(self) -> None:
        """Replay the graph; returns when the outputs are complete."""
        if threading.get_ident() != self.thread:
            raise UsageError(
                "a captured graph was called by another thread than the one that captured it",
                "Bind in each thread, or call the runner, which keeps them apart.",
            )
        self.session.run_with_iobinding(self.binding, self.options)


class Runner:
    """Runs a model on arrays by the fastest mechanism that ONNX Runtime offers for it.

    >>> run = onnxfuse.runner("fused.onnx")
    >>> run({"x": x})["y"]

    `x` is a NumPy or CuPy array, a torch tensor, or supports DLPack; outputs are of the same kind as the first input,
    in memory of their own. The first run of a set of shapes is an ordinary run; when the shapes recur, a CUDA graph is
    captured for them and replayed from then on. If that is impossible, every run is an ordinary one and `why_not` says
    why.

    Calls from several threads are serialized, and each thread has graphs of its own. The inputs and outputs of at most
    `graphs` graphs are retained, evicting the least recently used; after 8 times as many captures, new shapes run
    without graphs. On the CPU it is an ordinary session.
    """

    def __init__(
        self,
        model: Model,
        *,
        graphs: int = GRAPHS,
        providers: Sequence[Provider] | None = None,
        rules: Sequence[str | Path] = (),
        kernels: Kernels = None,
        memory_limit: int | None = None,
    ) -> None:
        if graphs < 0:
            raise UsageError(f"graphs is {graphs}: it is how many CUDA graphs are kept, 0 for none")
        self.why_not = ""
        """Why nothing is captured; empty if graphs are captured, or would be at the second call with the same
        shapes."""
        self.captured = self.replayed = self.plain = 0
        """Counts: captured graphs; runs that replayed one; runs that did not."""
        self._graphs = graphs
        self._graph_bytes = 0
        """Of the captured graphs themselves, which ONNX Runtime keeps as long as the session."""
        self._lock = threading.Lock()
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._bound: OrderedDict[Key, BoundIO] = OrderedDict()
        self._model, self._rules, self._kernels = model, rules, kernels
        self._providers, self._memory_limit = providers, memory_limit
        self._session: Session | None = self._opened()
        self._inputs = {i.name: i.type for i in self._session.get_inputs()}
        strange = [v for v in (*self._session.get_inputs(), *self._session.get_outputs()) if v.type[:7] != "tensor("]
        if strange:
            raise UsageError(f"'{strange[0].name}' is a {strange[0].type}: a runner takes and gives tensors alone")
        self._outputs = list(dict.fromkeys(o.name for o in self._session.get_outputs()))
        self._on_host = set(_outputs_on_host(self._session))
        self._device = int(self._session.get_provider_options().get(PROVIDER, {}).get("device_id", 0))

    @property
    def fused(self) -> tuple[Placement, ...]:
        """How each fused op of the model runs, and why."""
        return self._live().fused

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name for inputs by name. Raises UsageError, and ONNX Runtime's errors."""
        with self._lock:
            values = self._values(inputs)
            bound = self._captured(values) if not self.why_not else None
            if bound is not None:
                for name, value in bound.inputs.items():
                    _write(value, values[name])
                bound()
                self.replayed += 1
                results = bound.outputs
            else:
                results = self._run(values)
                self.plain += 1
            like = next(iter(inputs.values()), None)
            return {name: _as(value, like, self._device, copy=bound is not None) for name, value in results.items()}

    def bind(self, inputs: Mapping[str, Array]) -> BoundIO:
        """Return the captured graph for such inputs, with its memory, for callers who write the inputs in place.

        Captures it now if necessary. Raises UsageError with `why_not` if it cannot be captured.
        """
        self(inputs)
        with self._lock:
            bound = None if self.why_not else self._captured(self._values(inputs))
        if bound is None:
            raise UsageError(
                f"there is no CUDA graph to bind to: {self.why_not or 'graphs is 0, or no more may be captured'}",
                "Call the runner itself: it runs plainly then. onnxfuse explain --graph names what blocks a graph.",
            )
        return bound

    def memory(self) -> MemoryUse:
        """Return what the session, its graphs and their inputs and outputs use of the GPU's memory.

        Raises UsageError where no fused op runs as a kernel.
        """
        with self._lock:
            return self._live().memory(self._graph_bytes + sum(map(_bound_bytes, self._bound.values())))

    def close(self) -> None:
        """Free the session, its graphs and their memory. Calling the runner afterwards is an error."""
        with self._lock:
            self._bound.clear()
            self._session = None

    def __enter__(self) -> "Runner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _values(self, inputs: Mapping[str, Array]) -> dict[str, onnxruntime.OrtValue]:
        """Return the arguments as ONNX Runtime values, in the order of the model's inputs; raises UsageError."""
        self._live()
        if not isinstance(inputs, Mapping):
            name = next(iter(self._inputs), "x")
            raise UsageError(
                f"inputs are of the type {type(inputs).__name__}; expected a dict of arrays by the names of the inputs",
                f"Such as {{'{name}': array}}; the model has {', '.join(self._inputs) or 'none'}.",
            )
        missing, unknown = self._inputs.keys() - inputs.keys(), inputs.keys() - self._inputs.keys()
        if missing or unknown:
            fault = f"input '{min(missing)}' is missing" if missing else f"there is no input '{min(unknown)}'"
            raise UsageError(f"{fault}; the model has {', '.join(self._inputs) or 'none'}")
        values_by_name = {name: _value(inputs[name]) for name in self._inputs}
        for name, value in values_by_name.items():
            if value.data_type() != self._inputs[name]:
                raise UsageError(f"input '{name}' is a {value.data_type()}; the model wants a {self._inputs[name]}")
        return values_by_name

    def _live(self) -> Session:
        if self._session is None:
            raise UsageError("the runner is closed", "Make another: onnxfuse.runner(model).")
        return self._session

    def _opened(self) -> Session:
        """Return the session, with CUDA graphs enabled if possible; else `why_not` says why not."""
        opened = self._try_with_graphs() if self._graphs and not self.why_not else None
        if opened is not None:
            return opened
        self.why_not = self.why_not or "graphs is 0"
        return self._session_on(self._providers)

    def _session_on(self, providers: Sequence[Provider] | None) -> Session:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = SILENT  # failures are raised, or recorded in `why_not`
        return session(
            self._model, providers, options, rules=self._rules, kernels=self._kernels, memory_limit=self._memory_limit
        )  # fmt: skip

    def _try_with_graphs(self) -> Session | None:
        chosen = self._providers if self._providers is not None else _default()
        names = [p if isinstance(p, str) else p[0] for p in chosen]
        if PROVIDER not in names:
            self.why_not = f"the session is on {names[0] if names else CPU}; CUDA graphs are for CUDA"
            return None
        ops = {n.op_type for n in _nodes(self._model) if not n.domain}
        if ops & RANDOM:
            self.why_not = f"{min(ops & RANDOM)}: each replay would draw the same random numbers"
            return None
        if ops & WAITS:
            self.why_not = f"{min(ops & WAITS)}: the size of its output depends on data, for which its kernel waits"
            return None
        with_graphs = [_with_graphs(p) for p in chosen]
        try:
            opened = self._session_on(with_graphs)
        except REFUSALS as error:
            _raise_if_lost(error)
            self.why_not = f"{reason(error)} (onnxfuse explain --graph names the nodes)"
            return None
        if opened.keeper is not None:
            opened.keeper.consolidates = True  # until the first capture
        frozen = host_inputs(opened)
        if frozen:
            self.why_not = f"input '{frozen[0]}' is read on the CPU: a replay would not see what it changes to"
            return None
        return opened

    def _captured(self, values: Values) -> BoundIO | None:
        """Return the graph for these shapes; None on their first occurrence, or if they cannot be captured."""
        key = threading.get_ident(), tuple(tuple(value.shape()) for value in values.values())
        if key in self._bound:
            self._bound.move_to_end(key)
            return self._bound[key]
        if key not in self._seen:
            self._seen[key] = None
            while len(self._seen) > CAPTURES * self._graphs:
                self._seen.popitem(last=False)
            return None
        if self.captured >= CAPTURES * self._graphs:
            return None
        try:
            bound = self._capture(values)
        except REFUSALS as error:
            _raise_if_lost(error)
            # A failed capture leaves its stream in capture mode: nothing else can run in that session.
            self._graph_bytes = 0
            self.why_not = f"the capture failed: {reason(error)} (onnxfuse explain --graph may name the node)"
            self._bound.clear()
            self._session = None
            self._session = self._opened()
            return None
        self._bound[key] = bound
        while len(self._bound) > self._graphs:
            self._bound.popitem(last=False)
        return bound

    def _capture(self, values: Values) -> BoundIO:
        opened = self._live()
        # An ordinary run yields the output shapes, and lets cuDNN and our planner choose kernels before anything is
        # captured.
        results = self._run(values)
        if opened.keeper is not None:
            opened.keeper.settle(lambda: self._run(values))
        outputs = {n: _room(v, self._device, on_host=n in self._on_host) for n, v in results.items()}
        inputs = {name: _room(value, self._device) for name, value in values.items()}
        self.captured += 1
        binding, options = opened.io_binding(), _options(self.captured)
        for name, value in inputs.items():
            _write(value, values[name])
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        before = None if opened.keeper is None else opened.keeper.before_capture()
        opened.run_with_iobinding(binding, options)
        if before is not None and opened.keeper is not None:
            self._graph_bytes += opened.keeper.grown_since(before)
        return BoundIO(inputs, outputs, opened, binding, options, threading.get_ident())

    def _run(self, values: Values) -> dict[str, onnxruntime.OrtValue]:
        """Return the outputs of an ordinary run, on the device where the session puts them."""
        opened = self._live()
        device = "cuda" if PROVIDER in opened.get_providers() else "cpu"
        binding = opened.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in self._outputs:
            on_host = name in self._on_host or device == "cpu"
            binding.bind_output(name, "cpu" if on_host else device, 0 if on_host else self._device)
        opened.run_bound(binding, values, {GRAPH_ID: "-1"})
        return dict(zip(self._outputs, binding.get_outputs(), strict=True))


def _nodes(model: Model) -> Any:
    facts = read(model)
    return chain(nodes_of(facts.graph), *(f.node for f in facts.functions))


def _default() -> list[Provider]:
    from onnxfuse.runtime.engine.cuda_provider import cuda_unusable

    return [CPU] if cuda_unusable() else [PROVIDER, CPU]


def _with_graphs(provider: Provider) -> Provider:
    name, options = (provider, {}) if isinstance(provider, str) else provider
    return (name, {**options, "enable_cuda_graph": "1"}) if name == PROVIDER else provider


def _options(graph: int) -> onnxruntime.RunOptions:
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(GRAPH_ID, str(graph))
    return options


def _outputs_on_host(opened: Session) -> list[str]:
    pairs = zip(opened.get_outputs(), opened.get_output_memory_infos(), strict=True)
    return [o.name for o, where in pairs if where.name == "Cpu"]


def _bound_bytes(bound: BoundIO) -> int:
    values = (*bound.inputs.values(), *bound.outputs.values())
    return sum(v.tensor_size_in_bytes() for v in values if v.device_name() != "cpu")


def _raise_if_lost(error: Exception) -> None:
    fault = device_fault()
    if fault is not None:
        raise DeviceLostError(
            f"the GPU's context is broken ({fault})", "This process cannot use the GPU any more."
        ) from error


def _value(x: Array) -> onnxruntime.OrtValue:
    """Wrap the array as an ONNX Runtime value without copying it."""
    if isinstance(x, onnxruntime.OrtValue):
        return x
    if isinstance(x, np.ndarray | np.generic):
        x = np.ascontiguousarray(x) if np.ndim(x) else np.asarray(x)
        return ort_value(x)
    if not hasattr(x, "__dlpack__"):
        raise UsageError(
            f"an input is a {type(x).__name__}; expected a NumPy or CuPy array, a torch tensor, or an object that "
            "supports DLPack"
        )
    if hasattr(x, "detach"):  # torch's
        x = x.detach().contiguous()
    elif hasattr(x, "flags") and not x.flags.c_contiguous:  # CuPy's
        x = x.copy(order="C")
    on_host = x.__dlpack_device__()[0] == ON_CPU
    capsule = x.__dlpack__() if on_host else x.__dlpack__(stream=LEGACY_STREAM)
    is_bool = str(x.dtype).rpartition(".")[2] in ("bool", "bool_")
    return onnxruntime.OrtValue(ort.OrtValue.from_dlpack(capsule, is_bool))


def _write(target: onnxruntime.OrtValue, value: onnxruntime.OrtValue) -> None:
    if value.data_ptr() != target.data_ptr():  # it may alias that memory
        target.update_inplace(value)


def _room(like: onnxruntime.OrtValue, device: int, *, on_host: bool = False) -> onnxruntime.OrtValue:
    """Allocate memory for such a value, on the device or on the host."""
    where, index = ("cpu", 0) if on_host else ("cuda", device)
    return onnxruntime.OrtValue.ortvalue_from_shape_and_type(like.shape(), like.element_type(), where, index)


def _as(value: onnxruntime.OrtValue, like: Array, device: int, *, copy: bool) -> Array:
    """Return an output as an array of the same kind as `like`; `copy`: the memory belongs to a graph and is reused."""
    library, on_host = type(like).__module__.partition(".")[0], value.device_name() == "cpu"
    if library in ("numpy", "builtins"):
        return _numpy(value)
    wanted_on_host = like.__dlpack_device__()[0] == ON_CPU
    if copy or wanted_on_host != on_host:
        room = _room(value, device, on_host=wanted_on_host)
        room.update_inplace(value)
        value = room
    if library == "torch":
        import torch

        tensor = torch.from_dlpack(value)
        return tensor.to(torch.bool) if value.data_type() == "tensor(bool)" else tensor
    if library == "cupy":
        import cupy

        tensor = cupy.from_dlpack(value)
        return tensor.view(cupy.bool_) if value.data_type() == "tensor(bool)" else tensor
    return value


def _numpy(value: onnxruntime.OrtValue) -> npt.NDArray[Any]:
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    # NumPy has no bfloat16, so ONNX Runtime returns no array of it: read the bytes.
    host = _room(value, 0, on_host=True)
    host.update_inplace(value)
    data = ctypes.string_at(host.data_ptr(), host.tensor_size_in_bytes())
    return np.frombuffer(data, ml_dtypes.bfloat16).reshape(value.shape())
