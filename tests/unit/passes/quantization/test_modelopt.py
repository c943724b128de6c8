"""Files of NVIDIA's ModelOpt: QuantizeLinear and DequantizeLinear of weights, in int8 and float8.

By its form, as `modelopt.torch.quantization.export_onnx` and `modelopt.onnx.quantization` write it.
"""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, compose, helper, numpy_helper

from onnxfuse.verification import verify
from tests.support.small import ops, optimize, run

TERMS, COLUMNS = 64, 32


def layer(
    dtype: type[np.floating], *, float8: bool = False, stored: bool = False, casts: bool = False, gemm: bool = False
) -> onnx.ModelProto:
    """Return a linear layer with a Relu, quantized on both sides of its product.

    `stored`: the weight is stored in 8 bits, with DequantizeLinear alone. `casts`: scales are float32 in a model of 16
    bits, as ModelOpt writes them for TensorRT.
    """
    random = np.random.default_rng(0)
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    wide = np.float32 if casts else dtype
    most, narrow = (448.0, TensorProto.FLOAT8E4M3FN) if float8 else (127.0, TensorProto.INT8)
    axis = 0 if gemm else 1
    w = (random.standard_normal((COLUMNS, TERMS) if gemm else (TERMS, COLUMNS)) / 8).astype(dtype)
    scales = np.abs(w).max() if float8 else np.abs(w).max(1 - axis)
    sw = np.asarray(scales / most, wide)
    constants = {"w": w, "sx": np.asarray(4 / most, wide), "sw": sw, "b": random.standard_normal(COLUMNS).astype(dtype)}
    along = {} if float8 else {"axis": axis}
    nodes: list[onnx.NodeProto] = []

    def add(op: str, *inputs: str, output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def pair(value: str, scale: str, zero: str, **attributes: int) -> str:
        read = add("Cast", value, output=f"{value}_wide", to=TensorProto.FLOAT) if casts else value
        q = add("QuantizeLinear", read, scale, zero, output=f"{value}_q", **attributes)
        return back(value, add("DequantizeLinear", q, scale, zero, output=f"{value}_dq", **attributes))

    def back(value: str, number_of: str) -> str:
        return add("Cast", number_of, output=f"{value}_back", to=number) if casts else number_of

    x = pair("x", "sx", "z")
    if stored:
        assert float8
        constants["w"] = (w.astype(np.float32) / sw.astype(np.float32)).astype(ml_dtypes.float8_e4m3fn)
        weight = back("w", add("DequantizeLinear", "w", "sw", output="w_dq"))
    else:
        weight = pair("w", "sw", "z" if float8 else "zw", **along)
    if gemm:
        sum_ = add("Gemm", x, weight, "b", output="sum", transB=1)
    else:
        sum_ = add("Add", add("MatMul", x, weight, output="product"), "b", output="sum")
    add("Relu", sum_, output="y")
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    weights.append(helper.make_tensor("z", narrow, [], [0]))
    if not float8:
        weights.append(helper.make_tensor("zw", narrow, [COLUMNS], [0] * COLUMNS))
    graph = helper.make_graph(
        nodes, "layer", [helper.make_tensor_value_info("x", number, ["M", TERMS])],
        [helper.make_tensor_value_info("y", number, ["M", COLUMNS])], weights,
    )  # fmt: skip
    opset = 19 if float8 or (dtype == np.float16 and not casts) else 17
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def assert_same(
    model: onnx.ModelProto, made: onnx.ModelProto, dtype: type[np.floating], *, of_factors: bool = False
) -> None:
    """Assert that ONNX Runtime computes the same by both, up to the rounding of sums, or `of_factors` to float16."""
    x = (np.random.default_rng(1).standard_normal((33, TERMS)) * 2).astype(dtype)
    (before,), (after,) = run(model, {"x": x}), run(made, {"x": x})
    assert after.dtype == before.dtype
    largest = np.abs(before.astype(np.float64)).max()
    assert largest > 1
    difference = np.abs(after.astype(np.float64) - before.astype(np.float64)).max()
    steps = 2 if not of_factors else 4
    assert difference <= (2e-6 if dtype == np.float32 else steps * np.finfo(np.float16).eps) * largest


def runs_by_quotient(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    """Return what ONNX Runtime's CPU provider computes, and what it computes of quotients rounded to the type of `x`.

    ONNX leaves open how QuantizeLinear divides two float16 (from opset 23 on it is the attribute `precision`). ONNX
    Runtime's CPU provider and our kernels divide in float32. Its CUDA provider divides in float16 and then rounds the
    quotient again (cuda/tensor/quantize_linear.cu, RoundSat<half>): close to the middle of two steps that is the other
    one. In float32 both are the same.
    """
    by_quotient = onnx.ModelProto()
    by_quotient.CopyFrom(model)
    first = next(n for n in by_quotient.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "x")
    scale = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == first.input[1]))
    first.input[1] = "one"
    by_quotient.graph.initializer.append(numpy_helper.from_array(np.ones((), scale.dtype), "one"))
    quotients = (x.astype(np.float32) / scale.astype(np.float32)).astype(x.dtype)
    return [run(model, {"x": x})[0], run(by_quotient, {"x": quotients})[0]]


