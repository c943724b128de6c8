"""Parts of a quantized model are judged on the original's own values."""

import numpy as np

from onnxfuse.reporting.checks import checks
from onnxfuse.verification.localize.anchors import anchored, is_anchor
from onnxfuse.verification.localize.partition import windows
from onnxfuse.verification.reference.reference import float64_evaluator
from tests.support import quantized_models
from tests.support.quantized_models import IMAGES
from tests.support.small import parse
from tests.support.verification.quantized_faults import changed_operand, copied, optimized, pair, verified


def test_ties_of_rounding_are_no_fault() -> None:
    """One step in one layer flips others behind it: the output moves, and every part is the same on equal inputs."""
    original, fused = pair(IMAGES)
    nearly = copied(fused)
    assert any(
        changed_operand("QuantizeLinear", 1, lambda scale: scale * np.float32(1 + 4e-6))(f) for f in nearly.functions
    )
    report = verified(original, nearly)
    # Of 66,560 integers some are ties of such a change; of the 8,192 of the small cases none is.
    assert report.sizes == {"N": (1, 3, 8, 65)}
    assert report.parts is not None, "no tie was met, so that this shows nothing"
    assert (report.verdict, report.parts.faults, report.parts.undecided) == ("ok", (), {})
    assert report.parts.parts >= 5
    assert report.parts.values > 1000 * report.parts.apart
    assert report.summary.startswith("same within the error budget, part by part: ")
    facts = report.as_dict()
    assert [(o["verdict"], o["fault"], o["judged_by"]) for o in facts["outputs"]] == [("ok", "", "parts")]
    assert all(check.ok for check in checks("verify", facts))


def test_a_fused_model_that_holds_other_forms_ends_its_windows_at_the_originals_values() -> None:
    """Channels last and shifted by 128, each value is given back as the original has it, and read as it was."""
    original, fused = pair(IMAGES)
    assert len(windows(original, fused)) == 2
    with_anchors = anchored(original, fused)
    assert len(windows(original, with_anchors)) >= 5
    assert any(map(is_anchor, with_anchors.graph.node))
    x = {"x": quantized_models.drawn(IMAGES, 5).astype(np.float64)}
    ours, theirs = (float64_evaluator(m).run(None, x)[0] for m in (fused, with_anchors))
    np.testing.assert_array_equal(ours, theirs)


def test_a_model_that_does_not_round_is_not_anchored() -> None:
    """Its windows stay as they are: regions of one layout are verified as a whole."""
    original = quantized_models.model(IMAGES)
    fused = optimized(original)
    assert anchored(original, fused) is fused


def test_both_round_what_one_of_them_rounds() -> None:
    """The fused kernel computes integers for others, and what it makes of them: the original is not given them."""
    constants = "<float s = {0.5}, int8 z = {3}>"
    original = parse(
        f"""g (float[1,4,4,4] x) => (int8[1,4,4,4] q, float[1,4,4,4] y) {constants} {{
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  y = Neg (d)
}}"""
    )
    fused = parse(
        f"""g (float[1,4,4,4] x) => (int8[1,4,4,4] q, float[1,4,4,4] y) {constants} {{
  t = Transpose <perm = [0,2,3,1]> (x)
  qnhwc = QuantizeLinear (t, s, z)
  q = Transpose <perm = [0,3,1,2]> (qnhwc)
  dnhwc_1 = DequantizeLinear (qnhwc, s, z)
  e = Neg (dnhwc_1)
  y = Transpose <perm = [0,3,1,2]> (e)
}}"""
    )
    forms = {"qnhwc": "q.nhwc", "dnhwc_1": "d.nhwc_1"}
    for node in fused.graph.node:
        node.input[:], node.output[:] = ([forms.get(v, v) for v in values] for values in (node.input, node.output))
    window = next(w for w in windows(original, fused) if w.outputs == ("y",))
    assert (window.inputs, window.original) == (("x",), (0, 1, 2))
