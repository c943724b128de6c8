"""A weight that is read in both layouts, by a product or an embedding and through a Transpose, is stored once."""

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import onnxfuse
from onnxfuse.model.fused import DOMAIN
from tests.support.small import ops, run

SMALL, LARGE = (200, 32), (1024, 64)
"""A table of less than 64 KB, up to which other constants are folded, and one of more; a kernel takes the columns."""
HEADS = {
    "MatMul": "t = Transpose <perm = [1, 0]> (w)  y = MatMul(h, t)",
    "bias and activation": "t = Transpose <perm = [1, 0]> (w)  m = MatMul(h, t)  a = Add(m, b)  y = Tanh(a)",
    "Transpose without its order": "t = Transpose(w)  m = MatMul(h, t)  y = Add(m, b)",
    "Gemm": "t = Transpose <perm = [1, 0]> (w)  f = Reshape(h, rows)  y = Gemm(f, t, b)",
    "Gemm transB": "f = Reshape(h, rows)  y = Gemm <transB = 1> (f, w, b)",
    "Einsum": 'm = Einsum <equation = "bsd,vd->bsv"> (h, w)  y = Add(m, b)',
    "two heads": "t = Transpose <perm = [1, 0]> (w)  p = MatMul(h, t)  g = Exp(h)  q = MatMul(g, t)  y = Add(p, q)",
    "two Transposes": """t = Transpose <perm = [1, 0]> (w)  u = Transpose <perm = [1, 0]> (w)  p = MatMul(h, t)
        g = Exp(h)  q = MatMul(g, u)  y = Add(p, q)""",
    "a Transpose that is read elsewhere, too": """t = Transpose <perm = [1, 0]> (w)  m = MatMul(h, t)  a = Relu(m)
        s = ReduceMax <axes = [0], keepdims = 0> (t)  y = Add(a, s)""",
}
"""What makes y of h [N, S, d], of embeddings that were read from w [V, d]."""
BOTH = {
    "MatMul": "m = MatMul(x, w)  a = Add(m, c)  h = Relu(a)  t = Transpose(w)  n = MatMul(h, t)  y = Add(n, b)",
    "Gemm": "m = Gemm(x, w, c)  h = Relu(m)  n = Gemm <transB = 1> (h, w, b)  y = Tanh(n)",
    "Gemm and Transpose": "m = Gemm(x, w, c)  h = Relu(m)  t = Transpose(w)  n = Gemm(h, t, b)  y = Tanh(n)",
}
"""Autoencoders: y [N, V] of x [N, V], by w [V, d] and then by its Transpose."""
TYPES = {
    "float32": ("float", np.float32),
    "float16": ("float16", np.float16),
    "bfloat16": ("bfloat16", ml_dtypes.bfloat16),
}
FORMS = [(size, dtype, node) for size in (SMALL, LARGE) for dtype in TYPES for node in (False, True)]


def tied(body: str, size: tuple[int, int], dtype: str, node: bool = False, opset: int = 17) -> onnx.ModelProto:
    """Return a model of `body`, which reads a weight w [V, d]; `node`: of a Constant node."""
    word, of = TYPES[dtype]
    embeds = "(x, w" not in body
    begins = "e = Gather(w, ids)  h = Relu(e)" if embeds else ""
    given = "int64[N, S] ids" if embeds else f"{word}[N, {size[0]}] x"
    shape = "[A, B, C]" if embeds and "Gemm" not in body else "[A, B]"
    made = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
        g ({given}) => ({word}{shape} y) {{ {begins} {body} }}""")
    draw = np.random.default_rng(0)
    weights = {
        "w": draw.standard_normal(size) / size[1] ** 0.5, "b": draw.standard_normal(size[0]),
        "c": draw.standard_normal(size[1]),
    }  # fmt: skip
    read = {v for n in made.graph.node for v in n.input}
    tensors = [numpy_helper.from_array(a.astype(of), n) for n, a in weights.items() if n in read]
    if "rows" in read:
        tensors.append(numpy_helper.from_array(np.array([-1, size[1]]), "rows"))
    if node:
        made.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=tensors.pop(0)))
    made.graph.initializer.extend(tensors)
    return made


def inputs(model: onnx.ModelProto, rows: int = 3) -> dict[str, NDArray[np.generic]]:
    """Return inputs of a model of `tied`."""
    draw = np.random.default_rng(rows)
    (given,) = model.graph.input
    if given.name == "ids":
        return {"ids": draw.integers(0, 51, (rows, 4))}
    of = helper.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type)
    return {"x": draw.standard_normal((rows, given.type.tensor_type.shape.dim[1].dim_value)).astype(of)}


def tables(model: onnx.ModelProto, size: tuple[int, int]) -> int:
    """Return how many constants of the weight's size there are, wherever they stand."""
    constants = [n.attribute[0].t for g in (model.graph, *model.functions) for n in g.node if n.op_type == "Constant"]
    return sum(np.prod(t.dims) == np.prod(size) for t in (*model.graph.initializer, *constants))


