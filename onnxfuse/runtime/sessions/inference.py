"""ONNX Runtime sessions in which fused ops run as CUDA kernels."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
from rich.markup import escape

from onnxfuse.cuda import arch_of
from onnxfuse.cuda.dispatch.dump import dump as dump_ops
from onnxfuse.files.io import PROTOBUF_LIMIT
from onnxfuse.graph.concrete_shapes import open_dims
from onnxfuse.model.custom_ops import library_paths
from onnxfuse.model.fused import DOMAIN, FusedOp
from onnxfuse.model.overridable import required_inputs
from onnxfuse.model.tf32 import is_strict_fp32
from onnxfuse.runtime.engine.bridge import bridge_missing
from onnxfuse.runtime.engine.cuda_provider import PROVIDER, cuda_unusable, device_count
from onnxfuse.runtime.kernels.loader import LIMIT_SHARE
from onnxfuse.runtime.kernels.packs import Kernels
from onnxfuse.runtime.kernels.packs import require as require_pack
from onnxfuse.runtime.sessions.memory import ArenaKeeper, MemoryLimit, MemoryUse, shapes_of
from onnxfuse.runtime.sessions.opening import ORT_ERRORS, UNREGISTERED, load_custom_ops
from onnxfuse.runtime.sessions.ort_ops import with_library_ops
from onnxfuse.runtime.sessions.placement import Model, Placement, node_counts, path_of, read
from onnxfuse.runtime.sessions.registration import as_functions, ops_of, register_kernels
from onnxfuse.support.error_text import first_line
from onnxfuse.support.errors import DeviceError, ModelError, UsageError
from onnxfuse.support.log import LOG
from onnxfuse.support.plurals import agreeing, fused_ops_text, plural
from onnxfuse.support.screen import Blocks, Line, Rows, Screen, plain_table

CPU = "CPUExecutionProvider"

RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
"""Session config entry: the session can say which provider each node is assigned to."""

Provider = str | tuple[str, Mapping[str, Any]]
"""A provider's name, or a pair of name and options."""


