"""Build a kernel pack: all launch programs and compiled kernels that a model's ops need for ranges of shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfuse import cuda
from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.launch_programs import stored
from onnxfuse.cuda.launch_programs.cover import Covered, Domain, cover
from onnxfuse.cuda.launch_programs.family import Key
from onnxfuse.cuda.pack.layout import CUBIN, PackEntry, StoredProgram, Target, packed, sizes
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.engine.bridge import bridge
from onnxfuse.runtime.kernels.loader import may_alias, on_host
from onnxfuse.runtime.kernels.programs import DEFECTS
from onnxfuse.runtime.packing.ranges import Range, domains, outside, with_totals
from onnxfuse.runtime.sessions.registration import with_forms
from onnxfuse.support.errors import KernelError
from onnxfuse.support.process_pool import Workers

MOST_TRIED = 256
"""Number of shapes on which a program for all shapes is validated."""

Step = Callable[[str, int, int], None]
"""Progress callback: current step, amount done, total."""


@dataclass(frozen=True)
class PackedProgram:
    """A launch program in a pack, for one op on one target."""

    op: str
    target: str
    aligned: bool
    kernels: int
    shapes: int
    """Shapes that were requested and evaluated."""
    left: int
    """Number of those that the program does not cover; they are planned at run time."""
    whole: bool
    """Whether the shapes are exhaustive for the ranges or a sample."""
    why: str
    """Why some shapes are not covered."""
    variant: str
    """Variant measured fastest for these shapes; empty for the planner's own choice."""


@dataclass(frozen=True)
class PackResult:
    """A finished kernel pack."""

    parts: tuple[bytes, ...]
    """Its bytes, in pieces to be concatenated."""
    ranges: Mapping[str, Range]
    targets: tuple[Target, ...]
    programs: tuple[PackedProgram, ...]
    kernels: Mapping[str, tuple[int, int]]
    """Number of kernels and their bytes, by target."""
    without: Mapping[str, str]
    """Ops that launch no kernel on any target, or whose shapes are unknown, with the reason."""
    launched: Mapping[str, frozenset[str]]
    """By op, the targets on which it runs as a kernel."""
    library: Mapping[str, FusedOp]
    """Ops that ONNX Runtime's own op computes on some targets, with its library form."""

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return sum(map(len, self.parts))


@dataclass(frozen=True)
class _Task:
    op: FusedOp
    domain: Domain
    aligned: bool
    target: Target
    tuning: Variant | None = None
    general: bool = False
    """Whether the program is that of the general kernel, of which only ranks are fixed."""


def make(
    model: onnx.ModelProto,
    targets: Sequence[Target],
    ranges: Mapping[str, Range],
    *,
    tf32: bool = True,
    rules: Sequence[str | Path] = (),
    path: Path | None = None,
    step: Step = lambda what, count, of: None,
    processes: int | None = None,
) -> PackResult:
    """Return the pack of a fused model for these targets and these ranges of its input dimensions, by name.

    `tf32`, `rules` and `path` as for the session that will run it. Up to a million shapes per op every shape of the
    ranges is evaluated; beyond that a sample is, and the result says so. Needs NVRTC and the engine, no GPU.
    `processes`: by default one per core.
    """
    bridge()
    step("shapes", 0, 0)
    ops, tasks, without, library = _tasks(model, targets, ranges, tf32, rules, path)
    with Workers(processes) as workers:
        answers = workers.spread(_covered, tasks, lambda n: step("programs", n, len(tasks)))
        required = {
            (kernel, targets.index(task.target)): None
            for task, answer in zip(tasks, answers, strict=True)
            if isinstance(answer, Covered)
            for kernel in answer.kernels
        }
        # Largest tasks first, so that the longest does not start when all others are done.
        order = sorted(required, key=lambda w: -len(w[0].text))
        pieces = [(kernel, targets[target_index]) for kernel, target_index in order]
        compiled = workers.spread(_compiled, pieces, lambda n: step("kernels", n, len(order)))
    images = dict(zip(order, compiled, strict=True))
    ordered = sorted(required, key=lambda w: (w[1], w[0].entry, w[0].text))
    indices = {w: n for n, w in enumerate(ordered)}
    programs: dict[str, list[StoredProgram]] = {name: [] for name in ops}
    reports = []
    for task, answer in zip(tasks, answers, strict=True):
        if not task.general:
            reports.append(_told(task, answer))
        if isinstance(answer, Covered):
            target_index = targets.index(task.target)
            mine = tuple(indices[k, target_index] for k in answer.kernels)
            variant = measurements.variant_name(task.tuning)
            one = StoredProgram(target_index, task.aligned, mine, answer.tape, variant, task.general)
            programs[task.op.name].append(one)
    entries = [
        PackEntry(name, stored.digest_of(op), op.inputs, op.outputs, may_alias(op), tuple(programs[name]), on_host(op))
        for name, op in ops.items()
    ]
    index, parts = packed(
        _facts(ranges, reports, without),
        targets,
        entries,
        [(kernel.entry, target_index, images[kernel, target_index]) for kernel, target_index in ordered],
        bytes.fromhex(stored.planners()),
    )
    launched = {name: frozenset(targets[p.target].name for p in mine) for name, mine in programs.items()}
    return PackResult(
        tuple(parts), dict(ranges), tuple(targets), tuple(reports), sizes(index), without, launched, library
    )


