"""Entry points of the templates: from a fused op and the shapes of its inputs to a launch plan."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.cuda import templates
from onnxfuse.cuda.build import cache
from onnxfuse.cuda.dispatch import cost as costs
from onnxfuse.cuda.launch_programs import stored
from onnxfuse.cuda.launch_programs.family import Family, Key
from onnxfuse.cuda.planning import launch_plan, limits
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.template import Extents, Planner, Running
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.general import plan as general_plan
from onnxfuse.model.fused import FusedOp, Meaning
from onnxfuse.support.errors import NoPlanError
from onnxfuse.support.json_fields import JsonObject
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

Result = TypeVar("Result")
TEMPLATES = dict(templates.every())
"""The templates by name, by descending priority."""


def is_template(name: str) -> bool:
    """Return whether a template of this name makes kernels."""
    return name in TEMPLATES and TEMPLATES[name].planner is not None


def planner_of(op: FusedOp) -> Planner[Any]:
    """Return the planner of `op`; raises `UnsupportedError` if there is no kernel of that name."""
    planner = TEMPLATES[op.template].planner if op.template in TEMPLATES else None
    if planner is None:
        names = ", ".join(name for name in TEMPLATES if is_template(name))
        raise UnsupportedError(f"no kernel template {op.template!r}, expected one of {names}")
    return planner


def supports(op: FusedOp, arch: Callable[[], Arch] | None = None) -> str | None:
    """Return None if a kernel can be generated for `op`, and should be on `arch`; else the reason in one line.

    `arch` is called only if the template asks: determining it imports CuPy, which would otherwise be deferred to the
    first launch.
    """
    try:
        mine = planner_of(op)
        mine.check(op)
    except UnsupportedError as reason:
        return str(reason)
    return mine.refuses(op, arch()) if arch is not None and mine.refuses is not None else None


def multiplies_integers(op: FusedOp) -> bool:
    """Return whether the kernel of `op` multiplies 8-bit integers that its body dequantizes."""
    integers = planner_of(op).integers if is_template(op.template) else None
    return integers is not None and integers(op)


def fits(op: FusedOp, shapes: Sequence[Extents | None], arch: Arch) -> str | None:
    """Return why inputs of these shapes may have no plan on `arch`; None if they have one. Extents may be unknown."""
    mine = planner_of(op)
    return mine.fits(op, shapes, arch) if mine.fits is not None else None


def reads_library_form(template: str) -> bool:
    """Return whether the library form of an op describes what its kernel computes, or is its only implementation."""
    return not is_template(template) or TEMPLATES[template].reads_library_form


def unreadable(template: str, shape: Extents | None, full: Extents | None) -> str | None:
    """Return why the kernels of `template` cannot read an operand of `shape` in work of shape `full`; else None."""
    reads = TEMPLATES[template].reads
    if reads is None:
        return None
    return "has no known rank" if shape is None or full is None else reads(shape, full)


def unreadable_before(template: str, shape: Extents | None, full: Extents | None) -> str | None:
    """Return why the kernels of `template` cannot compute a value of shape `full` from one of `shape`; else None."""
    reads = TEMPLATES[template].reads_before
    if reads is None:
        return "is read by kernels that compute no input"
    return "has no known rank" if shape is None or full is None else reads(shape, full)


def estimate(op: FusedOp, input_shapes: tuple[Shape, ...]) -> float | str:
    """Return the cost of a launch of a pointwise op on such inputs, as bytes of traffic; or why there is none."""
    return _estimate(op.meaning, op.template, input_shapes)


@lru_cache(maxsize=4096)
def _estimate(meaning: Meaning, template: str, input_shapes: tuple[Shape, ...]) -> float | str:
    try:
        return costs.estimate(meaning.op(template), input_shapes)
    except UnsupportedError as reason:
        return str(reason)


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    return _guarded(op, input_shapes, lambda: planner_of(op).output_shapes(op, input_shapes))


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, tuning: Variant | None = None
) -> LaunchPlan:
    """Return the launch plan of `op` for inputs of these shapes.

    `aligned`: every input and output pointer is a multiple of 16 bytes. The plan holds for all pointers of that kind.
    """
    return _guarded(op, input_shapes, lambda: _launchable(op, input_shapes, aligned, arch, tuning))


def general(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> LaunchPlan:
    """Return the plan of the general kernel, which supports all shapes and alignments, slowly."""
    return _guarded(op, input_shapes, lambda: _general(op, input_shapes, arch))


def general_family(op: FusedOp, key: Key, arch: Arch) -> Family:
    """Return an empty launch program of the general kernel for shapes of one family, to be recorded."""
    return Family(key, lambda shapes: _general(op, shapes, arch))


def _general(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> LaunchPlan:
    planner = TEMPLATES[op.template].planner
    if planner is not None and planner.general is not None:
        return _within_limits(op, planner.general(op, input_shapes, arch), arch)
    program, running = _general_program(op, planner)
    return _within_limits(op, general_plan.plan(op.name, program, running, input_shapes, arch), arch)


def _general_program(op: FusedOp, planner: Planner[Any] | None) -> tuple[BodyProgram, Running | None]:
    if planner is not None and planner.running is not None:
        return planner.running(op)
    of = read.library_program if reads_library_form(op.template) and op.library is not None else read.program
    return of(op), None


def family(op: FusedOp, key: Key, aligned: bool, arch: Arch, tuning: Variant | None = None) -> Family:
    """Return an empty launch program of `op` for shapes of one family, to be recorded."""
    return Family(key, lambda shapes: _launchable(op, shapes, aligned, arch, tuning))


def cached_family(op: FusedOp, key: Key, aligned: bool, arch: Arch) -> Family:
    """Return the launch program with the answers cached on this machine, if any."""
    fresh = family(op, key, aligned, arch)
    data = cache.find(stored.key_of(op, key, aligned, arch), cache.PROGRAMS)
    return fresh if data is None else stored.loaded(data, key, fresh.plan)


def keep_family(op: FusedOp, family: Family, aligned: bool, arch: Arch) -> None:
    """Cache the recorded answers of a program for other processes on this machine."""
    cache.keep_programs(stored.key_of(op, family.key, aligned, arch), stored.dumped(family))


def _launchable(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, tuning: Variant | None
) -> LaunchPlan:
    """Return the template's plan; raises `UnsupportedError` if `arch` cannot launch it."""
    mine = planner_of(op)
    if any(0 in s for s in input_shapes):
        outputs = mine.output_shapes(op, input_shapes)
        if not any(math.prod(s) for s in outputs):
            return launch_plan.nothing(op, outputs)
    if tuning is not None and not isinstance(tuning, mine.variants):
        raise UnsupportedError(f"{tuning}, which is not a variant of template {op.template}")
    return _within_limits(op, mine.plan(op, input_shapes, aligned, arch, tuning), arch)


