"""Norms, residuals and embeddings of ONNX Runtime's compute what they are defined by."""

import pytest

from tests.support.definitions import assert_it_computes_what_the_kernel_does, assert_it_stays, at_opsets
from tests.support.small import numbers

ROW, BIAS = f"float[8] scale = {{{numbers(8, 5)}}}", f"float[8] shift = {{{numbers(8, 3)}}}"
NORMS = {
    "skip": f"""g (float[N,S,8] x, float[N,S,8] r) => (float[N,S,8] y, float[N,S,8] sum) <{ROW}, {BIAS}> {{
      y, , , sum = com.microsoft.SkipLayerNormalization <epsilon = 0.001> (x, r, scale, shift, scale)
    }}""",
    "skip alone": f"""g (float[N,S,8] x, float[N,S,8] r) => (float[N,S,8] y) <{ROW}> {{
      y = com.microsoft.SkipLayerNormalization (x, r, scale)
    }}""",
    "simplified skip": f"""g (float[N,S,8] x, float[N,S,8] r) => (float[N,S,8] y, float[N,S,8] sum) <{ROW}, {BIAS}> {{
      y, , , sum = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.001> (x, r, scale, shift)
    }}""",
    "simplified": f"""g (float[N,S,8] x) => (float[N,S,8] y) <{ROW}> {{
      y = SimplifiedLayerNormalization <axis = -1, epsilon = 0.001, stash_type = 1> (x, scale)
    }}""",
    "gated": f"""g (float[N,S,8] x, float[N,S,8] gate) => (float[N,S,8] y) <{ROW}> {{
      y = com.microsoft.GatedRMSNorm (x, scale, gate)
    }}""",
    "gated by heads": f"""g (float[N,S,16] x, float[N,S,16] gate) => (float[N,S,16] y) <{ROW}> {{
      y = com.microsoft.GatedRMSNorm <activation = "sigmoid", epsilon = 0.01> (x, scale, gate)
    }}""",
    "gated sum": """g (float[N,S,8] x, float[N,S,8] r, float[N,S,1] gate) => (float[N,S,8] y) {
      y = com.microsoft.GatedAdd (x, r, gate)
    }""",
    "embeddings": f"""g (int32[N,S] ids, int32[N,S] kinds, int32[N,S] mask) => (float[N,S,8] y, int32[N] kept)
    <float[9,8] words = {{{numbers(72, 7)}}}, float[6,8] places = {{{numbers(48, 5)}}},
     float[16,8] of_kinds = {{{numbers(128, 3)}}}, {ROW}, {BIAS}> {{
      few = Constant <value = int32 {{2}}> ()
      word = Mod (ids, few)
      kind = Mod (kinds, few)
      one = Mod (mask, few)
      y, kept = com.microsoft.EmbedLayerNormalization <epsilon = 0.001>
        (word, kind, words, places, of_kinds, scale, shift, one)
    }}""",
    "embeddings at positions": f"""g (int32[N,S] ids, int32[N,S] at) => (float[N,S,8] y)
    <float[9,8] words = {{{numbers(72, 7)}}}, float[6,8] places = {{{numbers(48, 5)}}}, {ROW}, {BIAS}> {{
      few = Constant <value = int32 {{3}}> ()
      word = Mod (ids, few)
      place = Mod (at, few)
      y, counts = com.microsoft.EmbedLayerNormalization (word, , words, places, , scale, shift, , place)
    }}""",
}  # fmt: skip


@pytest.mark.parametrize(("text", "opset"), at_opsets((NORMS, (13, 17, 23))))
def test_it_computes_what_the_kernel_does(text: str, opset: int) -> None:
    """At operator sets with and without the operators that it is written in."""
    assert_it_computes_what_the_kernel_does(text, opset)


@pytest.mark.parametrize(
    "text",
    [
        """g (float[N,S,8] x, float[N,S,8] r) => (float[N,S,8] y, float[N,S,1] mean) <float[8] s = {1,1,1,1,1,1,1,1}> {
          y, mean = com.microsoft.SkipLayerNormalization (x, r, s)
        }""",
    ],
    ids=["statistics"],
)
def test_what_a_definition_does_not_know_stays(text: str) -> None:
    """Forms of the inputs, attributes and outputs that it does not write."""
    assert_it_stays(text)