def check(original: onnx.ModelProto, size: tuple[int, int]) -> onnx.ModelProto:
    """Optimize a model: no weight more, the same numbers, and the same again from another run and from undo."""
    made = onnxfuse.optimize(original)
    assert tables(made, size) == 1
    given = inputs(original)
    if made.graph.output[0].type.tensor_type.elem_type != onnx.TensorProto.BFLOAT16:  # not on the CPU
        (theirs,), (ours,) = run(original, given), run(made, given)
        # Sums of products of about 1 in all, of as many terms as a row has, rounded to the output's type.
        bound = 64 * float(np.finfo(theirs.dtype).eps) * max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=0, atol=bound)
    assert onnxfuse.optimize(made) == made
    undone = onnxfuse.unfuse(made)
    assert tables(undone, size) == 1
    assert undone.ByteSize() < original.ByteSize() + 2000
    assert all(n.domain != DOMAIN for n in undone.graph.node)
    return made


def products(model: onnx.ModelProto) -> list[str]:
    """Return the nodes that multiply, each with all that its kernel computes."""
    return [o for o in ops(model) if "MatMul" in o or "Gemm" in o]


@pytest.mark.filterwarnings("ignore:.*of the original's")
@pytest.mark.parametrize("form", HEADS)
@pytest.mark.parametrize(("size", "dtype", "node"), FORMS)
def test_a_head_has_its_kernel_by_the_weight_of_the_embeddings(
    form: str, size: tuple[int, int], dtype: str, node: bool
) -> None:
    """Whatever the size, the element type and the form: one weight, and each product with all behind it is one op."""
    if form == "Einsum" and dtype == "bfloat16":
        pytest.skip("ONNX Runtime has no Einsum of bfloat16")
    made = check(tied(HEADS[form], size, dtype, node), size)
    assert all(o.startswith("{") for o in products(made)), ops(made)
    if form == "bias and activation":
        assert products(made) == ["{Transpose MatMul Add Tanh}"]


@pytest.mark.filterwarnings("ignore:.*of the original's")
@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize(("size", "dtype", "node"), FORMS)
def test_an_autoencoder_stores_its_weight_once(form: str, size: tuple[int, int], dtype: str, node: bool) -> None:
    """Two kernels; of float32 ONNX Runtime makes the other layout as it makes a session."""
    made = check(tied(BOTH[form], size, dtype, node), size)
    assert len(products(made)) == 2
    assert all(o.startswith("{") for o in products(made)), ops(made)
    assert ("Transpose" in ops(made)) == (dtype == "float32")


@pytest.mark.filterwarnings("ignore:.*of the original's")
@pytest.mark.parametrize("opset", [9, 11, 13, 20, 22])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_operator_set(opset: int, dtype: str) -> None:
    made = check(tied(HEADS["bias and activation"], LARGE, dtype, opset=opset), LARGE)
    assert products(made) == ["{Transpose MatMul Add Tanh}"]


def test_what_is_undone_is_the_original() -> None:
    """The Transpose of two heads is one again; every node is as it was."""
    for form in ("bias and activation", "two heads", "a Transpose that is read elsewhere, too"):
        original = tied(HEADS[form], LARGE, "float32")
        undone = onnxfuse.unfuse(onnxfuse.optimize(original))
        pair = (original, undone)
        before, after = (sorted((n.op_type, *n.input, *n.output) for n in m.graph.node) for m in pair)
        assert after == before
        assert {t.name for t in undone.graph.initializer} == {t.name for t in original.graph.initializer}


