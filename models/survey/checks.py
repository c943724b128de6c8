"""What is checked of one export: the steps of both stages, each of which raises `Broken` or says what it found.

Nothing here needs torch. The steps run in this order, and the first that breaks ends the model's row.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import onnx

import onnxfuse
from models.survey import as_run, files, inputs
from models.survey.cards import in_company
from models.survey.files import SHOWN, line, opened, why_not, write
from onnxfuse.api.optimize.optimizing import optimize, undo
from onnxfuse.api.request.options import Options
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.dispatch.dispatch import is_template, plan, supports
from onnxfuse.cuda.planning.arch import SUPPORTED, Arch
from onnxfuse.files import io
from onnxfuse.graph import concrete_shapes
from onnxfuse.model.fused import DOMAIN, FusedOp, fused_ops
from onnxfuse.passes.manager import verifying
from onnxfuse.precision import Lowering
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import type_of
from onnxfuse.support.errors import ModelError, OnnxfuseError, UsageError
from onnxfuse.verification.variants.declared_types import typed

NO_ARCH = "none"
"""Instead of an architecture's name: kernels are planned alone, which takes a third of the time."""

LIBRARIES = Path(__file__).parents[2] / "tests" / "support" / "fake_cuda" / "build.py"
"""Builds the stand-in CUDA libraries and prints their folder."""

ONE_SHAPE = (0, 0)
"""The cases of an export that takes no other sizes than those it was made with."""

TURNS: tuple[tuple[int, ...], ...] = ((0, 1), ONE_SHAPE, (0,))
"""The cases that are tried: those that the original runs. One made for four experts fails where three are chosen."""

ROUNDS = 3
"""How often a session of the fused model runs each case, the cases by turns."""

ASKED = 8
"""How often the original is run to see whether its bits change."""

SECONDS = 60.0
"""For the cases of a verification, a quarter of what a step may take: as much again goes into each doubt."""

FUSED = "fused.onnx"
"""What every optimized model is called: the names of data files have that of the model in them."""

SHOWN_KEPT = 20
"""Nodes that stay in float32 which a row names."""


class Broken(Exception):  # noqa: N818 - it names what was found, no mistake in this program
    """A promise that did not hold; the text says which."""


class Refused(Exception):  # noqa: N818 - as `Broken`
    """ONNX Runtime itself does not run the original, or what a step needs is not there; the text says why."""


@dataclass
class Examined:
    """One export on its way through the steps."""

    path: Path
    folder: Path
    """Of this one alone."""
    archs: tuple[str, ...]
    """What kernels are compiled for; planned they are for all."""
    on_cpu: bool = False
    """Whether ONNX Runtime runs the original on the CPU; it has no bfloat16 there."""
    turns: tuple[int, ...] = (0, 1)
    """The sizes of the cases, one of TURNS; each case has values of its own, too."""
    ones: list[Mapping[str, Any]] = field(default_factory=list)
    """More cases that the original runs: with a size of one."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What goes into the row."""
    tell: Callable[[str], None] = lambda step: None
    """Hears what a long step is doing: each word is worth the time limit of a step."""

    @property
    def fused(self) -> Path:
        """Where the optimized model is, with its data if it has any, and nothing else."""
        return self.folder / "optimized" / FUSED

    def original(self) -> onnx.ModelProto:
        """Return the export as it is read."""
        return io.load(self.path)

    def cases(self) -> list[Mapping[str, Any]]:
        """Return the inputs of each case."""
        model = self.original()
        return [inputs.feeds(model, turn, seed) for seed, turn in enumerate(self.turns)]

    def timed(self) -> list[tuple[Mapping[str, int], Mapping[str, Any]]]:
        """Return the sizes that are timed, and the inputs of each.

        Where the original takes another batch than that of its cases, a larger one comes first, and one alone.
        """
        model = self.original()
        sizes = inputs.TIMED if 1 in self.turns and "batch" in inputs.words(model).values() else ({},)
        return [(one, inputs.feeds(model, 0, **one)) for one in sizes]


Step = Callable[[Examined], None]


