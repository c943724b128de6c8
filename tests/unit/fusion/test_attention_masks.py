"""Masks, causal ones and ONNX's own Attention: what is known of them, and that the library's op computes the same."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto

from onnxfuse.cuda.planning.arch import SUPPORTED
from onnxfuse.cuda.templates.attention.body import parse_op
from onnxfuse.model.fused import fused_ops
from onnxfuse.runtime.sessions.ort_ops import with_library_ops
from onnxfuse.runtime.sessions.registration import with_forms
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types
from tests.support.small import (
    assert_same_numbers,
    assert_within_budget,
    doubled,
    evaluate,
    fuses,
    optimize,
    parse,
    run,
    signed_inputs,
)

PLAIN = "p = Softmax <axis = -1> (masked)"
SAFE = "raw = Softmax <axis = -1> (masked) lost = IsNaN (raw) p = Where (lost, zero, raw)"


def attention(
    mask: str,
    given: str = "",
    probabilities: str = PLAIN,
    rows: int | str = 5,
    columns: int | str = 5,
    weights: str = "",
) -> str:
    """Return a graph with 2 heads of 4 whose scores `s` become `masked` by the text `mask`."""
    return f"""g (float[2,{rows},8] q, float[2,{columns},8] k, float[2,{columns},8] v{given}) => (float[2,{rows},8] y)
    <int64[4] split = {{0, 0, 2, 4}}, int64[3] join = {{0, 0, -1}}, float half = {{0.5}},
     float zero = {{0}}{weights}> {{
      q4 = Reshape (q, split)
      qh = Transpose <perm = [0,2,1,3]> (q4)
      k4 = Reshape (k, split)
      kt = Transpose <perm = [0,2,3,1]> (k4)
      v4 = Reshape (v, split)
      vh = Transpose <perm = [0,2,1,3]> (v4)
      m = MatMul (qh, kt)
      s = Mul (m, half)
      {mask}
      {probabilities}
      c = MatMul (p, vh)
      ct = Transpose <perm = [0,2,1,3]> (c)
      y = Reshape (ct, join)
    }}"""


def library_form(text: str | ModelProto, opset: int = 17) -> tuple[ModelProto, ModelProto, dict[str, Any]]:
    """Return the model, its form with the library's op, and that op's attributes; one attention must be found."""
    model = parse(text, opset) if isinstance(text, str) else text
    made, report = optimize(model, "attention")
    assert report.by_rule() == {"attention": 1}
    (op,) = fused_ops(made).values()
    assert op.library is not None
    (node,) = (n for n in op.library.node if n.domain)
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert_same_numbers(model, made)
    return model, with_library_ops(made, onnxruntime.SessionOptions(), fused_ops(made)), found


def assert_library_agrees(text: str, opset: int = 17) -> dict[str, Any]:
    """Return the attributes of the library's op, which computes what the model computes."""
    model, library, found = library_form(text, opset)
    assert_same_numbers(model, library, folded=True)
    return found


# ---- conditions and addends

KEEP = "masked = Where (keep, s, low)"
HIDE = "masked = Where (keep, low, s)"
LOW = ", float low = {-inf}"
CHOSEN = ", bool[2,1,1,5] keep"


def half_masked(model: ModelProto, *, hide: bool) -> dict[str, np.ndarray]:
    """Return inputs in which the first row of the batch keeps three keys and the second none."""
    inputs = signed_inputs(model)
    keep = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]], bool).reshape(2, 1, 1, 5)
    return {**inputs, "keep": keep ^ hide}


@pytest.mark.parametrize("probabilities", [PLAIN, SAFE], ids=["plain", "safe"])
@pytest.mark.parametrize("mask", [KEEP, HIDE], ids=["keep", "hide"])
def test_a_row_in_which_everything_is_masked_gives_what_it_gave(mask: str, probabilities: str) -> None:
    """No number from a plain softmax, 0 from torch's function; the other rows are not touched by it."""
    model, library, _ = library_form(infinite(attention(mask, CHOSEN, probabilities, weights=", float low = {-9}")))
    inputs = half_masked(model, hide=mask == HIDE)
    with np.errstate(invalid="ignore"):
        (truth,) = evaluate(
            doubled(model), {k: a.astype(np.float64) if a.dtype.kind == "f" else a for k, a in inputs.items()}
        )
    (before,), (after,) = run(model, inputs), run(library, inputs)
    assert np.isfinite(after[0]).all()
    assert np.isnan(after[1]).all() if probabilities == PLAIN else not after[1].any()
    assert_within_budget("y", truth, before, after, np.float64(np.abs(before[0]).max() * 4))


