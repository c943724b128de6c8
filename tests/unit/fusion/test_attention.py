"""Attention is found in every spelling that exporters write, and ONNX Runtime's own op computes the same."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import FunctionProto, ModelProto

import onnxfuse
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.runtime.sessions.ort_ops import with_library_ops
from tests.support.small import assert_same_numbers, ops, optimize, parse, reasons, rules

KEYS = {
    "in one step": "kt = Transpose <perm = [0,2,3,1]> (k4)",
    "in two steps": "kh = Transpose <perm = [0,2,1,3]> (k4) kt = Transpose <perm = [0,1,3,2]> (kh)",
}

SCORES = {
    "divided": ("m = MatMul (qh, kt) s = Div (m, c1)", 1 / 1.7),
    "multiplied": ("m = MatMul (qh, kt) s = Mul (c1, m)", 1.7),
    "both sides": ("qs = Mul (qh, c1) ks = Mul (kt, c2) s = MatMul (qs, ks)", 1.7 * 0.3),
    "queries multiplied": ("qs = Mul (c2, qh) s = MatMul (qs, kt)", 0.3),
    "queries divided": ("qs = Div (qh, c2) s = MatMul (qs, kt)", 1 / 0.3),
    "not scaled": ("s = MatMul (qh, kt)", 1.0),
}
"""How the scores are scaled by c1 = 1.7 and c2 = 0.3, and what the factor is then."""

PROBABILITIES = {
    "plain": "p = Softmax <axis = -1> ({0})",
    "idle casts": "exact = Softmax <axis = 3> ({0}) first = Cast <to = 1> (exact) p = Cast <to = 1> (first)",
    "in float32": "wide = Cast <to = 1> ({0}) exact = Softmax <axis = -1> (wide) p = Cast <to = 1> (exact)",
}

MASKS = ("B,1,1,L", "1,1,S,L", "B,N,S,L", "S,L", "1", "")

SPELLINGS = list(product(KEYS, SCORES, PROBABILITIES))


def attention(
    keys: str = "in one step",
    scores: str = "divided",
    probabilities: str = "plain",
    mask: str | None = None,
    *,
    batch: int | str = 2,
    rows: int | str = 3,
    columns: int | str = 5,
    heads: int = 2,
    size: int = 4,
    element: str = "float",
) -> str:
    """Return a graph with one attention; `mask` is its shape in the letters B, N, S, L, and None leaves it out."""
    extents = {"B": batch, "N": heads, "S": rows, "L": columns}
    given = ",".join(str(extents.get(d, d)) for d in (mask or "").split(","))
    bias = "" if mask is None else f", {element}[{given}] mask" if given else f", {element} mask"
    after = "masked = Add (s, mask)" if mask is not None else ""
    reads = PROBABILITIES[probabilities].format("s" if mask is None else "masked")
    width = heads * size
    weights = (f"{element} c1 = {{1.7}}", f"{element}[1] c2 = {{0.3}}")
    scales = "".join(f", {w}" for w, name in zip(weights, ("c1", "c2"), strict=True) if name in SCORES[scores][0])
    return f"""g ({element}[{batch},{rows},{width}] q, {element}[{batch},{columns},{width}] k,
      {element}[{batch},{columns},{width}] v{bias})
    => ({element}[{batch},{rows},{width}] y)
    <int64[4] split = {{0, 0, {heads}, {size}}}, int64[3] join = {{0, 0, {width}}}{scales}> {{
      q4 = Reshape (q, split)
      qh = Transpose <perm = [0,2,1,3]> (q4)
      k4 = Reshape (k, split)
      {KEYS[keys]}
      v4 = Reshape (v, split)
      vh = Transpose <perm = [0,2,1,3]> (v4)
      {SCORES[scores][0]}
      {after}
      {reads}
      c = MatMul (p, vh)
      ct = Transpose <perm = [0,2,1,3]> (c)
      y = Reshape (ct, join)
    }}"""


PACKED = """g (float[5,2,24] x) => (float[10,8] y)
<int64[4] packed = {5,2,3,8}, int64[1] front = {0}, int64[1] back = {-2}, int64 first = {0}, int64 second = {1},
 int64 third = {2}, int64[3] heads = {5,4,4}, int64[4] batch = {2,2,5,4}, int64[2] flat = {10,8}, float root = {0.7}> {
  x4 = Reshape (x, packed)
  x5 = Unsqueeze (x4, front)
  xt = Transpose <perm = [3,1,2,0,4]> (x5)
  qkv = Squeeze (xt, back)
  q = Gather (qkv, first)
  q3 = Reshape (q, heads)
  qt = Transpose <perm = [1,0,2]> (q3)
  qh = Reshape (qt, batch)
  k = Gather (qkv, second)
  k3 = Reshape (k, heads)
  k3t = Transpose <perm = [1,0,2]> (k3)
  kh = Reshape (k3t, batch)
  v = Gather (qkv, third)
  v3 = Reshape (v, heads)
  vt = Transpose <perm = [1,0,2]> (v3)
  vh = Reshape (vt, batch)
  qs = Mul (qh, root)
  kt = Transpose <perm = [0,1,3,2]> (kh)
  ks = Mul (kt, root)
  scores = MatMul (qs, ks)
  p = Softmax <axis = -1> (scores)
  c = MatMul (p, vh)
  ct = Transpose <perm = [2,0,1,3]> (c)
  y = Reshape (ct, flat)
}"""
PACKED_11 = (
    PACKED.replace(" int64[1] front = {0}, int64[1] back = {-2},", "")
    .replace("(x4, front)", "(x4)")
    .replace("(xt, back)", "(xt)")
)
PACKED_11 = PACKED_11.replace("= Unsqueeze ", "= Unsqueeze <axes = [0]> ").replace(
    "= Squeeze ", "= Squeeze <axes = [-2]> "
)


def found(text: str | ModelProto, opset: int = 17) -> tuple[ModelProto, FusedOp]:
    """Return the optimized model and its one fused op, which must hold an attention."""
    made, _ = optimize(parse(text, opset) if isinstance(text, str) else text, "attention")
    (op,) = fused_ops(made).values()
    assert op.rule == "attention"
    return made, op


def in_library(model: ModelProto) -> ModelProto:
    """Return an optimized model as a session on CUDA opens it."""
    return with_library_ops(model, onnxruntime.SessionOptions(), fused_ops(model))


def attributes(function: FunctionProto | None) -> dict[str, Any]:
    """Return the attributes of the one MultiHeadAttention in a library form."""
    assert function is not None
    (node,) = (n for n in function.node if n.domain == "com.microsoft")
    assert node.op_type == "MultiHeadAttention"
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def assert_library_agrees(before: ModelProto, made: ModelProto) -> None:
    """The scale is one rounded factor where the model may have divided, or scaled both sides: like a folded weight."""
    assert_same_numbers(before, in_library(made), folded=True)


def assert_library_is_the_same(text: str, opset: int = 17) -> None:
    """The library form and the body compute what the model computed, within twice its error against float64."""
    before = parse(text, opset)
    made, _ = found(text, opset)
    onnx.checker.check_model(made, full_check=True)
    assert_same_numbers(before, made)
    assert_library_agrees(before, made)


# ---- found


@pytest.mark.parametrize("mask", [None, "B,1,1,L"], ids=["no mask", "mask"])
@pytest.mark.parametrize(("keys", "scores", "probabilities"), SPELLINGS, ids=map("-".join, SPELLINGS))
def test_every_spelling_is_found_with_its_scale_and_heads(
    keys: str, scores: str, probabilities: str, mask: str | None
) -> None:
    """The whole attention becomes one op; scale and head count of the library form are those of the nodes."""
    made, op = found(attention(keys, scores, probabilities, mask))
    assert len(made.graph.node) == 1
    scale = SCORES[scores][1]
    seen = attributes(op.library)
    assert seen == {"num_heads": 2, "scale": pytest.approx(scale, rel=1e-6)}
    assert isinstance(seen["scale"], float)


@pytest.mark.parametrize(("keys", "scores", "probabilities"), SPELLINGS[::2], ids=map("-".join, SPELLINGS[::2]))
def test_the_library_form_computes_the_same(keys: str, scores: str, probabilities: str) -> None:
    """In float32 on the CPU, through ONNX Runtime's own op."""
    assert_library_is_the_same(attention(keys, scores, probabilities, "B,1,1,L"))


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: f"[{m}]")
@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (7, 1), (1, 7), (1, 1), (33, 31)])
def test_masks_of_every_shape(mask: str, rows: int, columns: int) -> None:
    """Broadcast along batch, heads and queries, more queries than keys or fewer, a sequence of 1, odd sizes."""
    assert_library_is_the_same(attention("in two steps", "both sides", "plain", mask, rows=rows, columns=columns))


