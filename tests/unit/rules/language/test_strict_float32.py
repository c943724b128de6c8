"""Models that must not round float32 get rules that refuse kernels of TF32; others lose what is for such models."""

from onnx import ModelProto

from onnxfuse import cuda
from onnxfuse.model.tf32 import set_strict_fp32
from onnxfuse.rules.language.fuse_table import EXACT_ONLY, EXACT_TOO
from onnxfuse.rules.language.rule_file import Rule, shipped
from onnxfuse.rules.language.strict_float32 import for_model

RULES = shipped()
REFUSAL = "the kernel rounds float32 to TF32, and strict float32 was asked for"


def model(*, strict: bool) -> ModelProto:
    """Return a model that forbids TF32 or not."""
    made = ModelProto()
    set_strict_fp32(made, strict=strict)
    return made


def pairs(*, strict: bool) -> list[tuple[Rule, Rule]]:
    """Return the shipped fusions and what becomes of them."""
    return [
        (rule, made)
        for rule, made in zip(RULES, for_model(RULES, model(strict=strict)), strict=True)
        if rule.fuse is not None
    ]


def test_usual_models_lose_anchors_for_strict_ones() -> None:
    """And keep all others, in the same objects."""
    lost = list[Rule]()
    for rule, made in pairs(strict=False):
        assert rule.fuse is not None
        assert made.fuse is not None
        assert list(made.fuse.anchors) == [a for a in rule.fuse.anchors if a.exact != EXACT_ONLY]
        lost += [rule] if made is not rule else []
    assert lost == [r for r in RULES if r.fuse and any(a.exact == EXACT_ONLY for a in r.fuse.anchors)] != []


def test_strict_models_refuse_kernels_that_round() -> None:
    """Of templates that round, except anchors whose kernels do not; the library's form stays where there is one."""
    refused = set[str]()
    for rule, made in pairs(strict=True):
        assert rule.fuse is not None
        assert made.fuse is not None
        if not cuda.TEMPLATES[rule.fuse.template].rounds_to_tf32:
            assert made is rule
            continue
        for before, after in zip(rule.fuse.anchors, made.fuse.anchors, strict=True):
            if before.exact in (EXACT_TOO, EXACT_ONLY):
                assert after is before
            elif before.kernel:
                assert after.where == before.where
                assert after.kernel[1:] == before.kernel
                refused.add("kernel")
            else:
                assert after.kernel == ()
                assert after.where[:-1] == before.where
                refused.add("anchor")
    assert refused == {"kernel", "anchor"}


def test_rewrites_are_for_every_model() -> None:
    """They choose no kernel."""
    rewrites = [r for r in RULES if r.fuse is None]
    assert rewrites
    for strict in (False, True):
        assert for_model(rewrites, model(strict=strict)) == tuple(rewrites)
