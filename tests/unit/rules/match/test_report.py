"""The first reason of a refusal is kept."""

from dataclasses import replace

from onnxfuse.rules.match.report import OptimizeReport, QuantizedProduct


def test_the_first_reason_is_kept() -> None:
    """The model is optimized until nothing changes: of what stays floating-point the weight is dequantized by then, and
    a rule would miss its DequantizeLinear. What became integers late is counted as such."""
    first, integers = QuantizedProduct("MatMul a", is_integer=False, reason="first"), QuantizedProduct("Conv b", True)
    report = OptimizeReport(products={"a": first, "b": replace(first, node="Conv b")})
    report.add(OptimizeReport(products={"a": replace(first, reason="second"), "b": integers, "c": first}))
    assert report.products == {"a": first, "b": integers, "c": first}
