"""Attention and rotary embeddings compute what they are defined by."""

import numpy as np
import pytest

from tests.support.definitions import assert_it_computes_what_the_kernel_does, assert_it_stays, at_opsets
from tests.support.small import numbers

QKV = f"float[8,24] w = {{{numbers(192, 5)}}}, float[24] b = {{{numbers(24, 3)}}}"
ATTENTION = {
    "packed": f"""g (float[N,S,8] x) => (float[N,S,8] y) <{QKV}> {{
      y = com.microsoft.Attention <num_heads = 2> (x, w, b)
    }}""",
    "packed with a mask": f"""g (float[N,S,8] x, int32[N,S] m) => (float[N,S,8] y) <{QKV}> {{
      two = Constant <value = int32 {{2}}> ()
      mask = Mod (m, two)
      y = com.microsoft.Attention <num_heads = 2, mask_filter_value = -30.0> (x, w, b, mask)
    }}""",
    "packed with lengths": f"""g (float[N,S,8] x, int32[N,S] m) => (float[N,S,8] y) <{QKV}> {{
      zero = Constant <value = int32 {{0}}> ()
      none = Mul (m, zero)
      one = Constant <value = int32 {{1}}> ()
      ones = Add (none, one)
      axis = Constant <value = int64[1] {{1}}> ()
      lengths = ReduceSum <keepdims = 0> (ones, axis)
      mask = Sub (lengths, one)
      y = com.microsoft.Attention <num_heads = 2> (x, w, b, mask)
    }}""",
    "packed with a mask of queries": f"""g (float[N,S,8] x, int32[N,S,S] m) => (float[N,S,8] y) <{QKV}> {{
      two = Constant <value = int32 {{2}}> ()
      mask = Mod (m, two)
      y = com.microsoft.Attention <num_heads = 2, mask_filter_value = -3.0> (x, w, b, mask)
    }}""",
    "packed, causal, with a cache": f"""g (float[N,S,8] x, float[2,N,2,3,4] past)
    => (float[N,S,8] y, float[2,N,2,T,4] present) <{QKV}> {{
      y, present = com.microsoft.Attention <num_heads = 2, unidirectional = 1> (x, w, b, , past)
    }}""",
    "packed, of said sizes": f"""g (float[N,S,8] x, float[1,2,S,S] bias) => (float[N,S,8] y) <{QKV}> {{
      y = com.microsoft.Attention <num_heads = 2, qkv_hidden_sizes = [8, 8, 8], scale = 0.3> (x, w, b, , , bias)
    }}""",
    "heads": """g (float[N,S,8] q, float[N,7,8] k, float[N,7,16] v) => (float[N,S,16] y) {
      y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v)
    }""",
    "heads with biases": f"""g (float[N,S,8] q, float[N,7,8] k, float[N,7,8] v, float[1,2,S,7] bias) => (float[N,S,8] y)
    <float[24] b = {{{numbers(24, 3)}}}> {{
      y = com.microsoft.MultiHeadAttention <num_heads = 2, scale = 0.4> (q, k, v, b, , bias)
    }}""",
    "heads with a mask": """g (float[N,S,8] q, float[N,7,8] k, float[N,7,8] v, int32[N,7] m) => (float[N,S,8] y) {
      two = Constant <value = int32 {2}> ()
      mask = Mod (m, two)
      y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , mask)
    }""",
    "heads with caches": """g (float[N,S,8] q, float[N,S,8] k, float[N,S,8] v, float[N,2,3,4] pk, float[N,2,3,4] pv)
    => (float[N,S,8] y, float[N,2,T,4] nk, float[N,2,T,4] nv) {
      y, nk, nv = com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1> (q, k, v, , , , pk, pv)
    }""",
    "heads that were split before": """g (float[N,S,8] q, float[N,2,7,4] k, float[N,2,7,4] v) => (float[N,S,8] y) {
      y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v)
    }""",
}  # fmt: skip

