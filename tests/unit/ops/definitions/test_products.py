"""Products and convolutions of ONNX Runtime's compute what they are defined by."""

import pytest

from tests.support.definitions import assert_it_computes_what_the_kernel_does, assert_it_stays, at_opsets
from tests.support.small import numbers

PRODUCTS = {
    "transposed": """g (float[2,3,4] a, float[2,5,3] b) => (float[2,4,5] y) {
      y = com.microsoft.FusedMatMul <alpha = 0.5, transA = 1, transB = 1> (a, b)
    }""",
    "scaled": """g (float[N,3,4] a, float[N,4,5] b) => (float[N,3,5] y) {
      y = com.microsoft.FusedMatMul <alpha = 0.25> (a, b)
    }""",
    "gemm": f"""g (float[N,4] x) => (float[N,3] y) <float[3,4] w = {{{numbers(12, 5)}}}, float[3] b = {{1,-1,2}}> {{
      y = com.microsoft.FusedGemm <transB = 1, activation = "LeakyRelu", activation_alpha = 0.2> (x, w, b)
    }}""",
    "convolution": f"""g (float[N,2,6,6] x) => (float[N,3,6,6] y)
    <float[3,2,3,3] w = {{{numbers(54, 5)}}}, float[3] b = {{1,-1,2}}> {{
      y = com.microsoft.FusedConv <activation = "Relu", kernel_shape = [3,3], pads = [1,1,1,1]> (x, w, b)
    }}""",
    "convolution that is cut off": f"""g (float[N,2,6,6] x) => (float[N,3,4,4] y)
    <float[3,2,3,3] w = {{{numbers(54, 5)}}}> {{
      y = com.microsoft.FusedConv <activation = "Clip", activation_params = [0.0, 6.0], kernel_shape = [3,3]> (x, w)
    }}""",
}  # fmt: skip


@pytest.mark.parametrize(("text", "opset"), at_opsets((PRODUCTS, (13, 18))))
def test_it_computes_what_the_kernel_does(text: str, opset: int) -> None:
    """At operator sets with and without the operators that it is written in."""
    assert_it_computes_what_the_kernel_does(text, opset)


@pytest.mark.parametrize(
    "text",
    [
        """g (float[N,3,4] a, float[3,N,5] b) => (float[N,4,5] y) {
          y = com.microsoft.FusedMatMul <transBatchA = 1> (a, b)
        }""",
    ],
    ids=["turned batches"],
)
def test_what_a_definition_does_not_know_stays(text: str) -> None:
    """Forms of the inputs, attributes and outputs that it does not write."""
    assert_it_stays(text)
