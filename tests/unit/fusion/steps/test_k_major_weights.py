"""Weights that are stored [n, k] for products of float32, and models that refuse TF32."""

import copy
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.cuda.costs import library
from onnxfuse.fusion import fuse
from onnxfuse.fusion.region.choices import Choices
from onnxfuse.fusion.region.weight_index import SUFFIX
from onnxfuse.fusion.steps import k_major_weights
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.model.fused import fused_ops
from onnxfuse.model.tf32 import set_strict_fp32
from onnxfuse.passes import pipeline
from onnxfuse.shapes.types import Shape, ValueType
from tests.support.small import assert_same_numbers, graph_of, ops, optimize, parse

BLOCK = """<ir_version: 8, opset_import: ["" : 20]>
g (float[N,S,8] x, float[N,S,8] r) => (float[N,S,8] y, float[N,S,7] z)
<float[8,8] w = {WEIGHT}, float[8,7] v = {ODD}> {
  m = MatMul (x, w)
  a = Add (m, r)
  y = Relu (a)
  z = MatMul (r, v)
}""".replace("WEIGHT", ",".join(str(i % 13 - 6) for i in range(64))).replace(
    "ODD", ",".join(str(i % 13 - 6) for i in range(56)))  # fmt: skip

MEASURED = Choices()
"""Where measuring decides, nothing is declined here."""


def test_only_weights_of_kernels_are_turned() -> None:
    """The second product, of seven columns, stays the library's, its weight as it was; the numbers stay the same."""
    model, before = parse(BLOCK), parse(BLOCK)
    pipeline.run(model)
    assert ops(model) == ["{Transpose MatMul Add Relu}", "MatMul"]
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    was = {t.name: onnx.numpy_helper.to_array(t) for t in before.graph.initializer}
    assert set(weights) == {"w.terms_last", "v"}
    np.testing.assert_array_equal(weights["w.terms_last"], was["w"].T)
    onnx.checker.check_model(model, full_check=True)
    assert_same_numbers(before, model)


def test_products_without_a_kernel_stay_where_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of an attempt's products are exchanged in the body of the op alone, which is not made here."""
    monkeypatch.setattr(fuse, "proven_op", lambda *given, **named: "no kernel")
    text = """<ir_version: 8, opset_import: ["" : 20]>
    g (float[N,8] x) => (float[N,8] y, float[N,8] z, float[N,8] e) <float[8,8] w = {WEIGHT}> {
      m = MatMul (x, w)
      e = Exp (x)
      y = Relu (m)
      v = Neg (w)
      n = MatMul (x, v)
      z = Relu (n)
    }""".replace("WEIGHT", ",".join(str(i % 13 - 6) for i in range(64)))
    pipeline.run(model := parse(text))
    assert ops(model) == ["MatMul", "Exp", "Relu", "MatMul", "Relu"]
    assert not any(t.name.endswith(".terms_last") for t in model.graph.initializer)


def test_optimizing_again_changes_nothing() -> None:
    model = parse(BLOCK)
    pipeline.run(model, choices=MEASURED)
    again = onnxfuse.optimize(model)
    assert again.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_what_is_undone_computes_the_same() -> None:
    """The weight has its own axes and its own name again: no node more than there were."""
    model, before = parse(BLOCK), parse(BLOCK)
    pipeline.run(model, choices=MEASURED)
    undone = onnxfuse.unfuse(model)
    assert sorted(ops(undone)) == ["Add", "MatMul", "MatMul", "Relu"]
    assert {t.name for t in undone.graph.initializer} == {"w", "v"}
    assert_same_numbers(before, undone)


@pytest.mark.parametrize("other", ["Add (r, w)", "Gather (w, i)", "Gemm <transB = 1> (rows, w)", "MatMul (q, w)"])
def test_a_weight_that_is_read_as_it_was_too_is_stored_once(other: str) -> None:
    """ONNX Runtime transposes it for the kernel as it makes a session; a vector by a weight has no kernel."""
    shape = {"Gemm": "[A,B]", "MatMul (q": "[8]"}
    text = BLOCK.replace("[N,S,7]", next((s for start, s in shape.items() if other.startswith(start)), "[A,B,C]"))
    text = text.replace("[N,S,8]", "[N,8,8]").replace("r)", "r, float[8] q)", 1).replace("MatMul (r, v)", other)
    text = text.replace("z =", "rows = Reshape (r, s)  z =") if "rows" in other else text
    text = text.replace("float[8,7] v", "int64[2] s = {-1, 8}, int64[2,2] i = {0, 1, 2, 7}, float[8,7] v")
    model, before = parse(text), parse(text)
    pipeline.run(model, choices=MEASURED)
    assert [t.name for t in model.graph.initializer if list(t.dims) == [8, 8]] == ["w"]
    assert {"Transpose", "{Transpose MatMul Add Relu}"} <= set(ops(model))
    assert_same_numbers(before, model)
    assert onnxfuse.optimize(model) == model
    undone = onnxfuse.unfuse(model)
    assert sorted(ops(undone)) == sorted(ops(before))
    assert [t.name for t in undone.graph.initializer if list(t.dims) == [8, 8]] == ["w"]
    assert_same_numbers(before, undone)