TABLES = f"float[6,2] cos = {{{numbers(12, 5)}}}, float[6,2] sin = {{{numbers(12, 3)}}}"
ROTARY = {
    "columns": f"""g (float[N,S,8] x, int64[N,S] at) => (float[N,S,8] y) <{TABLES}> {{
      few = Constant <value = int64 {{6}}> ()
      place = Mod (at, few)
      y = com.microsoft.RotaryEmbedding (x, place, cos, sin)
    }}""",
    "heads": f"""g (float[N,3,S,4] x, int64[N,S] at) => (float[N,3,S,4] y) <{TABLES}> {{
      few = Constant <value = int64 {{6}}> ()
      place = Mod (at, few)
      y = com.microsoft.RotaryEmbedding (x, place, cos, sin)
    }}""",
}  # fmt: skip
STANDARD = {
    "rotary": f"""g (float[N,S,8] x, int64[N,S] at) => (float[N,S,8] y) <{TABLES}> {{
      few = Constant <value = int64 {{6}}> ()
      place = Mod (at, few)
      y = RotaryEmbedding <num_heads = 2> (x, cos, sin, place)
    }}""",
    "rotary of each token": """g (float[N,3,S,4] x, float[N,S,2] cos, float[N,S,2] sin) => (float[N,3,S,4] y) {
      y = RotaryEmbedding (x, cos, sin)
    }""",
    "caches": """g
    (float[N,S,8] q, float[N,S,4] k, float[N,S,4] v, float[1,2,S,8] m, float[N,1,3,4] pk, float[N,1,3,4] pv)
    => (float[N,S,8] y, float[N,1,8,4] nk, float[N,1,8,4] nv) {
      y, nk, nv = Attention <q_num_heads = 2, kv_num_heads = 1> (q, k, v, m, pk, pv)
    }""",
}  # fmt: skip
STANDARD |= {
    "grouped": """g (float[N,4,S,4] q, float[N,2,7,4] k, float[N,2,7,4] v, float[N,1,S,7] m) => (float[N,4,S,4] y) {
      y = Attention <scale = 0.3> (q, k, v, m)
    }""",
    "grouped, with a condition": """g (float[N,4,S,4] q, float[N,2,S,4] k, float[N,2,S,4] v, float[S,S] m)
    => (float[N,4,S,4] y, float[N,2,S,4] nk) {
      zero = Constant <value = float {-1.0}> ()
      mask = Greater (m, zero)
      y, nk = Attention (q, k, v, mask)
    }""",
}


@pytest.mark.parametrize(("text", "opset"), at_opsets((ATTENTION, (13, 18)), (ROTARY, (13, 18)), (STANDARD, (23,))))
def test_it_computes_what_the_kernel_does(text: str, opset: int) -> None:
    """At operator sets with and without the operators that it is written in."""
    assert_it_computes_what_the_kernel_does(text, opset)


@pytest.mark.parametrize(
    "text",
    [
        """g (float[N,S,8] q, float[N,7,8] k, float[N,7,8] v, int32[L] m) => (float[N,S,8] y) {
          y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , m)
        }""",
        """g (float[2,S,8] x, int32[4] m) => (float[2,S,8] y) <float[8,24] w, float[24] b> {
          y = com.microsoft.Attention <num_heads = 2> (x, w, b, m)
        }""",
        """g (float[N,S,2,3,4] q) => (float[N,S,8] y) {
          y = com.microsoft.MultiHeadAttention <num_heads = 2> (q)
        }""",
        """g (float[N,S,8] x, int64[1] at, float[6,2] cos, float[6,2] sin) => (float[N,S,8] y) {
          y = com.microsoft.RotaryEmbedding (x, at, cos, sin)
        }""",
        """g (float[N,S,8] x, int64[N,S] at, float[6,2] cos, float[6,2] sin) => (float[N,S,8] y) {
          y = com.microsoft.RotaryEmbedding <interleaved = 1> (x, at, cos, sin)
        }""",
    ],
    ids=["lengths of another count", "ends and starts", "packed heads", "one position", "interleaved"],
)
def test_what_a_definition_does_not_know_stays(text: str) -> None:
    """Forms of the inputs, attributes and outputs that it does not write."""
    assert_it_stays(text)


def test_negative_numbers_mask_keys() -> None:
    """As every number that is not above 0."""
    text = """g (float[2,5,8] q, float[2,7,8] k, float[2,7,8] v, int32[2,7] m) => (float[2,5,8] y) {
      y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , m)
    }"""
    mask = np.array([[1, -1, 0, 2, 1, -3, 1], [0, 1, 1, -1, 1, 1, 1]], np.int32)
    assert_it_computes_what_the_kernel_does(text, 17, {"m": mask})
