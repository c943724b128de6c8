"""Extents are carried through the arithmetic that exporters write on shapes."""

import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.ops.shapes.extents import is_known, unknown
from onnxfuse.ops.shapes.moved import reshaped
from onnxfuse.shapes import inference, types
from onnxfuse.shapes.types import DeclaredExtent
from onnxfuse.symbolic.element_types import UnsupportedError
from tests.support.extents import extents, written
from tests.support.small import assert_same_numbers, ops, optimize, parse, run


def shapes(text: str, opset: int = 17) -> dict[str, tuple[DeclaredExtent, ...] | None]:
    """Return the shape of every value of the model in `text`."""
    return {name: written(t.shape) for name, t in types.value_types(inference.infer(parse(text, opset)).graph).items()}


@pytest.mark.parametrize(
    ("source", "divisor", "rest"),
    [
        (("b", "s", 64), ("b", "s", 16), 4),
        (("b", "s", 64), (64,), "b*s"),
        (("b", 4, "s"), ("s",), "4*b"),
        (("4*b", "s"), ("b",), "4*s"),
        (("b", 6), (4,), None),
        (("b", 6), ("s",), None),
        (("b", None), ("b",), None),
        (("b", 6), (0, "b"), None),
        (("unk__1", 4), (), "unk__1*4"),
        (("a/b:0.1", 4), (), "4*(a/b:0.1)"),
        (("4*(a/b:0.1)", "s"), ("a/b:0.1", "s"), 4),
        (("past + new", "b"), ("new + past",), "b"),
        (("2*s+2", "b"), ("s+1", 2), "b"),
        (("s+1",), ("s",), None),
    ],
)
def test_names_cancel(
    source: tuple[DeclaredExtent, ...], divisor: tuple[DeclaredExtent, ...], rest: DeclaredExtent
) -> None:
    """In the -1 of a Reshape; what does not come out is not known."""
    of: Any = [unknown() if n is None else n for n in extents(*source)]
    by = [n for n in extents(*divisor) if n is not None]
    target: Any = [*by, -1]
    if rest is None:
        with pytest.raises(UnsupportedError) if 0 in by else nullcontext():
            assert not is_known(reshaped(of, target, zero_copies=False)[-1])
    else:
        assert reshaped(of, target, zero_copies=False)[-1] == extents(rest)[0]


HEADS = """g (float[b,s,64] x, float[b,s,64] z) => (float[b,s,64] y)
<int64 n0 = {0}, int64 n1 = {1}, int64[1] axis = {0}, int64[1] left = {-1}, int64[1] size = {16}> {
  sum = Add (x, z)
  shape = Shape (sum)
  batch = Gather (shape, n0)
  rows = Gather (shape, n1)
  batch1 = Unsqueeze (batch, axis)
  rows1 = Unsqueeze (rows, axis)
  split = Concat <axis = 0> (batch1, rows1, left, size)
  heads = Reshape (sum, split)
  turned = Transpose <perm = [0,2,1,3]> (heads)
  back = Transpose <perm = [0,2,1,3]> (turned)
  join = Concat <axis = 0> (batch1, rows1, left)
  y = Reshape (back, join)
}"""


def test_heads_are_counted() -> None:
    """A -1 among extents that are read from the model's own shapes."""
    assert shapes(HEADS)["turned"] == ("b", 4, "s", 16)


def test_an_unknown_extent_is_the_same_wherever_it_comes_back() -> None:
    """Two names that are added may be broadcast; their sum's extent has one invented name all along."""
    found = shapes(HEADS.replace("float[b,s,64] z", "float[b,t,64] z"))
    heads, joined = found["heads"], found["back"]
    assert heads is not None
    assert heads == joined
    assert types.is_unknown(*extents(heads[1]))
    assert heads[2] == 4