def weight_types(model: onnx.ModelProto) -> set[int]:
    """Return the element types of the matrices that a model stores."""
    return {t.data_type for t in model.graph.initializer if len(t.dims) == 2}


@pytest.mark.parametrize("gemm", [False, True])
@pytest.mark.parametrize(("dtype", "casts"), [(np.float32, False), (np.float16, False), (np.float16, True)])
def test_int8(dtype: type[np.floating], casts: bool, gemm: bool) -> None:
    """The weight is stored in 8 bits, and multiplied in 8 bits by the kernel of the whole layer."""
    model = layer(dtype, casts=casts, gemm=gemm)
    made, _ = optimize(model)
    assert weight_types(made) == {TensorProto.INT8}
    (fused,) = [op for op in ops(made) if "MatMulInteger" in op]
    assert fused.endswith("Add Relu}")
    assert "DequantizeLinear" not in " ".join(ops(made))
    assert_same(model, made, dtype)


@pytest.mark.parametrize("gemm", [False, True])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(("dtype", "casts"), [(np.float32, False), (np.float16, False), (np.float16, True)])
def test_float8(dtype: type[np.floating], casts: bool, stored: bool, gemm: bool) -> None:
    """The weight stays in 8 bits, and one kernel multiplies float8 numbers and scales their sums once."""
    model = layer(dtype, float8=True, stored=stored, casts=casts, gemm=gemm)
    made, report = optimize(model)
    assert weight_types(made) == {TensorProto.FLOAT8E4M3FN}
    rounded, product = ops(made)
    assert rounded == ("{Cast QuantizeLinear}" if casts else "QuantizeLinear")
    back = "" if dtype == np.float32 else " Cast"
    assert product == f"{{DequantizeLinear Cast Transpose MatMul Mul{back} Add Relu}}"
    assert [p.is_integer for p in report.products.values()] == [True]
    assert_same(model, made, dtype, of_factors=dtype == np.float16)
    assert verify(model, made, providers=["CPUExecutionProvider"]).ok


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_quotient_of_float16_may_be_rounded_to_another_step(dtype: type[np.floating], stored: bool) -> None:
    """One of 64 terms by a step of float8 is a hundred times what sums in float32 lose, and four times float16."""
    x = (np.random.default_rng(1).standard_normal((33, TERMS)) * 2).astype(dtype)
    by_float32, by_own = runs_by_quotient(layer(dtype, float8=True, stored=stored), x)
    apart = np.abs(by_own.astype(np.float64) - by_float32.astype(np.float64)).max() / np.abs(by_float32).max()
    assert (apart > 4e-3) == (dtype == np.float16)
    assert apart < (1e-2 if dtype == np.float16 else 1e-6)


