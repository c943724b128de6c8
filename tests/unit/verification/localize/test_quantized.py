"""A quantized model is judged by its parts, on the original's own values: what is right is ok, and faults are seen."""

from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, helper, numpy_helper

from onnxfuse import ops
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.passes import pipeline
from onnxfuse.reporting.checks import checks
from onnxfuse.rules.language import rule_file
from onnxfuse.verification import VerifyReport, verify
from onnxfuse.verification.localize.anchors import anchored, is_anchor
from onnxfuse.verification.localize.bisect import bisect, faults
from onnxfuse.verification.localize.guard import guard
from onnxfuse.verification.localize.inner_ties import reach_of_ties
from onnxfuse.verification.localize.partition import submodel, windows
from onnxfuse.verification.reference.reference import float64_evaluator
from onnxfuse.verification.run import sessions
from tests.support import quantized_models
from tests.support.quantized_models import IMAGES, TOKENS
from tests.support.small import parse

CPU = ["CPUExecutionProvider"]


@cache
def _pair(text: str) -> tuple[ModelProto, ModelProto]:
    """A model with static QDQ, of signed integers with odd zero points, and what it is optimized to."""
    model = quantized_models.static(text, "QDQ", "QInt8", "QInt8", per_channel=True)
    return model, _optimized(model)


def _optimized(model: ModelProto) -> ModelProto:
    fused = _copy(model)
    pipeline.run(fused, rule_file.by_default(rule_file.select([])))
    return fused


def _copy(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def _verified(original: ModelProto, fused: ModelProto) -> VerifyReport:
    return verify(original, fused, providers=CPU)


def test_ties_of_rounding_are_no_fault() -> None:
    """One step in one layer flips others behind it: the output moves, and every part is the same on equal inputs."""
    original, fused = _pair(IMAGES)
    nearly = _copy(fused)
    assert any(_of("QuantizeLinear", 1, lambda scale: scale * np.float32(1 + 4e-6))(f) for f in nearly.functions)
    report = _verified(original, nearly)
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
    original, fused = _pair(IMAGES)
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
    fused = _optimized(original)
    assert anchored(original, fused) is fused


def _constant(function: FunctionProto, name: str) -> NodeProto:
    return next(n for n in function.node if name in n.output)


def _of(op: str, operand: int, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[FunctionProto], bool]:
    """Return what changes a constant operand of a body's first node of an operator."""

    def plant(function: FunctionProto) -> bool:
        node = next((n for n in function.node if n.op_type == op and len(n.input) > operand), None)
        if node is None:
            return False
        value = _constant(function, node.input[operand]).attribute[0]
        array = numpy_helper.to_array(value.t) if value.HasField("t") else np.array(value.f, np.float32)
        value.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(change(array))))
        return True

    return plant


def _drop(op: str) -> Callable[[FunctionProto], bool]:
    """Return what replaces a body's first node of an operator by its first operand."""

    def plant(function: FunctionProto) -> bool:
        node = next((n for n in function.node if n.op_type == op), None)
        if node is None:
            return False
        node.op_type = ops.Identity
        del node.input[1:], node.attribute[:]
        return True

    return plant