@pytest.mark.parametrize(("heads", "size"), [(1, 8), (3, 5), (12, 1), (4, 64)])
def test_heads_of_every_size(heads: int, size: int) -> None:
    """The head count is the width over the head size."""
    text = attention(heads=heads, size=size)
    assert attributes(found(text)[1].library)["num_heads"] == heads
    assert_library_is_the_same(text)


@pytest.mark.parametrize("mask", [None, *MASKS])
def test_batch_and_sequence_may_be_names(mask: str | None) -> None:
    """Extents that are known at run time alone."""
    assert_library_is_the_same(attention(mask=mask, batch="N", rows="S", columns="L"))


def test_a_mask_may_be_a_constant() -> None:
    """A weight becomes an input of the op, a single number stands inside it."""
    text = attention(mask="S,L").replace(", float[3,5] mask", "")
    weight = ",".join(str(0.5 * i) for i in range(15))
    assert_library_is_the_same(text.replace("<int64[4]", f"<float[3,5] mask = {{{weight}}}, int64[4]"))
    text = attention(mask="").replace(", float mask", "")
    assert_library_is_the_same(text.replace("<int64[4]", "<float mask = {-1.5}, int64[4]"))


@pytest.mark.parametrize("opset", [11, 13, 17, 20])
def test_every_operator_set_has_attention(opset: int) -> None:
    """The nodes of the library form are of the model's own operator set."""
    for mask in (None, "B,1,1,L"):
        text = attention(mask=mask).replace("<axis = -1>", "<axis = 3>")
        assert_library_is_the_same(text, opset)
        assert found(text, opset)[1].opset == opset