def test_a_range_is_as_long_as_its_limit() -> None:
    """From 0 in steps of 1; positions are computed so."""
    text = """g (float[b,s] x) => (int64[s] y) <int64 n0 = {0}, int64 n1 = {1}> {
      shape = Shape (x) rows = Gather (shape, n1) places = Range (n0, rows, n1) y = Identity (places)
    }"""
    assert shapes(text)["places"] == ("s",)


def test_what_is_filled_or_repeated_has_the_extents_that_were_asked_for() -> None:
    text = """g (float[b,s] x) => (float y) <int64 n0 = {0}, int64[1] axis = {0}, int64[2] twice = {1,2}> {
      shape = Shape (x) zeros = ConstantOfShape (shape) again = Tile (x, twice)
      batch = Gather (shape, n0) rows = Unsqueeze (batch, axis) one = Constant <value = int64[1] {1}> ()
      repeats = Concat <axis = 0> (one, rows) more = Tile (x, repeats)
      a = ReduceSum (zeros) c = ReduceSum (again) d = ReduceSum (more) ac = Add (a, c) y = Add (ac, d)
    }"""
    found = shapes(text)
    assert found["zeros"] == ("b", "s")
    assert found["again"] == ("b", "2*s")
    assert found["more"] == ("b", "b*s")


def test_an_einsum_of_a_letter_that_no_operand_has_says_nothing() -> None:
    """ONNX's own inference lets it pass; the shapes that the file declares stay."""
    text = 'g (float[n,8] x) => (float[n,8] y) { e = Einsum <equation = "ij->2ij"> (x)  y = Relu (x) }'
    assert shapes(text)["y"] == ("n", 8)


def test_axes_that_an_einsum_merges_are_counted() -> None:
    """tf2onnx makes one axis of the letters that both factors have: their product, and the larger one of each."""
    text = """g (float[b,4,s,16] x, float[b,4,16,s] z) => (float[b,4,s,s] y)
    <int64[2] n01 = {0,1}, int64[1] n2 = {2}, int64[1] left = {-1}, int64[1] width = {16}> {
      shape = Shape (x)  many = Gather (shape, n01)  rows = Gather (shape, n2)
      other_shape = Shape (z)  others = Gather (other_shape, n01)
      product = ReduceProd <keepdims = 1> (many)
      target = Concat <axis = 0> (product, left, width)  a = Reshape (x, target)
      turned = Concat <axis = 0> (product, width, left)  c = Reshape (z, turned)
      scores = MatMul (a, c)
      larger = Max (many, others)  smaller = Min (many, larger)
      apart = Concat <axis = 0> (smaller, rows, left)  y = Reshape (scores, apart)
    }"""
    found = shapes(text)
    assert found["a"] == ("4*b", "s", 16)
    assert found["scores"] == ("4*b", "s", "s")
    assert found["y"] == ("b", 4, "s", "s")


def test_a_product_tells_which_extents_are_one() -> None:
    """Its terms are as many on both sides, and so are 4*a and 4*b matrices; a and b of them may be 1 and any."""
    text = """g (float[b,4,s,16] p, float[c,1,1,t] mask, float[b,4,s,16] v) => (float[m,n,16] y)
    <int64[2] n01 = {0,1}, int64[1] left = {-1}, int64[1] width = {16}, int64[1] n3 = {3}, int64[1] n2 = {2}> {
      turned = Transpose <perm = [0,1,3,2]> (v)  s0 = MatMul (p, turned)  masked = Add (s0, mask)
      shape = Shape (masked)  many = Gather (shape, n01)  product = ReduceProd <keepdims = 1> (many)
      keys = Gather (shape, n3)  target = Concat <axis = 0> (product, left, keys)  a = Reshape (masked, target)
      own = Shape (v)  own_many = Gather (own, n01)  own_product = ReduceProd <keepdims = 1> (own_many)
      values = Concat <axis = 0> (own_product, left, width)  w = Reshape (v, values)
      y = MatMul (a, w)
    }"""
    found = shapes(text)
    assert found["masked"] == ("b", 4, "s", "s")
    assert found["a"] == ("4*b", "s", "s")
    alone = shapes("""g (float[b,s,8] x, float[c,8,t] z) => (float[m,n,o] y) { y = MatMul (x, z) }""")
    assert alone["y"] is not None
    assert types.is_unknown(*extents(alone["y"][0]))