def infinite(text: str) -> ModelProto:
    """Return the model in `text` with minus infinity for a `low` of -9; ONNX text has no such literal."""
    model = parse(text)
    for low in (t for t in model.graph.initializer if t.name == "low" and onnx.numpy_helper.to_array(t) == -9):
        low.CopyFrom(onnx.numpy_helper.from_array(np.array(-np.inf, np.float32), "low"))
    return model


def test_a_number_that_replaces_scores_is_not_added_to_them() -> None:
    """Where one finite number replaces a whole row the result is a mean; added, it still depends on the scores."""
    made, _ = optimize(parse(attention(KEEP, CHOSEN, weights=", float low = {-60000}")), "attention")
    assert all(op.library is None for op in fused_ops(made).values())


def test_a_safe_softmax_behind_an_added_mask() -> None:
    """What torch's function exports as: with the padding as a float mask."""
    model, library, _ = library_form(attention("masked = Add (s, mask)", ", float[2,1,1,5] mask", SAFE))
    inputs = signed_inputs(model)
    inputs["mask"] = np.array([[0, -np.inf, 0, 0, -1], [-np.inf] * 5], np.float32).reshape(2, 1, 1, 5)
    (before,), (after,) = run(model, inputs), run(library, inputs)
    assert not after[1].any()
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)  # ten float32 roundings, and cancellation in sums


def test_two_masks_are_added_first() -> None:
    """T5 adds a bias by position and the padding."""
    text = attention("a = Add (s, one) masked = Add (two, a)", ", float[1,2,5,5] one, float[2,1,1,5] two")
    assert_library_agrees(text)


@pytest.mark.parametrize("rows", [1, 5, 197])
def test_no_mask_needs_no_care_for_rows(rows: int) -> None:
    """A safe softmax without a mask is a softmax."""
    assert_library_agrees(
        attention("masked = Identity (s)", "", SAFE, rows=rows).replace("masked", "s").replace("s = Identity (s)", "")
    )


@pytest.mark.parametrize(("size", "template"), [(32, "attention"), (24, "attention"), (12, "library")])
def test_a_bias_by_head_on_small_windows_is_found(size: int, template: str) -> None:
    """Swin: the library's op is slower than the nodes there, and the kernel is three times as fast as it."""
    text = attention("masked = Add (s, bias)", ", float[B,2,49,49] bias", rows=49, columns=49)
    text = text.replace("float", "float16").replace(",8]", f",{2 * size}]").replace("2, 4}", f"2, {size}}}")
    text = text.replace("half = {0.5}", "half = {14336}")  # as float16 is written: by its bits
    made, _ = optimize(parse(text))
    assert [op.template for op in fused_ops(made).values() if op.rule == "attention"] == [template]


