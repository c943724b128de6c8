"""Filter rules for models whose float32 products must not be rounded to TF32."""

from collections.abc import Sequence
from dataclasses import replace

from onnx import ModelProto

from onnxfuse import cuda
from onnxfuse.model.tf32 import is_strict_fp32
from onnxfuse.rules.language import predicate
from onnxfuse.rules.language.fuse_table import EXACT_ONLY, Anchor
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.cause import Cause


def for_model(rules: Sequence[Rule], model: ModelProto) -> tuple[Rule, ...]:
    """Return the rules for `model`: if it forbids rounding float32, rules with TF32 kernels refuse it.

    Products, channels-last convolutions and first layers have kernels with full float32 precision. Where others refuse,
    nodes after the anchor are fused as usual, and what a library op computes in a kernel's place stays with the
    library. For other models, the anchors that are for such models alone are removed.
    """
    which = _strict if is_strict_fp32(model) else _usual
    return tuple(which(rule) for rule in rules)


def _usual(rule: Rule) -> Rule:
    if rule.fuse is None or all(a.exact != EXACT_ONLY for a in rule.fuse.anchors):
        return rule
    return replace(rule, fuse=replace(rule.fuse, anchors=tuple(a for a in rule.fuse.anchors if a.exact != EXACT_ONLY)))


def _strict(rule: Rule) -> Rule:
    if rule.fuse is None or not cuda.TEMPLATES[rule.fuse.template].rounds_to_tf32:
        return rule
    return replace(
        rule, fuse=replace(rule.fuse, anchors=tuple(a if a.exact else _refusing(a) for a in rule.fuse.anchors))
    )


def _refusing(anchor: Anchor) -> Anchor:
    why = Cause("excluded", "the kernel rounds float32 to TF32, and strict float32 was asked for")
    line = f"not dtype({anchor.pattern.outputs[0]}) == float32"
    refuses = predicate.parse(line, anchor.pattern, "strict float32", why)
    if anchor.kernel:
        return replace(anchor, kernel=(refuses, *anchor.kernel))
    return replace(anchor, where=(*anchor.where, refuses))
