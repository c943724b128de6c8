"""Products of float8 numbers are recognized by their factors, whose numbers are only written as float32."""

from functools import partial

import pytest

from onnxfuse.graph.float8 import is_float8_matrix, multiplies_float8, widens_float8
from onnxfuse.graph.graph import Graph
from tests.support import small

parse = partial(small.parse, opset=21)

NUMBERS = ",".join(["56"] * 64)
HEAD = f"""g (float8e4m3fn[N,16] x) => (float[N,4] y)
<float8e4m3fn[16,4] w = {{{NUMBERS}}}, float8e4m3fn[4,16] v = {{{NUMBERS}}}, float one = {{1}}, float two = {{2}}>"""
FACTORS = {
    "a = DequantizeLinear (x, one) b = Cast <to = 1> (w)": True,
    "a = DequantizeLinear (x, one) c = Cast <to = 1> (v) b = Transpose <perm = [1, 0]> (c)": True,
    "a = DequantizeLinear (x, two) b = Cast <to = 1> (w)": False,
    "a = Cast <to = 1> (x) b = DequantizeLinear (w, two)": False,
}


def graph_of(factors: str) -> Graph:
    return small.graph_of(parse(f"{HEAD} {{ {factors} y = MatMul (a, b) }}"))


@pytest.mark.parametrize("factors", FACTORS)
def test_factors_decide(factors: str) -> None:
    graph = graph_of(factors)
    (product,) = [n for n in graph.nodes if n.op == "MatMul"]
    assert multiplies_float8(graph, product) == FACTORS[factors]


def test_only_matrices_of_float8_are_factors() -> None:
    graph = graph_of("a = DequantizeLinear (x, one) b = Cast <to = 1> (w)")
    assert is_float8_matrix(graph, "x")
    assert is_float8_matrix(graph, "w")
    assert not is_float8_matrix(graph, "one")
    assert [n.op for n in graph.nodes if widens_float8(graph, n)] == ["DequantizeLinear", "Cast"]