FAULTS = {
    "scale": _of("QuantizeLinear", 1, lambda scale: (scale * 1.01).astype(np.float32)),
    "zero point": _of("QuantizeLinear", 2, lambda zero: (zero.astype(np.int32) + 1).astype(zero.dtype)),
    "scale of a residual": _of("DequantizeLinear", 1, lambda scale: (scale * 1.01).astype(np.float32)),
    "bias": _drop("Add"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("text", [IMAGES, TOKENS], ids=["images", "tokens"])
def test_a_fault_of_a_body_is_a_mismatch(text: str, fault: str) -> None:
    """A fused op that computes something else is a mismatch, whatever ties there are elsewhere."""
    original, fused = _pair(text)
    for index, function in enumerate(fused.functions):
        wrong = _copy(fused)
        invariant = any(n.op_type in ("MaxPool", "LayerNormalization") for n in function.node)
        if (
            "QuantizeLinear" in {n.op_type for n in function.node}
            and not invariant
            and FAULTS[fault](wrong.functions[index])
        ):
            report = _verified(original, wrong)
            assert report.verdict == "mismatch", function.name
            assert not report.ok
            break
    else:
        pytest.fail("no body has such a node")


def test_a_missing_relu_of_a_dynamic_model_is_a_mismatch() -> None:
    """Its integers depend on a range that is computed, and its kernels write floats."""
    original = quantized_models.dynamic(TOKENS, "QInt8", per_channel=False)
    fused = _optimized(original)
    assert _verified(original, fused).verdict == "ok"
    assert sum(map(_drop("Relu"), fused.functions)) == 1
    assert _verified(original, fused).verdict == "mismatch"


def test_a_node_that_is_there_for_some_of_its_outputs_computes_the_others_under_other_names() -> None:
    """The scale of a DynamicQuantizeLinear is fed to the window of its integers."""
    original = quantized_models.dynamic(TOKENS, "QInt8", per_channel=False)
    node = next(n for n, one in enumerate(original.graph.node) if one.op_type == "DynamicQuantizeLinear")
    x = quantized_models.drawn(TOKENS, 1)
    feeds = {"x": x, "x_scale": np.array(7, np.float32), "x_zero_point": np.array(7, np.uint8)}
    part = submodel(original, [node], feeds, {"x_quantized": onnx.TypeProto()})
    (found,) = sessions.run(sessions.ort_session(part, CPU), feeds).values()
    assert (found.shape, found.max()) == (x.shape, 255), "by its own scale, not by the one that is fed"


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


def test_a_wrong_rewrite_is_a_mismatch() -> None:
    """Another operator in place of a Relu: the parts around it are right."""
    original = quantized_models.static(
        IMAGES, "QDQ", "QInt8", "QInt8", per_channel=True, QDQKeepRemovableActivations=True
    )
    wrong = _copy(original)
    relu = next(n for n in wrong.graph.node if n.op_type == "Relu")
    relu.op_type = ops.Neg
    assert _verified(original, _optimized(wrong)).verdict == "mismatch"
    assert _verified(original, _optimized(original)).verdict == "ok"


def test_bisect_names_the_op_within_a_region() -> None:
    """Of the ops between two Transposes, the one whose scale is wrong."""
    original, fused = _pair(IMAGES)
    wrong = _copy(fused)
    function = [f for f in wrong.functions if f.name.startswith("ConvInteger")][-1]
    assert FAULTS["scale"](function)
    inputs = {"x": quantized_models.drawn(IMAGES, 1)}
    found = bisect(original, anchored(original, wrong), inputs, CPU)
    assert function.name in {suspect.op for suspect in found.window}
    assert len(found.window) <= 2


def test_guard_keeps_what_is_right_within_a_region() -> None:
    """Nothing is reverted for the ties of the ops before it."""
    original, fused = _pair(IMAGES)
    guarded = guard(original, lambda _: (_copy(fused), ()), unfuse, providers=CPU)
    assert (guarded.undone, guarded.unseen) == ((), ())
    assert guarded.checked >= 5


COARSE = """g (float[1000] x) => (int8[1000] q) <float s = {1}, float t = {0.3}, int8 z = {0}> {
  a = QuantizeLinear (x, s, z)
  b = DequantizeLinear (a, s, z)
  q = QuantizeLinear (b, t, z)
}"""


@pytest.mark.parametrize("opset", [11, 21, 24])
def test_a_tie_inside_a_window_moves_what_comes_out_by_more_than_a_step(opset: int) -> None:
    """A step of 1 is three or four of 0.3; without one inside, nothing is moved."""
    x = {"x": np.linspace(-9, 9, 1000).astype(np.float32)}
    assert reach_of_ties(parse(COARSE, opset), x) == {"q": 4.0}
    alone = COARSE.replace("  a = QuantizeLinear (x, s, z)\n  b = DequantizeLinear (a, s, z)\n", "").replace(
        "(b, t", "(x, t"
    )
    assert reach_of_ties(parse(alone, opset), x) == {}


@pytest.mark.parametrize(("by", "many", "ok"), [(4, 1, True), (4, 2, False), (6, 1, False)])
def test_what_a_tie_inside_explains_is_right_in_few_elements(by: int, many: int, ok: bool) -> None:
    """As many elements as else may be off, by as much as a tie inside moves them."""
    original, wrong = parse(COARSE, 21), parse(COARSE.replace("(a", "(inner").replace(" a =", " inner ="), 21)
    offsets = np.zeros(1000, np.float32)
    offsets[:many] = 0.3 * by
    wrong.graph.initializer.append(numpy_helper.from_array(offsets, "offsets"))
    wrong.graph.node[1].output[0], wrong.graph.node[2].input[0] = "exact", "moved"
    wrong.graph.node.insert(2, helper.make_node("Add", ["exact", "offsets"], ["moved"]))
    found = faults(original, wrong, {"x": np.full(1000, 0.2, np.float32)}, CPU)
    assert all(fault is None for fault, _ in found) == ok


FLOAT8 = """g (float[1000] x) => (float[1000] y) <float s = {0.1}, float8e4m3fn z = {0}> {
  a = QuantizeLinear (x, s, z)
  b = DequantizeLinear (a, s, z)
  y = Neg (b)
}"""


def test_a_tie_of_float8_moves_what_comes_out_by_its_step() -> None:
    """Numbers from 8 on are a scale apart."""
    x = np.linspace(0.81, 1.5, 1000).astype(np.float32)
    reach = reach_of_ties(parse(FLOAT8, 21), {"x": x})
    np.testing.assert_allclose(reach["y"], 0.1, rtol=1e-5)
