"""What guard, bisect and lower precision found is in every report."""

from onnxfuse.api.optimize.optimizing import optimize
from onnxfuse.api.request.options import Options
from onnxfuse.precision import Lowering
from onnxfuse.reporting.checks import checks
from onnxfuse.reporting.markdown import markdown
from onnxfuse.reporting.page import page
from tests.support.precision import model_of


def test_what_guard_took_back_and_what_bisect_found_are_told_everywhere() -> None:
    """Beside the page in Markdown and JUnit: a check that holds for what was mended, one that does not for a fault."""
    undone = {"rule": "linear", "op": "AddTanh_1", "node": "t0", "nodes": ["Add a0"], "fault": "error 2, allowed 1"}
    optimized = {"source": "in.onnx", "nodes": {"before": 5, "after": 4}, "fused_nodes": 1, "distinct_kernels": 1,
                 "seconds": 0.1, "not_met": [], "rules": {"linear": 1},
                 "guard": {"checked": 7, "undone": [undone], "left_out": []}}  # fmt: skip
    text = markdown("optimize", optimized)
    assert "AddTanh\\_1" in text
    assert [(c.name, c.ok, c.text) for c in checks("optimize", optimized)][1:] == [
        ("guard", True, "7 windows checked, 1 reverted")
    ]
    row = {"output": "y", "error": 2.0, "budget": 1.0, "verdict": "mismatch", "fault": "error 2, allowed 1"}
    verified = {
        "outputs": [row],
        "problems": [],
        "seconds": 2.5,
        "bisection": {"text": "fused op AddTanh_1 of rule linear"},
    }
    assert [(c.name, c.ok, c.text) for c in checks("verify", verified)] == [
        ("output y", False, "error 2, allowed 1"),
        ("bisect", False, "fused op AddTanh_1 of rule linear"),
    ]


def test_what_lower_precision_left_is_told_in_every_report() -> None:
    """How near the outputs are, and each node that stays, with the reason; and what else is to be known of it."""
    text = "g (float[2,8] x) => (float[2,8] y) { [up] b = Sin(x) [root] a = Abs(b) [out] y = Cos(a) }"
    asked = Options(precision=Lowering("float16", keep_fp32=("root",)))
    facts = optimize(model_of(text), asked).as_dict("in.onnx", "out.onnx")
    facts["notes"].append("a <note>")
    html = page("optimize", facts, {}, "onnxfuse optimize", {})
    assert "Lower precision</h2><p>float16: relative RMS error" in html
    assert "<td>Abs</td><td>root</td><td>float32</td><td>--keep-fp32 root says so</td>" in html
    assert "<p>note: a &lt;note&gt;</p>" in html
    text = markdown("optimize", facts)
    assert "| float16: relative RMS error" in text
    assert "| Abs | root | float32 | --keep-fp32 root says so |" in text
    assert "a \\<note\\>" in text
    assert "Lower precision" not in markdown("optimize", {k: v for k, v in facts.items() if k != "precision"})