@pytest.mark.parametrize(
    ("batch", "sequence", "size", "causal", "template"),
    [
        (32, 224, 64, 0, "attention"), (32, 240, 64, 0, "library"), ("N", 224, 64, 0, "attention"),
        (2, 256, 64, 0, "attention"), (2, 512, 64, 0, "library"), ("N", 256, 64, 0, "library"),
        (1, 640, 64, 0, "attention"),
        (1, 1024, 64, 0, "library"), (1, 128, 128, 0, "attention"), (16, 128, 128, 0, "library"),
        (32, 256, 64, 1, "attention"), (1, 384, 64, 1, "library"), ("N", "S", 64, 1, "attention"),
        ("N", "S", 64, 0, "attention"), ("N", "S", 128, 0, "attention"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("spelled", [True, False], ids=["nodes", "op"])
def test_the_kernel_runs_where_it_measured_faster(
    batch: int | str, sequence: int | str, size: int, causal: int, template: str, spelled: bool
) -> None:
    """Up to a number of keys, beyond it where there is little to do in all; an open batch does not tell that.

    Of open length always: for each the library would make a plan of its own.
    """
    row = f"float16[{batch},{sequence},{12 * size}]"
    body = f"y = Attention <is_causal = {causal}, q_num_heads = 12, kv_num_heads = 12> (q, k, v)"
    if spelled:
        length = f"n = Constant <value = int64 {{{sequence}}}> ()"
        if sequence == "S":
            length = "size = Shape (q) at = Constant <value = int64 {1}> () n = Gather (size, at)"
        mask = """zero = Constant <value = int64 {0}> () one = Constant <value = int64 {1}> ()
          front = Constant <value = int64[1] {0}> () back = Constant <value = int64[1] {1}> ()
          low = Constant <value = float16 {64511}> () places = Range (zero, n, one)
          keys = Unsqueeze (places, front) queries = Unsqueeze (places, back)
          keep = LessOrEqual (keys, queries) masked = Where (keep, m, low)"""
        body = f"""heads = Constant <value = int64[4] {{0, 0, 12, {size}}}> ()
          q4 = Reshape (q, heads) qh = Transpose <perm = [0,2,1,3]> (q4)
          k4 = Reshape (k, heads) kt = Transpose <perm = [0,2,3,1]> (k4)
          v4 = Reshape (v, heads) vh = Transpose <perm = [0,2,1,3]> (v4)
          m = MatMul (qh, kt) {length + mask if causal else ""}
          p = Softmax <axis = -1> ({"masked" if causal else "m"}) c = MatMul (p, vh)
          ct = Transpose <perm = [0,2,1,3]> (c)
          join = Constant <value = int64[3] {{0, 0, -1}}> () y = Reshape (ct, join)"""
    made, _ = optimize(parse(f"g ({row} q, {row} k, {row} v) => ({row} y) {{ {body} }}", opset=23))
    assert [op.template for op in fused_ops(made).values() if op.rule == "attention"] == [template]


@pytest.mark.parametrize(("probabilities", "safe"), [(PLAIN, False), (SAFE, True)], ids=["plain", "safe"])
def test_padding_of_a_written_length_has_the_kernel(probabilities: str, safe: bool) -> None:
    """Also where torch's function gives zeros to a row that sees nothing: the kernel reads it off the form."""
    text = attention("masked = Add (s, mask)", ", float[2,1,1,5] mask", probabilities)
    text = text.replace("float", "float16").replace(",8]", ",32]").replace("2, 4}", "2, 16}")
    made, _ = optimize(parse(text.replace("half = {0.5}", "half = {14336}")))  # as float16 is written: by its bits
    (op,) = (op for op in fused_ops(made).values() if op.rule == "attention")
    assert (op.template, parse_op(op).safe, parse_op(op).biases) == ("attention", safe, (3,))


WINDOWS = (
    "first = Add (s, place) apart = Reshape (first, to5) hidden = Add (apart, window) masked = Reshape (hidden, to4)"
)


@pytest.mark.parametrize("per_head", [1, 2])
def test_shifted_windows_have_a_bias_each(per_head: int) -> None:
    """Three windows of an image, two images: both addends are one weight, which is read again for each image."""
    random = np.random.default_rng(0)
    weights = {"place": random.normal(size=(1, 2, 5, 5)), "window": random.normal(size=(1, 3, per_head, 5, 5))}
    text = attention(WINDOWS, weights=", int64[5] to5 = {-1,3,2,5,5}, int64[4] to4 = {-1,2,5,5}")
    text = text.replace("float[2,5,8]", "float[B,5,32]").replace("2, 4}", "2, 16}")
    text = text.replace(
        "to4 = {-1,2,5,5}",
        "to4 = {-1,2,5,5}"
        + "".join(f", float{list(w.shape)} {n} = {{{', '.join(map(str, w.reshape(-1)))}}}" for n, w in weights.items()),
    )
    made, report = optimize(parse(text), "attention", "window_bias")
    assert report.by_rule() == {"attention": 1, "window_bias": 1}
    inputs = {n: random.normal(size=(6, 5, 32)).astype(np.float32) for n in "qkv"}
    library = with_library_ops(made, onnxruntime.SessionOptions(), fused_ops(made))
    (before,), (body,), (after,) = (run(m, inputs) for m in (parse(text), made, library))
    for found in (body, after):  # ten float32 roundings, and cancellation in sums
        np.testing.assert_allclose(found, before, rtol=1e-4, atol=1e-5)


def test_a_bias_by_name_is_no_window() -> None:
    """An extent that the model does not tell is not known to be small."""
    text = attention("masked = Add (s, bias)", ", float[1,2,S,S] bias", rows="S", columns="S")
    assert_library_agrees(text)


# ---- padding that exporters write out for every query

PADDING = """keep = Cast <to = 9> (given) row = Unsqueeze (keep, middle)
  shape = Shape (q) length = Gather (shape, n1) places = Range (n0, length, n1) queries = Unsqueeze (places, back)
  always = GreaterOrEqual (queries, n0)"""
PADDINGS = {
    "beside what always holds": f"{PADDING} both = And (always, row) mask = Where (both, zero, low)"
    " masked = Add (s, mask)",
    "expanded": f"{PADDING} sizes = Shape (s) twice = Expand (row, sizes) mask = Where (twice, zero, low)"
    " masked = Add (mask, s)",
    "expanded behind": f"{PADDING} hide = Not (row) mask = Where (hide, low, zero) sizes = Shape (s)"
    " all = Expand (mask, sizes) masked = Add (s, all)",
}
PLACES = ", int64 n0 = {0}, int64 n1 = {1}, int64[2] middle = {1,2}, int64[3] back = {0,1,3}, float low = {-60000}"


def read_masks(text: str) -> tuple[ModelProto, list[tuple[object, ...]]]:
    """Return the optimized model and the shapes of what attention reads besides queries, keys and values."""
    made, report = optimize(parse(text))
    assert report.by_rule()["attention"] == 1
    ops = fused_ops(made)
    types = value_types(infer(made).graph)
    node = next(n for n in made.graph.node if n.op_type in ops and ops[n.op_type].rule == "attention")
    return made, [shape for v in node.input if (shape := types[v].shape) is not None and len(shape) == 4]


@pytest.mark.parametrize("probabilities", [PLAIN, SAFE], ids=["plain", "safe"])
@pytest.mark.parametrize("columns", [5, "S"])
@pytest.mark.parametrize("mask", PADDINGS.values(), ids=PADDINGS)
def test_a_padding_mask_has_one_row(mask: str, columns: int | str, probabilities: str) -> None:
    """It is read by key; and where it is finite no row is lost, so nothing is made safe."""
    given = f", int64[2,{columns}] given"
    text = attention(mask, given, probabilities, rows=columns, columns=columns, weights=PLACES)
    made, read = read_masks(text)
    assert [tuple(map(str, shape)) for shape in read] == [("2", "1", "1", str(columns))]
    assert_same_numbers(parse(text), made)
    (op,) = (op for op in fused_ops(made).values() if op.rule == "attention")
    assert op.library is not None
    assert "IsNaN" not in {n.op_type for n in op.library.node}


@pytest.mark.parametrize(
    "other",
    [
        ("always = GreaterOrEqual (queries, n0)", "always = GreaterOrEqual (queries, n1)"),
        ("always = GreaterOrEqual (queries, n0)", "always = Less (queries, n1)"),
    ],
)
def test_a_condition_on_queries_stays(other: tuple[str, str]) -> None:
    """One place that is hidden from the first query, or seen by it alone, is a mask by query."""
    text = attention(PADDINGS["beside what always holds"].replace(*other), ", int64[2,5] given", weights=PLACES)
    made, read = read_masks(text)
    assert read == [(2, 1, 5, 5)]
    assert_same_numbers(parse(text), made)


def test_the_mask_of_onnx_attention_keeps_its_rows() -> None:
    """ONNX Runtime's kernel for it refuses a mask of one row."""
    text = onnx_attention("", ", all", ", float[2,1,1,7] mask").replace(
        "c = Attention", "all = Expand (mask, sizes) c = Attention"
    )
    text = text.replace("int64[3] join", "int64[4] sizes = {2,1,5,7}, int64[3] join")
    made, _ = optimize(onnx.parser.parse_model(text))
    assert_same_numbers(onnx.parser.parse_model(text), made)


def test_scores_that_the_mask_makes_larger_keep_its_rows() -> None:
    """The mask of a sum that has its shape from the mask alone is not made smaller."""
    text = """g (float[2,1,1,5] s, float[2,1,1,5] row) => (float[2,1,3,5] y) <int64[4] sizes = {1,1,3,1}> {
      mask = Expand (row, sizes)  y = Add (s, mask)
    }"""
    made, _ = optimize(parse(text))
    assert_same_numbers(parse(text), made)


# ---- causal

SQUARE = ",".join("0" if j <= i else "-65504" for i in range(5) for j in range(5))
RANGE = """shape = Shape (q) length = Gather (shape, n1) places = Range (n0, length, n1)
  keys = Unsqueeze (places, front) queries = Unsqueeze (places, back)"""
NUMBERS = ", int64 n0 = {0}, int64 n1 = {1}, int64[3] front = {0,1,2}, int64[3] back = {0,1,3}, float low = {-65504}"

CAUSAL: dict[str, str] = {
    "constant": attention("masked = Add (s, mask)", weights=f", float[5,5] mask = {{{SQUARE}}}"),
    "compared": attention(
        f"{RANGE} keep = LessOrEqual (keys, queries) mask = Where (keep, zero, low)"
        " masked = Add (mask, s)", weights=NUMBERS
    ),
    "compared, any length": attention(
        f"{RANGE} keep = GreaterOrEqual (queries, keys) masked = Where (keep, s, low)",
        rows="S", columns="S", weights=NUMBERS,
    ),
    "hidden": attention(f"{RANGE} hide = Greater (keys, queries) masked = Where (hide, low, s)", weights=NUMBERS),
    "not hidden": attention(
        f"{RANGE} keep = LessOrEqual (keys, queries) hide = Not (keep)"
        " mask = Where (hide, low, zero) masked = Add (s, mask)",
        weights=NUMBERS,
    ),
    "triangle": attention(
        "ones = Expand (one, size) lower = Trilu <upper = 0> (ones) hide = Equal (lower, zero)"
        " mask = Where (hide, low, zero) masked = Add (s, mask)",
        weights=", float one = {1}, int64[2] size = {5,5}, float low = {-65504}",
    ),
}  # fmt: skip

TABLE = ",".join(str(int(j <= i)) for i in range(7) for j in range(7))
CUT = """q_shape = Shape (q) k_shape = Shape (k) length = Gather (q_shape, n1) width = Gather (k_shape, n1)
  before = Sub (width, length) first = Unsqueeze (before, zeroth) last = Unsqueeze (width, zeroth)
  cut = Slice (table, first, last, queries_axis) cut2 = Slice (cut, zeroth, last, keys_axis)
  keep = Cast <to = 9> (cut2) masked = Where (keep, s, low)"""
CAUSAL["cut out of a table"] = attention(
    CUT, rows="S", columns="S",
    weights=f", uint8[1,1,7,7] table = {{{TABLE}}}, int64 n1 = {{1}}, int64[1] zeroth = {{0}}, float low = {{-65504}},"
    " int64[1] queries_axis = {2}, int64[1] keys_axis = {3}",
)  # fmt: skip
"""GPT-2 up to 2024: with a cache the queries would be the last rows."""

NOT_CAUSAL: dict[str, str] = {
    "without the diagonal": CAUSAL["compared"].replace("LessOrEqual", "Less"),
    "no query before its key": CAUSAL["compared"].replace("LessOrEqual (keys, queries)", "LessOrEqual (queries, keys)"),
    "a mild mask": CAUSAL["compared"].replace("-65504", "-5"),
    "one number off": CAUSAL["constant"].replace("-65504", "-5", 1),
    "counted from one": CAUSAL["compared"]
    .replace("places = Range (n0, length, n1)", "more = Add (length, n1) places = Range (n1, more, n1)")
    .replace("queries = Unsqueeze (places, back)", "from0 = Range (n0, length, n1) queries = Unsqueeze (from0, back)"),
}  # fmt: skip


@pytest.mark.parametrize("text", CAUSAL.values(), ids=CAUSAL)
def test_a_causal_mask_is_an_attribute(text: str) -> None:
    """Known from its numbers or from the comparison of positions; the library's form reads no mask."""
    model, library, found = library_form(text)
    assert found["unidirectional"] == 1
    assert_same_numbers(model, library, folded=True)


@pytest.mark.parametrize(
    "other",
    [
        ("Sub (width, length)", "Sub (width, n1)"),  # the rows begin elsewhere
        ("uint8[1,1,7,7] table", "uint8[1,1,1,1] table"),  # one number, repeated
    ],
)
def test_another_cut_of_a_table_is_not_causal(other: tuple[str, str]) -> None:
    """Where it begins is proven, and that it has a row for each query."""
    text = CAUSAL["cut out of a table"].replace(*other)
    made, _ = optimize(parse(text.replace(TABLE, "1") if "table" in other[0] else text), "attention")
    assert all(op.library is None for op in fused_ops(made).values())


@pytest.mark.parametrize("text", NOT_CAUSAL.values(), ids=NOT_CAUSAL)
def test_what_is_not_known_to_be_causal_is_read_as_it_is(text: str) -> None:
    """One change to a causal mask; the numbers stay what they are."""
    _, _, found = library_form(text)
    assert "unidirectional" not in found
    assert_library_agrees(text)


def test_more_keys_than_queries_are_not_causal_by_attribute() -> None:
    """The library's diagonal ends at the last key, the mask's starts at the first."""
    square = ",".join("0" if j <= i else "-65504" for i in range(5) for j in range(7))
    text = attention("masked = Add (s, mask)", columns=7, weights=f", float[5,7] mask = {{{square}}}")
    assert "unidirectional" not in assert_library_agrees(text)


# ---- ONNX's own op


def onnx_attention(attributes: str = "", more: str = "", given: str = "", columns: int = 7, few: int = 2) -> str:
    return f"""<ir_version: 10, opset_import: ["" : 23]>
    g (float[2,5,32] q, float[2,{columns},{16 * few}] k, float[2,{columns},{16 * few}] v{given}) => (float[2,5,32] y)
    <int64[4] split = {{0, 0, 2, 16}}, int64[4] cut = {{0, 0, {few}, 16}}, int64[3] join = {{0, 0, -1}}> {{
      q4 = Reshape (q, split)
      qh = Transpose <perm = [0,2,1,3]> (q4)
      k4 = Reshape (k, cut)
      kh = Transpose <perm = [0,2,1,3]> (k4)
      v4 = Reshape (v, cut)
      vh = Transpose <perm = [0,2,1,3]> (v4)
      c = Attention {attributes} (qh, kh, vh{more})
      ct = Transpose <perm = [0,2,1,3]> (c)
      y = Reshape (ct, join)
    }}"""


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        pytest.param(onnx_attention(), {"num_heads": 2}, id="its own scale"),
        pytest.param(onnx_attention("<scale = 0.3>"), {"num_heads": 2, "scale": np.float32(0.3)}, id="a scale"),
        pytest.param(onnx_attention("<is_causal = 1>", columns=5), {"num_heads": 2, "unidirectional": 1}, id="causal"),
        pytest.param(onnx_attention("", ", mask", ", float[2,1,5,7] mask"), {"num_heads": 2}, id="an added mask"),
    ],
)
def test_the_attention_of_opset_23(text: str, attributes: dict[str, Any]) -> None:
    """One op for another; what it leaves to a default stays one."""
    assert assert_library_agrees(text) == attributes


def test_a_condition_of_opset_23() -> None:
    """It becomes an addend; of 16-bit types alone, so both are computed in float32 here."""
    text = onnx_attention("", ", mask", ", bool[5,7] mask")
    made, report = optimize(parse(text.replace("float[", "float16[")), "attention")
    assert report.by_rule() == {"attention": 1}
    form = with_library_ops(made, onnxruntime.SessionOptions(), fused_ops(made))
    assert [a.name for n in form.graph.node if n.domain for a in n.attribute] == ["num_heads"]
    for value in (*form.graph.input, *form.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    del form.graph.value_info[:]
    for node in form.graph.node:
        if node.op_type == "Cast":
            node.attribute[0].i = TensorProto.FLOAT
    assert_same_numbers(parse(text), form, folded=True)
    assert fuses(text, "attention").count("Attention") == 1


def flat_attention(attributes: str = "", more: str = "", given: str = "", columns: int = 7, width: int = 32) -> str:
    """Return ONNX's op on heads that lie side by side."""
    return f"""<ir_version: 10, opset_import: ["" : 23]>
    g (float[2,5,32] q, float[2,{columns},{width}] k, float[2,{columns},{width}] v{given}) => (float[2,5,32] y) {{
      y = Attention <{attributes}> (q, k, v{more})
    }}"""


TWO = "q_num_heads = 2, kv_num_heads = 2"


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        (flat_attention(TWO), {"num_heads": 2}),
        (flat_attention(f"{TWO}, scale = 0.3"), {"num_heads": 2, "scale": np.float32(0.3)}),
        (flat_attention(f"{TWO}, is_causal = 1", columns=5), {"num_heads": 2, "unidirectional": 1}),
        (flat_attention(TWO, ", mask", ", float[2,1,5,7] mask"), {"num_heads": 2}),
    ],
    ids=["plain", "a scale", "causal", "an added mask"],
)
def test_the_attention_of_opset_23_on_rows(text: str, attributes: dict[str, Any]) -> None:
    """Heads side by side are what the library's op wants."""
    assert assert_library_agrees(text) == attributes