def test_a_product_that_is_fused_later_reads_the_weight_that_is_stored_once() -> None:
    """After a file's surgery one product of the weight has a kernel already, the other one gets it now."""
    text = BLOCK.replace("MatMul (r, v)", "MatMul (r, w)").replace("float[N,S,7] z", "float[N,S,8] z")
    half, before = optimize(parse(text), "gemm")[0], parse(text)
    assert ops(half) == ["Transpose", "{Transpose MatMul Add Relu}", "MatMul"]
    for model in (half, before):
        model.graph.node.append(helper.make_node("Relu", ["z"], ["s"]))
        model.graph.output[1].name = "s"
    made = onnxfuse.optimize(half)
    assert ops(made) == ["{Transpose MatMul Add Relu}", "{Transpose MatMul Relu}"]
    assert [t.name for t in made.graph.initializer if list(t.dims) == [8, 8]] == ["w.terms_last"]
    assert_same_numbers(before, made)
    assert sorted(ops(onnxfuse.unfuse(made))) == sorted(ops(before))


def test_onnx_runtime_transposes_a_weight_as_it_makes_a_session(tmp_path: Path) -> None:
    """No run does: of float32 it is a constant in the graph that runs."""
    text = BLOCK.replace("MatMul (r, v)", "MatMul (q, w)").replace("float[N,S,7] z", "float[8] z")
    model = parse(text.replace("r)", "r, float[8] q)", 1))
    pipeline.run(model, choices=MEASURED)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "run.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    run = onnx.load(options.optimized_model_filepath)
    assert all("w" not in n.input for n in run.graph.node if n.op_type == "Transpose")


def test_a_gemm_only_changes_its_layout() -> None:
    text = BLOCK.replace("[N,S,", "[N,").replace("MatMul (x, w)", "Gemm <alpha = 0.5> (x, w)")
    model, before = parse(text), parse(text)
    pipeline.run(model)
    (fused,) = fused_ops(model).values()
    gemm = next(n for n in fused.body.node if n.op_type == "Gemm")
    assert {a.name: onnx.helper.get_attribute_value(a) for a in gemm.attribute} == {"alpha": 0.5, "transB": 1}
    assert_same_numbers(before, model)


@pytest.mark.parametrize("strictly", [True, False])
def test_products_are_fused_in_strict_float32_too(strictly: bool) -> None:
    """Their kernel keeps the digits where the session does not allow TF32."""
    model = parse(BLOCK)
    set_strict_fp32(model, strict=strictly)
    pipeline.run(model, choices=MEASURED)
    assert {op.template for op in fused_ops(model).values()} == {"gemm"}


def test_strict_float32_leaves_other_types_alone() -> None:
    model = parse(BLOCK.replace("float[", "bfloat16["))
    set_strict_fp32(model)
    pipeline.run(model, choices=MEASURED)
    assert {op.template for op in fused_ops(model).values()} == {"gemm"}


