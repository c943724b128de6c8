"""Count traffic and measure time of one or two models at one set of input shapes."""

import tempfile
import time as clock
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx

from onnxfuse.files import io
from onnxfuse.measure.profile import cupti
from onnxfuse.measure.profile.kernels import follow, kernels_with_nodes
from onnxfuse.measure.profile.nodes import finished, node_times, profiled_runs
from onnxfuse.measure.profile.report import ModelProfile, Profile
from onnxfuse.measure.profile.summary import kernel_rows, kinds, per_node, run_time, with_device_times
from onnxfuse.measure.profile.traffic import ModelTraffic, count
from onnxfuse.measure.timing import device
from onnxfuse.measure.timing.binding import REFUSALS, DeviceBinding, bind, opened, ort_values, outputs_of
from onnxfuse.measure.timing.settings import CUDA_GRAPH, DEFAULT, ModelName, Setting
from onnxfuse.measure.timing.shapes import cases_per_shape, check_bindable, dynamic, unsaid
from onnxfuse.measure.timing.stopwatch import WARM_UP, warm
from onnxfuse.model.fused import fused_ops
from onnxfuse.runtime.sessions.opening import reason, unregistered
from onnxfuse.support.errors import DeviceError, ModelError, UsageError
from onnxfuse.support.isolation import doing
from onnxfuse.support.plurals import plural
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import Case, InputSpec, Shapes, with_declared
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.interface import interface_problems
from onnxfuse.verification.run.sessions import CUDA, Source


def measure(
    model: Source,
    fused: Source | None,
    shapes: Shapes,
    providers: Sequence[str] | None,
    *,
    time: bool,
    cuda_graph: bool,
    use_tf32: bool | None,
    runs: int,
    seed: int,
    progress: Callable[[str], None],
) -> Profile:
    """Return the profile of `onnxfuse.measure.profile.profile`, which documents the arguments."""
    start = clock.perf_counter()
    progress("load")
    sources: dict[ModelName, Source] = {"original": model, **({} if fused is None else {"fused": fused})}
    models = {name: _without_data(source, f"the {name} model") for name, source in sources.items()}
    if fused is not None:
        problems = interface_problems(models["original"], models["fused"])
        if problems:
            raise ModelError(f"the two models do not belong together: {problems[0]}", "Optimize the original again.")
    specs = input_specs(models["original"])
    check_bindable(specs, "profile")
    shapes = shapes if fused is None else with_declared(specs, models["fused"], shapes)
    assumed = unsaid(specs, shapes)
    case = _only_case(specs, {**shapes, **dict.fromkeys(assumed, (1,))}, seed)
    chosen, untimed = _timed_on(providers, time=time, cuda_graph=cuda_graph)
    # The fused model (or the only one) decides whether float32 products may be rounded.
    tf32 = sessions.tf32_options(use_tf32, models["original" if fused is None else "fused"])
    setting = (CUDA_GRAPH if cuda_graph else DEFAULT).with_options(tf32)
    sides: list[ModelProfile] = []
    environment: dict[str, str] = {}
    for name in sources:
        progress(f"count: {name}")
        one = _named(models.pop(name))
        traffic, has_fused_ops = count(one, case.shapes), bool(fused_ops(one))
        del one
        if not chosen:
            sides.append(ModelProfile(traffic))
            continue
        progress(f"run: {name}")
        with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
            file = _named_file(sources[name], name, folder)
            side, environment = _timed(
                name, file, folder, traffic, case, chosen, setting, runs, ours=has_fused_ops, graph=cuda_graph
            )
        sides.append(side)
    return Profile(
        provider=chosen[0] if chosen else "",
        setting=setting.name if chosen else "",
        dimensions={name: case.shapes[s.name][axis] for s in specs for name, axis in dynamic(s)},
        shapes=case.shapes,
        assumed=assumed,
        before=sides[0],
        after=sides[1] if len(sides) > 1 else None,
        environment=environment,
        runs=runs if chosen else 0,
        untimed=untimed,
        seconds=clock.perf_counter() - start,
    )


def _only_case(specs: Sequence[InputSpec], shapes: Shapes, seed: int) -> Case:
    plan = cases_per_shape(specs, shapes, seed)
    if len(plan) > 1:
        raise UsageError(
            f"{plural(plan, 'set')} of shapes: a profile is of one", "Give each dimension one size: --shape batch=8."
        )
    return plan[0]