GIVEN = ", float[2,1,5,7] mask"
STAYS = {
    "causal with more keys": onnx_attention("<is_causal = 1>", columns=7),
    "capped scores": onnx_attention("<softcap = 5.0>"),
    "causal with a mask": onnx_attention("<is_causal = 1>", ", mask", GIVEN),
    "a softmax in another type": onnx_attention("<softmax_precision = 11>"),
    "causal with more keys on rows": flat_attention(f"{TWO}, is_causal = 1"),
    "capped scores on rows": flat_attention(f"{TWO}, softcap = 5.0"),
    "scores that are given out": flat_attention(TWO)
    .replace("(float[2,5,32] y)", "(float[2,5,32] y, float[2,2,5,7] s)")
    .replace("y = Attention", "y, , , s = Attention"),
}  # fmt: skip


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS)
def test_attention_that_the_library_does_otherwise_stays(text: str) -> None:
    """It runs as ONNX Runtime runs it."""
    assert fuses(text, "attention").count("Attention") == 1


# ---- grouped queries


@pytest.mark.parametrize(
    "text",
    [onnx_attention(few=1), flat_attention("q_num_heads = 2, kv_num_heads = 1", width=16)],
    ids=["heads", "rows"],
)
def test_grouped_queries_of_opset_23_are_read_as_repeated_heads(text: str) -> None:
    """As exporters write them out; the kernel reads keys and values once."""
    (name,) = fuses(text, "attention")
    assert name.count("Expand") == 2
    assert "Softmax" in name