def test_a_product_says_nothing_of_a_batch_that_may_be_one() -> None:
    """How many elements are not zero may be 1 beside b matrices, and b may be 1 beside any number of them."""
    found = shapes("""g (float[b,s,8] x, float[v,8,t] table, float[q] q) => (float[m,n,o] y) <int64[1] first = {0}> {
      places = NonZero (q)  flat = Squeeze (places, first)  z = Gather (table, flat)  y = MatMul (x, z)
    }""")
    assert found["z"] is not None
    assert found["z"][0] != "b"
    assert found["z"][1:] == (8, "t")


def test_the_expand_of_torch_keeps_an_extent_of_minus_one() -> None:
    """It replaces -1 by 1 with a Where over the target's elements."""
    text = """g (float[1,s] x, float[b,s] z) => (float[b,s] y)
    <int64 n0 = {0}, int64[1] axis = {0}, int64[1] left = {-1}, int64[2] less = {-1,-1}, int64[2] ones = {1,1}> {
      shape = Shape (z) batch = Gather (shape, n0) batch1 = Unsqueeze (batch, axis)
      target = Concat <axis = 0> (batch1, left) open = Equal (target, less) full = Where (open, ones, target)
      whole = Expand (x, full) y = Add (whole, z)
    }"""
    assert shapes(text)["whole"] == ("b", "s")


def test_an_extent_is_read_where_it_first_appears() -> None:
    """A value that is asked for its shape alone is not kept from a kernel; a known extent is a constant."""
    text = """g (float[b,s,8] x) => (float[b,s,8] y, int64[1] n, int64 d) <int64[1] n1 = {1}, int64 n2 = {2}> {
      e = Exp (x) t = Tanh (e) shape = Shape (e) r = Gather (shape, n1) n = Add (r, n1) w = Gather (shape, n2)
      d = Add (w, n2) y = Neg (t)
    }"""
    model = parse(text)
    made, _ = optimize(model)
    assert "{Exp Tanh Neg}" in ops(made)
    assert [list(n.input) for n in made.graph.node if n.op_type == "Shape"] == [["x"]]
    assert_same_numbers(model, made)


@pytest.mark.parametrize("declared", ["", "<float[1,2,hh,ww] less, float[1,2,hh,ww] more>"])
def test_what_outputs_call_their_extents_holds_nothing_equal(declared: str) -> None:
    """A person calls the height of a smaller image `h`, too, and torch's tracer gives images of four sizes one name."""
    text = f"""g (float[1,2,h,w] x) => (float[1,2,h,w] half, float[1,2,hh,ww] least, int64[6] n) {declared} {{
      half = MaxPool <kernel_shape = [2,2], strides = [2,2], ceil_mode = 1> (x)
      less = MaxPool <kernel_shape = [2,2], ceil_mode = 1> (half)
      more = MaxPool <kernel_shape = [2,2], pads = [1,1,1,1], ceil_mode = 1> (less)
      least = MaxPool <kernel_shape = [2,2], strides = [2,2], ceil_mode = 1> (more)
      a = Shape <start = 2> (half) b = Shape <start = 2> (less) c = Shape <start = 2> (more)
      all = Concat <axis = 0> (a, b, c) n = Neg (all)
    }}"""
    model = parse(text)
    made, _ = optimize(model)
    given = {"x": np.arange(2 * 9 * 7, dtype=np.float32).reshape(1, 2, 9, 7)}
    sizes = [run(m, given)[-1].tolist() for m in (model, made)]
    assert sizes == 2 * [[-5, -4, -4, -3, -5, -4]]


