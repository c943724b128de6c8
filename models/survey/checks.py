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
from pathlib import Path
from typing import Any

import onnx

import onnxfuse
from models.survey import as_run, inputs
from models.survey.cards import in_company
from onnxfuse.api.lowering import lowering
from onnxfuse.api.optimizing import optimize
from onnxfuse.api.options import Options
from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.build import nvrtc
from onnxfuse.kernels.dispatch import is_template, plan, supports
from onnxfuse.model import concrete_shapes, io
from onnxfuse.model.errors import ModelError, OnnxfuseError, UsageError
from onnxfuse.model.fused import DOMAIN, FusedOp, fused_ops
from onnxfuse.model.types import infer, plainly, type_of
from onnxfuse.verification.typed import typed

ARCHS = (
    Arch("sm_80", 108), Arch("sm_86", 84, 1536), Arch("sm_89", 58, 1536), Arch("sm_90a", 132), Arch("sm_100", 148),
    Arch("sm_120", 170, 1536),
)  # fmt: skip
"""A100, RTX 3090, L4, H200, B200, RTX 5090."""

NO_ARCH = "none"
"""Instead of an architecture's name: kernels are planned alone, which takes a third of the time."""

LIBRARIES = Path(__file__).parents[2] / "tests" / "fake_cuda" / "build.py"
"""Builds the stand-in CUDA libraries and prints their folder."""

ONE_SHAPE = (0, 0)
"""The cases of an export that takes no other sizes than those it was made with."""

TURNS: tuple[tuple[int, ...], ...] = ((0, 1), ONE_SHAPE, (0,))
"""The cases that are tried: those that the original runs. One made for four experts fails where three are chosen."""

ASKED = 8
"""How often the original is run to see whether its bits change."""

SECONDS = 60.0
"""For the cases of a verification, a quarter of what a step may take: as much again goes into each doubt."""

SHOWN_KEPT = 20
"""Nodes that stay in float32 which a row names."""

SHOWN = 400
"""Characters of a message that a row keeps."""


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
        """Where the optimized model is."""
        return self.folder / "fused.onnx"

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
        sizes = inputs.TIMED if 1 in self.turns and "batch" in concrete_shapes.open_dims(model) else ({},)
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
    import onnxruntime

    from onnxfuse import runtime
    from onnxfuse.model.randomness import random_node
    from onnxfuse.verification import sessions

    unusable = runtime.cuda_unusable() if sessions.CUDA in providers else None  # loads the CUDA libraries, too
    if unusable:
        raise sessions.no_cuda(unusable)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = sessions.SILENT
    try:
        # By ONNX Runtime alone: what we do not read and it does is our failure.
        session = onnxruntime.InferenceSession(
            str(one.path), options, providers=providers, enable_fallback=0,
            disabled_optimizers=[sessions.CRASHES_IN_HALF],
        )  # fmt: skip
    except sessions.ORT_ERRORS as error:
        return _line(error)
    model = one.original()
    drawn = random_node(model)
    if drawn is not None:
        return f"{drawn.op_type} '{drawn.name}' draws random numbers: no two runs are the same"
    try:
        sessions.run(session, inputs.feeds(model, 0))
    except sessions.ORT_ERRORS as error:
        return _line(error)
    for turns in TURNS[TURNS.index(one.turns) :]:
        one.turns = turns
        try:
            sessions.run(session, one.cases()[-1])
            break
        except sessions.ORT_ERRORS as error:
            one.facts.setdefault("one_shape", _line(error)[:200])
    one.ones = [case for case in _of_ones(model) if 1 in one.turns and _ran(session, case)]
    return ""


def _of_ones(model: onnx.ModelProto) -> Iterator[Mapping[str, Any]]:
    """Yield the cases with sizes of one that the model's open dimensions leave."""
    there = inputs.sizes_of(model, 0)
    for seed, sizes in enumerate(inputs.ONES):
        if sizes.keys() & there.keys():
            yield inputs.feeds(model, 0, seed, **sizes)


def _ran(session: Any, case: Mapping[str, Any]) -> bool:
    """Return whether a session takes a case."""
    from onnxfuse.verification import sessions

    try:
        sessions.run(session, case)
    except sessions.ORT_ERRORS:
        return False
    return True


def optimized(one: Examined) -> None:
    """It is optimized."""
    began = time.perf_counter()
    made = onnxfuse.optimize(one.path)
    one.facts["optimize_s"] = round(time.perf_counter() - began, 2)
    io.save(made, one.fused)
    one.facts["nodes"] = [len(onnx.load(one.path, load_external_data=False).graph.node), len(made.graph.node)]
    ops = fused_ops(made)
    count = sum(n.domain == DOMAIN for graph in concrete_shapes.every_graph(made.graph) for n in graph.node)
    one.facts |= {"fused": count, "kernels": len(ops), "rules": sorted({op.rule for op in ops.values()})}


def same_again(one: Examined) -> None:
    """The same input gives the same bytes, and an optimized model comes out as it went in."""
    ours = _bytes(io.load(one.fused))
    if _bytes(onnxfuse.optimize(one.path)) != ours:
        raise Broken("a second run of optimize gives other bytes")
    again = onnxfuse.optimize(one.fused)
    if _bytes(again) != ours:
        raise Broken(f"optimized again it changes: {_difference(io.load(one.fused), again)}")


