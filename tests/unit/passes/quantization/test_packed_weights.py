"""Products by dequantized weights become MatMulNBits, whatever their form: the same numbers as ONNX Runtime's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.passes import pipeline
from tests.support.quantized_models import in_few_bits
from tests.support.small import ops, parse

RANGES: Mapping[int, tuple[int, int]] = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
}
K, N = 64, 24


@dataclass(frozen=True)
class Form:
    """How a product by a weight in few bits is written."""

    dtype: int
    """Element type of the weight."""
    block: int = 0
    """Terms of a block; 0: one scale for each column, -1: one for all."""
    zero: bool = False
    op: str = "MatMul"
    last: bool = False
    """Whether the weight lies [n, k], and what reads it transposes it."""
    scale: int = TensorProto.FLOAT
    """Element type of the scales; if it is not the model's, a Cast is behind the DequantizeLinear."""
    model: int = TensorProto.FLOAT
    terms: int = K
    gemm: tuple[tuple[str, Any], ...] = ()
    """Attributes of a Gemm."""


def written(form: Form) -> onnx.ModelProto:
    """Return a product of x [batch, terms] in this form; scales are of either sign."""
    rng, along = np.random.default_rng(0), 1 if form.last else 0
    stored = (N, form.terms) if form.last else (form.terms, N)
    element = helper.tensor_dtype_to_np_dtype(form.scale)
    shape: tuple[int, ...] = () if form.block < 0 else (N,)
    attributes: dict[str, Any] = {} if form.block < 0 else {"axis": 1 - along}
    if form.block > 0:
        shape = tuple(-(-d // form.block) if i == along else d for i, d in enumerate(stored))
        attributes = {"axis": along, "block_size": form.block}

    def whole(of: tuple[int, ...]) -> np.ndarray:
        low, high = RANGES[form.dtype]
        return np.asarray(rng.integers(low, high + 1, of), helper.tensor_dtype_to_np_dtype(form.dtype))

    scale = np.asarray(rng.standard_normal(shape) * 0.1, np.float16)
    constants = {"w": whole(stored), "s": scale.astype(element), **({"z": whole(shape)} if form.zero else {})}
    nodes = [helper.make_node("DequantizeLinear", [*constants], ["d"], name="dequantize", **attributes)]
    if form.scale != form.model:
        nodes.append(helper.make_node("Cast", ["d"], ["e"], to=form.model))
    value = nodes[-1].output[0]
    if form.op == "Gemm":
        constants["c"] = rng.standard_normal(N).astype(helper.tensor_dtype_to_np_dtype(form.model))
        transposes: dict[str, Any] = {"transB": 1} if form.last else {}
        nodes.append(
            helper.make_node("Gemm", ["x", value, "c"], ["y"], name="product", **transposes, **dict(form.gemm))
        )
    else:
        if form.last:
            nodes.append(helper.make_node("Transpose", [value], ["t"], perm=[1, 0]))
            value = "t"
        nodes.append(helper.make_node("MatMul", ["x", value], ["y"], name="product"))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", form.model, ["batch", form.terms])],
        [helper.make_tensor_value_info("y", form.model, ["batch", N])],
        [numpy_helper.from_array(a, name) for name, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def computed(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Return what ONNX Runtime computes, node by node: its optimizer lets MatMulNBits quantize activations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return np.asarray(y, np.float64)


@pytest.mark.parametrize(
    "form",
    [
        Form(TensorProto.INT4, 32), Form(TensorProto.UINT4, 16, zero=True), Form(TensorProto.INT4, 32, last=True),
        Form(TensorProto.UINT8, 64, zero=True, op="Gemm", last=True), Form(TensorProto.INT8, op="Gemm"),
        Form(TensorProto.INT8, zero=True, op="Gemm", last=True), Form(TensorProto.UINT8), Form(TensorProto.UINT4, -1),
        Form(TensorProto.INT8, -1, zero=True), Form(TensorProto.INT8, last=True, terms=48),
        Form(TensorProto.INT4, 32, model=TensorProto.FLOAT16), Form(
            TensorProto.INT4, 32, zero=True, last=True, op="Gemm", scale=TensorProto.FLOAT16, model=TensorProto.FLOAT16
        ),
    ],
    ids=str,
)  # fmt: skip
def test_every_form_is_one_product(form: Form) -> None:
    before, model = written(form), written(form)
    pipeline.run(model, [])
    assert ops(model) == ["MatMulNBits", *["Add"] * (form.op == "Gemm")]
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(1).standard_normal((3, form.terms)).astype(helper.tensor_dtype_to_np_dtype(form.model))
    expected = computed(before, x)
    # Sums of float32, or elements of float16 that are rounded before and after the sums.
    rounding = 2.0**-23 if form.model == TensorProto.FLOAT else 2.0**-10
    np.testing.assert_allclose(computed(model, x), expected, rtol=0, atol=rounding * 8 * np.abs(expected).max())


@pytest.mark.parametrize(
    "form",
    [
        Form(TensorProto.INT8, terms=40), Form(TensorProto.INT8, 8), Form(TensorProto.INT4, 48, terms=96),
        Form(TensorProto.INT4, 32, terms=80), Form(TensorProto.INT8, op="Gemm", gemm=(("alpha", 0.5),)),
    ],
    ids=str,
)  # fmt: skip
def test_what_has_no_such_form_stays(form: Form) -> None:
    """Columns of no whole blocks, blocks that no kernel reads, a Gemm that scales its product."""
    model, nodes = written(form), [n.op_type for n in written(form).graph.node]
    pipeline.run(model, [])
    assert ops(model) == nodes


def test_a_scale_that_the_type_of_the_product_does_not_hold_stays() -> None:
    model = written(Form(TensorProto.INT4, 32, model=TensorProto.FLOAT16))
    scale = next(t for t in model.graph.initializer if t.name == "s")
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(1.0001), "s"))
    pipeline.run(model, [])
    assert ops(model) == ["DequantizeLinear", "Cast", "MatMul"]


def test_products_of_one_weight_share_what_it_is_packed_to() -> None:
    model = written(Form(TensorProto.INT4, 32))
    model.graph.node.append(helper.make_node("MatMul", ["x", "d"], ["v"], name="again"))
    model.graph.output.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, ["batch", N]))
    pipeline.run(model, [])
    assert [n.op_type for n in model.graph.node] == ["MatMulNBits"] * 2
    assert model.graph.node[0].input == model.graph.node[1].input
    assert {o.domain for o in model.opset_import} == {"", "com.microsoft"}


