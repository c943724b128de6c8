"""Which nodes stay: those whose values leave the range, and of those that lose digits the fewest that are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import TensorProto

from onnxfuse.precision import suspects
from onnxfuse.precision.measure import Met
from onnxfuse.precision.plan import FLOAT, Place
from onnxfuse.precision.suspects import Group
from onnxfuse.precision.trial import Kinds, Trial, Tried, fewest


@dataclass(frozen=True)
class Choice:
    """What stays, and what comes of it."""

    kept: Kinds
    """The type of each node that does not have the low one, by first output."""
    reasons: dict[str, str]
    tried: Tried


def choose(
    trial: Trial, places: Mapping[str, Place], met: Mapping[str, Met], named: Mapping[str, str], *, mixed: bool
) -> Choice:
    """Return the choice with which every output holds the contract, or the one that came nearest.

    `named` are the nodes that somebody wants in float32, with the words that say so.
    """
    low = trial.low
    beyond, unknown = suspects.beyond_range(places, met, low), suspects.never_met(places, met)
    asked = [Group(0.0, dict(named))] if named else []
    wide = TensorProto.BFLOAT16 if mixed else FLOAT
    stay = [suspects.types_of(g, places, FLOAT) for g in (*asked, *unknown)]
    every = [*stay, *(suspects.types_of(g, places, wide) for g in beyond)]
    tried = trial.run(_merged(every))
    if not tried.ok and mixed and beyond:
        every = [*stay, *(suspects.types_of(g, places, FLOAT) for g in beyond)]
        tried = trial.run(_merged(every))
    reasons = _reasons([*asked, *beyond, *unknown])
    for find in (suspects.sensitive, suspects.by_error):
        if tried.ok:
            break
        groups = find(places, met, low)
        found = _enough(trial, places, every, groups)
        every += _needed(trial, every, [suspects.types_of(g, places, FLOAT) for g in found])
        reasons = {**_reasons(found), **reasons}
        tried = trial.run(_merged(every))
    kept = _merged(every)
    return Choice(kept, {n: reasons[n] for n in places if n in kept}, tried)


def _enough(trial: Trial, places: Mapping[str, Place], every: list[Kinds], groups: Sequence[Group]) -> list[Group]:
    """Return the fewest of the groups with which the contract holds; all of them where it never does."""

    def holds(chosen: Sequence[Group]) -> bool:
        return trial.run(_merged([*every, *(suspects.types_of(g, places, FLOAT) for g in chosen)])).ok

    count = 1
    while count < len(groups) and not trial.over and not holds(groups[:count]):
        count *= 2
    return fewest(list(groups[:count]), holds, lambda: trial.over)


def _needed(trial: Trial, every: list[Kinds], found: list[Kinds]) -> list[Kinds]:
    """Return the nodes of the groups that are needed, one by one: a group goes back as far as it may have to."""
    alone: list[Kinds] = [{name: type_} for kinds in found for name, type_ in kinds.items()]
    return fewest(alone, lambda chosen: trial.run(_merged([*every, *chosen])).ok, lambda: trial.over)


def _merged(every: Sequence[Kinds]) -> Kinds:
    """Return the type of each node; float32 where any wants that."""
    merged: Kinds = {}
    for kinds in every:
        for name, type_ in kinds.items():
            merged[name] = FLOAT if merged.get(name, type_) != type_ else type_
    return merged


def _reasons(groups: Sequence[Group]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for group in groups:
        for name, why in group.reasons.items():
            reasons.setdefault(name, why)
    return reasons