def declared(one: Examined) -> None:
    """Of an export that declares every value's shape, as simplifiers write it, what is declared in the end is so.

    ONNX Runtime believes it of what it does not know, and does not open a model on CUDA whose nodes contradict it.
    """
    model = one.original()
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
    """Undo gives a model that ONNX Runtime opens wherever it opens the original."""
    file = one.folder / "undone.onnx"
    io.save(onnxfuse.unfuse(one.fused), file)
    if any(n.domain == DOMAIN for n in onnx.load(file).graph.node):
        raise Broken("fused ops are left after undo")
    why = _opens(file) if one.on_cpu else _apart(file)
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
        for arch in ARCHS if is_template(op.template) else ():
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


def same_twice(one: Examined) -> None:
    """The fused model runs twice at each shape with the same bits, wherever the original does."""
    from onnxfuse.verification import sessions

    session = sessions.with_kernels(one.fused, [sessions.CUDA, sessions.CPU])
    placed = {r: sum(p.nodes for p in session.fused if p.runs_as == r) for r in ("kernel", "library", "function")}
    one.facts["runs_as"] = placed
    reasons = sorted({p.reason for p in session.fused if p.runs_as == "function"})
    if reasons:
        one.facts["not_kernels"] = reasons
    cases = one.cases()
    ours = changing(session, cases, 2)
    if ours:
        # Of places that are written more than once, any write may be the last: then the original is no other.
        theirs = changing(sessions.plain(one.path, [sessions.CUDA, sessions.CPU]), cases, ASKED)
        if ours - theirs:
            raise Broken(f"{', '.join(sorted(ours - theirs))}: other bits the second time, {ASKED} times the same in "
                         "the original")  # fmt: skip
        one.facts["original_not_repeatable"] = sorted(ours)


def changing(session: Any, cases: Sequence[Mapping[str, Any]], times: int) -> set[str]:
    """Return the outputs that have other bits in one of so many runs on the same inputs."""
    from onnxfuse.verification import sessions

    found = set[str]()
    for given in cases:
        first, *others = (sessions.run(session, given) for _ in range(times))
        found |= {name for other in others for name, value in other.items() if value.tobytes() != first[name].tobytes()}
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
    """In float32 it is converted to float16 and fused; what does not hold the contract is refused by its output."""
    if not any(t.data_type == onnx.TensorProto.FLOAT for t in one.original().graph.initializer):
        raise Refused("holds no float32 weights")
    began = time.perf_counter()
    try:
        asked = lowering("float16", tuple(one.cases()), seconds=SECONDS)
        made = optimize(one.path, Options(precision=asked), progress=one.tell)
    except (ModelError, UsageError) as error:
        raise Refused(_line(error)) from None
    assert made.lowered is not None
    io.save(made.model, one.fused)
    one.facts |= {"optimize_s": round(time.perf_counter() - began, 2), "precision": made.lowered.summary}
    one.facts["kept"] = [f"{k.op} {k.node}: {k.reason}" for k in made.lowered.kept][:SHOWN_KEPT]


def held(one: Examined) -> None:
    """The converted file holds the contract, by `verify`, on the GPU where there is one."""
    from onnxfuse import runtime
    from onnxfuse.verification import sessions

    _verified(one, [sessions.CPU] if runtime.cuda_unusable() else [sessions.CUDA, sessions.CPU])


STAGES: Mapping[str, tuple[Step, ...]] = {
    "cpu": (original_on_cpu, optimized, same_again, declared, undone, planned, opens_on_stand_ins, same_on_cpu),
    "precision": (original_on_cpu, converted, undone, opens_on_stand_ins, held),
    "gpu": (original_on_gpu, optimized, same_twice, same_on_gpu),
}
"""The steps of each stage; `models.survey.racing` adds the times to `gpu`."""


def _bytes(model: onnx.ModelProto) -> bytes:
    found: bytes = model.SerializeToString(deterministic=True)
    return found


def _difference(a: onnx.ModelProto, b: onnx.ModelProto) -> str:
    ours, theirs = ([f"{n.op_type}({n.name})" for n in m.graph.node] for m in (a, b))
    if len(ours) != len(theirs):
        return f"{len(ours)} nodes become {len(theirs)}"
    return next((f"{x} becomes {y}" for x, y in zip(ours, theirs, strict=True) if x != y), "not in its nodes")


def failures() -> tuple[type[Exception], ...]:
    """Return what ONNX Runtime raises, and what we raise around it."""
    from onnxfuse.verification import sessions

    return (OnnxfuseError, *sessions.ORT_ERRORS)


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {plainly(error)}".split())[:SHOWN]


def _opens(path: Path) -> str:
    """Return why ONNX Runtime does not open a model on the CPU, empty where it does."""
    from onnxfuse.verification import sessions

    try:
        sessions.plain(path, [sessions.CPU])
    except failures() as error:
        return _line(error)
    return ""


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
        one = Examined(path, Path(folder), archs or tuple(a.name for a in ARCHS), tell=tell)
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
    return f"{_line(error)}{ours}"