def test_scales_in_one_line_get_a_row_for_each_column() -> None:
    """As files of earlier versions of ONNX Runtime's tools have them."""
    model = parse("g (float[N,64] x) => (float[N,24] y) { y = MatMul (x, w) }")
    weight = np.random.default_rng(0).standard_normal((64, 24)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    model = in_few_bits(model)
    before = onnx.ModelProto.FromString(model.SerializeToString())
    scales = next(t for t in model.graph.initializer if t.name.endswith("scales"))
    scales.dims[:] = [48]
    pipeline.run(model, [])
    read = model.graph.node[0].input[2]
    assert [[*t.dims] for t in model.graph.initializer if t.name == read] == [[24, 2]]
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    np.testing.assert_array_equal(computed(model, x), computed(before, x))


@pytest.mark.parametrize(("low", "high", "bits"), [(2, 17, 8), (-20, -7, 8), (1, 7, 4), (-7, -1, 4), (3, 15, 4)])
def test_without_a_zero_point_it_is_zero(low: int, high: int, bits: int) -> None:
    """It takes its place among the numbers of 4 bits, though none of them is 0."""
    rng = np.random.default_rng(0)
    model = parse("g (float[M,64] x) => (float[M,24] y) { d = DequantizeLinear <axis = 1> (w, s) y = MatMul (x, d) }")
    for name, array in (
        ("w", rng.integers(low, high + 1, (64, 24)).astype(np.int8)),
        ("s", np.full(24, 0.5, np.float32)),
    ):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    made = onnx.ModelProto.FromString(model.SerializeToString())
    pipeline.run(made, [])
    assert ops(made) == ["MatMulNBits"]
    assert next(a.i for a in made.graph.node[0].attribute if a.name == "bits") == bits
    x = rng.standard_normal((3, 64)).astype(np.float32)
    np.testing.assert_allclose(computed(made, x), computed(model, x), rtol=0, atol=1e-3)
