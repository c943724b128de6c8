"""Find the rule at fault when an optimized model is invalid, and produce the model without that rule.

A fused op is at fault if the model becomes valid once the op's nodes are restored. Rewrites, and nodes that changed on
their way into a body, cannot be reverted: for those the model is optimized again without the rule.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.nested import nodes_of
from onnxfuse.rules.language.rule_file import Rule, shipped_files
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.shapes.inference import shell
from onnxfuse.support.errors import ModelError, RuleError

Wrong = Callable[[ModelProto], str | None]
"""Returns what is wrong with a model, None if nothing is."""

Again = Callable[[Collection[str]], tuple[ModelProto, OptimizeReport]]
"""Optimizes the original again without these rules, and returns model and report."""

SEE = "Check what the rule asks of element types, ranks and the operator set: onnxfuse docs rule-language."

PLEASE = "please report it: the fault is onnxfuse's, not the model's"


@dataclass(frozen=True)
class Mended:
    """A valid model, and what was done to get it."""

    model: ModelProto
    report: OptimizeReport


def mend(
    made: ModelProto,
    report: OptimizeReport,
    rules: Sequence[Rule],
    said: str,
    wrong: Wrong,
    again: Again | None,
    original: Callable[[], ModelProto] | None,
) -> Mended:
    """Return a valid model in place of `made`, whose defect is `said`, and notes on what was reverted.

    If reverting does not help, `again` optimizes anew, and if that does not either, the result is `original`. Raises
    RuleError if a user's rule is at fault, ModelError if there is no way to optimize again.
    """
    rule_of = _rules_of(made)
    guilty = _guilty(list(rule_of), said, lambda kept: wrong(_fused_by(made, kept)))
    if guilty is not None:
        for name in guilty:
            _blame(rules, rule_of[name], f"op {name}", said)
            report.notes.append(_note(rule_of[name], f"an op that is not valid, {name}", said))
        unfuse(made, only=_outputs(made, guilty))
        report.applied = [a for a in report.applied if a.op not in guilty]
        return Mended(made, report)
    if again is None or original is None:
        raise ModelError(f"the optimized model is not valid, and no op alone is to blame: {said}", PLEASE.capitalize())
    applied = {a.rule for a in report.applied}
    names = sorted((r.name for r in rules), key=lambda name: name not in applied)
    found = _guilty(names, "", lambda kept: wrong(again([n for n in names if n not in kept])[0]))
    if found is None:
        why = (
            f"the optimized model would not be valid ({said}), and no rule is to blame: it is left "
            f"unchanged. If ONNX Runtime does not run the original either, the model contradicts itself; otherwise "
            f"{PLEASE}"
        )
        return Mended(original(), OptimizeReport(before=report.before, notes=[why]))
    for name in found:
        _blame(rules, name, "rewrite", said)
    model, remade = again(found)
    remade.notes += [_note(name, "a model that is not valid", said) for name in found]
    return Mended(model, remade)


def _rules_of(made: ModelProto) -> dict[str, str]:
    """Return the rule that made each op; functions without a rule are foreign."""
    return {
        f.name: p.value
        for f in made.functions
        if f.domain == DOMAIN
        for p in f.metadata_props
        if p.key == f"{DOMAIN}.rule"
    }


def _guilty(names: Sequence[str], said: str, wrong_with: Callable[[Collection[str]], str | None]) -> list[str] | None:
    """Return a minimal subset of `names` whose removal makes the model valid, by greedy search; None if there is none.

    Names in the error message are tried first. `wrong_with` returns what is wrong with only these present.
    """
    if wrong_with([]) is not None:
        return None
    guilty = [n for n in names if n in said]
    while True:
        rest = [n for n in names if n not in guilty]
        if wrong_with(rest) is None:
            return guilty
        fine, faulty = 0, len(rest)  # bisection: prefixes known to be valid, and invalid
        while faulty - fine > 1:
            middle = (fine + faulty) // 2
            fine, faulty = (middle, faulty) if wrong_with(rest[:middle]) is None else (fine, middle)
        guilty.append(rest[faulty - 1])


def _fused_by(made: ModelProto, kept: Collection[str]) -> ModelProto:
    """Return the model, without its weights, with only these fused ops."""
    light = shell(made)
    unfuse(light, only=_outputs(light, [n for n in _rules_of(light) if n not in kept]))
    return light


def _outputs(model: ModelProto, ops: Collection[str]) -> set[str]:
    return {n.output[0] for n in nodes_of(model.graph) if n.domain == DOMAIN and n.op_type in ops}


def _blame(rules: Sequence[Rule], name: str, what: str, said: str) -> None:
    """Raise RuleError if the rule is the user's own: a silent fallback would hide its defect."""
    path = next((r.path for r in rules if r.name == name), Path())
    if path not in shipped_files().values():
        raise RuleError(f"{path}: the rule '{name}' makes a model that is not valid ({what}): {said}", SEE)


def _note(rule: str, made: str, said: str) -> str:
    return f"the rule '{rule}' made {made} ({said}); what it would have changed there is left alone: {PLEASE}"