@pytest.mark.parametrize("opset", [13, 17, 20])
def test_packed_projections_are_found(opset: int) -> None:
    """nn.MultiheadAttention, sequence first: the library form splits what the model gathered."""
    made, op = found(PACKED, opset)
    assert len(made.graph.node) == 1
    assert attributes(op.library) == {"num_heads": 2, "scale": pytest.approx(0.49, rel=1e-6)}
    assert_library_is_the_same(PACKED, opset)


def test_packed_projections_of_an_old_operator_set_are_heads_all_the_same() -> None:
    """Split has its sizes as an input from opset 13 on: there the parts are read as the model cuts them."""
    assert_library_is_the_same(PACKED_11, 11)


def test_half_precision_is_found() -> None:
    """With the softmax in float32, as exporters of float16 write it."""
    text = attention(probabilities="in float32", mask="B,1,1,L", element="float16")
    text = text.replace("{1.7}", "{16076}").replace("{0.3}", "{13517}")  # the bits: ONNX text has no float16 literals
    made, op = found(text.replace("p = Cast <to = 1>", "p = Cast <to = 10>"))
    assert len(made.graph.node) == 1
    assert attributes(op.library)["scale"] == np.float32(1 / float(np.uint16(16076).view(np.float16)))


# ---- not found


def changed(old: str, new: str, **options: Any) -> str:
    """Return an attention with one change."""
    text = attention(**options)
    assert old in text
    return text.replace(old, new)


