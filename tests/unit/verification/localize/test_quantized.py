"""A quantized model is judged by its parts, on the original's own values: what is right is ok, and faults are seen."""

from dataclasses import replace

import numpy as np
import pytest

from onnxfuse import ops
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.verification.localize.anchors import anchored
from onnxfuse.verification.localize.bisect import bisect
from onnxfuse.verification.localize.guard import guard
from onnxfuse.verification.localize.quantized import judged_by_parts
from tests.support import quantized_models
from tests.support.quantized_models import IMAGES, TOKENS
from tests.support.verification.quantized_faults import CPU, changed_operand, copied, dropped, optimized, pair, verified

FAULTS = {
    "scale": changed_operand("QuantizeLinear", 1, lambda scale: (scale * 1.01).astype(np.float32)),
    "zero point": changed_operand("QuantizeLinear", 2, lambda zero: (zero.astype(np.int32) + 1).astype(zero.dtype)),
    "scale of a residual": changed_operand("DequantizeLinear", 1, lambda scale: (scale * 1.01).astype(np.float32)),
    "bias": dropped("Add"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("text", [IMAGES, TOKENS], ids=["images", "tokens"])
def test_a_fault_of_a_body_is_a_mismatch(text: str, fault: str) -> None:
    """A fused op that computes something else is a mismatch, whatever ties there are elsewhere."""
    original, fused = pair(text)
    for index, function in enumerate(fused.functions):
        wrong = copied(fused)
        invariant = any(n.op_type in ("MaxPool", "LayerNormalization") for n in function.node)
        if (
            "QuantizeLinear" in {n.op_type for n in function.node}
            and not invariant
            and FAULTS[fault](wrong.functions[index])
        ):
            report = verified(original, wrong)
            assert report.verdict == "mismatch", function.name
            assert not report.ok
            break
    else:
        pytest.fail("no body has such a node")


def test_a_missing_relu_of_a_dynamic_model_is_a_mismatch() -> None:
    """Its integers depend on a range that is computed, and its kernels write floats."""
    original = quantized_models.dynamic(TOKENS, "QInt8", per_channel=False)
    fused = optimized(original)
    assert verified(original, fused).verdict == "ok"
    assert sum(map(dropped("Relu"), fused.functions)) == 1
    assert verified(original, fused).verdict == "mismatch"


def test_a_wrong_rewrite_is_a_mismatch() -> None:
    """Another operator in place of a Relu: the parts around it are right."""
    original = quantized_models.static(
        IMAGES, "QDQ", "QInt8", "QInt8", per_channel=True, QDQKeepRemovableActivations=True
    )
    wrong = copied(original)
    relu = next(n for n in wrong.graph.node if n.op_type == "Relu")
    relu.op_type = ops.Neg
    assert verified(original, optimized(wrong)).verdict == "mismatch"
    assert verified(original, optimized(original)).verdict == "ok"


def test_bisect_names_the_op_within_a_region() -> None:
    """Of the ops between two Transposes, the one whose scale is wrong."""
    original, fused = pair(IMAGES)
    wrong = copied(fused)
    function = [f for f in wrong.functions if f.name.startswith("ConvInteger")][-1]
    assert FAULTS["scale"](function)
    inputs = {"x": quantized_models.drawn(IMAGES, 1)}
    found = bisect(original, anchored(original, wrong), inputs, CPU)
    assert function.name in {suspect.op for suspect in found.window}
    assert len(found.window) <= 2


def test_guard_keeps_what_is_right_within_a_region() -> None:
    """Nothing is reverted for the ties of the ops before it."""
    original, fused = pair(IMAGES)
    guarded = guard(original, lambda _: (copied(fused), ()), unfuse, providers=CPU)
    assert (guarded.undone, guarded.unseen) == ((), ())
    assert guarded.checked >= 5


def test_the_time_leaves_out_the_last_cases_of_the_parts() -> None:
    """The largest planned case is examined first and the largest of all last, whatever each of them took."""
    original, fused = pair(TOKENS)
    report = verified(original, fused)
    whole = judged_by_parts(original, fused, report).parts
    cut = judged_by_parts(original, fused, replace(report, limits={"seconds": 1e-9})).parts
    assert whole is not None
    assert cut is not None
    elements = [sum(np.prod(s) for s in c.shapes.values()) for c in report.cases]
    planned = [n for n, c in enumerate(report.cases) if not c.additional]
    assert elements[whole.cases[0]] == max(elements[n] for n in planned)
    assert elements[whole.cases[-1]] == max(elements) > elements[whole.cases[0]]
    assert whole.left_out == ()
    assert cut.cases + cut.left_out == whole.cases
    assert len(cut.cases) == 1
    assert f"1 case; {len(cut.left_out)} cases left out: the time for the parts is used up (--time)" in cut.text
