"""What stands by itself between kernels of ours is one of them; beside anything else it is the library's."""

from tests.support.small import fuses

WEIGHTS = ", ".join(str(15360 + i % 7) for i in range(256))
ATTENDED = """q4 = Reshape (q, heads) qh = Transpose <perm = [0,2,1,3]> (q4)
  k4 = Reshape (k, heads) kt = Transpose <perm = [0,2,3,1]> (k4)
  v4 = Reshape (v, heads) vh = Transpose <perm = [0,2,1,3]> (v4)
  s = MatMul (qh, kt) p = Softmax <axis = -1> (s) c = MatMul (p, vh)
  ct = Transpose <perm = [0,2,1,3]> (c) o = Reshape (ct, flat)"""
GIVEN = "float16[2,5,16] q, float16[2,5,16] k, float16[2,5,16] v"
CONSTANTS = f"int64[4] heads = {{0,5,1,16}}, int64[3] flat = {{0,5,16}}, float16[16,16] w = {{{WEIGHTS}}}"


def attended(after: str) -> str:
    """Return attention by a kernel of ours and what follows it."""
    return f"g ({GIVEN}) => (float16[2,5,16] y) <{CONSTANTS}> {{ {ATTENDED} {after} }}"


def test_an_activation_between_attention_and_a_product_is_a_kernel() -> None:
    """As in LeViT."""
    assert fuses(attended("a = HardSwish (o) y = MatMul (a, w)"))[1:] == ["{HardSwish}", "{MatMul}"]


def test_what_the_library_reads_stays_its() -> None:
    """Nothing starts early there; nor at the end of the model."""
    text = attended('a = HardSwish (o) y = MatMul (a, w) e = Einsum <equation = "abc->abc"> (a)')
    assert "HardSwish" in fuses(text.replace("y)", "y, float16[2,5,16] e)", 1))
    assert "HardSwish" in fuses(
        attended("a = HardSwish (o) y = MatMul (a, w)").replace("y)", "y, float16[2,5,16] a)", 1)
    )


def test_patches_that_a_product_reads_are_turned_by_a_kernel() -> None:
    """The product is fused before; a Reshape between is nothing."""
    text = f"""g (float16[N,4,8,8] x) => (float16[N,16,16] y)
    <int64[6] split = {{0,4,4,2,4,2}}, int64[3] rows = {{0,16,16}}, float16[16,16] w = {{{WEIGHTS}}}> {{
      r = Reshape (x, split) t = Transpose <perm = [0,2,4,1,3,5]> (r) p = Reshape (t, rows) y = MatMul (p, w)
    }}"""
    assert fuses(text) == ["Reshape", "{Transpose}", "Reshape", "{MatMul}"]


PADDED = """g (float[N,8,8,16] x) => (float[N,P,Q,16] y) <int64[8] pads = {0,1,1,0,0,1,1,0}> {
  p = Pad <mode = "reflect"> (x, pads) y = Einsum <equation = "abcd->abcd"> (p) }"""


def test_a_pad_is_a_kernel_anywhere() -> None:
    """The library's takes longer in any layout, 4 to 100 times as long as a copy; a Slice alone stays its."""
    assert fuses(PADDED) == ["{Pad}", "Einsum"]
    assert fuses(PADDED.replace("{0,1,1,0,0,1,1,0}", "{0,0,2,1,0,0,1,1}")) == ["{Pad}", "Einsum"]
    computed = PADDED.replace("> {", "> { n = Shape (x) m = Mod (n, n) more = Concat <axis = 0> (m, m)").replace(
        "pads)", "more)"
    )
    assert fuses(computed)[-2:] == ["Pad", "Einsum"]
    slices = PADDED.replace('Pad <mode = "reflect"> (x, pads)', "Slice (x, pads, ends)").replace(
        "pads = ", "ends = {8,8,8,8,8,8,8,8}, int64[8] pads = "
    )
    slices = (
        slices.replace("{8,8,8,8,8,8,8,8}", "{8,8,8,8}")
        .replace("{0,1,1,0,0,1,1,0}", "{0,1,1,0}")
        .replace("int64[8]", "int64[4]")
    )
    assert fuses(slices) == ["Slice", "Einsum"]