class Session(Screen, InferenceSession):  # type: ignore[misc]  # ONNX Runtime has no types
    """An `onnxruntime.InferenceSession` that knows how each of its fused ops runs."""

    fused: tuple[Placement, ...] = ()
    """One placement per distinct fused op, with the number of its nodes: kernel or function, and why."""
    keeper: ArenaKeeper | None = None
    """Watches its memory on the GPU; None where no fused op runs as a kernel."""
    limit: MemoryLimit | None = None

    def run(self, output_names: Any, input_feed: Mapping[str, Any], run_options: Any = None) -> Any:
        """As `onnxruntime.InferenceSession.run`."""
        run = super().run
        return self._watched(run_options, lambda: input_feed, lambda o: run(output_names, input_feed, o))

    def run_with_ort_values(
        self, output_names: Any, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> Any:
        """As `onnxruntime.InferenceSession.run_with_ort_values`."""
        run = super().run_with_ort_values
        values = input_dict_ort_values
        return self._watched(run_options, lambda: values, lambda o: run(output_names, values, o))

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """As `onnxruntime.InferenceSession.run_with_iobinding`."""
        run = super().run_with_iobinding
        self._watched(run_options, dict[str, Any], lambda o: run(iobinding, o))

    def run_bound(self, iobinding: Any, inputs: Mapping[str, Any], config: Mapping[str, str]) -> None:
        """Run with an I/O binding that has these inputs, by run options with these config entries."""
        run = super().run_with_iobinding

        def work(options: Any) -> None:
            options = onnxruntime.RunOptions() if options is None else options
            for key, value in config.items():
                options.add_run_config_entry(key, value)
            run(iobinding, options)

        self._watched(None, lambda: inputs, work)

    def memory(self, graphs: int = 0) -> MemoryUse:
        """Return what the session uses of the GPU's memory, and `graphs`, the bytes of the CUDA graphs that its caller
        captured. Raises UsageError where no fused op runs as a kernel."""
        if self.keeper is None:
            raise UsageError(
                "the memory of this session is not known: no fused op of it runs as a kernel",
                "Read the card's: nvidia-smi, or cupy.cuda.runtime.memGetInfo().",
            )
        return self.keeper.use(graphs)

    def _watched(self, options: Any, inputs: Callable[[], Mapping[str, Any]], work: Callable[[Any], Any]) -> Any:
        if self.keeper is not None:
            return self.keeper.run(options, lambda: shapes_of(inputs()), work)
        with nullcontext() if self.limit is None else self.limit.named_faults(None):
            return work(options)

    @property
    def verdict(self) -> str:
        """Where it runs and how many fused ops run as kernels, in one line."""
        kernels, every = sum(p.nodes for p in self.fused if p.runs_as == "kernel"), sum(p.nodes for p in self.fused)
        where = ", ".join(name.removesuffix("ExecutionProvider") for name in self.get_providers())
        return (
            f"session on {where}: {kernels} of {fused_ops_text(every, len(self.fused))} "
            f"{agreeing(kernels, 'runs as a kernel', 'run as kernels', of=every)}"
        )

    def screen(self) -> Blocks:
        """Return how each fused op runs, and why."""
        reasons = {p.reason for p in self.fused}
        several = len(reasons) > 1  # one applies to the whole session and is reported once
        why = "" if several or not self.fused else f": {next(iter(reasons))}".removesuffix(": ")
        yield Line(f"[bold]{escape(self.verdict + why)}[/]")
        table = plain_table("op", "rule", "nodes", "runs as", *["because"] * several)
        for p in self.fused:
            table.add_row(escape(p.op), escape(p.rule), str(p.nodes), p.runs_as, *[escape(p.reason)] * several)
        if self.fused:
            yield Rows(table)


def session(
    model: Model,
    providers: Sequence[Provider] | None = None,
    session_options: onnxruntime.SessionOptions | None = None,
    dump: str | Path | None = None,
    rules: Sequence[str | Path] = (),
    kernels: Kernels = None,
    custom_ops: Sequence[str | Path] = (),
    wait_for_kernels: bool = False,
    memory_limit: int | None = None,
    **kwargs: Any,
) -> Session:
    """Return a session for `model` in which each fused op that has a kernel runs as that kernel, if the session uses
    CUDA.

    `providers=None` uses CUDA if available and the CPU otherwise; `.fused` says which, and why. Requesting CUDA where
    it cannot be used raises DeviceError, because ONNX Runtime itself would open a slow session. `kwargs` are passed to
    `onnxruntime.InferenceSession`. Given session options are modified, and are for this model only from then on. `dump`
    names a folder for every fused op's body, kernel and launch plan, for the session's GPU (an H200 on the CPU). A file
    made with `--strict-fp32` sets the CUDA option `use_tf32` to 0, unless the option is given here. `rules` are the
    folders of your own rules that made the model, if any: ONNX Runtime's own op replaces a body if the rule recognizes
    in it what that op computes; without the rule the body runs. `kernels` is the kernel pack (`onnxfuse compile`), by
    default the one next to the model's file; False uses none. `custom_ops` are libraries with operators of your own,
    which ONNX Runtime loads. While a kernel compiles, a bit-identical fallback kernel of the same op runs if one is
    available, unless `wait_for_kernels` is set or a CUDA graph is requested: what is timed or captured is then the
    final kernel. Without `session_options`, a model with dynamic input extents sets `enable_mem_pattern` to False on
    CUDA: otherwise ONNX Runtime plans and caches a memory layout for every new shape. Next to other providers, such as
    TensorRT, a fused op that one of them is assigned raises DeviceError: its kernel runs on CUDA alone.

    ONNX Runtime's arena asks the driver for what it needs (`arena_extend_strategy` kSameAsRequested, unless given), and
    is consolidated after runs of new shapes, except with CUDA graphs. `memory_limit` bounds weights, values and scratch
    memory together, in bytes of one GPU: kernels that need less are taken, and what cannot fit raises MemoryLimitError,
    which says how much would do.

    >>> onnxfuse.session("fused.onnx", providers=["CUDAExecutionProvider"]).fused
    (Placement(op='Linear_1f0c', rule='linear', nodes=24, runs_as='kernel', reason=''), ...)
    """
    options = onnxruntime.SessionOptions() if session_options is None else session_options
    load_custom_ops(options, library_paths(custom_ops))
    chosen = _default_providers() if providers is None else list(providers)
    on_cuda = PROVIDER in map(_name, chosen)
    source, through_library = model, dict[str, FusedOp]()
    if on_cuda:
        facts = read(model)
        if session_options is None and _takes_many_shapes(facts):
            options.enable_mem_pattern = False
        cuda = _cuda_options(chosen, kwargs.get("provider_options"))
        _require_cuda(_device(cuda))
        defaults = {"arena_extend_strategy": "kSameAsRequested"}
        if is_strict_fp32(facts):
            defaults["use_tf32"] = "0"
        if memory_limit is not None:
            if "gpu_mem_limit" in cuda:
                raise UsageError(
                    "memory_limit and the provider option gpu_mem_limit are both given",
                    "Leave one out: memory_limit is for weights, values and the kernels' scratch memory together.",
                )
            defaults["gpu_mem_limit"] = str(memory_limit - memory_limit // LIMIT_SHARE)
        cuda = {**defaults, **cuda}
        _set_cuda_options(chosen, kwargs, cuda)
        tf32 = _is_on(cuda, "use_tf32", 1)
        engine_fault = bridge_missing()
        if engine_fault is not None and providers is None:  # an error if CUDA was requested by name
            fused = as_functions(facts, engine_fault)
        else:
            fused, through_library = register_kernels(
                options, facts, library=True, tf32=tf32, rules=rules, path=path_of(model), device=_device(cuda),
                kernels=kernels, waits=wait_for_kernels or _is_on(cuda, "enable_cuda_graph", 0),
            )  # fmt: skip
    else:
        require_pack(path_of(model), kernels)
        fused = as_functions(model, _why_not_cuda(providers))
    if through_library:
        model = with_library_ops(model, options, through_library)
        fused = _as_there(model, fused)
    others = [name for name in map(_name, chosen) if name not in (PROVIDER, CPU)]
    if others:
        options.add_session_config_entry(RECORD_ASSIGNMENT, "1")
    limit = None if memory_limit is None or not on_cuda else MemoryLimit(memory_limit)
    with _named_faults(others), nullcontext() if limit is None else limit.named_faults(None):
        opened = Session(_source(model), options, providers=chosen, **{"enable_fallback": 0, **kwargs})
    if on_cuda and PROVIDER not in opened.get_providers():
        raise _no_cuda("ONNX Runtime left the CUDA provider out; its log on stderr says why")
    if others:
        _require_on_cuda(opened)
    opened.fused = fused
    ops = ops_of(options) if on_cuda else None
    if ops is not None:
        opened.keeper = ArenaKeeper(ops, _device(cuda), limit, consolidates=not _is_on(cuda, "enable_cuda_graph", 0))
    opened.limit = limit
    LOG.info("%s", opened.verdict)
    for one in fused:
        LOG.debug("%s runs as %s%s", one.op, one.runs_as, f": {one.reason}" if one.reason else "")
    if dump is not None:
        arch = arch_of(_device(cuda)) if on_cuda else None
        dump_ops(read(source), Path(dump), arch)
    return opened


@contextlib.contextmanager
def _named_faults(others: Sequence[str]) -> Iterator[None]:
    """Raise an error that names the provider, if one other than CUDA or the CPU cannot be loaded or open the model."""
    faults: tuple[type[Exception], ...] = (*ORT_ERRORS, RuntimeError)
    try:
        yield
    except faults as error:
        if not others:
            raise
        names = ", ".join(others)
        if UNREGISTERED in f"{error}" and f"{DOMAIN}:" in f"{error}":
            raise ModelError(
                f"{names} cannot open a model whose fused ops run through their bodies: it does not read functions",
                "Give it the original model (onnxfuse optimize --undo writes it), or leave it out of providers.",
            ) from error
        if isinstance(error, RuntimeError):  # no error of ONNX Runtime's session: a library that did not load
            raise DeviceError(
                f"{names} was requested but cannot be used: {first_line(error)}",
                "Install its libraries where the loader finds them, or leave it out of providers.",
            ) from error
        raise


def _require_on_cuda(opened: Session) -> None:
    """Raise DeviceError for a fused op that ONNX Runtime assigned to another provider, which does not have its kernel.

    An op that runs through its body is inlined by now, and any provider may run the nodes of its body.
    """
    for part in opened.get_provider_graph_assignment_info():
        fused = [node.op_type for node in part.get_nodes() if node.domain == DOMAIN]
        if fused and part.ep_name != PROVIDER:
            raise DeviceError(
                f"ONNX Runtime assigned {fused[0]} to {part.ep_name}; its kernel runs on {PROVIDER}",
                f"List {PROVIDER} before {part.ep_name}, or leave {part.ep_name} out of providers.",
            )


def _as_there(model: onnx.ModelProto, fused: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return the placements after ONNX Runtime's own ops replaced fused ops: ops that only those read are gone with
    them."""
    counts = node_counts(model)
    return tuple(p if p.runs_as != "kernel" or counts[p.op] else replace(p, runs_as="onnxruntime") for p in fused)


def _takes_many_shapes(model: onnx.ModelProto) -> bool:
    """Return whether an input is declared with a dynamic extent, or without a shape."""
    shapeless = (not i.type.tensor_type.HasField("shape") for i in required_inputs(model.graph))
    return bool(open_dims(model)) or any(shapeless)


def _default_providers() -> list[Provider]:
    return [CPU] if cuda_unusable() else [PROVIDER, CPU]


def _name(provider: Provider) -> str:
    return provider if isinstance(provider, str) else provider[0]


def _cuda_options(providers: Sequence[Provider], options: Sequence[Mapping[str, Any]] | None) -> Mapping[str, Any]:
    """Return the options of the CUDA provider: those paired with its name, else its entry in `provider_options`."""
    index = [_name(p) for p in providers].index(PROVIDER)
    provider = providers[index]
    return provider[1] if not isinstance(provider, str) else options[index] if options else {}


def _set_cuda_options(providers: list[Provider], kwargs: dict[str, Any], cuda: Mapping[str, Any]) -> None:
    """Set the CUDA provider's options where they are defined: in `provider_options`, else paired with its name."""
    index = [_name(p) for p in providers].index(PROVIDER)
    if kwargs.get("provider_options"):
        kwargs["provider_options"] = [*kwargs["provider_options"]]
        kwargs["provider_options"][index] = dict(cuda)
    else:
        providers[index] = (PROVIDER, dict(cuda))


def _is_on(cuda: Mapping[str, Any], option: str, default: int) -> bool:
    return str(cuda.get(option, default)).lower() not in ("0", "false")


def _device(cuda: Mapping[str, Any]) -> int:
    """Return the device id in the provider's options; 0 if there is none."""
    return int(cuda.get("device_id", 0))


def _require_cuda(device: int) -> None:
    fault = cuda_unusable()
    if fault is not None:
        raise _no_cuda(fault)
    count = device_count()
    if device >= count:
        raise _no_cuda(f"device_id is {device}, and the driver reports {plural(count, 'device')}, numbered from 0")


def _no_cuda(fault: str) -> DeviceError:
    return DeviceError(
        f"{PROVIDER} was requested but cannot be used: {fault}",
        "Install the NVIDIA driver, and the CUDA libraries with pip install 'onnxfuse[cuda]'; "
        f"or run the function bodies with providers=['{CPU}'].",
    )


def _why_not_cuda(providers: Sequence[Provider] | None) -> str:
    if providers is None:
        return f"CPU provider: the body runs (CUDA cannot be used: {cuda_unusable()})"
    if CPU in map(_name, providers):
        return "CPU provider: the body runs"
    return f"no CUDA provider among {', '.join(map(_name, providers))}: the body runs"


def _source(model: Model) -> str | bytes:
    """Return the model in a form that ONNX Runtime opens."""
    if isinstance(model, bytes):
        return model
    if not isinstance(model, onnx.ModelProto):
        return str(Path(model))
    if model.ByteSize() > PROTOBUF_LIMIT:
        raise ModelError(
            "the model given in memory is larger than 2 GB, which ONNX Runtime cannot take",
            "Save it with onnxfuse.files.io.save and give the path.",
        )
    data: bytes = model.SerializeToString()
    return data