GROUPED = """g (float[N,S,32] q, float[N,S,16] k, float[N,S,16] v{given}) => (float[N,S,32] y)
<int64[4] many = {{0, 0, 4, 8}}, int64[4] two = {{0, 0, 2, 8}}, int64[3] join = {{0, 0, -1}}, float half = {{0.5}},
 float zero = {{0}}, int64[1] second = {{2}}, int64[1] pair = {{2}}, int64[1] four = {{4}},
 int64[1] eight = {{8}}{weights}> {{
  q4 = Reshape (q, many)  qh = Transpose <perm = [0,2,1,3]> (q4)
  k4 = Reshape (k, two)  k2 = Transpose <perm = [0,2,1,3]> (k4)
  v4 = Reshape (v, two)  v2 = Transpose <perm = [0,2,1,3]> (v4)
  sizes = Shape (q)  n = Constant <value_ints = [0]> ()  b = Gather (sizes, n)
  l = Constant <value_ints = [1]> ()  length1 = Gather (sizes, l)
  five = Concat <axis = 0> (b, pair, pair, length1, eight)  all = Concat <axis = 0> (b, four, length1, eight)
  k5 = Unsqueeze (k2, second)  kg = Expand (k5, five)  kh = Reshape (kg, all)
  v5 = Unsqueeze (v2, second)  vg = Expand (v5, five)  vh = Reshape (vg, all)
  kt = Transpose <perm = [0,1,3,2]> (kh)
  m = MatMul (qh, kt)
  s = Mul (m, half)
  {mask}
  p = Softmax <axis = -1> (masked)
  c = MatMul (p, vh)
  ct = Transpose <perm = [0,2,1,3]> (c)
  y = Reshape (ct, join)
}}"""