def _within_limits(op: FusedOp, launch: LaunchPlan, arch: Arch) -> LaunchPlan:
    reason = limits.exceeded(launch, len(op.inputs) + len(op.outputs), arch)
    if reason is not None:
        raise UnsupportedError(reason)
    return launch


def candidates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[Variant | None, ...]:
    """Return the kernel variants to measure on inputs of these shapes, the plan's own choice first.

    Each makes a plan of its own; variants without a plan are included, so that their failure is reported.
    """
    mine = _guarded(op, input_shapes, lambda: planner_of(op))
    first_of: dict[object, Variant | None] = {}
    for tuning in (None, *_guarded(op, input_shapes, lambda: mine.candidates(op, input_shapes, arch))):
        try:
            launch = _launchable(op, input_shapes, True, arch, tuning)
            first_of.setdefault(launch.configuration if launch.grid[0] else "nothing to launch", tuning)
        except UnsupportedError:
            first_of[tuning] = tuning
    return tuple(first_of.values())


def stand_ins(op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch) -> Iterator[LaunchPlan]:
    """Yield the plans of bit-identical variants of the plan's own choice, fastest first."""
    for tuning in _guarded(op, input_shapes, lambda: planner_of(op).stand_ins(op, input_shapes, aligned, arch)):
        with suppress(UnsupportedError):
            yield _launchable(op, input_shapes, aligned, arch, tuning)


def plan_within(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, scratch_bytes: int
) -> LaunchPlan | None:
    """Return a plan that needs at most so much scratch memory: of a variant, else the general kernel's; None if none
    does."""
    mine = _guarded(op, input_shapes, lambda: planner_of(op))
    variants = chain(mine.stand_ins(op, input_shapes, aligned, arch), mine.candidates(op, input_shapes, arch))
    for tuning in _guarded(op, input_shapes, lambda: tuple(variants)):
        with suppress(UnsupportedError):
            made = _launchable(op, input_shapes, aligned, arch, tuning)
            if made.all_scratch_bytes <= scratch_bytes:
                return made
    last = general(op, input_shapes, arch)
    return last if last.all_scratch_bytes <= scratch_bytes else None


def variant_of(facts: JsonObject) -> Variant | None:
    """Return the variant in untrusted JSON, of the first kind that has all its fields; None for the plan's own choice.

    Raises ValueError that names the location.
    """
    kinds = variant_kinds()
    kind = next((k for k in kinds if k.accepts(facts.all)), None)
    if kind is None:
        known = dict.fromkeys(f.name for k in kinds for f in fields(k))
        partly = next((k for k in kinds if any(k.accepts({name: None}) for name in facts.all)), None)
        facts.only(*known if partly is None else (f.name for f in fields(partly)))
        return None
    variant = kind.of_json(facts)
    return variant if variant.changed else None


def variant_kinds() -> tuple[type[Variant], ...]:
    """Return the kinds of variants of all templates."""
    planners = [t.planner for t in TEMPLATES.values() if t.planner is not None]
    return tuple(dict.fromkeys(kind for planner in planners for kind in planner.variants))


def is_candidate(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch, tuning: Variant | None) -> bool:
    """Return whether `tuning` is among the variants measured on such inputs; no other one may make a kernel."""
    measured = _guarded(op, input_shapes, lambda: planner_of(op).candidates(op, input_shapes, arch))
    return tuning in (None, *measured)


def inplace(op: FusedOp) -> tuple[tuple[int, int], ...]:
    """Return the (input, output) pairs that may alias, for all shapes, provided that their types and shapes agree."""
    return planner_of(op).inplace(op)


def _guarded(op: FusedOp, input_shapes: tuple[Shape, ...], work: Callable[[], Result]) -> Result:
    """Run `work`; its errors mention the op and the shapes."""
    try:
        return work()
    except UnsupportedError as reason:
        shapes = ", ".join("x".join(map(str, s)) or "scalar" for s in input_shapes)
        raise NoPlanError(
            f"{op.name}: no kernel for input shapes {shapes}: {reason}",
            f"run without onnxfuse's kernels, or optimize without rule {op.rule}",
        ) from reason
