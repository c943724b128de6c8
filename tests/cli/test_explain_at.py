"""`onnxfuse explain --at`: the first row is the cause, whichever node of the region is asked about."""

import json
from functools import cache
from pathlib import Path

import onnx
import pytest

from onnxfuse.explanation.explaining import Explained, explain
from tests.cli.conftest import Command
from tests.cli.seeded import SEEDED, Seeded


@cache
def explained(seeded: Seeded) -> Explained:
    """Return what is said of every node of the region, which no test changes."""
    return explain(seeded.model, at=seeded.region)


@pytest.mark.parametrize("seeded", SEEDED, ids=lambda one: one.name)
def test_the_first_row_is_the_cause_at_every_node(seeded: Seeded) -> None:
    """Wherever the attempt began that got furthest; the node, the reason in the model's names, what to do."""
    found = explained(seeded)
    for node in seeded.region:
        _, rows = found.at(node)
        assert rows, node
        matched, rule, stopped, reason = rows[0]
        assert rule == seeded.rule, (node, rows[0])
        assert stopped == (seeded.stopped or node), (node, rows[0])
        assert seeded.reason in reason, (node, rows[0])
        assert " of " in matched


@pytest.mark.parametrize("seeded", SEEDED, ids=lambda one: one.name)
def test_every_node_that_a_row_names_may_be_asked_about(seeded: Seeded) -> None:
    """By the name that was printed; that of a first row is of the model as it came."""
    found = explained(seeded)
    names = {n.name for n in seeded.model.graph.node}
    rows = [found.at(node)[1] for node in seeded.region]
    assert {of_node[0][2] for of_node in rows} <= names
    printed = {row[2] for of_node in rows for row in of_node}
    assert set(explain(seeded.model, at=sorted(printed)).requests) == printed


@pytest.mark.parametrize("seeded", SEEDED, ids=lambda one: one.name)
def test_rules_that_have_nothing_to_do_with_the_place_have_no_row(seeded: Seeded) -> None:
    """At most a handful of rows, each of a rule once."""
    found = explained(seeded)
    for node in seeded.region:
        rows = [row for row in found.at(node)[1] if row[0] != "beside"]
        assert len(rows) <= 6, (node, rows)
        assert len({rule for _, rule, _, _ in rows}) == len(rows)
        assert not {"image_turn", "open_mask", "expand", "window_bias", "rotary"} & {rule for _, rule, _, _ in rows}


def _saved(folder: Path, name: str) -> str:
    (seeded,) = [one for one in SEEDED if one.name == name]
    onnx.save(seeded.model, folder / "seeded.onnx")
    return "seeded.onnx"


def test_names_with_stars_and_names_as_they_are_printed(folder: Path, onnxfuse_command: Command) -> None:
    """`*` and `?` stand for any letters; "Op name" is a name; a typo is answered with the nearest one."""
    model = _saved(folder, "a product of 61 terms")
    several = onnxfuse_command("explain", model, "--at", "*a*").out
    assert several.splitlines()[0].startswith("*a* (2 nodes): linear took")
    assert "dim(w, 0) % 8 is 5" in several
    printed = onnxfuse_command("explain", model, "--at", "MatMul product").out
    assert printed.splitlines()[0] == "MatMul product: linear took it with MatMul + Add + Relu"
    wrong = onnxfuse_command("explain", model, "--at", "produkt")
    assert wrong.code == 2
    assert "Did you mean product?" in wrong.err


def test_fused_ops_values_and_weights_are_names_too(folder: Path, onnxfuse_command: Command) -> None:
    """Whatever a row or a reason prints; of what is given, the nodes that read it."""
    model = _saved(folder, "a product with a computed weight")
    (applied,) = json.loads(onnxfuse_command("explain", model, "--json").out)["applied"]
    for name in ("w", "x", "b", "m", applied["op"]):
        told = onnxfuse_command("explain", model, "--at", name)
        assert told.code == 0, (name, told.err)
        assert "'w' is not a constant" in told.out, name


def test_a_node_that_is_folded_says_so(folder: Path, onnxfuse_command: Command) -> None:
    """No rule took it, and it is not left: a built-in step did."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) <float[1] k = {2}> {
      [folded] two = Neg (k) [act] a = Relu (x) [sum] y = Add (a, two) }"""
    onnx.save(onnx.parser.parse_model(text), folder / "fold.onnx")
    out = onnxfuse_command("explain", "fold.onnx", "--at", "folded").out
    assert out.startswith("folded: folded or removed by a built-in pass")


def test_equal_constants_of_other_names_are_one_value() -> None:
    """Each reduction of a norm has its axes in a constant of its own, as exporters write them from opset 18 on."""
    (seeded,) = [one for one in SEEDED if one.name == "a norm over two axes"]
    text = seeded.text.replace("other = {1}", "other = {-1}")
    assert "(q, other)" in text
    (applied,) = explain(onnx.parser.parse_model(text)).report.applied
    assert (applied.rule, len(applied.nodes)) == ("layer_norm", 9)


