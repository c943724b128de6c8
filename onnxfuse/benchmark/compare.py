"""Run both models at every setting, in turns, on the same inputs."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnxruntime

from onnxfuse import runtime
from onnxfuse.benchmark import device
from onnxfuse.benchmark.bound import REFUSALS, Bound, Values, bind, opened, ort_values, outputs_of, profiled, reason
from onnxfuse.benchmark.report import Block, FusedOps, ModelName, Refused, Report, Row, Timing
from onnxfuse.benchmark.settings import CUDA_GRAPH, DEFAULT, Setting, cpu_settings, cuda_settings
from onnxfuse.benchmark.timing import WARM_UP, interleaved
from onnxfuse.model import io
from onnxfuse.model.errors import ModelError, UsageError
from onnxfuse.model.fused import fused_ops
from onnxfuse.model.graph import bodies
from onnxfuse.verification import sessions
from onnxfuse.verification.compare import interface_problems
from onnxfuse.verification.inputs import Array, Case, InputSpec, Shapes, cases, input_specs, shape_sets
from onnxfuse.verification.sessions import CUDA, Model, Source


@dataclass(frozen=True)
class Contender:
    """One session of the race, to be opened."""

    name: ModelName
    model: Model
    setting: Setting


@dataclass(frozen=True)
class Race:
    """What stays the same from one set of shapes to the next."""

    contenders: Sequence[Contender]
    providers: Sequence[str]
    first: onnxruntime.InferenceSession
    """The original at its default setting: it tells the shapes of the outputs."""
    runs: int
    rounds: int


def compare(
    original: Source,
    fused: Source,
    shapes: Shapes,
    providers: Sequence[str] | None,
    runs: int,
    rounds: int,
    seed: int,
    progress: Callable[[str], None],
) -> Report:
    """Return the report of `onnxfuse.benchmark.bench`, which tells what the arguments are."""
    began = time.perf_counter()
    original_model, fused_model = _load(original, "original"), _load(fused, "fused")
    _check(original_model, fused_model)
    providers = sessions.chosen_providers(providers)
    specs = input_specs(original_model)
    assumed = unsaid(specs, shapes)
    plan = cases_per_shape(specs, {**shapes, **dict.fromkeys(assumed, (1,))}, seed)
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
        before = sessions.openable(original, original_model, folder)
        after = sessions.openable(fused, fused_model, folder)
        contenders = _contenders(before, after, on_cuda=CUDA in providers, convolutions=_convolves(original_model))
        del original_model, fused_model  # From here on the sessions hold what they need of the weights.
        progress("profile")
        arrays = plan[0].make()
        first, original_nodes = profiled(before, providers, ort_values(arrays), "original")
        fused_nodes, ops = _look_at_fused(after, providers, arrays)
        race = Race(contenders, providers, first, runs, rounds)
        blocks = []
        for number, case in enumerate(plan, start=1):
            progress(f"shape {number} of {len(plan)}")
            blocks.append(_run(race, case, specs))
    return Report(
        provider=providers[0],
        blocks=tuple(blocks),
        assumed=assumed,
        nodes={"original": original_nodes, "fused": fused_nodes},
        fused_ops=ops,
        environment=device.environment(first),
        runs=runs,
        rounds=rounds,
        seconds=time.perf_counter() - began,
    )


def unsaid(specs: Sequence[InputSpec], shapes: Shapes) -> tuple[str, ...]:
    """Return the dynamic dimensions that `shapes` says nothing about, neither by name nor by an input's shape."""
    said = {*shapes, *(name for s in specs if s.name in shapes for name, _ in _dynamic(s))}
    return tuple(dict.fromkeys(name for s in specs for name, _ in _dynamic(s) if name not in said))


def cases_per_shape(specs: Sequence[InputSpec], shapes: Shapes, seed: int) -> list[Case]:
    """Return one case of normally distributed inputs, with valid ids and masks, for each set of shapes."""
    normal = [c for c in cases(specs, [seed], shapes) if c.name == "normal"]
    return normal[: len(shape_sets(specs, shapes))]


def _dynamic(spec: InputSpec) -> list[tuple[str, int]]:
    """Return name and axis of each dynamic dimension; `verification.inputs` names the nameless ones in the same way."""
    return [(d or f"{spec.name}[{axis}]", axis) for axis, d in enumerate(spec.shape) if not isinstance(d, int)]