def _tasks(
    model: onnx.ModelProto,
    targets: Sequence[Target],
    ranges: Mapping[str, Range],
    tf32: bool,
    rules: Sequence[str | Path],
    path: Path | None,
) -> tuple[dict[str, FusedOp], list[_Task], dict[str, str], dict[str, FusedOp]]:
    """Return the ops that are kernels on some target, what to cover of each on which target, why others are not, and
    which ones the library computes somewhere."""
    domains_by_op, exposed = domains(model, ranges), outside(model)
    ops: dict[str, FusedOp] = {}
    library: dict[str, FusedOp] = {}
    tasks: list[_Task] = []
    without: dict[str, str] = {}
    for target in targets:
        formed, refusals = with_forms(model, tf32, rules, path, target.arch)
        for name, op in formed.items():
            reason = refusals[name] or ("" if domains_by_op.get(name) else "the shapes of its inputs are not known")
            if reason:
                without.setdefault(name, reason)
                if op.library is not None:
                    library[name] = op
                continue
            ops[name] = op  # the library form is the same on every GPU
            mine = [with_totals(domain, op) for domain in domains_by_op[name]]
            tasks += [_Task(op, domain, aligned, target) for domain in mine for aligned in _alignments(name, exposed)]
            ranks = {domain.key.ranks: domain for domain in mine}
            tasks += [_Task(op, domain, False, target, general=True) for domain in map(_of_any, ranks.values())]
    tasks += _measured(model, ops, targets, exposed)
    return ops, tasks, {name: why for name, why in without.items() if name not in ops}, library


def _measured(
    model: onnx.ModelProto, ops: Mapping[str, FusedOp], targets: Sequence[Target], exposed: Collection[str]
) -> list[_Task]:
    """Return the variants measured fastest on any machine; a session selects those of its own."""
    required = {
        (name, shapes, tuning): op
        for section in measurements.of_model(model).values()
        for (digest, shapes), tuning in measurements.variants(section).items()
        for name, op in ops.items()
        if tuning is not None and measurements.key(name, ())[0] == digest and len(shapes) == len(op.inputs)
    }
    tasks = []
    for (name, shapes, tuning), op in required.items():
        extents = [n for s in shapes for n in s]
        domain = Domain(Key(tuple(map(len, shapes)), tuple(extents)), np.array([extents], np.int64), True)
        for target in targets:
            if cuda.is_candidate(op, shapes, target.arch, tuning):  # a file can only select among our kernels
                tasks += [_Task(op, domain, a, target, tuning) for a in _alignments(name, exposed)]
    return tasks


def _alignments(name: str, exposed: Collection[str]) -> tuple[bool, ...]:
    """Return the pointer alignments to cover: ONNX Runtime's own buffers are aligned, a caller's may not be."""
    return (True, False) if name in exposed else (True,)


def _of_any(domain: Domain) -> Domain:
    """Return sample shapes of the same ranks for a program that covers all shapes."""
    return Domain(Key(domain.key.ranks, (None,) * len(domain.key.fixed)), domain.extents[:MOST_TRIED], True)


def _told(task: _Task, answer: Covered | str) -> PackedProgram:
    name, target, complete, count = task.op.name, task.target.name, task.domain.whole, len(task.domain.extents)
    variant = measurements.variant_name(task.tuning)
    if isinstance(answer, str):
        return PackedProgram(name, target, task.aligned, 0, count, count, complete, answer, variant)
    return PackedProgram(
        name, target, task.aligned, len(answer.kernels), count, answer.left, complete, answer.why, variant
    )


def _facts(ranges: Mapping[str, Range], programs: Collection[PackedProgram], without: Mapping[str, str]) -> str:
    """Return the pack's human-readable facts as JSON."""
    rows: list[dict[str, Any]] = [
        {
            "op": p.op, "target": p.target, "aligned": p.aligned, "shapes": p.shapes, "left": p.left, "whole": p.whole,
            "why": p.why, "variant": p.variant,
        }
        for p in programs
    ]  # fmt: skip
    return json.dumps({"ranges": {n: list(r) for n, r in ranges.items()}, "programs": rows, "without": dict(without)})


def _covered(task: _Task) -> Covered | str:
    """Return the program of a task, or why there is none."""
    if task.general:
        family = cuda.general_family(task.op, task.domain.key, task.target.arch)
    else:
        family = cuda.family(task.op, task.domain.key, task.aligned, task.target.arch, task.tuning)
    try:
        covered = cover(family, task.domain, bridge().unanswered)
    except DEFECTS as error:
        return f"it cannot be recorded, please report it: {type(error).__name__}: {error}"
    return "no kernel takes these shapes, or none that fits a launch program" if covered is None else covered


def _compiled(piece: tuple[cuda.KernelSource, Target]) -> bytes:
    kernel, target = piece
    make_it = cuda.compile if target.kind == CUBIN else cuda.portable
    try:
        return make_it(kernel, target.arch)
    except KernelError as error:
        error.add_note(f"while {kernel.entry} was compiled for {target.name}")
        raise