@pytest.mark.parametrize("strictly", [True, False])
def test_strict_float32_makes_no_convolution_that_rounds(strictly: bool) -> None:
    """Of a first layer, a window and groups the groups alone have no kernel that keeps the digits."""
    model = parse("""<ir_version: 8, opset_import: ["" : 20]>
    g (float[N,3,16,16] x, float[8,3,3,3] p, float[8,8,3,3] q, float[8,4,3,3] r) => (float[N,8,16,16] y) {
      a = Conv <pads = [1,1,1,1]> (x, k)  b = Relu (a)
      c = Conv <pads = [1,1,1,1]> (b, l)  d = Relu (c)
      e = Conv <pads = [1,1,1,1], group = 2> (d, m)  y = Relu (e) }""")
    for name, old in zip("klm", "pqr", strict=True):
        shape = next([d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input if i.name == old)
        weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    del model.graph.input[1:]
    set_strict_fp32(model, strict=strictly)
    report = pipeline.run(model, choices=MEASURED)
    reasons = [near.refusal.reason for near in report.stopped if near.rule == "direct"]
    assert any("strict float32 was asked for" in r for r in reasons) == strictly
    made = [op.template for op in fused_ops(model).values() if op.template in ("gemm", "direct")]
    assert sorted(made) == ["direct"] * (1 if strictly else 2) + ["gemm"]


@pytest.mark.parametrize("strictly", [True, False])
@pytest.mark.parametrize("node", ["MatMul (x, w)", "Gemm <transB = 1> (x, w)"])
def test_a_product_alone_has_a_kernel(strictly: bool, node: str) -> None:
    """Whether the model allows TF32 or not."""
    model = parse("""<ir_version: 8, opset_import: ["" : 20]>
    g (float[N,8] x) => (float[N,8] y) <float[8,8] w = {WEIGHT}> { m = NODE  y = Softmax (m) }""".replace(
        "WEIGHT", ",".join(str(i % 13 - 6) for i in range(64))
    ).replace("NODE", node))  # fmt: skip
    set_strict_fp32(model, strict=strictly)
    before = copy.deepcopy(model)
    pipeline.run(model)
    assert ops(model)[0] == ("{Transpose MatMul}" if "MatMul" in node else "{Gemm}")
    assert_same_numbers(before, model)


@pytest.mark.parametrize("strictly", [True, False])
def test_a_product_by_large_weights_has_a_kernel_in_strict_float32_alone(strictly: bool) -> None:
    """cuBLAS rounds to TF32 where that is allowed, and is the faster one for many rows."""
    model = parse("""<ir_version: 8, opset_import: ["" : 20]>
    g (float[N,2056] x) => (float[N,2048] y) { m = MatMul (x, w)  y = Softmax (m) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2056, 2048), np.float32), "w"))
    set_strict_fp32(model, strict=strictly)
    pipeline.run(model)
    assert ops(model)[0] == ("{Transpose MatMul}" if strictly else "MatMul")


FEW = """<ir_version: 8, opset_import: ["" : 20]>
g (float16[ROWS,8] x, float16[ROWS,8] r) => (float16[ROWS,8] y) <float16[8,8] w = {WEIGHT}> {
  m = MatMul (x, w)
  a = Add (m, r)
  y = Relu (a)
}""".replace("WEIGHT", ",".join(str(15360 + i) for i in range(64)))


@pytest.mark.parametrize(("rows", "turned"), [("1", True), ("8", True), ("9", False), ("N", False)])
def test_weights_of_few_rows_are_turned(rows: str, turned: bool) -> None:
    """Where their number is known; the numbers stay the same, and undone the weight has its own axes again."""
    model, before = parse(FEW.replace("ROWS", rows)), parse(FEW.replace("ROWS", rows))
    pipeline.run(model)
    assert ops(model) == ["{Transpose MatMul Add Relu}" if turned else "{MatMul Add Relu}"]
    assert_same_numbers(before, model)
    assert {t.name for t in onnxfuse.unfuse(model).graph.initializer} == {"w"}


F16, SQUARE = TensorProto.FLOAT16, (64, 64)


@pytest.mark.parametrize(
    ("left", "weight", "few"),
    [
        (ValueType(F16, (4, 64)), SQUARE, True),
        (ValueType(F16, (2, 2, 64)), SQUARE, True),
        (ValueType(F16, (library.costs().k_major_rows, 64)), SQUARE, True),
        (ValueType(F16, (library.costs().k_major_rows + 1, 64)), SQUARE, False),
        (ValueType(F16, (0, 64)), SQUARE, False),
        (ValueType(F16, (None, 64)), SQUARE, False),
        (ValueType(F16, None), SQUARE, False),
        (ValueType(TensorProto.DOUBLE, (4, 64)), SQUARE, False),
        (ValueType(F16, (4, 64)), (64, 60), False),
        (ValueType(F16, (4, 64)), (64, None), False),
        (ValueType(F16, (4, 64)), None, False),
    ],
)
def test_few_rows_of_16_bits_read_a_weight_by_rows(left: ValueType, weight: Shape, few: bool) -> None:
    """Known to be few, and some; of a weight whose rows and columns are whole vectors."""
    assert k_major_weights._has_few_rows(left, ValueType(F16, weight), False) is few


@pytest.mark.parametrize(("given", "made"), [("", 1), (", transB = 0", 1), (", transB = 1", 0)])
def test_a_gemm_reads_what_its_transpose_reads(given: str, made: int) -> None:
    """The other way round, with its bias; a product by MatMul has the Transpose in its body."""
    weight = "float[8,8] v = {" + ",".join(map(str, range(64))) + "}"
    graph = graph_of(
        parse(f"""g (float[N,8] x, float[8] b) => (float[N,8] y) <{weight}> {{
      t = Transpose <perm = [1,0]> (v) y = Gemm <alpha = 2.0{given}> (x, t, b)
    }}""")
    )
    transpose, gemm = graph.nodes
    to = Rewriter(graph, gemm)
    k_major_weights._read_stored(gemm, transpose, to)
    to.finish()
    (written,) = (n for n in graph.nodes if n.op == "Gemm")
    assert written.inputs == ("x", "v", "b")
    assert graph.attributes(written)["transB"] == made
    assert graph.attributes(written)["alpha"] == 2.0


def test_a_weight_is_turned_back_for_products_alone() -> None:
    """Of a Gemm its attribute goes and the others stay; a Transpose of another library is none of ours."""
    alone = helper.make_graph([], "g", [], [])
    gemm = helper.make_node("Gemm", ["x", f"v{SUFFIX}"], ["y"], alpha=2.0, transB=1)
    assert k_major_weights._undone(alone, gemm)
    assert not k_major_weights._undone(alone, helper.make_node("Gemm", ["x", "v"], ["y"], transB=1))
    assert not k_major_weights._undone(alone, helper.make_node("Gemm", ["x", f"v{SUFFIX}"], ["y"]))
    assert k_major_weights._undone(alone, helper.make_node("Transpose", ["v"], ["t"]))
    assert not k_major_weights._undone(alone, helper.make_node("Transpose", ["v"], ["t"], domain="own"))
    assert not k_major_weights._undone(alone, helper.make_node("Softmax", ["v"], ["t"]))
    turned = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), f"v{SUFFIX}")
    holder = helper.make_graph([gemm], "g", [], [], [turned])
    k_major_weights._turn_one_back(holder, turned.name, holder.initializer[0], [(holder, holder.node[0])])
    assert [a.name for a in holder.node[0].attribute] == ["alpha"]
    assert (holder.node[0].input[1], holder.initializer[0].name) == ("v", "v")
    np.testing.assert_array_equal(numpy_helper.to_array(holder.initializer[0]), [[0, 3], [1, 4], [2, 5]])


def test_a_weight_that_a_fused_op_still_reads_stays_turned() -> None:
    """One of two ops of a weight is undone: its product reads the other one's weight through a Transpose."""
    text = BLOCK.replace("z = MatMul (r, v)", "k = MatMul (r, w) z = Relu (k)").replace(
        "float[N,S,7] z", "float[N,S,8] z"
    )
    model, before = parse(text), parse(text)
    pipeline.run(model, choices=MEASURED)
    (one, other) = (node for node in model.graph.node if node.domain)
    assert unfuse(model, [one.output[0]]) == 1
    assert other in model.graph.node
    assert f"w{SUFFIX}" in other.input
    assert_same_numbers(before, model)


def test_transposes_of_the_models_own_stay_as_they_are() -> None:
    """Also one behind another, which are no weight that was turned."""
    model = parse(BLOCK)
    pipeline.run(model, choices=MEASURED)
    model.graph.node.extend(
        [helper.make_node("Transpose", ["y"], ["a"], perm=[1, 0, 2]), helper.make_node("Transpose", ["a"], ["b"])]
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("b", TensorProto.FLOAT, ["A", "B", "C"]))
    before = copy.deepcopy(model)
    unfuse(model)
    assert [op for op in ops(model) if op == "Transpose"] == ["Transpose"] * 2
    assert_same_numbers(before, model)


def test_a_batch_of_weights_keeps_its_layout() -> None:
    """Only a matrix is turned."""
    for shape, wanted in (("[8,8]", True), ("[1,8,8]", False)):
        graph = graph_of(parse(BLOCK.replace("float[8,8] w", f"float{shape} w")))
        assert k_major_weights._wants(graph, graph.nodes[0], Mock(decodes=False)) is wanted


def test_weights_of_open_rows_are_turned_where_the_graph_keeps_a_cache() -> None:
    """A step of decoding has one row; without a cache the rows of many tokens are as likely."""
    text = (
        FEW.replace("ROWS", "N")
        .replace("float16[N,8] y)", "float16[N,8] y, float16[N,2,T,8] present)")
        .replace("float16[N,8] r)", "float16[N,8] r, float16[N,2,P,8] past, float16[N,2,1,8] new)")
    )
    model = parse(text.replace("y = Relu (a)", "y = Relu (a) present = Concat <axis = 2> (past, new)"))
    pipeline.run(model)
    assert ops(model)[0] == "{Transpose MatMul Add Relu}"
