"""Bytes and operations of single nodes, counted by hand and from shapes."""

import onnx
import pytest

from onnxfuse.measure.profile.traffic import count
from tests.unit.measure.profile.test_traffic import counted


@pytest.mark.parametrize(
    ("text", "shapes", "reads", "writes", "flops"),
    [
        # Y = A B: 2 m k n operations; each matrix once.
        (
            "g (float[M,64] a) => (float[M,32] y) <float[64,32] b = {0}> { y = MatMul(a, b) }",
            {"a": (8, 64)}, 4 * (8 * 64 + 64 * 32), 4 * 8 * 32, 2 * 8 * 64 * 32,
        ),
        # The bias is the vector that it is, not the matrix that it is added to.
        (
            "g (float16[8,64] a, float16[32,64] b, float16[32] c) => (float16[8,32] y) "
            "{ y = Gemm <transB = 1> (a, b, c) }",
            {}, 2 * (8 * 64 + 32 * 64 + 32), 2 * 8 * 32, 8 * 32 * (2 * 64 + 1),
        ),
        # A convolution: two operations for each weight of a filter, at each place; groups have smaller filters.
        (
            "g (float[1,8,10,10] x, float[16,8,3,3] w) => (float[1,16,8,8] y) { y = Conv(x, w) }",
            {}, 4 * (800 + 16 * 8 * 9), 4 * 16 * 64, 2 * 16 * 64 * 8 * 9,
        ),
        (
            "g (float[1,8,10,10] x, float[8,1,3,3] w) => (float[1,8,8,8] y) { y = Conv <group = 8> (x, w) }",
            {}, 4 * (800 + 72), 4 * 8 * 64, 2 * 8 * 64 * 9,
        ),
        # Gather reads the rows that it puts out, not the table; indices are 8 bytes each.
        (
            "g (int64[5] i) => (float[5,16] y) <float[1000,16] table = {0}> { y = Gather(table, i) }",
            {}, 5 * 8 + 4 * 80, 4 * 80, 0,
        ),
        # The same buffer under another shape costs nothing; ONNX Runtime passes it on.
        (
            "g (float[4,6] x) => (float[24] y) <int64[1] s = {24}> { y = Reshape(x, s) }",
            {}, 0, 0, 0,
        ),
        # A square reads its input once, though it stands there twice.
        ("g (float[7] x) => (float[7] y) { y = Mul(x, x) }", {}, 28, 28, 7),
        # bool is a byte; comparing is no arithmetic on floats.
        ("g (float[7] x, float[7] z) => (bool[7] y) { y = Less(x, z) }", {}, 56, 7, 0),
        # Every pair of rows and columns: bij,bjk->bik is a batched product.
        (
            'g (float[2,3,4] a, float[2,4,5] b) => (float[2,3,5] y) { y = Einsum <equation = "bij,bjk->bik"> (a, b) }',
            {}, 4 * (24 + 40), 4 * 30, 2 * 2 * 3 * 4 * 5,
        ),
    ],
)  # fmt: skip
def test_one_node(text: str, shapes: dict[str, tuple[int, ...]], reads: int, writes: int, flops: int) -> None:
    """Each input once and each output once; operations by the textbook's formula."""
    work = counted(text, **shapes)
    assert (work.reads, work.writes, work.flops, work.notes) == (reads, writes, flops, ())


def test_what_cannot_be_counted_is_told() -> None:
    """A shape that depends on values, a body that runs who knows how often, an operator of somebody else's."""
    assert "'y' is not known" in counted("g (float[N] x) => (int64[1,M] y) { y = NonZero(x) }", x=(4,)).notes[0]
    loop = """g (int64 n, bool c, float[2] x) => (float[2] y) {
      y = Loop (n, c, x) <body = b (int64 i, bool d, float[2] z) => (bool e, float[2] o) { e = Identity(d) o = Neg(z) }>
    }"""
    assert "how often its body runs" in counted(loop, n=(), c=(), x=(2,)).notes[0]
    foreign = '<ir_version: 8, opset_import: ["" : 17, "mine" : 1]> g (float[2] x) => (float[2] y) { y = mine.Op(x) }'
    assert "mine.Op are not known" in " ".join(count(onnx.parser.parse_model(foreign), {"x": (2,)}).notes)


def test_four_bit_weights_share_a_byte() -> None:
    """The bytes are those in memory."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[3] s) => (float[3,5] y) '
        "<int4[3,5] q = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}> { y = DequantizeLinear <axis = 0> (q, s) }"
    )
    assert count(model, {"s": (3,)}).reads == 8 + 12


def test_an_operator_of_another_domain_counts_as_its_own_entry_says() -> None:
    """BiasGelu is an addition and a GELU; com.microsoft's Attention has not the operands of ONNX's."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2,3,8] x, float[8,24] w, float[24] b, float[8] c) => (float[2,3,8] y, float[2,3,8] z) {
            y = com.microsoft.BiasGelu(x, c)  z = com.microsoft.Attention <num_heads = 2> (x, w, b)
        }"""
    found = count(onnx.parser.parse_model(text), {})
    assert found.nodes[0].work.flops == 48 * 6
    assert "the operations of com.microsoft.Attention are not known" in found.nodes[1].work.note
