"""Select the nodes that stay float32: all that exceed the range, and the fewest necessary of those that lose precision.

If many small roundings add up and no node stands out, nodes are converted as far as the tolerance allows, in contiguous
stretches of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from onnx import TensorProto

from onnxfuse.precision.measure import ObservedNode
from onnxfuse.precision.plan import FLOAT, FloatNode
from onnxfuse.precision.sensitive_nodes import NodeGroup, beyond_range, never_observed, sensitive, singletons, types_of
from onnxfuse.precision.trial import Kinds, Trial, Tried, fewest

REACH = 4.0
"""Largest average error per node of a stretch, as a multiple of the remaining tolerance: single nodes may use less."""


@dataclass(frozen=True)
class PrecisionChoice:
    """The nodes that stay float32, and the resulting accuracy."""

    kept: Kinds
    """Type of each node that does not have the low one, by first output."""
    reasons: dict[str, str]
    tried: Tried
    plain: Tried
    """Accuracy if only the outstanding nodes stay float32."""


def choose(
    trial: Trial,
    float_nodes: Mapping[str, FloatNode],
    statistics: Mapping[str, ObservedNode],
    named: Mapping[str, str],
    *,
    mixed: bool,
) -> PrecisionChoice:
    """Return the selection with which every output meets the contract, or the one that came nearest.

    `named` are the nodes that the user pins to float32, with the patterns that name them.
    """
    low = trial.low
    beyond, unknown = (
        beyond_range(float_nodes, statistics, low),
        never_observed(float_nodes, statistics),
    )
    pinned = [NodeGroup(0.0, dict(named))] if named else []
    wide = TensorProto.BFLOAT16 if mixed else FLOAT
    stay = [types_of(g, float_nodes, FLOAT) for g in (*pinned, *unknown)]
    every = [*stay, *(types_of(g, float_nodes, wide) for g in beyond)]
    trial_result = trial.run(_merged(every))
    if not trial_result.ok and mixed and beyond:
        every = [*stay, *(types_of(g, float_nodes, FLOAT) for g in beyond)]
        trial_result = trial.run(_merged(every))
    reasons = _reasons([*pinned, *beyond, *unknown])
    plain = trial_result
    if not trial_result.ok:
        needed = _enough(trial, float_nodes, every, sensitive(float_nodes, statistics, low))
        every += _needed(trial, every, [types_of(g, float_nodes, FLOAT) for g in needed])
        reasons = {**_reasons(needed), **reasons}
        trial_result = plain = trial.run(_merged(every))
    if not trial_result.ok and not trial.over:
        rest = [g for g in singletons(float_nodes, statistics, low) if not g.reasons.keys() & _merged(every).keys()]
        needed = _without_room(trial, float_nodes, every, rest)
        every += [types_of(g, float_nodes, FLOAT) for g in needed]
        reasons = {**_reasons(needed), **reasons}
        trial_result = trial.run(_merged(every))
    pinned_types = _merged(every)
    return PrecisionChoice(pinned_types, {n: reasons[n] for n in float_nodes if n in pinned_types}, trial_result, plain)


def _enough(
    trial: Trial, float_nodes: Mapping[str, FloatNode], every: list[Kinds], groups: Sequence[NodeGroup]
) -> list[NodeGroup]:
    """Return the fewest groups with which the contract is met; all of them if it never is."""

    def holds(chosen: Sequence[NodeGroup]) -> bool:
        return trial.run(_merged([*every, *(types_of(g, float_nodes, FLOAT) for g in chosen)])).ok

    count = 1
    while count < len(groups) and not trial.over and not holds(groups[:count]):
        count *= 2
    selected = list(groups[:count])
    return fewest(selected, holds, lambda: trial.over) if count < len(groups) or holds(selected) else selected


def _needed(trial: Trial, every: list[Kinds], candidates: list[Kinds]) -> list[Kinds]:
    """Return the necessary nodes of the groups, one by one: a group extends back as far as it may have to."""
    alone: list[Kinds] = [{name: type_} for kinds in candidates for name, type_ in kinds.items()]
    if not trial.run(_merged([*every, *alone])).ok:
        return alone
    return fewest(alone, lambda chosen: trial.run(_merged([*every, *chosen])).ok, lambda: trial.over)


def _without_room(
    trial: Trial, float_nodes: Mapping[str, FloatNode], every: list[Kinds], groups: Sequence[NodeGroup]
) -> list[NodeGroup]:
    """Return groups of one node each, in file order, that stay float32 if no single node stands out.

    The contributions of their roundings to an output add up as squares, so some can be converted. Starting with none,
    the stretch with the smallest use of the contract per node is tried next, whole, then in halves. This ends if no
    stretch is below `REACH` times the remaining tolerance, or after twice as many failed trials as it takes to reach a
    single node.
    """
    patience = fruitless = 2 * max(len(groups), 2).bit_length()
    stay, used = dict(enumerate(groups)), 0.0
    waiting = [(0.0, 0, len(groups))]
    while waiting and fruitless and waiting[0][0] <= REACH * (1 - used) and not trial.over:
        _, start, end = heappop(waiting)
        fewer = {n: group for n, group in stay.items() if not start <= n < end}
        trial_result = trial.run(_merged([*every, *(types_of(g, float_nodes, FLOAT) for g in fewer.values())]))
        uses = trial_result.judged.severity**2
        if trial_result.ok:
            stay, used, fruitless = fewer, uses, patience
            continue
        fruitless -= 1
        middle = (start + end) // 2
        for half in [(start, middle), (middle, end)] if end - start > 1 else []:
            heappush(waiting, ((uses - used) / (end - start), *half))
    return list(stay.values())


def _merged(every: Sequence[Kinds]) -> Kinds:
    """Return the type of each node; float32 if any group requires that."""
    merged: Kinds = {}
    for kinds in every:
        for name, type_ in kinds.items():
            merged[name] = FLOAT if merged.get(name, type_) != type_ else type_
    return merged


def _reasons(groups: Sequence[NodeGroup]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for group in groups:
        for name, why in group.reasons.items():
            reasons.setdefault(name, why)
    return reasons
