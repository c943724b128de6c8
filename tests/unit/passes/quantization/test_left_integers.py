"""Each operator on quantized values that is left has a reason in the report."""

import pytest

from tests.support.small import ops, optimize, parse

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
W = ",".join(str(n * 37 % 127 - 63) for n in range(8 * 16))
LEFT = {
    "MatMulInteger": ("(uint8[2,16] x, uint8[16,8] w) => (int32[2,8] y)", "", "y = MatMulInteger (x, w)", "constant"),
    "MatMulInteger of odd sizes": (
        "(uint8[2,2] x) => (int32[2,3] y)", "<int8[2,3] w = {1,2,3,4,5,6}>", "y = MatMulInteger (x, w)",
        "dim(w, 0) % 8 is 2",
    ),
    "ConvInteger": (
        "(uint8[1,16,4,4] x, int8[8,16,1,1] w) => (int32[1,8,4,4] y)", "", "y = ConvInteger (x, w)",
        "constant filters",
    ),
    "ConvInteger with padding by its size": (
        "(uint8[1,16,H,W] x, uint8 z) => (int32[1,8,P,Q] y)", f"<int8[8,16,1,1] w = {{{W}}}>",
        'y = ConvInteger <auto_pad = "SAME_UPPER", strides = [2,2]> (x, w, z)', "SAME_UPPER",
    ),
    "DynamicQuantizeLinear": (
        "(float x) => (uint8 y, float s, uint8 z)", "", "y, s, z = DynamicQuantizeLinear (x)", "rank(x) is 0",
    ),
    "DynamicQuantizeLSTM": (
        "(float[4,2,16] x, int8[1,16,32] w, int8[1,8,32] r, float[1] s, int8[1] z) => (float[4,1,2,8] y)", "",
        "y = com.microsoft.DynamicQuantizeLSTM <hidden_size = 8> (x, w, r, , , , , s, z, s, z)",
        "quantizes the state",
    ),
    "QAttention": (
        "(uint8[1,4,16] x, int8[16,48] w, float[48] b, float s, uint8 z) => (float[1,4,16] y)", "",
        "y = com.microsoft.QAttention <num_heads = 2> (x, w, b, s, s, , z)", "a projection of 8 bits",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_the_reason(name: str) -> None:
    values, constants, node, reason = LEFT[name]
    made, report = optimize(parse(f"{HEAD} g {values} {constants} {{ {node} }}"))
    (op,) = ops(made)
    assert op == name.split()[0]
    assert any(near.root == f"{op} y" and reason in near.refusal.reason for near in report.near), [
        (near.rule, near.root, near.refusal.reason) for near in report.near
    ]


def test_a_node_that_a_rule_explains_has_no_other_reason() -> None:
    values, constants, node, _ = LEFT["MatMulInteger of odd sizes"]
    _, report = optimize(parse(f"{HEAD} g {values} {constants} {{ {node} }}"))
    assert {near.rule for near in report.near if near.root == "MatMulInteger y"} == {"matmul_integer"}