@pytest.mark.parametrize(
    ("window", "places"),
    [
        ("Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)", ("H", "W")),
        ("Conv <pads = [0,1,1,1], strides = [2,1], dilations = [1,2]> (x, w)", ("((H-2)//2+1)", "(W-2)")),
        ('Conv <auto_pad = "SAME_UPPER", strides = [1,2]> (x, w)', ("H", "ceil(W/2)")),
        ('Conv <auto_pad = "VALID", pads = [1,1,1,1]> (x, w)', ("(H-2)", "(W-2)")),
        ("MaxPool <kernel_shape = [2,2], strides = [2,2]> (x)", ("((H-2)//2+1)", "((W-2)//2+1)")),
        ("AveragePool <kernel_shape = [3,1], pads = [1,0,1,0]> (x)", ("H", "W")),
        ("MaxPool <kernel_shape = [2,2], ceil_mode = 1> (x)", (None, None)),
    ],
)
def test_windows_give_the_same_names_for_the_same_places(window: str, places: tuple[DeclaredExtent, ...]) -> None:
    text = (
        f"g (float[N,2,H,W] x, float[2,2,3,3] w) => (float[A,B,C,D] y) {{ s = {window} t = {window} y = Add (s, t) }}"
    )
    found = shapes(text)
    assert found["s"] is not None
    known = (None if types.is_unknown(d) else d for d in extents(*found["s"][2:]))
    assert tuple(known) == extents(*places)


def test_a_residual_of_open_size_joins_its_convolution() -> None:
    """The branch that halves the image by a 1x1 convolution and the one that does it by a 3x3 one agree."""
    text = """g (float[N,8,H,W] x, float[8,8,3,3] w, float[8,8,1,1] v) => (float[A,B,C,D] y) {
      a = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w)
      b = Conv <strides = [2,2]> (x, v)
      y = Add (a, b)
    }"""
    found = shapes(text)
    assert found["a"] == found["b"]
    assert not any(types.is_unknown(d) for d in extents(*found["a"] or (None,)))


def test_a_computed_extent_may_be_what_the_model_calls_otherwise() -> None:
    """The declared name of an output is no reason against a kernel."""
    computed, declared = extents("N", 8, "((H-1)//2+1)"), extents("N", 8, "H2")
    assert not types.shapes_differ(computed, declared)
    assert types.shapes_differ(extents("N", 8), extents("M", 8))
    text = """g (float[N,2,H,W] x) => (float[N,2,H2,W2] y)
    <float[2,1,3,3] w = {1,-2,3,-4,5,-6,7,-8,9,1,2,3,4,5,6,7,8,9}> {
      c = Conv <group = 2, strides = [2,2]> (x, w)
      y = Relu (c)
    }"""
    made, _ = optimize(parse(text), "depthwise")
    assert ops(made) == ["{Conv Relu}"]


CUT = """g (float[b,s,4] x) => (float[b,s,4] y, float[b,s,4] z)
<int64 n1 = {1}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, float[1,9,4] table = {TABLE}> {
  shape = Shape (x)
  rows = Gather (shape, n1)
  end = Unsqueeze (rows, zero)
  places = Slice (table, zero, end, one, one)
  y = Add (x, places)
  all = Slice (x, zero, end, one)
  z = Add (all, y)
}""".replace("TABLE", ", ".join(["1"] * 36))


def test_a_table_of_places_is_cut_to_the_sequence() -> None:
    """It may be shorter than the sequence: the model then does not run, so the sum is as long as the sequence."""
    found = shapes(CUT)
    assert found["places"] == (1, "min(9,s)", 4)
    assert found["y"] == found["all"] == found["z"] == ("b", "s", 4)