FOUR_D = attention().replace("[2,3,8] q", "[2,3,2,4] q").replace("q4 = Reshape (q, split)", "q4 = Identity (q)")

ODD: dict[str, str] = {
    "batch and sequence regrouped": (
        changed("int64[4] split", "int64[4] other = {3, 2, 2, 4}, int64[4] split")
        .replace("(q, split)", "(q, other)").replace("(k, split)", "(k, third)").replace("(v, split)", "(v, third)")
        .replace("int64[4] split = {0, 0, 2, 4}", "int64[4] third = {3, 2, 2, 4}").replace("[2,5,8]", "[2,3,8]")
        .replace("{0, 0, 8}", "{2, 3, 8}")
    ),
    "the output regrouped": (
        changed("{0, 0, 8}", "{3, 2, 8}").replace("(float[2,3,8] y)", "(float[3,2,8] y)")
    ),
    "heads before the sequence": (
        changed("qh = Transpose <perm = [0,2,1,3]> (q4)", "qh = Transpose <perm = [0,2,3,1]> (q4)")
        .replace("{0, 0, 2, 4}", "{0, 0, 2, 3}").replace("[2,3,8]", "[2,3,6]").replace("[2,5,8]", "[2,3,6]")
        .replace("{0, 0, 8}", "{0, 0, 6}")
    ),
    "the output is not turned back": (
        changed("ct = Transpose <perm = [0,2,1,3]> (c)", "ct = Transpose <perm = [0,1,2,3]> (c)")
        .replace("{0, 0, 8}", "{2, 3, 8}")
    ),
    "queries of rank 4": FOUR_D,
}  # fmt: skip
"""Heads that are split or joined in another way than [batch, sequence, heads * size]."""