@pytest.mark.parametrize("terms", [8, 72])
def test_float8_of_odd_sizes_is_multiplied_as_numbers(terms: int) -> None:
    """The weight is dequantized once, and the layer is the kernel of the model's numbers; one kernel rounds the
    activations to float8."""
    model = layer(np.float16, float8=True, stored=True)
    weight = next(t for t in model.graph.initializer if t.name == "w")
    array = np.resize(numpy_helper.to_array(weight), (terms, COLUMNS))
    weight.CopyFrom(numpy_helper.from_array(array, "w"))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = terms
    made, report = optimize(model)
    assert weight_types(made) == {TensorProto.FLOAT16}
    assert "{QuantizeLinear DequantizeLinear}" in ops(made)
    (product,) = report.products.values()
    assert not product.is_integer
    assert product.reason == "dim(w, 0) % 16 is 8"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_float8_is_written_by_the_product_before(dtype: type[np.floating]) -> None:
    """Two layers: the kernel of the first one writes the float8 numbers that the second one multiplies."""
    first, second = (layer(dtype, float8=True, stored=True) for _ in range(2))
    columns = numpy_helper.to_array(next(t for t in second.graph.initializer if t.name == "w"))[:COLUMNS]
    next(t for t in second.graph.initializer if t.name == "w").CopyFrom(numpy_helper.from_array(columns, "w"))
    second.graph.input[0].type.tensor_type.shape.dim[1].dim_value = COLUMNS
    model = compose.merge_models(compose.add_prefix(first, "a_"), compose.add_prefix(second, "b_"), [("a_y", "b_x")])
    made, _ = optimize(model)
    back = "" if dtype == np.float32 else " Cast"
    assert ops(made)[1:] == [
        f"{{DequantizeLinear Cast Transpose MatMul Mul{back} Add Relu QuantizeLinear}}",
        f"{{DequantizeLinear Cast Transpose MatMul Mul{back} Add Relu}}",
    ]
    report = verify(model, made, providers=["CPUExecutionProvider"])
    assert report.ok, report


def test_products_of_one_input_share_a_launch() -> None:
    """Queries, keys and values: each with its own weight and scale."""
    model = layer(np.float16, float8=True, stored=True)
    graph = model.graph
    for k in range(2):
        for tensor in [t for t in graph.initializer if t.name in ("w", "sw", "b")]:
            array = numpy_helper.to_array(tensor)
            own = array[..., ::-1] if array.ndim else array * np.float16(2 + k)
            graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(own), f"{tensor.name}{k}"))
        graph.node.extend(
            [
                helper.make_node("DequantizeLinear", [f"w{k}", f"sw{k}"], [f"w{k}_dq"]),
                helper.make_node("MatMul", ["x_dq", f"w{k}_dq"], [f"product{k}"]),
                helper.make_node("Add", [f"product{k}", f"b{k}"], [f"sum{k}"]),
                helper.make_node("Relu", [f"sum{k}"], [f"y{k}"]),
            ]
        )
        graph.output.append(helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT16, ["M", COLUMNS]))
    made, _ = optimize(model)
    assert len(ops(made)) == 2
    assert ops(made)[1].count("MatMul") == 3
    assert verify(model, made, providers=["CPUExecutionProvider"]).ok


