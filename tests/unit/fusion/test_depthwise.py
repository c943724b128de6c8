"""Depthwise convolutions become one kernel with what stands after them, in both layouts; other convolutions do not."""

import pytest

from tests.support.small import assert_same_numbers, fuses, ops, optimize, parse, reasons

MODEL = """g (float[N,2,H,W] x) => (float[N,2,H,W] y)
<float[2,1,3,3] w = {1,-2,3,-4,5,-6,7,-8,9,1,2,3,4,5,6,7,8,9},
 float[2] b = {0.5,-1}, float low = {0}, float high = {6}>"""


@pytest.mark.parametrize(
    ("after", "nodes"),
    [
        ("y = Relu (c)", "Relu"),
        ("y = HardSwish (c)", "HardSwish"),
        ("s = Sigmoid (c) y = Mul (c, s)", "Sigmoid Mul"),
        ("y = Clip (c, low, high)", "Clip"),
        ("s = Tanh (c) y = Add (s, x)", "Tanh Add"),
        ("s = Softplus (c) t = Tanh (s) y = Mul (c, t)", "Softplus Tanh Mul"),
    ],
)
def test_bias_activation_and_residual_join(after: str, nodes: str) -> None:
    """Whatever is pointwise; batch, height and width are open until run time."""
    model = f"{MODEL} {{ c = Conv <group = 2, pads = [1,1,1,1]> (x, w, b) {after} }}"
    assert fuses(model, "depthwise") == [f"{{Conv Add {nodes}}}"]


def test_a_convolution_alone_is_a_kernel_too() -> None:
    assert fuses(f"{MODEL} {{ y = Conv <group = 2, pads = [1,1,1,1]> (x, w) }}", "depthwise") == ["{Conv}"]


def test_the_other_convolutions_are_left_to_the_library() -> None:
    """The rule for convolutions takes what this one does not."""
    text = """g (float[N,2,6,6] x) => (float[N,2,6,6] y)
    <float[2,1,3,3] w = {1,-2,3,-4,5,-6,7,-8,9,1,2,3,4,5,6,7,8,9},
     float[2,2,1,1] v = {1,-2,3,4}, float[2] b = {0.5,-1}> {
      c = Conv <group = 2, pads = [1,1,1,1]> (x, w, b)
      d = Relu (c)
      e = Conv (d, v, b)
      f = Sigmoid (e)
      y = Mul (e, f)
    }"""
    assert fuses(text, "depthwise", "conv") == ["{Conv Add Relu}", "Conv", "{Add Sigmoid Mul}"]


def test_the_activation_that_is_pooled_and_gated_is_written_once() -> None:
    """Squeeze and excite: what the gate multiplies, and its mean, are the kernel's outputs; the gate waits for them."""
    text = """g (float[N,2,6,6] x) => (float[N,2,6,6] y)
    <float[2,1,3,3] w = {1,-2,3,-4,5,-6,7,-8,9,1,2,3,4,5,6,7,8,9},
     float[2,2,1,1] v = {1,-2,3,4}, float[2] b = {0.5,-1}> {
      c = Conv <group = 2, pads = [1,1,1,1]> (x, w, b)
      s = Sigmoid (c)
      a = Mul (c, s)
      p = GlobalAveragePool (a)
      q = Conv (p, v, b)
      g = Sigmoid (q)
      y = Mul (a, g)
    }"""
    made, _ = optimize(parse(text))
    end = "Conv Transpose Add Sigmoid Mul ReduceMean}"
    (node,) = (n for n, op in zip(made.graph.node, ops(made), strict=True) if op.endswith(end))
    assert len(node.output) == 2
    assert_same_numbers(parse(text), made)


def test_a_mean_of_other_axes_stays_outside() -> None:
    """The kernel gives the mean of each channel alone."""
    text = """g (float[N,4,4,2] x) => (float[N,4,4,2] y, float[N,4,1,2] m)
    <float[2,1,3,3] w = {1,-2,3,-4,5,-6,7,-8,9,1,2,3,4,5,6,7,8,9}, int64[1] rows = {2}> {
      first = Transpose <perm = [0,3,1,2]> (x)
      c = Conv <group = 2, pads = [1,1,1,1]> (first, w)
      last = Transpose <perm = [0,2,3,1]> (c)
      y = Relu (last)
      m = ReduceMean (y, rows)
    }"""
    assert fuses(text, "depthwise", opset=18) == ["{Transpose Conv Transpose Relu}", "ReduceMean"]


def test_a_norm_after_it_reads_what_it_wrote() -> None:
    """The bias costs nothing behind the convolution, so it goes there and not into the kernel of the norm."""
    text = """g (float[N,4,4,2] x) => (float[N,4,4,2] y)
    <float[2,1,3,3] w = {1,-2,3,-4,5,-6,7,-8,9,1,2,3,4,5,6,7,8,9}, float[2] b = {0.5,-1}, float[2] k = {2,3}> {
      first = Transpose <perm = [0,3,1,2]> (x)
      c = Conv <group = 2, pads = [1,1,1,1]> (first, w)
      last = Transpose <perm = [0,2,3,1]> (c)
      a = Add (last, b)
      y = LayerNormalization (a, k)
    }"""
    assert fuses(text) == ["{Transpose Transpose Conv Transpose Add}", "{LayerNormalization}"]


def test_a_kernel_too_large_to_be_written_out_is_a_refusal() -> None:
    """Each of its elements stands in the program for each output of a thread."""
    text = """g (float[N,16,16,2] x, float[10,10,2,1] w) => (float[N,7,7,2] y) {
      first = Transpose <perm = [0,3,1,2]> (x)
      kernel = Transpose <perm = [2,3,0,1]> (w)
      c = Conv <group = 2> (first, kernel)
      y = Transpose <perm = [0,2,3,1]> (c)
    }"""
    assert "81 * C >= size(w)" in reasons(text, "depthwise")


def test_computed_weights_stay_with_the_library() -> None:
    """Those of a quantized model are written back from integers for the library to see."""
    text = """g (float[N,2,6,6] x, int8[2,1,3,3] q) => (float[N,2,4,4] y) {
      w = Cast <to = 1> (q)
      c = Conv <group = 2> (x, w)
      y = Relu (c)
    }"""
    assert "'w' is not a constant" in reasons(text, "depthwise")