def test_what_holds_for_the_whole_model_is_told_at_a_node(folder: Path, onnxfuse_command: Command) -> None:
    """Below the oldest opset nothing is done, whatever the operator."""
    text = """<ir_version: 3, opset_import: ["" : 6]> g (float[4,8] x) => (float[4,8] y) {
      [a] t = Tanh (x) [b] y = Relu (t) }"""
    onnx.save(onnx.parser.parse_model(text), folder / "old.onnx")
    out = onnxfuse_command("explain", "old.onnx", "--at", "a").out
    assert "opset 6 is older than 7, the oldest that ONNX Runtime supports" in out
    assert "no rule starts at its operator" not in out
    out = onnxfuse_command("optimize", "old.onnx", "out.onnx").out
    assert "convert it: onnx.version_converter.convert_version" in out
    assert "no rule fuses" not in out


def test_lost_types_are_told_with_what_restores_them(folder: Path, onnxfuse_command: Command) -> None:
    """Once for the model, with the number of nodes that depend on it, and the line of Python that mends it."""
    model = _saved(folder, "an operator that nobody knows")
    out = onnxfuse_command("explain", model).out
    (note,) = [line for line in out.splitlines() if line.startswith("note: the element type")]
    assert "the element type of 'u', made by Special mine, an operator of my.ops" in note
    assert "3 nodes depend on it" in note
    assert "make_tensor_value_info('u', TYPE, SHAPE)" in note
    mended = onnx.load(folder / model)
    mended.graph.value_info.append(onnx.helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT16, [32, 64]))
    onnx.save(mended, folder / model)
    assert "pointwise took it with Add + Relu + Mul" in onnxfuse_command("explain", model, "--at", "bias").out


def test_a_fused_file_tells_what_a_node_was_and_what_is_inside(folder: Path, onnxfuse_command: Command) -> None:
    """By the fused node's name, and by that of each node that it replaced; the cause is told as of the original."""
    model = _saved(folder, "a product of 61 terms")
    assert onnxfuse_command("optimize", model, "fused.onnx").code == 0
    (fused,) = [n for n in onnx.load(folder / "fused.onnx").graph.node if n.domain == "onnxfuse"]
    assert "in the file  rule    came from   first" in onnxfuse_command("explain", "fused.onnx").out
    for name in ("bias", fused.name or fused.output[0], fused.op_type):
        out = onnxfuse_command("explain", "fused.onnx", "--at", name).out
        assert f"is in the fused op {fused.op_type} (rule linear, kernel pointwise)" in out
        assert "replaces Add bias, Relu act" in out
        assert "= Relu (" in out
        assert "dim(w, 0) % 8 is 5" in out


def test_an_attempt_at_a_node_that_was_rewritten_since_is_told(folder: Path, onnxfuse_command: Command) -> None:
    """Another rule took the BatchNormalization apart; why it is not in the convolution is told all the same."""
    model = _saved(folder, "a kernel that is an input")
    facts = json.loads(onnxfuse_command("explain", model, "--at", "bn", "--json").out)
    assert {a["rule"] for a in facts["applied"]} >= {"batchnorm_alone"}
    assert ("batchnorm", "'w' is not a constant") in {(n["rule"], n["reason"]) for n in facts["near"]}


def test_a_batchnorm_behind_something_else_has_its_row() -> None:
    """Half of a pattern of two is near where its root is no node of any kind."""
    (seeded,) = [one for one in SEEDED if one.name == "a kernel that is an input"]
    text = seeded.text.replace("BatchNormalization (c,", "BatchNormalization (h,").replace(
        "[bn]", "[high] h = Exp (c) [bn]"
    )
    _, rows = explain(onnx.parser.parse_model(text), at=["bn"]).at("bn")
    assert rows[0][1:3] == ("batchnorm", "high")
    assert "is an Exp, the rule wants a Conv" in rows[0][3]


def test_a_whole_table_names_real_values(folder: Path, onnxfuse_command: Command) -> None:
    """Equal misses are one row, and the row has the names of the first."""
    model = _saved(folder, "a norm over two axes")
    out = onnxfuse_command("explain", model, "--rule", "layer_norm", "--near").out
    assert "reads 'other' where the rule wants 'last' again" in out
    assert "a value" not in out


def test_conditions_say_which_value_a_name_of_the_rule_is() -> None:
    """A rule's own names mean nothing to who reads them."""
    (seeded,) = [one for one in SEEDED if one.name == "an attention of a whole layer in float64"]
    near = explain(seeded.model).report.near
    first, *_ = [n for n in near if n.rule == "attention" and n.refusal.cause.kind == "type"]
    assert first.refusal.names == (("qh", "q"),)


def test_what_begins_behind_the_place_has_no_row_for_it() -> None:
    """A product whose sums a norm has taken: half of another rule's pattern stands behind the norm."""
    text = """<ir_version: 10, opset_import: ["" : 18]>
      g (float16[2,32,64] x, float16[2,32,64] r) => (float16[2,32,4,16] y)
      <float16[64,64] w = {W}, float16[64,64] u = {W}, float16[64] b = {B}, float16[64] s = {B},
       int64[4] heads = {0,0,4,16}> {
        [product] m = MatMul (x, w)
        [residual] a = Add (m, r)
        [norm] n = LayerNormalization (a, s, b)
        [query] q = MatMul (n, u)
        [bias] c = Add (q, b)
        [split] y = Reshape (c, heads)
      }""".replace("W", ",".join(["15360"] * 4096)).replace("B", ",".join(["15360"] * 64))
    found = explain(onnx.parser.parse_model(text), at=["product"])
    rows = [row for row in found.at("product")[1] if row[0] != "beside"]
    assert rows[0][1] == "gemm"
    assert "window_bias" not in {rule for _, rule, _, _ in rows}