def _timed_on(providers: Sequence[str] | None, *, time: bool, cuda_graph: bool) -> tuple[list[str], str]:
    """Return the providers on which runs are timed (none if they are not), and why they cannot be."""
    chosen = sessions.chosen_providers(providers) if time else []
    if cuda_graph and CUDA not in chosen:
        raise UsageError("a CUDA graph was requested, but the models run on the CPU", "Leave out --cuda-graph.")
    untimed = cupti.missing() if CUDA in chosen else None
    if untimed is None:
        return chosen, ""
    if providers is not None or cuda_graph:
        raise DeviceError(f"GPU kernels cannot be traced: {untimed}", cupti.HINT)
    return [], untimed


def _without_data(source: Source, name: str) -> onnx.ModelProto:
    """Return the model without its external weights: counting only reads shapes."""
    if isinstance(source, onnx.ModelProto):
        return source
    return io.parse(source, name) if isinstance(source, bytes) else io.load(source, weights=False)


def _named(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which every node has a name, as ONNX Runtime's profiler requires."""
    if all(node.name for node in model.graph.node):
        return model  # nothing to change: gigabytes of weights need no copy
    named = io.without_weights(model, lambda weight: weight)
    for node in named.graph.node:
        if not node.name:
            node.name = next((v for v in node.output if v), node.op_type)
    return named


def _named_file(source: Source, name: ModelName, folder: str) -> Path:
    """Return a file of the model in which every node has a name: its own, or one in `folder`.

    ONNX Runtime reads the weights from it, so they need not be held here.
    """
    if isinstance(source, str | Path):
        light = io.load(source, weights=False)
        if all(node.name for node in light.graph.node):
            return Path(source)
        del light
        model = io.load(source)
    else:
        model = _without_data(source, f"the {name} model")
    file = Path(folder) / f"{name}.onnx"
    io.save(_named(model), file)
    return file


def _timed(
    name: ModelName,
    file: Path,
    folder: str,
    traffic: ModelTraffic,
    case: Case,
    providers: Sequence[str],
    setting: Setting,
    runs: int,
    *,
    ours: bool,
    graph: bool,
) -> tuple[ModelProfile, dict[str, str]]:
    """Return the profile of one model, and the facts about where it ran; `ours` says whether it has fused ops.

    `graph`: the setting uses CUDA graphs, in which ONNX Runtime's profiler sees no nodes.
    """
    inputs = ort_values(case.make())

    def session(at: Setting, profile: str = "") -> DeviceBinding:
        # A crash from here on is attributed to this model at this setting.
        doing(model=name, setting="" if at.name == DEFAULT.name else at.name, case=case)
        try:
            opened_session = opened(file, at, providers, fused=ours, profile=profile)
            return bind(opened_session, inputs, outputs_of(opened_session, inputs, name))
        except REFUSALS as error:
            sessions.raise_if_lost(error)
            raise unregistered(error) or ModelError(
                f"ONNX Runtime cannot run the {name} model on {providers[0]} at {at.name}: {reason(error)}",
                "Check that it runs there: onnxfuse verify.",
            ) from error

    options = {k: v for k, v in setting.options.items() if k not in CUDA_GRAPH.options}
    profiled = session(DEFAULT.with_options(options), f"{folder}/profile")
    environment = device.environment(profiled.session)
    if CUDA in providers:
        return _on_cuda(traffic, profiled, session(setting), runs, graph=graph), environment
    ran = profiled_runs(profiled, WARM_UP, runs)
    times = node_times(ran)
    return ModelProfile(
        traffic, times, kinds(traffic, times), per_node(traffic, times), example=(ran[-1], ())
    ), environment


def _on_cuda(
    traffic: ModelTraffic, profiled: DeviceBinding, plain: DeviceBinding, runs: int, *, graph: bool
) -> ModelProfile:
    """Profile one model on CUDA: node attribution from `profiled`, times from `plain`, which has no profiling
    overhead."""
    zero = profiled.session.get_profiling_start_time_ns()
    warm([profiled.run, plain.run])
    launched = cupti.traced(profiled.run, runs, zero)
    ran = finished(profiled.session)[-runs:]
    with_nodes = [kernels_with_nodes(kernels, nodes) for kernels, nodes in zip(launched, ran, strict=True)]
    same = [matched for kernels in cupti.traced(plain.run, runs, zero) if (matched := follow(kernels, with_nodes[-1]))]
    kernels = same or with_nodes
    times = with_device_times(node_times(ran), kernels)
    return ModelProfile(
        traffic,
        times,
        kinds(traffic, times),
        per_node(traffic, times),
        kernel_rows(traffic, kernels),
        run_time(kernels),
        ((), kernels[-1]) if same and graph else (ran[-1], with_nodes[-1]),
        "" if same else "the launches are others than those under ONNX Runtime's profiler, whose times these are",
    )
