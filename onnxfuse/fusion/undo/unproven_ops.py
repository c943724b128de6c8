"""Revert fused ops whose rule conditions cannot be proven from the file: a session would run them as their bodies."""

from collections.abc import Mapping, Sequence

from onnx import ModelProto

from onnxfuse.cuda import reads_library_form
from onnxfuse.fusion.region.realize import realize
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.model.fused import DOMAIN, FusedOp
from onnxfuse.model.nested import nodes_of
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.support.errors import ModelError
from onnxfuse.support.plurals import plural


def revert_unproven_ops(
    model: ModelProto, ops: Mapping[str, FusedOp], rules: Sequence[Rule], report: OptimizeReport
) -> set[str]:
    """Revert unproven ones of `ops`, in place, and report it; return the rules that made them.

    A rule matches by everything known of the model, including the exporter's declarations of intermediate values. A
    session derives the library form, and a kernel's parameters from it, from inputs, weights and nodes alone.
    """
    there = {n.op_type for n in nodes_of(model.graph) if n.domain == DOMAIN}
    asked = {
        name: op
        for name, op in ops.items()
        if name in there and op.library is not None and reads_library_form(op.template)
    }
    if not asked:
        return set()
    try:
        found = realize(model, asked, rules)
    except ModelError:  # an invalid model: validation reports and mends that
        return set()
    unproven = {name: made.reason for name, made in found.items() if made.form is None}
    if not unproven:
        return set()
    places = [n for n in nodes_of(model.graph) if n.domain == DOMAIN and n.op_type in unproven]
    unfuse(model, only={n.output[0] for n in places})
    report.applied = [a for a in report.applied if a.op not in unproven]
    for name, reason in unproven.items():
        number = sum(n.op_type == name for n in places)
        report.notes.append(
            f"{plural(number, 'place')} of the rule '{asked[name].rule}' left unfused: the shapes that it needs are "
            f"declared in the file but do not follow from the nodes, so a session would not run the fused op: {reason}"
        )
    return {asked[name].rule for name in unproven}