REFUSED: dict[str, tuple[str, str]] = {
    "the scale is no constant": (
        changed("float[2,3,8] q", "float c1, float[2,3,8] q").replace(", float c1 = {1.7}", ""),
        "scale = 1 / value(divisor) is not known",
    ),
    "divided by zero": (changed("{1.7}", "{0}"), "scale = 1 / value(divisor) is not known"),
    "one scale for each key": (
        changed("{1.7}", "{1,2,3,4,5}").replace("float c1", "float[5] c1"),
        "scale = 1 / value(divisor) is not known",
    ),
    "softmax over the queries": (changed("<axis = -1> (s)", "<axis = 2> (s)"), "value(axis) is 2 and rank(p) - 1 is 3"),
    "values of another size": (
        changed("float[2,5,8] v", "float[2,5,12] v").replace("(v, split)", "(v, wide)")
        .replace("int64[4] split", "int64[4] wide = {0, 0, 2, 6}, int64[4] split")
        .replace("{0, 0, 8}", "{0, 0, 12}").replace("(float[2,3,8] y)", "(float[2,3,12] y)"),
        "dim D of vh is 6, of qh 4",
    ),
    "the scores are read twice": (
        changed("[2,3,8] y)", "[2,3,8] y, float[2,2,3,5] e)").replace("c = MatMul", "e = Exp (s) c = MatMul"),
        "value 's' is also read by Exp",
    ),
    "the probabilities are read twice": (
        changed("[2,3,8] y)", "[2,3,8] y, float[2,2,3,5] e)").replace("c = MatMul", "e = Exp (p) c = MatMul"),
        "value 'p' is also read by Exp",
    ),
    "the probabilities are an output": (
        changed("(float[2,3,8] y)", "(float[2,3,8] y, float[2,2,3,5] p)"),
        "value 'p' is a graph output",
    ),
    "float64": (
        attention(element="double"),
        "dtype(qh) is double; the rule wants dtype(qh) in (float16, bfloat16, float)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_heads_may_come_and_go_in_any_way(text: str) -> None:
    """The op gets them turned, and what it gives is turned back; the body stays as it is."""
    assert_library_is_the_same(text)


@pytest.mark.parametrize(("text", "told"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_attention_stays_with_the_reason(text: str, told: str) -> None:
    """One change to an attention that is found; no byte of the model changes."""
    assert told in reasons(text, "attention")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            attention(mask="2,1,1,L", batch=1).replace("float[1,3,8] y", "float[2,3,8] y"),
            id="a mask with a wider batch",
        ),
        pytest.param(
            attention(mask="1,1,4,L", rows=1).replace("float[2,1,8] y", "float[2,4,8] y"),
            id="a mask with more queries",
        ),
        pytest.param(
            attention(mask="1,3,1,L", heads=1, size=8).replace("{0, 0, 8}", "{0, 0, 24}").replace("3,8] y", "3,24] y"),
            id="a mask with more heads",
        ),
        pytest.param(
            attention(probabilities="in float32").replace("<to = 1>", "<to = 11>")
            .replace("float[2,5,8] v", "double[2,5,8] v").replace("(float[2,3,8] y)", "(double[2,3,8] y)"),
            id="values of another type",
        ),
    ],
)  # fmt: skip
def test_what_the_librarys_op_cannot_do_is_not_given_to_it(text: str) -> None:
    """ONNX broadcasts the scores to a larger mask, ONNX Runtime's op does not; and its inputs are of one type."""
    model = parse(text)
    onnx.checker.check_model(model, full_check=True)
    made, _ = optimize(model, "attention")
    assert_library_agrees(model, made)


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_packed_heads_that_are_regrouped_are_no_heads(which: str) -> None:
    """Two Reshapes that agree in their ends and mix heads with positions on the way."""
    text = PACKED.replace("int64[3] heads", "int64[3] mixed = {5,8,2}, int64[3] heads")
    model = parse(text.replace(f"{which}3 = Reshape ({which}, heads)", f"{which}3 = Reshape ({which}, mixed)"))
    onnx.checker.check_model(model, full_check=True)
    made, _ = optimize(model, "attention")
    assert_library_agrees(model, made)


def test_a_factor_of_zero_is_the_same() -> None:
    """To ONNX Runtime's op a scale of 0 means its own default."""
    model = parse(attention(scores="multiplied").replace("{1.7}", "{0}"))
    made, _ = optimize(model, "attention")
    assert_library_agrees(model, made)


# ---- kept, undone, repeated


SAVED = [attention(), attention(mask="B,N,S,L"), attention(scores="both sides", mask="S,L"), PACKED]


@pytest.mark.parametrize("text", SAVED)
def test_the_library_form_survives_the_file(text: str) -> None:
    """Written and read again it is the same function, its scale bit for bit."""
    made, op = found(text)
    read = onnx.ModelProto.FromString(made.SerializeToString())
    (again,) = fused_ops(read).values()
    assert again == op
    assert again.library == op.library
    assert attributes(again.library) == attributes(op.library)


@pytest.mark.parametrize("divisor", [7**0.5, 1e-7 / 3, 3.4e37, 1 / 3, 0.1, -8.0])
def test_every_scale_survives_the_file_bit_for_bit(divisor: float) -> None:
    """The scale is the float32 nearest to the quotient in float64."""
    model = parse(attention())
    (tensor,) = (t for t in model.graph.initializer if t.name == "c1")
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(divisor, np.float32), "c1"))
    made, _ = found(model)
    (op,) = fused_ops(onnx.ModelProto.FromString(made.SerializeToString())).values()
    assert attributes(op.library)["scale"] == float(np.float32(1 / float(np.float32(divisor))))