def test_weights_are_quantized_as_onnx_runtime_does() -> None:
    """Quotients of float32 rounded to even, zero points that differ, saturation, float8 up to 448 steps."""
    w = np.array([[0.5, 1.5, -2.5, 1e6], [-1e6, 0.3, 126.5, 0.125]], np.float32)
    for zero in (np.array([3, -5], np.int8), np.array([3, 250], np.uint8), np.zeros(2, ml_dtypes.float8_e4m3fn)):
        nodes = [
            helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"], axis=0),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=0),
            helper.make_node("Mul", ["d", "x"], ["y"]),
        ]
        values = {"w": w, "s": np.array([0.1, 0.7], np.float32), "z": zero}
        graph = helper.make_graph(
            nodes, "weights", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
            [numpy_helper.from_array(array, name) for name, array in values.items()],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
        made, _ = optimize(model, "softmax")
        assert ops(made)[0] == "DequantizeLinear"
        x = np.ones(1, np.float32)
        np.testing.assert_array_equal(run(made, {"x": x})[0], run(model, {"x": x})[0])


@pytest.mark.parametrize("damage", ["scale of 0", "NaN"])
def test_what_is_no_number_stays(damage: str) -> None:
    """What a division by 0 or NaN becomes is left to the runtime."""
    model = layer(np.float32)
    name = "sw" if damage == "scale of 0" else "w"
    tensor = next(t for t in model.graph.initializer if t.name == name)
    array = numpy_helper.to_array(tensor).copy()
    array.flat[0] = 0 if damage == "scale of 0" else np.nan
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    made, _ = optimize(model)
    assert any("QuantizeLinear" in op and "w_q" in n.output for op, n in zip(ops(made), made.graph.node, strict=True))


def changed(model: onnx.ModelProto, **arrays: np.ndarray) -> onnx.ModelProto:
    """Return the model with other constants."""
    for tensor in model.graph.initializer:
        if tensor.name in arrays:
            tensor.CopyFrom(numpy_helper.from_array(arrays[tensor.name], tensor.name))
    return model


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("scale", ["sx", "sw"])
def test_a_scale_of_0_gives_what_it_gives_in_the_file(dtype: type[np.floating], scale: str) -> None:
    """448 times 0 is 0; 0 / 0 is no number, which is one in float8 and in the sum, too, and none to the Relu."""
    model = changed(layer(dtype, float8=True, stored=True), **{scale: np.zeros((), dtype)})
    made, report = optimize(model)
    assert [p.is_integer for p in report.products.values()] == [True]
    x = (np.random.default_rng(1).standard_normal((33, TERMS)) * 2).astype(dtype)
    x[5, 7] = 0
    (before,), (after,) = run(model, {"x": x}), run(made, {"x": x})
    np.testing.assert_array_equal(after, before)
    assert np.isnan(before[5]).all() == (scale == "sx")
    assert np.isfinite(np.delete(before, 5, 0)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_no_number_passes_through_float8(dtype: type[np.floating]) -> None:
    """NaN in the activations and in the weight; what is infinite saturates."""
    weight = numpy_helper.to_array(
        next(t for t in layer(dtype, float8=True, stored=True).graph.initializer if t.name == "w")
    )
    damaged = weight.copy()
    damaged[3, 4] = np.nan
    model = changed(layer(dtype, float8=True, stored=True), w=damaged)
    made, report = optimize(model)
    assert [p.is_integer for p in report.products.values()] == [True]
    x = (np.random.default_rng(1).standard_normal((33, TERMS)) * 2).astype(dtype)
    x[5, 7], x[6, 8], x[7, 9] = np.nan, np.inf, -np.inf
    (before,), (after,) = run(model, {"x": x}), run(made, {"x": x})
    for y in (before, after):
        assert np.isnan(y[5]).all()
        assert np.isnan(y[:, 4]).all()
        assert np.isfinite(np.delete(np.delete(y, 5, 0), 4, 1)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_e5m2_is_multiplied_as_numbers(dtype: type[np.floating]) -> None:
    """No kernel reads it: the weight is dequantized once, and ONNX Runtime rounds the activations."""
    model = layer(dtype, float8=True, stored=True)
    numbers = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "w")).astype(np.float32)
    zero = next(t for t in model.graph.initializer if t.name == "z")
    zero.CopyFrom(helper.make_tensor("z", TensorProto.FLOAT8E5M2, [], [0]))
    changed(model, w=numbers.astype(ml_dtypes.float8_e5m2))
    made, report = optimize(model)
    assert weight_types(made) == {helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}
    (product,) = report.products.values()
    assert (product.is_integer, product.reason) == (False, "dtype(x) is float8e5m2")
    assert "QuantizeLinear" in ops(made)
    assert_same(model, made, dtype)
    assert verify(model, made, providers=["CPUExecutionProvider"]).ok
