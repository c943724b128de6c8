"""A total length is a scalar in the graph and an extent for planners."""

import onnx

from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.runtime.kernels.total_lengths import Total, of_grown_caches, totals

CACHE = (1, 1, 12, 16)
TOKENS = (1, 3, 64)
LENGTHS = (1,)


def attention() -> FusedOp:
    """Return the op of attention with a cache."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float16[1,S,64] x, float16[1,1,P,16] past_k, float16[1,1,P,16] past_v, int32[1] lengths, int32 total)
    => (float16[1,S,32] y, float16[1,1,T,16] present_k, float16[1,1,T,16] present_v) {
      y, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1>
        (x, , , past_k, past_v, lengths, total)
    }""")
    pipeline.run(model)
    (op,) = fused_ops(model).values()
    return op


def test_a_total_length_is_found_with_its_tokens_and_its_cache() -> None:
    (found,) = totals(attention())
    assert found == Total(position=4, fresh=0, past=1)


def test_a_grown_cache_holds_what_it_held_and_the_new_tokens() -> None:
    """Of a scalar; a value that is known stays, as that of a shared buffer does."""
    op = attention()
    assert of_grown_caches(op, (TOKENS, CACHE, CACHE, LENGTHS, ())) == (TOKENS, CACHE, CACHE, LENGTHS, (15,))
    known = (TOKENS, CACHE, CACHE, LENGTHS, (9,))
    assert of_grown_caches(op, known) == known


def test_inputs_without_the_axes_of_tokens_or_rows_say_nothing() -> None:
    op = attention()
    for shapes in (((64,), CACHE, CACHE, LENGTHS, ()), (TOKENS, (1, 1), CACHE, LENGTHS, ())):
        assert of_grown_caches(op, shapes) == shapes
