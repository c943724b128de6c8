"""What stands by itself between kernels of ours is one of them; beside anything else it is the library's."""

from tests.rewrite.small import fuses

WEIGHTS = ", ".join(str(15360 + i % 7) for i in range(128))
ATTENDED = """s = MatMul (q, k) p = Softmax <axis = -1> (s) o = MatMul (p, v)"""
GIVEN = "float16[2,3,5,8] q, float16[2,3,8,5] k, float16[2,3,5,8] v"


def attended(after: str) -> str:
    """Return attention and what follows it."""
    return f"g ({GIVEN}) => (float16[2,3,5,16] y) <float16[8,16] w = {{{WEIGHTS}}}> {{ {ATTENDED} {after} }}"


def test_an_activation_between_attention_and_a_product_is_a_kernel() -> None:
    """As in LeViT."""
    assert fuses(attended("a = HardSwish (o) y = MatMul (a, w)"))[1:] == ["{HardSwish}", "{MatMul}"]


def test_what_the_library_reads_stays_its() -> None:
    """Nothing starts early there; nor at the end of the model."""
    text = attended('a = HardSwish (o) y = MatMul (a, w) e = Einsum <equation = "abcd->abcd"> (a)')
    assert "HardSwish" in fuses(text.replace("y)", "y, float16[2,3,5,8] e)", 1))
    assert "HardSwish" in fuses(
        attended("a = HardSwish (o) y = MatMul (a, w)").replace("y)", "y, float16[2,3,5,8] a)", 1)
    )


def test_patches_that_a_product_reads_are_turned_by_a_kernel() -> None:
    """The product is fused before; a Reshape between is nothing."""
    text = f"""g (float16[N,2,8,8] x) => (float16[N,16,16] y)
    <int64[6] split = {{0,2,4,2,4,2}}, int64[3] rows = {{0,16,8}}, float16[8,16] w = {{{WEIGHTS}}}> {{
      r = Reshape (x, split) t = Transpose <perm = [0,2,4,1,3,5]> (r) p = Reshape (t, rows) y = MatMul (p, w)
    }}"""
    assert fuses(text) == ["Reshape", "{Transpose}", "Reshape", "{MatMul}"]
