"""What became of quantized products: multiplied as integers by a kernel or the library, or in floating point."""

from onnxfuse.explanation.quantized_products import QuantizedProducts, quantized_products
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.refusal import Refusal
from onnxfuse.rules.match.report import Applied, Near, OptimizeReport, QuantizedProduct


def near(root: str, reason: str, depth: int) -> Near:
    """Return a near miss that got so far."""
    return Near("quantized", root, Refusal(root.split()[1], Cause("slower", seen=reason), depth, 4))


def found(*products: QuantizedProduct, applied: tuple[Applied, ...] = (), misses: tuple[Near, ...] = ()) -> str:
    """Return the sentence about a report."""
    return str(quantized_products(report(products, applied, misses)))


def report(
    products: tuple[QuantizedProduct, ...], applied: tuple[Applied, ...], misses: tuple[Near, ...]
) -> OptimizeReport:
    """Return the report of these products, by the names of their nodes."""
    return OptimizeReport([*applied], [*misses], products={p.node.split()[1]: p for p in products})


def test_kernels_library_and_floating_point_are_told_apart() -> None:
    """Of the library the furthest attempt says why; what is gone is not counted."""
    made = quantized_products(
        report(
            (
                QuantizedProduct("Conv a", True), QuantizedProduct("MatMul b", True), QuantizedProduct("Conv c", True),
                QuantizedProduct("Conv d", False, "", "no scale", True), QuantizedProduct("Conv e", False),
                QuantizedProduct("Conv f", None),
            ),
            (
                Applied("q", "A_1", ("ConvInteger a",)), Applied("q", "A_2", ("Conv e", "Relu r"), integers=True),
                Applied("other", "", ("MatMulInteger b",)), Applied("other", "A_3", ("Conv d",)),
            ),
            (
                near("MatMulInteger b", "too few columns", 2), near("MatMulInteger b", "nothing fits", 1),
                near("MatMulInteger b", "as far", 2), near("Relu r", "another node", 3),
            ),
        )
    )  # fmt: skip
    assert {node: a.op for node, a in made.kernels.items()} == {"Conv a": "A_1", "Conv e": "A_2"}
    assert made.library == {"MatMul b": "too few columns", "Conv c": "no rule fuses it"}
    assert [p.node for p in made.floating_point] == ["Conv d"]
    assert made.gone == ["Conv f"]
    assert str(made) == (
        "quantized: 4 of 5 products and convolutions in 8 bits; 2 of them by ONNX Runtime: MatMul b (too few columns), "
        "Conv c (no rule fuses it); 1 stays floating-point: Conv d (no scale); 1 of their weights is dequantized "
        "once, when the model is optimized"
    )


def test_without_products_nothing_is_said() -> None:
    """Nor of one that is gone; parts without any are left out."""
    assert found() == found(QuantizedProduct("Conv f", None)) == ""
    assert found(QuantizedProduct("Conv d", False, "", "no scale")) == (
        "quantized: 0 of 1 product or convolution in 8 bits; 1 stays floating-point: Conv d (no scale)"
    )
    assert found(QuantizedProduct("Conv a", True), applied=(Applied("q", "A_1", ("ConvInteger a",)),)) == (
        "quantized: 1 of 1 product or convolution in 8 bits"
    )


def test_equal_reasons_are_said_once() -> None:
    """Of nodes of one operator, whatever names the reason has."""
    sentence = found(*(QuantizedProduct(f"{op} {n}", False, "", f"'{n}' has no scale") for op, n in (
        ("Conv", "a"), ("Conv", "b"), ("Conv", "c"), ("MatMul", "d"),
    )))  # fmt: skip
    assert sentence.endswith("4 stay floating-point: Conv a and 2 more ('a' has no scale), MatMul d ('d' has no scale)")


def test_nodes_are_found_by_name_and_are_plain_data() -> None:
    """A line for each node asked for."""
    made = QuantizedProducts(
        {"Conv a": Applied("q", "A_1", ())}, {"MatMul b": "too few columns"},
        [QuantizedProduct("Conv d", False, "r", "no scale", True)], ["Conv f"],
    )  # fmt: skip
    assert made.at(["b", "d", "a"]) == [
        "stays floating-point: no scale", "ONNX Runtime multiplies its integers: too few columns",
    ]  # fmt: skip
    assert made.at(["a"]) == []
    assert made.as_dict() == {
        "kernels": [{"node": "Conv a", "rule": "q", "op": "A_1"}],
        "library": [{"node": "MatMul b", "reason": "too few columns"}],
        "floating_point": [{"node": "Conv d", "rule": "r", "reason": "no scale", "dequantizes_once": True}],
        "gone": ["Conv f"],
    }
