"""Which graphs keep a cache of keys and values, so that an open number of tokens is one in most runs."""

import pytest

from onnxfuse.fusion.region.decoding import keeps_cache
from onnxfuse.graph.graph import Graph
from onnxfuse.shapes.inference import infer
from tests.support.small import parse

GROWS = """g (float16[N,2,P,8] past, float16[N,2,S,8] new) => (float16[N,2,T,8] present) {
  present = Concat <axis = 2> (past, new)
}"""
ATTENTION = """g (float16[N,2,S,8] q, float16[N,2,S,8] k, float16[N,2,P,8] past_k, float16[N,2,P,8] past_v)
=> (float16[N,2,S,8] y, float16[N,2,T,8] present_k, float16[N,2,T,8] present_v) {
  y, present_k, present_v = Attention (q, k, k, , past_k, past_v)
}"""
IMAGES = """g (float16[N,8,H,W] x, float16[N,8,H,W] r) => (float16[N,8,H,W] y, float16[N,8,1,1] mean) {
  y = Add (x, r)
  mean = GlobalAveragePool (y)
}"""

COMPUTED = """g (float16[N,2,P,8] cache, float16[N,2,S,8] new) => (float16[N,2,T,8] present) {
  past = Neg (cache)
  present = Concat <axis = 2> (past, new)
}"""


@pytest.mark.parametrize(("text", "keeps"), [
    (GROWS, True), (ATTENTION, True), (IMAGES, False), (COMPUTED, False),
    (GROWS.replace("(past, new)", "(past, new, new)"), False),
])  # fmt: skip
def test_a_cache_is_an_input_of_which_a_node_makes_an_output(text: str, keeps: bool) -> None:
    model = parse(text, opset=23)
    assert keeps_cache(Graph(model.graph, infer(model).graph, 23)) == keeps