@pytest.mark.parametrize("size", [(51, 32), (1023, 64)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_head_without_a_kernel_stores_no_second_weight(size: tuple[int, int], dtype: str) -> None:
    """Columns that no kernel is worth for: the Transpose stands where it stood."""
    made = check(tied(HEADS["bias and activation"], size, dtype), size)
    assert {"Transpose", "MatMul"} <= set(ops(made))


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("outside", [False, True])
def test_heads_in_branches_read_the_weight_outside(size: tuple[int, int], outside: bool) -> None:
    """Branches of an If read the same one, through a Transpose of their own or one before the If."""
    before, first, second = ("t = Transpose(w)", "", "") if outside else ("", "t = Transpose(w)", "u = Transpose(w)")
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (int64[N, S] ids, bool c) => (float[A, B, C] y) {{ e = Gather(w, ids)  h = Relu(e)  {before}
          y = If (c) <
            then_branch = a () => (float[A, B, C] p) {{ {first}  m = MatMul(h, t)  p = Relu(m) }},
            else_branch = b () => (float[A, B, C] q) {{ {second}  n = MatMul(h, {"t" if outside else "u"})
              q = Tanh(n) }}> }}""")
    draw = np.random.default_rng(0).standard_normal(size) / 8
    model.graph.initializer.append(numpy_helper.from_array(draw.astype(np.float32), "w"))
    made = onnxfuse.optimize(model)
    assert made.ByteSize() < model.ByteSize() + 4000
    assert onnxfuse.optimize(made) == made
    (branching,) = (n for n in made.graph.node if n.op_type == "If")
    assert all(n.domain == DOMAIN for a in branching.attribute for n in a.g.node)
    for chosen in (True, False):
        given = {"ids": np.arange(12).reshape(3, 4), "c": np.array(chosen)}
        for other in (made, onnxfuse.unfuse(made)):
            np.testing.assert_allclose(run(other, given)[0], run(model, given)[0], rtol=1e-5, atol=1e-5)


def test_a_weight_as_left_factor_is_stored_once_too() -> None:
    """No kernel reads its Transpose as it is stored: it stays, however small."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 32, 8] x, int64[S] ids) => (float[N, 200, 8] y, float[S, 200] z) {
          t = Transpose <perm = [1, 0]> (w)  m = MatMul(t, x)  y = Relu(m)  z = Gather(w, ids) }""")
    draw = np.random.default_rng(0).standard_normal((32, 200))
    model.graph.initializer.append(numpy_helper.from_array(draw.astype(np.float32), "w"))
    made = onnxfuse.optimize(model)
    assert tables(made, SMALL) == 1


def test_products_between_transposes_store_no_second_weight() -> None:
    """They run along the other axis, by a weight of the other layout, where nothing else reads the weight."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float16[N, 64, 64] x, int64[S] ids) => (float16[N, 64, 64] y, float16[S, 64] z) {
          t = Transpose <perm = [0, 2, 1]> (x)  m = MatMul(t, w)  y = Transpose <perm = [0, 2, 1]> (m)
          z = Gather(w, ids) }""")
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((64, 64)) / 8
    model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float16), "w"))
    made = onnxfuse.optimize(model)
    assert tables(made, (64, 64)) == 1
    given: dict[str, np.ndarray] = {"x": draw.standard_normal((2, 64, 64)).astype(np.float16), "ids": np.arange(5)}
    for mine, theirs in zip(run(made, given), run(model, given), strict=True):
        np.testing.assert_allclose(mine.astype(np.float32), theirs.astype(np.float32), rtol=0, atol=64 * 2.0**-10)
    assert onnxfuse.optimize(made) == made


def test_weights_that_only_look_alike_stay_apart() -> None:
    """Equal shapes, one number of all that differs."""
    original = tied(HEADS["MatMul"].replace("(w)", "(v)"), SMALL, "float32")
    other = numpy_helper.to_array(original.graph.initializer[0]).copy()
    other[-1, -1] += 1
    original.graph.initializer.append(numpy_helper.from_array(other, "v"))
    made = onnxfuse.optimize(original)
    assert tables(made, SMALL) == 2
    given = {"ids": np.array([[SMALL[0] - 1]])}
    np.testing.assert_allclose(run(made, given)[0], run(original, given)[0], rtol=1e-5, atol=64 * 2.0**-23)