def test_a_table_is_cut_to_a_length_that_is_known() -> None:
    assert shapes(CUT.replace("[b,s,4]", "[2,5,4]"))["places"] == (1, 5, 4)


@pytest.mark.parametrize("cut", ["one, end, one, one", "zero, end, one, two"])
def test_other_cuts_are_no_shorter_sequence(cut: str) -> None:
    """From another element on, or in steps that are not 1: nothing is known of the length."""
    found = shapes(CUT.replace("zero, end, one, one", cut))["places"]
    assert found is not None
    assert types.is_unknown(*extents(found[1]))


FOUND_HERE = """agraph (float[b,6,8] x, float[4,1,2] w) => (int64[n,m] y, float[k,l,o] z)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] left = {-1}, int64[1] six = {6}, int64[2] rows = {-1, 8}> {
  flat = Reshape (x, rows)
  best = ArgMax <axis = 1, keepdims = 0> (flat)
  shape = Shape (x)
  batch = Slice (shape, zero, one)
  table = Concat <axis = 0> (batch, six)
  back = Reshape (best, table)
  y = Neg (back)
  line = Concat <axis = 0> (batch, one, left)
  image = Reshape (x, line)
  steps = Conv <strides = [2]> (image, w)
  z = Relu (steps)
}"""


def test_operators_that_only_onnx_knows_follow_extents_that_were_found_here() -> None:
    """The names and the numbers that stand behind a -1 go on through ArgMax and Conv."""
    found = shapes(FOUND_HERE)
    assert found["best"] == ("6*b",)
    assert found["steps"] == ("b", 4, 24)


def test_what_is_found_once_is_all_that_is_found() -> None:
    """Optimized again, with the types that the fused ops declare, a model comes out as it went in."""
    model = parse(FOUND_HERE, 17)
    once = onnxfuse.optimize(model)
    assert [n.op_type for n in once.graph.node if n.op_type in ("Shape", "Concat")] == []
    assert onnxfuse.optimize(once) == once


@pytest.mark.parametrize(
    ("axis", "flat"), [(2, ("196*N", 512)), (-1, ("196*N", 512)), (0, (1, "100352*N")), (3, ("100352*N", 1))]
)
def test_what_is_flattened_has_as_many_elements(axis: int, flat: tuple[DeclaredExtent, ...]) -> None:
    """Either side of a Flatten is the product of its extents, whatever their names."""
    text = f"g (float[N,196,512] x) => (float[A,B] y) {{ f = Flatten <axis = {axis}> (x)  y = Identity (f) }}"
    assert shapes(text)["f"] == flat


def test_a_name_of_a_million_letters_is_left_as_it_is() -> None:
    """It is no expression that an exporter wrote."""
    model = parse("g (float[B,S] x) => (float[B,Q] y) { y = Relu (x) }")
    long = "(" * 500_000 + "s" + ")" * 500_000
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = long
    began = time.monotonic()
    assert types.value_types(inference.infer(model).graph)["x"].shape == extents("B", long)
    assert time.monotonic() - began < 5


def test_one_extent_has_one_name_whatever_an_exporter_declared() -> None:
    """The scores of an attention over a sequence: both of their extents are its length."""
    text = """g (float[B,S] x) => (float[B,Q] y) <float zero = {0}> { a = Relu (x)  y = Add (a, zero) }"""
    model = parse(text)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("a", 1, ["B", "((S**2)//S)"]))
    inferred = types.value_types(inference.infer(model).graph)
    assert inferred["a"].shape == extents("B", "S")


CONCATENATED = """g (float[b,past,8] old, float[b,new,8] fresh) => (float[b,k,8] y, int64[k] places)
<int64 n1 = {1}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] left = {-1}, int64[1] four = {4}, int64[1] two = {2}>
{
  keys = Concat <axis = 1> (old, fresh)
  keys_shape = Shape (keys)  length = Gather (keys_shape, n1)
  old_shape = Shape (old)  first = Gather (old_shape, n1)
  places = Range (first, length, n1)
  batch = Slice (keys_shape, zero, one)  heads = Concat <axis = 0> (batch, left, four, two)
  split = Reshape (keys, heads)
  some, others = Split <axis = 2> (split)
  y = Relu (keys)
}"""


