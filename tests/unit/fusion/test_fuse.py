"""The phase that tries each rule at each node."""

import pytest

from onnxfuse.fusion.fuse import FOLLOWERS
from tests.support.small import ops, optimize, parse


@pytest.mark.parametrize("length", [FOLLOWERS - 2, FOLLOWERS - 1, FOLLOWERS, FOLLOWERS + 5])
def test_a_refused_anchor_names_what_would_have_joined_it(length: int) -> None:
    """The nodes of the chain after it, in order and itself first, and no more of them than a reader looks at."""
    chain = " ".join(f"[r{i}] v{i + 1} = Relu (v{i})" for i in range(length))
    text = f"g (double[N,8] x, double[8,8] w) => (double[N,8] v{length}) {{ [m] v0 = MatMul (x, w) {chain} }}"
    _, report = optimize(parse(text), "gemm")
    (near,) = report.stopped
    assert near.refusal.around == ("m", *(f"r{i}" for i in range(length)))[:FOLLOWERS]


@pytest.mark.parametrize("where", ["on the host", "once"])
def test_no_kernel_starts_at_what_no_run_computes_on_the_gpu(where: str) -> None:
    """Values that ONNX Runtime computes on the CPU, for a shape, and values that it folds when a session opens."""
    if where == "on the host":
        text = """g (float[N,M] x) => (float[K] y) <int64[1] two = {2}, int64[1] one = {1}> {
          s = Shape (x) a = Mul (s, two) b = Add (a, one) p = ReduceProd <keepdims = 1> (b)
          z = ConstantOfShape (p) y = Exp (z) }"""
        kept = "{Mul Add}"
    else:  # too large to be folded into the file
        text = """g (float[4096,4096] x) => (float[4096,4096] y) <int64[2] s = {4096,4096}> {
          c = ConstantOfShape <value = float[1] {0.5}> (s) a = Exp (c) b = Tanh (a) y = Softmax (b) }"""
        kept = "{Exp Tanh}"
    made, _ = optimize(parse(text), "pointwise")
    assert kept not in ops(made), ops(made)


def test_the_bias_of_a_product_goes_into_the_kernel_after_it() -> None:
    """The library adds it by writing it into the whole output first."""
    text = """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,2,3,4}, float[2] b = {1,2}> {
      m = Gemm (x, w, b) y = Relu (m) }"""
    made, _ = optimize(parse(text), "linear")
    assert (ops(made), len(made.graph.node[0].input)) == (["Gemm", "{Add Relu}"], 2)


def test_a_concat_of_anything_but_images_is_no_near_miss() -> None:
    """It counts as none of its nodes matched: the Concat and what makes its inputs."""
    _, report = optimize(
        parse("g (float[2,4,8,8] x, float[2,4,8,8] z) => (float[2,8,8,8] y) { y = Concat <axis = 1> (x, z) }"), "concat"
    )
    (near,) = report.stopped
    assert (near.refusal.depth, near.refusal.size) == (0, 3)
