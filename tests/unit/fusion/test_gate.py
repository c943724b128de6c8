"""A gate takes in what computes it, as far as only the gate reads it; a long Concat joins what follows."""

from tests.support.small import assert_same_numbers, ops, optimize, parse

EXCITE = """g (float[N,5,6,8] x, float[N,1,1,3] h) => (float[N,5,6,8] y{more})
<float[3,8] w = {{1,-2,3,-4,5,-6,7,-8,1,2,3,4,5,6,7,8,-1,-2,-3,-4,5,6,7,8}}, float[8] b = {{1,2,3,4,5,6,7,8}}> {{
  p = MatMul (h, w)
  s = Add (p, b)
  gate = Sigmoid (s)
  y = Mul (x, gate)
}}"""


def test_bias_and_sigmoid_of_a_gate_need_no_launch() -> None:
    """Computed for each element of the image, of any batch."""
    model = parse(EXCITE.format(more=""))
    made, _ = optimize(model)
    assert ops(made) == ["MatMul", "{Add Sigmoid Mul}"]
    assert_same_numbers(model, made)


def test_a_gate_that_is_read_elsewhere_is_computed_once() -> None:
    """Else the kernel of the whole image would write it, too."""
    model = parse(EXCITE.format(more=", float[N,1,1,8] gate"))
    made, _ = optimize(model)
    assert ops(made) == ["MatMul", "{Add Sigmoid}", "{Mul}"]
    assert_same_numbers(model, made)


def test_twenty_values_are_concatenated_in_the_kernel_of_what_follows() -> None:
    """As in DenseNet: a thread reads one of them, so their number costs no registers in flight."""
    inputs = ", ".join(f"float[8,512,32] x{n}" for n in range(20))
    model = parse(f"""g ({inputs}) => (float[8,512,640] y) {{
      c = Concat <axis = 2> ({", ".join(f"x{n}" for n in range(20))})
      y = Relu (c)
    }}""")
    made, _ = optimize(model)
    assert ops(made) == ["{Concat Relu}"]
    assert_same_numbers(model, made)
