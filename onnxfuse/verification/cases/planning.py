"""Plan the cases of a verification: real inputs, or generated ones at sizes that the original accepts, entering all
branches."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx

from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.support.isolation import doing
from onnxfuse.support.progress import Progress
from onnxfuse.verification.cases.limits import Limits
from onnxfuse.verification.inputs.branches import Bodies, Change, cases_entering
from onnxfuse.verification.inputs.input_files import case_of, load_cases
from onnxfuse.verification.inputs.inputs import COMPOSITE, Case, InputSpec, Shapes, cases
from onnxfuse.verification.inputs.size_search import free_dimensions, search_sizes
from onnxfuse.verification.run import sessions

RealInputs = str | Path | Mapping[str, npt.NDArray[Any]]

SEARCHING = 0.3
"""Largest share of the time spent on the size search, and on the search for inputs that enter a branch."""


def plan_of(
    specs: Sequence[InputSpec],
    inputs: Sequence[RealInputs] | None,
    seeds: Sequence[int],
    shapes: Shapes | None,
) -> list[Case]:
    """Return the cases of a verification in run order: real inputs, or generated ones."""
    return _by_shapes(cases(specs, seeds, shapes) if inputs is None else _given(inputs, specs, shapes))


def _by_shapes(plan: Sequence[Case]) -> list[Case]:
    """Sort the cases so that those of equal shapes are adjacent, otherwise preserving their order.

    ONNX Runtime's CUDA provider rebuilds cuDNN's plan of a Conv whenever the shapes change: EfficientNet's 81 take a
    second and more.
    """
    first: dict[tuple[tuple[str, tuple[int, ...]], ...], int] = {}
    first_indices = [first.setdefault(shape_key(case), n) for n, case in enumerate(plan)]
    return [plan[n] for n in sorted(range(len(plan)), key=first_indices.__getitem__)]


def search_accepted_sizes(
    runs: Callable[[Case], bool],
    model: onnx.ModelProto,
    specs: Sequence[InputSpec],
    plan: Sequence[Case],
    shapes: Shapes,
    ended: Callable[[], bool],
) -> dict[str, tuple[int, ...]]:
    """Search sizes of dynamic dimensions without a user-given value, if the original rejects most of the default ones.

    A single accepted size may be 1, which broadcasts with anything.
    """
    if not free_dimensions(specs, shapes):
        return {}
    sets: dict[tuple[tuple[str, tuple[int, ...]], ...], Case] = {}
    for case in (c for c in plan if c.name not in COMPOSITE):  # an empty sequence is no size that most models take
        sets.setdefault(shape_key(case), case)
    accepted = 0
    for count, case in enumerate(sets.values(), 1):
        accepted += runs(case)
        if accepted > len(sets) / 2:
            return {}
        if count - accepted >= len(sets) / 2:
            break
    return search_sizes(model, specs, shapes, runs, ended)


def acceptance_test(plain: Any, progress: Progress) -> Callable[[Case], bool]:
    """Return a predicate: does the original accept a case?"""

    def runs(case: Case) -> bool:
        progress(f"inputs that the original accepts: {shapes_text(case)}", 0, 1)
        doing(model="original", case=case)
        return not sessions.refusal(plain, case.make())

    return runs


def enter_branches(
    runs: Callable[[Case], bool],
    model: onnx.ModelProto,
    specs: Sequence[InputSpec],
    plan: Sequence[Case],
    shapes: Shapes,
    limits: Limits,
) -> tuple[list[Case], tuple[str, ...]]:
    """Return the plan with cases added that enter the branches of `model`, and notes on branches that no case
    enters."""
    bodies = Bodies(model)
    if not bodies.every:
        return [*plan], ()
    latest = limits.spent + SEARCHING * limits.seconds
    try:
        additional = _branch_cases(bodies, runs, model, specs, plan, shapes, lambda: limits.spent > latest)
    except ModelError as error:
        return [*plan], (f"the branches that ran could not be observed: {error}",)
    return [*plan, *additional], tuple(b.text for b in bodies.never)


def _branch_cases(
    bodies: Bodies,
    runs: Callable[[Case], bool],
    model: onnx.ModelProto,
    specs: Sequence[InputSpec],
    plan: Sequence[Case],
    shapes: Shapes,
    ended: Callable[[], bool],
) -> list[Case]:
    """Return generated cases that enter bodies that the cases of `plan` do not."""
    bodies.run(plan)
    if not bodies.never or not plan or not plan[0].generated:
        return []

    def resized(change: Change) -> Case | None:
        sizes = search_sizes(model, specs, shapes, lambda case: runs(change(case)), ended)
        return cases(specs, (plan[0].seed or 0,), {**shapes, **sizes})[0] if sizes else None

    largest = max(plan, key=lambda c: sum(map(math.prod, c.shapes.values())))
    return cases_entering(model, bodies, specs, largest, resized, ended)


def _given(inputs: Sequence[RealInputs], specs: Sequence[InputSpec], shapes: Shapes | None) -> list[Case]:
    if shapes:
        raise UsageError("shapes are those of the real inputs", "Leave out either --shape or --inputs.")
    given_cases: list[Case] = []
    for n, one in enumerate(inputs):
        given_cases += [case_of(f"inputs {n}", one, specs)] if isinstance(one, Mapping) else load_cases(one, specs)
    return given_cases


def shape_key(case: Case) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return a key that is equal for cases of the same shapes."""
    return tuple(case.shapes.items())


def shapes_text(case: Case) -> str:
    """Format the shapes of a case in one line."""
    return " ".join(f"{n}={'x'.join(map(str, s)) or 'scalar'}" for n, s in case.shapes.items())