def original_on_cpu(one: Examined) -> None:
    """ONNX Runtime opens the original, on the CPU or as far as the stand-in libraries go."""
    why = _runs(one, ["CPUExecutionProvider"])
    one.on_cpu = not why
    if why:
        one.facts["original_on_cpu"] = why
        refused = _apart(one.path)
        if refused:
            raise Refused(f"on the CPU: {why}; on CUDA: {refused}"[:SHOWN])


def original_on_gpu(one: Examined) -> None:
    """ONNX Runtime runs the original on the GPU, the same each time."""
    why = _runs(one, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    if why:
        raise Refused(why)
    if 1 in one.turns:
        # The kernels of CUDA look at no index: of an export that is made for one length alone only the CPU says so.
        _runs(one, ["CPUExecutionProvider"])


def _runs(one: Examined, providers: list[str]) -> str:
    """Return why the original does not run, or never twice the same; notes the cases that it runs."""
    from onnxfuse import runtime
    from onnxfuse.graph.randomness import random_node
    from onnxfuse.verification.run import sessions

    unusable = runtime.cuda_unusable() if sessions.CUDA in providers else None  # loads the CUDA libraries, too
    if unusable:
        raise sessions.no_cuda(unusable)
    try:
        # By ONNX Runtime alone: what we do not read and it does is our failure.
        session = opened(one.path, providers)
    except sessions.ORT_ERRORS as error:
        return line(error)
    model = one.original()
    drawn = random_node(model)
    if drawn is not None:
        return f"{drawn.op_type} '{drawn.name}' draws random numbers: no two runs are the same"
    try:
        sessions.run(session, inputs.feeds(model, 0))
    except sessions.ORT_ERRORS as error:
        return line(error)
    for turns in TURNS[TURNS.index(one.turns) :]:
        one.turns = turns
        try:
            sessions.run(session, one.cases()[-1])
            break
        except sessions.ORT_ERRORS as error:
            one.facts.setdefault("one_shape", line(error)[:200])
    one.ones = [case for case in _of_ones(model) if 1 in one.turns and _ran(session, case)]
    return ""


def _of_ones(model: onnx.ModelProto) -> Iterator[Mapping[str, Any]]:
    """Yield the cases with sizes of one that the model's open dimensions leave."""
    there = {*inputs.words(model).values()}
    for seed, sizes in enumerate(inputs.ONES):
        if sizes.keys() & there:
            yield inputs.feeds(model, 0, seed, **sizes)


def _ran(session: Any, case: Mapping[str, Any]) -> bool:
    """Return whether a session takes a case."""
    from onnxfuse.verification.run import sessions

    try:
        sessions.run(session, case)
    except sessions.ORT_ERRORS:
        return False
    return True


def optimized(one: Examined) -> None:
    """It is optimized and written as by the command, and stays as it was with its data."""
    before, began = files.looks(one.path.parent), time.perf_counter()
    made = write(partial(optimize, one.path), one.fused)
    one.facts["optimize_s"] = round(time.perf_counter() - began, 2)
    if files.looks(one.path.parent) != before:
        raise Broken("the files of the original are no longer as they were")
    one.facts["weights"] = {"before": files.outside(one.path), "after": files.outside(one.fused)}
    one.facts["nodes"] = [len(onnx.load(one.path, load_external_data=False).graph.node), len(made.model.graph.node)]
    ops = fused_ops(made.model)
    count = sum(n.domain == DOMAIN for graph in concrete_shapes.every_graph(made.model.graph) for n in graph.node)
    one.facts |= {"fused": count, "kernels": len(ops), "rules": sorted({op.rule for op in ops.values()})}


def opened_on_cpu(one: Examined) -> None:
    """ONNX Runtime alone opens the written file by its path, and runs it, wherever it does so with the original."""
    if one.on_cpu:
        _by_path(one.fused, ["CPUExecutionProvider"], one.cases())


def opened_on_gpu(one: Examined) -> None:
    """As `opened_on_cpu`, by the CUDA provider: the fused ops run as their bodies."""
    _by_path(one.fused, ["CUDAExecutionProvider", "CPUExecutionProvider"], one.cases())


def _by_path(path: Path, providers: list[str], cases: list[Mapping[str, Any]]) -> None:
    why = why_not(path, providers, cases)
    if why:
        raise Broken(f"by its path the written file is of no use: {why}"[:SHOWN])


def same_again(one: Examined) -> None:
    """The same input gives the same files, and an optimized model comes out as it went in."""
    again, twice = (one.folder / name / FUSED for name in ("again", "twice"))
    write(partial(optimize, one.path), again)
    differs = files.difference(one.fused, again)
    if differs:
        raise Broken(f"a second run of optimize gives other bytes: {differs}")
    write(partial(optimize, one.fused), twice)
    differs = files.difference(one.fused, twice)
    if differs:
        raise Broken(f"optimized again it changes: {differs}")


def declared(one: Examined) -> None:
    """Of an export that declares every value's shape, as simplifiers write it, what is declared in the end is so.

    ONNX Runtime believes it of what it does not know, and does not open a model on CUDA whose nodes contradict it.
    """
    model = one.original()
    with verifying():
        made = onnxfuse.optimize(typed(model) or model)
    says = {v.name: type_of(v.type).shape for v in made.graph.value_info}
    del made.graph.value_info[:]
    for value in infer(made).graph.value_info:
        told, found = says.get(value.name), type_of(value.type).shape
        if told is None or found is None:
            continue
        numbers = [(a, b) for a, b in zip(told, found, strict=False) if isinstance(a, int) and isinstance(b, int)]
        if len(told) != len(found) or any(a != b for a, b in numbers):
            raise Broken(f"'{value.name}' is declared as {told}, and its node makes {found}")


def undone(one: Examined) -> None:
    """Undo, as the command writes it, gives a model that ONNX Runtime opens and runs wherever it does the original."""
    file = one.folder / "undone" / "undone.onnx"
    write(partial(undo, one.fused), file)
    if any(n.domain == DOMAIN for n in onnx.load(file).graph.node):
        raise Broken("fused ops are left after undo")
    why = why_not(file, ["CPUExecutionProvider"], one.cases()) if one.on_cpu else _apart(file)
    if why:
        raise Broken(f"undone it does not open: {why}")


def planned(one: Examined) -> None:
    """Every fused op has a plan on every architecture, aligned and not, and its kernels compile.

    Those for sizes of one are planned alone: what differs in their text is numbers.
    """
    model = io.load(one.fused)
    ops = fused_ops(model)
    broken: dict[str, str] = {}
    compiled = set[tuple[str, str]]()
    shapes, small = (as_run.input_shapes(model, c) if one.on_cpu and c else {} for c in (one.cases(), one.ones))
    for turn in sorted(set(one.turns)):
        light, _ = concrete_shapes.with_sizes(model, inputs.sizes_of(model, turn))
        graph = infer(light).graph
        types, nodes = concrete_shapes.every_type(graph), concrete_shapes.fused_nodes(graph)
        for name in ops:
            inferred = {s for n in nodes.get(name, []) if (s := concrete_shapes.input_shapes(n, types)) is not None}
            shapes[name] = shapes.get(name, set()) | inferred
    for name, op in ops.items():
        for arch in SUPPORTED if is_template(op.template) else ():
            for shape in sorted(shapes[name] | small.get(name, set())):
                why = _compiles(op, shape, arch, one.archs if shape in shapes[name] else (), compiled)
                if why:
                    broken.setdefault(name, f"{op.rule} on {arch.name} for {shape}: {why}")
    one.facts |= {"compiled": len(compiled), "planned": sum(len(shapes[n] | small.get(n, set())) for n in ops)}
    if not all(shapes.values()):
        one.facts["without_shapes"] = sum(not s for s in shapes.values())
    if broken:
        raise Broken(f"{len(broken)} of {len(ops)} fused ops have no kernel: {next(iter(broken.values()))}")


def _compiles(op: FusedOp, shape: Any, arch: Arch, compiled_for: tuple[str, ...], seen: set[tuple[str, str]]) -> str:
    """Return why there is no kernel for these shapes, empty where there is one, or where it says itself that not."""
    if supports(op, lambda: arch) is not None:
        return ""
    try:
        for aligned in (True, False):
            launch = plan(op, shape, aligned, arch)
            if launch.shared_bytes > arch.shared_bytes:
                return f"{launch.shared_bytes} bytes of shared memory, the GPU has {arch.shared_bytes}"
            for part in (launch, *launch.then):
                key = (part.kernel.text + " ".join(part.kernel.flags), arch.name)
                if key not in seen and arch.name in compiled_for:
                    seen.add(key)
                    nvrtc.compile(part.kernel, arch)
    except OnnxfuseError as error:
        return str(error)
    return ""


def opens_on_stand_ins(one: Examined) -> None:
    """On the stand-in libraries a CUDA session opens wherever one of the original does, and runs no op by its body."""
    why = _apart(one.fused)
    if not why:
        return
    theirs = _apart(one.path)
    if not theirs:
        raise Broken(f"on the stand-in libraries: {why}")
    one.facts["original_on_stand_ins"] = theirs


def same_on_cpu(one: Examined) -> None:
    """The bodies compute on the CPU what the original does, by `verify`, at two shapes and at sizes of one."""
    if one.on_cpu:
        _verified(one, ["CPUExecutionProvider"], one.ones)


def repeated(one: Examined) -> None:
    """One session of the fused model runs ROUNDS times at shapes that alternate, each time with the same bits.

    What a launch sets, and a launch for another shape relies on, breaks no earlier than in the second round. Where the
    original's own bits change, ours may.
    """
    from onnxfuse.verification.run import sessions

    session = sessions.with_kernels(one.fused, [sessions.CUDA, sessions.CPU])
    placed = {r: sum(p.nodes for p in session.fused if p.runs_as == r) for r in ("kernel", "onnxruntime", "body")}
    one.facts["runs_as"] = placed
    reasons = sorted({p.reason for p in session.fused if p.runs_as == "body"})
    if reasons:
        one.facts["not_kernels"] = reasons
    cases = one.cases()
    ours = changing(session, cases, ROUNDS)
    if ours:
        # Of places that are written more than once, any write may be the last: then the original is no other.
        theirs = changing(sessions.ort_session(one.path, [sessions.CUDA, sessions.CPU]), cases, ASKED)
        if ours - theirs:
            raise Broken(f"{', '.join(sorted(ours - theirs))}: other bits in one of {ROUNDS} rounds, {ASKED} times the "
                         "same in the original")  # fmt: skip
        one.facts["original_not_repeatable"] = sorted(ours)


def changing(session: Any, cases: Sequence[Mapping[str, Any]], times: int) -> set[str]:
    """Return the outputs that have other bits in one of so many rounds over all the inputs, on the same ones."""
    from onnxfuse.verification.run import sessions

    found = set[str]()
    first = [sessions.run(session, given) for given in cases]
    for _ in range(times - 1):
        for given, before in zip(cases, first, strict=True):
            again = sessions.run(session, given)
            found |= {name for name, value in again.items() if value.tobytes() != before[name].tobytes()}
    return found


def same_on_gpu(one: Examined) -> None:
    """The kernels compute what the original does, by `verify`, at two shapes."""
    _verified(one, ["CUDAExecutionProvider", "CPUExecutionProvider"])


def _verified(one: Examined, providers: list[str], more: Sequence[Mapping[str, Any]] = ()) -> None:
    began = time.perf_counter()
    report = onnxfuse.verify(
        one.path, one.fused, inputs=[*one.cases(), *more], providers=providers, isolate=False, seconds=SECONDS
    )
    one.facts |= {"truth": report.truth, "tf32": report.tf32, "verify_s": round(time.perf_counter() - began, 1)}
    undecided = [r.output for r in report.outputs if r.verdict == "undecided"]
    if report.problems or any(r.verdict == "mismatch" for r in report.rows):
        faults = [f"{r.output}: {r.fault}" for r in report.rows if r.verdict == "mismatch"]
        raise Broken("; ".join((*report.problems, *faults)))
    if undecided:
        one.facts["undecided"] = len(undecided)


def converted(one: Examined) -> None:
    """In float32 it is converted to float16 and fused; what does not meet the contract is refused by its output."""
    if not any(t.data_type == onnx.TensorProto.FLOAT for t in one.original().graph.initializer):
        raise Refused("holds no float32 weights")
    began = time.perf_counter()
    try:
        asked = Lowering("float16", tuple(one.cases()), seconds=SECONDS)
        made = write(partial(optimize, one.path, Options(precision=asked), one.tell), one.fused)
    except (ModelError, UsageError) as error:
        raise Refused(line(error)) from None
    assert made.lowered is not None
    one.facts |= {"optimize_s": round(time.perf_counter() - began, 2), "precision": made.lowered.summary}
    one.facts["kept"] = [f"{k.op} {k.node}: {k.reason}" for k in made.lowered.kept][:SHOWN_KEPT]


def held(one: Examined) -> None:
    """The converted file holds the contract, by `verify`, on the GPU where there is one."""
    from onnxfuse import runtime
    from onnxfuse.verification.run import sessions

    _verified(one, [sessions.CPU] if runtime.cuda_unusable() else [sessions.CUDA, sessions.CPU])


STAGES: Mapping[str, tuple[Step, ...]] = {
    "cpu": (
        original_on_cpu,
        optimized,
        opened_on_cpu,
        same_again,
        declared,
        undone,
        planned,
        opens_on_stand_ins,
        same_on_cpu,
    ),
    "precision": (original_on_cpu, converted, opened_on_cpu, undone, opens_on_stand_ins, held),
    "gpu": (original_on_gpu, optimized, opened_on_gpu, repeated, same_on_gpu),
}
"""The steps of each stage; `models.survey.racing` adds the times to `gpu`."""


def _apart(path: Path) -> str:
    """Open a model in a process that has the stand-in libraries; return why it does not, empty where it does."""
    built = subprocess.run([sys.executable, str(LIBRARIES)], capture_output=True, text=True, check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": built.stdout.strip()}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    command = [sys.executable, "-m", "models.survey.stand_ins", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode == 0:
        return ""
    said = [*done.stderr.strip().splitlines(), *done.stdout.strip().splitlines()] or ["no word"]
    return f"{said[-1]} (it ended with {done.returncode})"[:SHOWN]


def steps(stage: str) -> tuple[Step, ...]:
    """Return the steps of a stage, that of the times among them."""
    if stage != "gpu":
        return STAGES[stage]
    from models.survey.racing import raced

    return (*STAGES[stage], raced)


def examined(
    path: Path, stage: str, archs: tuple[str, ...] = (), tell: Callable[[str], None] = lambda step: None
) -> Iterator[dict[str, Any]]:
    """Yield a line as each step begins, and at the end the row of the export; `tell` hears more within long steps."""
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
        one = Examined(path, Path(folder), archs or tuple(a.name for a in SUPPORTED), tell=tell)
        verdict, where, error = "right", "", ""
        for step in steps(stage):
            yield {"step": step.__name__}
            where = step.__name__
            try:
                with in_company() if step in STAGES["gpu"] else contextlib.nullcontext():
                    step(one)
            except Refused as said:
                verdict, error = "refused", str(said)
                break
            except Broken as said:
                verdict, error = "failed", str(said)[:SHOWN]
                break
            except Exception as mistake:  # whatever it is, it is a row, and not the end of the survey
                verdict, error = "failed", _traced(mistake)
                break
        yield {"verdict": verdict, "step": "" if verdict == "right" else where, "error": error, **one.facts}


def _traced(error: Exception) -> str:
    """Return the error in one line, with the last place of ours that it came through."""
    ours, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if f"{os.sep}onnxfuse{os.sep}" in file:
            ours = f" [{Path(file).name}:{trace.tb_lineno}]"
        trace = trace.tb_next
    return f"{line(error)}{ours}"
