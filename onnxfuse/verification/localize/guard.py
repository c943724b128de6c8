"""Check every fusion by itself before a model is written: those beyond the error budget are reverted, the rest remain.

Each part of the graph that the rules changed is a window (`partition.py`); it gets values that the original computes on
generated inputs of every kind, or on real ones, and is verified like a model.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy.typing as npt
from onnx import ModelProto

from onnxfuse.model.fused import DOMAIN
from onnxfuse.support.errors import UsageError
from onnxfuse.support.isolation import Crash, isolated
from onnxfuse.support.progress import Progress, silent
from onnxfuse.verification.cases.default_cases import default_cases
from onnxfuse.verification.cases.planning import RealInputs
from onnxfuse.verification.localize.anchors import anchored
from onnxfuse.verification.localize.bisect import (
    NodeFault,
    Reoptimize,
    anchoring,
    crashed,
    describe_suspect,
    faults,
    first_fault,
    localize,
    open_with_inputs,
)
from onnxfuse.verification.localize.crashes import ChildRun, chosen_providers, run_naming_crashes
from onnxfuse.verification.localize.partition import Segment, differing, windows
from onnxfuse.verification.report.localization import Suspect

Arrays = dict[str, npt.NDArray[Any]]
ExposedFault = tuple[Arrays, NodeFault]
"""Inputs that expose a fault, and the fault."""
Undo = Callable[[ModelProto, Collection[str]], int]
"""Replaces the fused ops that compute these values by the original nodes, in place."""


@dataclass(frozen=True)
class RevertedFusion:
    """One reverted fusion, or one disabled rule."""

    rule: str
    op: str
    """The fused op; empty for a disabled rule."""
    node: str
    """Its node in the fused model, or the value at which the rule was found to be wrong."""
    nodes: tuple[str, ...]
    """The original nodes, as "Op name"."""
    fault: str
    """What was wrong, in the words of `verify`."""


@dataclass(frozen=True)
class Guarded:
    """A model in which every fusion has been checked."""

    model: ModelProto
    undone: tuple[RevertedFusion, ...]
    checked: int
    """Number of windows examined in the model as the rules made it."""
    left_out: tuple[str, ...]
    """Rules that were disabled because their rewrites were wrong."""
    unseen: tuple[str, ...] = ()
    """Windows that could not be examined, and why."""

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return {
            "checked": self.checked,
            "left_out": list(self.left_out),
            "undone": [asdict(u) for u in self.undone],
            "unseen": list(self.unseen),
        }


def guard(
    original: ModelProto,
    reoptimize: Reoptimize,
    undo: Undo,
    *,
    inputs: Sequence[RealInputs] | None = None,
    providers: Sequence[str] | None = None,
    progress: Progress = silent,
) -> Guarded:
    """Return the optimized model without the fusions that exceed the error budget.

    `reoptimize` and `undo` are the rewriter's. A fault that remains after the fused ops are undone is due to a rewrite:
    its rule is disabled, and everything is optimized and checked again. Raises UsageError if no inputs suit the
    original.
    """
    providers = chosen_providers(providers)
    feeds = run_naming_crashes(
        lambda _: [case.make() for case in default_cases(original, inputs, providers, "--guard")],
        ChildRun(original, None, inputs, providers=providers),
    )
    reverted: list[RevertedFusion] = []
    left_out: list[str] = []
    fused, applied = reoptimize(())
    checked = len(windows(original, anchored(original, fused)))
    reoptimized = anchoring(original, _without(reoptimize, left_out))
    while True:
        faulty, unexamined = _faulty(original, anchored(original, fused), feeds, providers, progress)
        newly_reverted = _undo(original, fused, faulty, undo, providers)
        reverted += newly_reverted
        if newly_reverted:
            faulty, unexamined = _faulty(original, anchored(original, fused), feeds, providers, progress)
        if not faulty:
            return Guarded(fused, tuple(reverted), checked - len(unexamined), tuple(left_out), unexamined)
        arrays, fault = faulty[0]
        seen = anchored(original, fused)
        localization = localize(original, seen, arrays, providers, fault, reoptimized, progress)
        rules = [r for r in localization.rules if r in applied and r not in left_out]
        if not rules:
            raise UsageError(
                f"--guard: '{fault.output}' is wrong and no rule is to blame: {fault.why}",
                "Leave out rules with --skip until it passes, and please report it.",
            )
        left_out += rules
        # The fusions are made anew, so previous reverts are decided anew.
        reverted = [u for u in reverted if not u.op]
        reverted += [RevertedFusion(r, "", fault.output, localization.replaced, fault.why) for r in rules]
        fused, _ = reoptimize(left_out)


def _without(reoptimize: Reoptimize, rules: Sequence[str]) -> Reoptimize:
    """Return a reoptimizer without these rules, as they are when it is called, in addition to those passed to it."""
    return lambda more: reoptimize([*rules, *more])


def _undo(
    original: ModelProto, fused: ModelProto, wrong: Sequence[ExposedFault], undo: Undo, providers: Sequence[str]
) -> list[RevertedFusion]:
    """Undo the fused ops that make windows wrong; return them."""
    reverted: dict[str, RevertedFusion] = {}
    seen = anchored(original, fused)
    for arrays, fault in wrong:
        for one in _culprits(original, seen, arrays, fault, undo, providers):
            reverted.setdefault(one.output, RevertedFusion(one.rule, one.op, one.node, one.nodes, fault.why))
    if reverted:
        undo(fused, set(reverted))
    return list(reverted.values())


def _culprits(
    original: ModelProto, fused: ModelProto, arrays: Arrays, fault: NodeFault, undo: Undo, providers: Sequence[str]
) -> list[Suspect]:
    """Return the single fused op without which the window is right; all fused ops of the window if there is none.

    Inside a channels-last region no value has the original's name, so several fused ops share one window.
    """
    positions = differing(original, fused, fault.window)
    ops = [describe_suspect(fused, p) for p in positions if fused.graph.node[p].domain == DOMAIN]
    for one in ops if len(ops) > 1 else ():
        without = ModelProto()
        without.CopyFrom(fused)
        undo(without, {one.output})
        rest = [w for w in windows(original, without) if set(w.outputs) & set(fault.window.outputs)]
        if first_fault(original, without, arrays, providers, rest) is None:
            return [one]
    return ops


def _faulty(
    original: ModelProto, fused: ModelProto, feeds: Sequence[Arrays], providers: Sequence[str], progress: Progress
) -> tuple[list[ExposedFault], tuple[str, ...]]:
    """Return each faulty window once, with the inputs that expose it, and the windows that could not be examined, and
    why.

    A window that crashes is faulty, too.
    """
    waiting = windows(original, fused)
    crashing: list[ExposedFault] = []
    while True:
        # Everything is examined again without the crashing window: earlier results were lost with the child.
        outcome = isolated(partial(_examine, original, fused, feeds, providers, waiting), progress)
        if not isinstance(outcome, Crash):
            return crashing + outcome[0], outcome[1]
        fault = crashed(original, fused, outcome)
        crashing.append((feeds[0], fault))
        waiting = [w for w in waiting if w != fault.window]


def _examine(
    original: ModelProto,
    fused: ModelProto,
    feeds: Sequence[Arrays],
    providers: Sequence[str],
    waiting: Sequence[Segment],
    progress: Progress,
) -> tuple[list[ExposedFault], tuple[str, ...]]:
    session = open_with_inputs(original, waiting, providers)
    wrong = []
    unexamined: dict[Segment, str] = {}
    for arrays in feeds:
        window_faults = [
            fault for fault, _ in faults(original, fused, arrays, providers, progress, waiting, session, unexamined)
        ]
        wrong += [(arrays, fault) for fault in window_faults if fault is not None]
        waiting = [w for w, fault in zip(waiting, window_faults, strict=True) if fault is None]
    return wrong, tuple(f"'{w.outputs[0]}' was not looked at: {why}" for w, why in unexamined.items())