@pytest.mark.parametrize("text", SAVED)
def test_optimizing_twice_gives_the_same_bytes(text: str) -> None:
    """With all rules, from the start and from the result."""
    first, second = (optimize(parse(text))[0] for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    again, report = optimize(first)
    assert again.SerializeToString(deterministic=True) == first.SerializeToString(deterministic=True)
    assert not report.applied


@pytest.mark.parametrize("text", SAVED)
def test_unfusing_gives_the_nodes_back(text: str) -> None:
    """The file holds the nodes as they were exported, under their names."""
    before = parse(text)
    for index, node in enumerate(before.graph.node):
        node.name = f"node {index}"
    plain = onnxfuse.unfuse(found(before)[0])
    assert _described(plain.graph.node) == _described(before.graph.node)
    assert {o.domain for o in plain.opset_import} == {""}


def _described(nodes: Sequence[onnx.NodeProto]) -> list[bytes]:
    return sorted(n.SerializeToString(deterministic=True) for n in nodes)


def test_the_file_needs_nothing_but_onnx() -> None:
    """The body is of the default domain: no op of ONNX Runtime's stands where another reader would have to run it."""
    made, op = found(attention(mask="B,1,1,L"))
    assert {o.domain for o in made.opset_import} == {"", "onnxfuse"}
    assert {n.domain for n in op.body.node} == {""}
    assert_same_numbers(parse(attention(mask="B,1,1,L")), made)


TWO = """g (float[N,S,8] x, float[N,1,1,S] mask) => (float[N,S,8] y)
<int64[4] split = {0, 0, 2, 4}, int64[3] join = {0, 0, 8}, float root = {2}> {""" + "".join(
    f"""
  q4{i} = Reshape ({x}, split)
  qh{i} = Transpose <perm = [0,2,1,3]> (q4{i})
  k4{i} = Reshape ({x}, split)
  kt{i} = Transpose <perm = [0,2,3,1]> (k4{i})
  v4{i} = Reshape ({x}, split)
  vh{i} = Transpose <perm = [0,2,1,3]> (v4{i})
  m{i} = MatMul (qh{i}, kt{i})
  s{i} = Div (m{i}, root)
  b{i} = Add (s{i}, mask)
  p{i} = Softmax (b{i})
  c{i} = MatMul (p{i}, vh{i})
  ct{i} = Transpose <perm = [0,2,1,3]> (c{i})
  {y} = Reshape (ct{i}, join)"""
    for i, (x, y) in enumerate((("x", "h"), ("h", "y")))
) + "\n}"  # fmt: skip


def test_two_layers_share_one_function() -> None:
    """Equal attentions are one op with two nodes, and inlined twice its inner names do not clash."""
    model = parse(TWO)
    for index, node in enumerate(model.graph.node):
        node.name = f"node {index}"
    made, op = found(model)
    assert [n.op_type for n in made.graph.node] == [op.name] * 2
    assert len({n.name for n in made.graph.node}) == 2
    assert op.library is not None
    assert all(n.name == "" for n in op.library.node)
    assert_same_numbers(model, made)
    assert_library_agrees(model, made)


def test_different_scales_are_different_ops() -> None:
    """The scale stands in the body, and so in the name."""
    one, other = (found(attention().replace("{1.7}", f"{{{c}}}"))[1] for c in (1.7, 1.8))
    assert one.name != other.name


def test_attention_comes_before_the_other_rules() -> None:
    """With all rules the softmax and the bias of the scores are left to attention."""
    made, report = optimize(parse(attention(mask="B,1,1,L")))
    assert set(report.by_rule()) == {"attention"}
    assert len(ops(made)) == 1
    assert pipeline.run(parse(attention()), rules("attention")).by_rule() == {"attention": 1}


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 5), (3, 1)])
def test_one_query_or_one_key_is_attention_too(rows: int, columns: int) -> None:
    """A product of one term is no Mul there: with all rules it stays in the pattern."""
    text = parse(attention(rows=rows, columns=columns))
    made, report = optimize(text)
    assert "attention" in report.by_rule()
    assert_same_numbers(text, made)