def _load(source: Source, name: str) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        return source
    return io.parse(source, f"the {name} model") if isinstance(source, bytes) else io.load(source)


def _check(original: onnx.ModelProto, fused: onnx.ModelProto) -> None:
    if fused_ops(original):
        raise UsageError(
            "the original model holds fused ops already, whose bodies are no fair baseline",
            "Give the model as it was before onnxfuse optimize.",
        )
    problems = interface_problems(original, fused)
    if problems:
        raise ModelError(f"the two models do not belong together: {problems[0]}", "Optimize the original again.")


def _convolves(model: onnx.ModelProto) -> bool:
    def within(nodes: Sequence[onnx.NodeProto]) -> bool:
        return any(n.op_type == "Conv" or any(within(b.node) for b in bodies(n)) for n in nodes)

    return within(model.graph.node) or any(within(f.node) for f in model.functions)


def _contenders(before: Model, after: Model, *, on_cuda: bool, convolutions: bool) -> list[Contender]:
    """Return the original at every setting, the fused model on CUDA with and without a CUDA graph, on the CPU alike."""
    originals = cuda_settings(convolutions=convolutions) if on_cuda else cpu_settings(device.cores())
    ours = (DEFAULT, CUDA_GRAPH) if on_cuda else originals
    return [Contender("original", before, s) for s in originals] + [Contender("fused", after, s) for s in ours]


def _look_at_fused(
    model: Model, providers: Sequence[str], arrays: Mapping[str, Array]
) -> tuple[Mapping[str, int], FusedOps]:
    """Return the nodes that one run of the fused model executes by provider, and how its fused ops ran in it."""
    on_cuda = CUDA in providers
    if on_cuda:
        runtime.reset_launches()
    session, nodes = profiled(model, providers, ort_values(arrays), "fused")
    placed: Sequence[runtime.Placement] = session.fused
    ops = FusedOps(
        nodes=sum(p.nodes for p in placed),
        kernels=sum(p.nodes for p in placed if p.runs_as == "kernel"),
        bodies=sum(p.nodes for p in placed if p.runs_as == "function"),
        launches=sum(runtime.launches().values()) if on_cuda else None,
        reasons=tuple(dict.fromkeys(p.reason for p in placed if p.reason)),
    )
    return nodes, ops


def _run(race: Race, case: Case, specs: Sequence[InputSpec]) -> Block:
    """Return the times of all contenders on one set of shapes."""
    arrays = case.make()
    inputs = ort_values(arrays)
    outputs = outputs_of(race.first, inputs, "original")
    ready: list[tuple[Contender, Bound, int | None]] = []
    refused = []
    for contender in race.contenders:
        try:
            ready.append((contender, *_warm(contender, race.providers, inputs, outputs)))
        except REFUSALS as error:
            refused.append(Refused(contender.name, contender.setting.name, reason(error)))
    for name in {c.name for c in race.contenders} - {c.name for c, _, _ in ready}:
        why = next(r.reason for r in refused if r.model == name)
        raise ModelError(f"the {name} model runs at none of the settings: {why}", "Try onnxfuse verify.")
    times = interleaved([bound.run for _, bound, _ in ready], race.rounds, race.runs)
    return Block(
        dimensions={name: case.shapes[s.name][axis] for s in specs for name, axis in _dynamic(s)},
        shapes=case.shapes,
        items=next((case.shapes[s.name][0] for s in specs if s.shape), 1),
        rows=tuple(
            Row(c.name, c.setting.name, Timing.of(seconds), memory)
            for (c, _, memory), seconds in zip(ready, times, strict=True)
        ),
        refused=tuple(refused),
    )


def _warm(contender: Contender, providers: Sequence[str], inputs: Values, outputs: Values) -> tuple[Bound, int | None]:
    """Return the session, bound and warm, and by how many bytes the use of the card's memory grew for it."""
    on_cuda = CUDA in providers
    before = device.used_memory() if on_cuda else 0
    session = opened(contender.model, contender.setting, providers, fused=contender.name == "fused")
    bound = bind(session, inputs, outputs)
    for _ in range(WARM_UP):
        bound.run()
    return bound, device.used_memory() - before if on_cuda else None