def test_grouped_queries_are_repeated_as_rows() -> None:
    """LLaMA: keys and values are repeated where they lie, nothing is transposed, and a causal mask is not read."""
    mask = f"{RANGE} keep = LessOrEqual (keys, queries) mask = Where (keep, zero, low) masked = Add (mask, s)"
    model, library, found = library_form(GROUPED.format(given="", mask=mask, weights=NUMBERS))
    assert (found["num_heads"], found["unidirectional"]) == (4, 1)
    left = [n.op_type for n in library.graph.node]
    assert (left.count("Transpose"), left.count("Expand"), left.count("Where")) == (0, 2, 0)
    assert_same_numbers(model, library, folded=True)


def test_grouped_queries_with_a_mask_are_repeated_as_rows() -> None:
    """With a mask that is read the op wants a key for each head: they are repeated where they lie."""
    text = GROUPED.format(given=", float[N,1,1,S] mask", mask="masked = Add (s, mask)", weights="")
    model, library, found = library_form(text)
    assert found["num_heads"] == 4
    assert [n.op_type for n in library.graph.node].count("Transpose") == 0
    assert_same_numbers(model, library, folded=True)


TURNED = "k3 = Reshape (kg, matrices)  k3t = Transpose <perm = [0,2,1]> (k3)  kt = Reshape (k3t, turned)"