def test_a_sum_of_two_names_is_an_extent() -> None:
    """As of a cache and what is new: what is concatenated, counted on, and split again."""
    found = shapes(CONCATENATED)
    assert found["keys"] == found["y"] == ("b", "(new+past)", 8)
    assert found["places"] == ("new",)
    assert found["split"] == ("b", "(new+past)", 4, 2)
    assert found["some"] == ("b", "(new+past)", 2, 2)


def test_arithmetic_on_an_extent_that_comes_out_is_gone() -> None:
    """Twice as many and two more, less two and halved, are as many."""
    text = """g (float[N,C] x) => (float[A,B] y) <int64[1] two = {2}, int64[1] minus = {-1}> {
      shape = Shape <start = 0, end = 1> (x)
      a = Mul (shape, two) b = Add (a, two) c = Sub (b, two) d = Div (c, two)
      target = Concat <axis = 0> (d, minus)  z = Reshape (x, target)  y = Relu (z)
    }"""
    assert shapes(text)["z"] == ("N", "C")
    made, _ = optimize(parse(text))
    assert ops(made) == ["Relu"]


def test_a_quotient_of_floats_is_not_rounded() -> None:
    """An integer that is cast to float and divided is no integer any more; one that is divided is rounded down."""
    text = """g (float[b,s] x) => (float[m] y, float[n] z, float[o] w, float[p] v, float[q] u)
    <int64[1] one = {1}, int64[1] two = {2}, float[1] float_two = {2}> {
      shape = Shape (x)  rows = Slice (shape, one, two)
      half = Div (rows, two)  back = Mul (half, two)  y = ConstantOfShape (back)
      real = Cast <to = 1> (rows)  two_real = Cast <to = 1> (two)
      part = Div (real, two_real)  all = Mul (part, two_real)  count = Cast <to = 7> (all)  z = ConstantOfShape (count)
      up = Ceil (part)  twice = Mul (up, float_two)  even = Cast <to = 7> (twice)  v = ConstantOfShape (even)
      less = Cast <to = 7> (part)  u = ConstantOfShape (less)  again = Div (real, up)
      left = Mod (rows, two)  both = Add (back, left)  w = ConstantOfShape (both)
    }"""
    found = shapes(text)
    assert found["y"] == ("2*(s//2)",)
    assert found["z"] is not None
    assert types.is_unknown(*extents(found["z"][0]))
    assert found["w"] == ("(s%2+2*(s//2))",)
    assert (found["v"], found["u"]) == (("2*ceil(s/2)",), ("(s//2)",))


def test_extents_found_here_go_through_a_function() -> None:
    """ONNX's inference of its body had them not: of a batch of 1 and a slice that is only known here, it knows nothing.

    The extent of the slice follows from the extent of another input, by integers that ONNX does not follow.
    """
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
    g (float[1, 8, 4] x, float[1, 16, 4] table, int64[1, 8] mask) => (y, z)
    <int64[1] zero = {0}, int64[1] one = {1}, int64 at = {1}> {
      dims = Shape (mask) length = Gather (dims, at) end = Unsqueeze (length, zero)
      part = Slice (table, zero, end, one)
      y = local.Sum (x, part) z = Relu (y) }
    <domain: "local", opset_import: ["": 17]> Sum (a, b) => (c) { s = Relu (a) c = Add (s, b) }"""
    model = inference.infer(onnx.parser.parse_model(text))
    found = {name: written(t.shape) for name, t in types.value_types(model.graph).items()}
    assert found["part"] == (1, 8, 4)
    assert found["y"] == found["z"] == (1, 8, 4)
