"""A table that embeddings are read from and that the head multiplies by is one weight in the optimized file, too."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import onnxfuse
from tests.rewrite.small import run

WORDS, SIZE = 200, 32
"""Small enough that the Transpose is folded, and columns that a product's kernel takes: else no copy is ever made."""
FORMS = {
    "MatMul": "t = Transpose <perm = [1, 0]> (w)  y = MatMul(h, t)",
    "MatMul and a bias": "t = Transpose <perm = [1, 0]> (w)  m = MatMul(h, t)  y = Add(m, b)",
    "Gemm": "t = Transpose <perm = [1, 0]> (w)  f = Reshape(h, rows)  y = Gemm(f, t, b)",
    "Gemm transB": "f = Reshape(h, rows)  y = Gemm <transB = 1> (f, w, b)",
    "two heads": "t = Transpose <perm = [1, 0]> (w)  p = MatMul(h, t)  g = Neg(h)  q = MatMul(g, t)  y = Add(p, q)",
}


def model(head: str) -> onnx.ModelProto:
    """Return a model of embeddings and a head that share their weight."""
    made = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (int64[N, S] ids) => (float[A, B, C] y) {{ e = Gather(w, ids)  h = Relu(e)  {head} }}""")
    if "Gemm" in head:
        del made.graph.output[0].type.tensor_type.shape.dim[0]
    draw = np.random.default_rng(0)
    weights = {"w": draw.standard_normal((WORDS, SIZE)), "b": draw.standard_normal(WORDS)}
    made.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items())
    made.graph.initializer.append(numpy_helper.from_array(np.array([-1, SIZE]), "rows"))
    return made


@pytest.mark.parametrize("form", FORMS)
def test_a_tied_weight_is_stored_once(form: str) -> None:
    """The file grows by no weight, computes the same, and comes out of another run and of undo as it went in."""
    original = model(FORMS[form])
    made = onnxfuse.optimize(original)
    table = WORDS * SIZE
    assert sum(np.prod(t.dims) == table for t in made.graph.initializer) == 1
    given = {"ids": np.arange(12).reshape(3, 4)}
    (theirs,), (ours,) = run(original, given), run(made, given)
    # Sums of 64 products of numbers below 4, in float32.
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=64 * 16 * 2.0**-23)
    assert onnxfuse.optimize(made) == made
    undone = onnxfuse.unfuse(made)
    assert sum(np.prod(t.dims) == table for t in undone.graph.initializer) == 1
    np.testing.assert_allclose(run(undone, given)[0], theirs, rtol=1e-5, atol=64 * 16 * 2.0**-23)


def test_weights_that_only_look_alike_stay_apart() -> None:
    """Equal shapes, one number of all that differs."""
    original = model(FORMS["MatMul"].replace("Transpose <perm = [1, 0]> (w)", "Transpose <perm = [1, 0]> (v)"))
    other = numpy_helper.to_array(original.graph.initializer[0]).copy()
    other[-1, -1] += 1
    original.graph.initializer.append(numpy_helper.from_array(other, "v"))
    made = onnxfuse.optimize(original)
    assert sum(np.prod(t.dims) == WORDS * SIZE for t in made.graph.initializer) == 2
    given = {"ids": np.array([[WORDS - 1]])}
    np.testing.assert_allclose(run(made, given)[0], run(original, given)[0], rtol=1e-5, atol=64 * 16 * 2.0**-23)