@pytest.mark.parametrize("keys", ["as heads", "as matrices"])
def test_heads_that_rope_leaves_side_by_side_are_read_as_they_lie(keys: str) -> None:
    """Queries [batch, sequence, heads, size], fewer keys than that: nothing is transposed."""
    text = GROUPED.format(given="", mask="masked = Identity (s)", weights="").replace("(masked)", "(s)", 1)
    text = text.replace("masked = Identity (s)", "").replace("float[N,S,32] q", "float[2,5,4,8] q")
    text = text.replace("float[N,S,16] k", "float[2,5,2,8] k").replace("q4 = Reshape (q, many)  ", "")
    text = text.replace("Transpose <perm = [0,2,1,3]> (q4)", "Transpose <perm = [0,2,1,3]> (q)").replace("(k4)", "(k)")
    text = text.replace("k4 = Reshape (k, two)  ", "").replace("N,S", "2,5")
    if keys == "as matrices":
        text = text.replace("kh = Reshape (kg, all)", TURNED).replace("kt = Transpose <perm = [0,1,3,2]> (kh)", "")
        text = text.replace("float half", "int64[3] matrices = {8,5,8}, int64[4] turned = {2,4,8,5}, float half")
    model, library, found = library_form(text)
    assert found["num_heads"] == 4
    assert [n.op_type for n in library.graph.node].count("Transpose") == 0
    assert_same_numbers(model, library, folded=True)


