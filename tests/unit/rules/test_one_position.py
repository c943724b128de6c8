"""Where one position is read, the last layer is computed for it alone: the same numbers, by fewer rows."""

import numpy as np
import onnx
import pytest

import models
from onnxfuse.passes import pipeline
from tests.support.small import parse, run

LAYER = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,5,4] x) => (OUTPUTS)
<float[4,4] wq = {1,-2,3,-4, 7,1,-1,2, 0.5,1,2,-1, -3,1,0,1}, float[4,4] wk = {2,1,0,-1, 1,1,3,2, 1,-2,0.5,1, 0,1,2,1},
 float[4,8] up = {1,2,3,4,5,6,7,8, -1,1,-1,1,2,-2,1,0, 0,0,1,1,-1,-1,2,2, 1,0,-1,0.5,0.5,2,1,1},
 float[8,4] down = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1, 1,1,0,0, 0,1,1,0, 0,0,1,1, 1,0,0,1},
 float[4] bias = {0.1,-0.2,0.3,0.4}, float[8] wide = {1,2,3,-1,-2,-3,0.5,0}, float[4] scale = {1,2,0.5,1},
 int64[4] split = {0,0,2,2}, int64[3] join = {0,0,-1}, float root = {1.4}, float sqrt2 = {1.41421356}, float one = {1},
 float half = {0.5}, int64 place = {PLACE}, float[1,1,5,5] mask = {0,-9,-9,-9,-9, 0,0,-9,-9,-9, 0,0,0,-9,-9, 0,0,0,0,-9,
 0,0,0,0,0}> {
  qm = MatMul (x, wq)  qa = Add (qm, bias)  q4 = Reshape (qa, split)  qh = Transpose <perm = [0,2,1,3]> (q4)
  k = MatMul (x, wk)  k4 = Reshape (k, split)  kt = Transpose <perm = [0,2,3,1]> (k4)
  v = MatMul (x, wq)  v4 = Reshape (v, split)  vh = Transpose <perm = [0,2,1,3]> (v4)
  product = MatMul (qh, kt)  divided = Div (product, root)  masked = Add (divided, mask)
  p = Softmax <axis = -1> (masked)
  c = MatMul (p, vh)  ct = Transpose <perm = [0,2,1,3]> (c)  rows = Reshape (ct, join)
  projected = MatMul (rows, wk)  a = Add (projected, bias)  sum = Add (a, x)
  first = LayerNormalization <axis = -1> (sum, scale, bias)
  u = MatMul (first, up)  ua = Add (u, wide)
  d = Div (ua, sqrt2)  e = Erf (d)  f = Add (e, one)  g = Mul (ua, f)  h = Mul (g, half)
  m = MatMul (h, down)  ma = Add (m, bias)  both = Add (ma, first)
  last = LayerNormalization <axis = -1> (both, scale, bias)
  y = Gather <axis = 1> (last, place)
}"""


def layer(place: int = 0, outputs: str = "float[N,4] y") -> onnx.ModelProto:
    """Return a layer of an encoder with a mask row for each query, of which one position is read."""
    return parse(LAYER.replace("PLACE", str(place)).replace("OUTPUTS", outputs))


def narrowed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model after the rewrites alone."""
    from onnxfuse.rules.language.rule_file import shipped

    made = onnx.ModelProto()
    made.CopyFrom(model)
    pipeline.run(made, [r for r in shipped() if r.rewrites])
    return made


def rows_of(model: onnx.ModelProto) -> dict[str, list[int]]:
    """Return the rows of each product with weights."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.value_info}
    weights = {w.name for w in model.graph.initializer}
    return {
        n.output[0]: shapes[n.output[0]] for n in model.graph.node if n.op_type == "MatMul" and n.input[1] in weights
    }


@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_layer_is_computed_for_the_position_that_is_read(place: int) -> None:
    """First, middle, last; the bias of that query is taken out of the mask; keys and values stay whole."""
    model = layer(place)
    made = narrowed(model)
    x = {"x": np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)}
    (before,), (after,) = run(model, x), run(made, x)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
    assert sorted(shape[1] for shape in rows_of(made).values()) == [1, 1, 1, 1, 5, 5]


@pytest.mark.parametrize("kept", ["float[N,5,4] last", "float[N,5,4] first", "float[N,2,5,5] p"])
def test_what_the_model_gives_out_stays_whole(kept: str) -> None:
    """The walk ends at a value that is needed of all positions."""
    model = layer(0, f"float[N,4] y, {kept}")
    made = narrowed(model)
    x = {"x": np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)}
    for before, after in zip(run(model, x), run(made, x), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_vit_reads_the_class_token() -> None:
    """Of the last layer the query, both products of the MLP and the projection have one row per image."""
    small = {"layers": 2, "hidden": 32, "heads": 2, "intermediate": 64, "image": 32, "classes": 10}
    model = models.build("vit_b_16", dtype="float32", batch=3, **small)
    made = narrowed(model)
    image = np.random.default_rng(0).standard_normal((3, 3, 32, 32)).astype(np.float32)
    (before,), (after,) = run(model, {"image": image}), run(made, {"image": image})
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)
    assert sum(shape[1] == 1 for shape in rows_of(made).values()) == 4


def test_bert_gives_out_all_positions() -> None:
    """The pooler reads one, the model's own output all of them: nothing may be left out."""
    small = {"layers": 1, "hidden": 32, "heads": 2, "intermediate": 64, "vocabulary": 50}
    model = models.build("bert_base", dtype="float32", batch=2, sequence=7, **small)
    assert all(shape[1] == 7 for shape in rows_of(narrowed(model)).values())
