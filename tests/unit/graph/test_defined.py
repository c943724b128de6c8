"""What operators of ONNX Runtime's own are defined by computes what its kernels compute."""

from math import erf

import numpy as np
import pytest
from onnx import ModelProto

from onnxfuse.graph.defined import write_definition
from tests.support.small import graph_of, numbers, parse, run

HEADER = '<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
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
ACTIVATIONS = {
    "gelu": f"""g (float[N,S,8] x) => (float[N,S,8] y) <{ROW}> {{ y = com.microsoft.BiasGelu (x, scale) }}""",
    "alone": """g (float[N,S,8] x) => (float[N,S,8] y) { y = com.microsoft.Gelu (x) }""",
    "fast": f"""g (float[N,S,8] x) => (float[N,S,8] y) <{ROW}> {{ y = com.microsoft.FastGelu (x, scale) }}""",
    "fast alone": """g (float[N,S,8] x) => (float[N,S,8] y) { y = com.microsoft.FastGelu (x) }""",
    "quick": """g (float[N,S,8] x) => (float[N,S,8] y) { y = com.microsoft.QuickGelu (x) }""",
    "quick, of 1": """g (float[N,S,8] x) => (float[N,S,8] y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }""",
}
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
FAMILIES = (
    (ACTIVATIONS, (17, 20)),
    (NORMS, (13, 17, 23)),
    (PRODUCTS, (13, 18)),
    (ATTENTION, (13, 18)),
    (ROTARY, (13, 18)),
    (STANDARD, (23,)),
)
CASES = [
    pytest.param(text, opset, id=f"{name}-{opset}")
    for family, opsets in FAMILIES
    for name, text in family.items()
    for opset in opsets
]


def written(model: ModelProto) -> tuple[ModelProto, list[str]]:
    """Return the model with what its operators are defined by, and the operators that had a definition."""
    copy = ModelProto()
    copy.CopyFrom(model)
    found = list[str]()
    for _ in range(3):  # one may be defined by another
        graph, constants = graph_of(copy), dict[bytes, str]()
        found += [f"{n.domain} {n.op}" for n in list(graph.nodes) if write_definition(graph, n, constants)]
        graph.commit()
    return copy, found


def inputs_of(model: ModelProto) -> dict[str, np.ndarray]:
    """Return one array for each input: T is 8, five new positions behind three."""
    extents, random = {"N": 3, "S": 5, "T": 8}, np.random.default_rng(3)
    found = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value or extents[d.dim_param] for d in tensor.shape.dim]
        drawn = np.asarray(random.normal(size=shape))
        found[value.name] = {1: drawn.astype(np.float32)}.get(
            tensor.elem_type,
            np.asarray(np.abs(drawn * 7), {6: np.int32, 7: np.int64}.get(tensor.elem_type, np.float32)),
        )
    return found


@pytest.mark.parametrize(("text", "opset"), CASES)
def test_it_computes_what_the_kernel_does(text: str, opset: int) -> None:
    """In float32, with all outputs, at operator sets with and without the operators that it is written in."""
    model = parse(HEADER.format(opset=opset) + text)
    made, found = written(model)
    assert found
    assert not {f"{n.domain} {n.op_type}" for n in made.graph.node} & {*found} - {" Attention"}
    inputs = inputs_of(model)
    for before, after in zip(run(model, inputs), run(made, inputs), strict=True):
        np.testing.assert_allclose(after, before, rtol=0, atol=3e-5 * max(1.0, np.abs(before).max()))


@pytest.mark.parametrize(
    "text",
    [
        """g (float[N,S,8] x, float[N,S,8] r) => (float[N,S,8] y, float[N,S,1] mean) <float[8] s = {1,1,1,1,1,1,1,1}> {
          y, mean = com.microsoft.SkipLayerNormalization (x, r, s)
        }""",
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
        """g (float[N,3,4] a, float[3,N,5] b) => (float[N,4,5] y) {
          y = com.microsoft.FusedMatMul <transBatchA = 1> (a, b)
        }""",
    ],
    ids=[
        "statistics",
        "lengths of another count",
        "ends and starts",
        "packed heads",
        "one position",
        "interleaved",
        "turned batches",
    ],
)
def test_what_a_definition_does_not_know_stays(text: str) -> None:
    """Forms of the inputs, attributes and outputs that it does not write."""
    model = parse(HEADER.format(opset=17) + text)
    made, found = written(model)
    assert not found
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in model.graph.node]


def test_negative_numbers_mask_keys() -> None:
    model = parse(
        HEADER.format(opset=17)
        + """g (float[2,5,8] q, float[2,7,8] k, float[2,7,8] v, int32[2,7] m) => (float[2,5,8] y) {
          y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , m)
        }"""
    )
    made, found = written(model)
    assert found == ["com.microsoft MultiHeadAttention"]
    feeds = inputs_of(model) | {"m": np.array([[1, -1, 0, 2, 1, -3, 1], [0, 1, 1, -1, 1, 1, 1]], np.int32)}
    np.testing.assert_allclose(run(made, feeds)[0], run(model, feeds)[0], rtol=0, atol=1e-5)


def test_half_a_gelu_times_the_other_half() -> None:
    """BiasSplitGelu has a kernel on CUDA alone."""
    text = """g (float[N,S,8] x) => (float[N,S,4] y) <float[8] b = {1,-1,2,0.5,0,1,-2,0.25}> {
      y = com.microsoft.BiasSplitGelu (x, b)
    }"""
    model = parse(HEADER.format(opset=17) + text)
    made, found = written(model)
    x = inputs_of(model)["x"]
    left, right = np.split(x + np.array([1, -1, 2, 0.5, 0, 1, -2, 0.25], np.float32), 2, -1)
    gelu = right * (1 + np.vectorize(erf)(right / 2**0.5)) / 2
    assert found == ["com.microsoft BiasSplitGelu"]
    np.testing.assert_allclose(run(made, {"x": x})[0], left * gelu, rtol=0, atol=1e-5)