def test_keys_that_lie_turned_and_apart() -> None:
    """[batch, sequence, heads, size] with the transpose of the heads and that of the product in one."""
    text = attention("masked = Identity (s)").replace("masked = Identity (s)", "").replace("(masked)", "(s)")
    text = text.replace("float[2,5,8] k", "float[2,5,2,4] k").replace("k4 = Reshape (k, split)", "")
    text = text.replace("kh = Transpose <perm = [0,2,1,3]> (k4)", "").replace("(k4)", "(k)")
    model, library, _ = library_form(text)
    assert [n.op_type for n in library.graph.node].count("Transpose") == 0
    assert_same_numbers(model, library, folded=True)


@pytest.mark.parametrize(
    ("mask", "given", "biases"),
    [
        ("masked = Add (s, mask)", ", float[2,1,1200,COLUMNS] mask", (3,)),
        (
            "first = Add (s, slopes) masked = Add (first, mask)",
            ", float[1,2,1,COLUMNS] slopes, float[2,1,1200,COLUMNS] mask",
            (3, 4),
        ),
    ],
)
@pytest.mark.parametrize("columns", [1200, 1201])
def test_a_long_mask_goes_to_the_kernel_on_hopper_alone(
    mask: str, given: str, biases: tuple[int, ...], columns: int
) -> None:
    """Two that are added are two inputs of it. Rows that the copy engine does not read are the library's there, too."""
    text = attention(mask, given.replace("COLUMNS", str(columns)), rows=1200, columns=columns)
    text = text.replace("float", "float16").replace(",8]", ",32]").replace("2, 4}", "2, 16}")
    made, _ = optimize(parse(text.replace("half = {0.5}", "half = {14336}")))  # as float16 is written: by its bits
    (op,) = (op for op in fused_ops(made).values() if op.rule == "attention")
    assert (op.template, parse_op(op).biases) == ("attention", biases)
    runs_by_kernel = {arch.name: with_forms(made, True, (), None, arch)[1][op.name] is None for arch in SUPPORTED}
    assert runs_by_kernel == {arch.name: arch.name == "sm_90a" and columns % 8 == 0 for arch in SUPPORTED}
