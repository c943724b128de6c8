"""Between kernels nothing is left once convolutions lie channels last that optimizing the file again would take out."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from tests.support.small import assert_same_numbers, optimize, parse

N = helper.make_node
ENDS = {
    "Reshape": [N("Reshape", ["c", "s4"], ["y"])],
    "Reshape, Reshape": [
        N("Reshape", ["c", "s4"], ["t"]),
        N("Reshape", ["t", "s2"], ["f"]),
        N("MatMul", ["f", "m"], ["y"]),
    ],
    "Transpose, Transpose": [
        N("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]),
        N("Transpose", ["t"], ["y"], perm=[0, 3, 1, 2]),
    ],
    "Transpose, another": [
        N("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]),
        N("Transpose", ["t"], ["y"], perm=[0, 2, 1, 3]),
    ],
    "Squeeze, Unsqueeze": [N("Squeeze", ["c", "a"], ["t"]), N("Unsqueeze", ["t", "b"], ["y"])],
    "a whole Slice": [N("Softmax", ["c"], ["q"]), N("Slice", ["q", "zero", "sixteen", "one"], ["y"])],
    "a whole Slice to the end": [N("Relu", ["c"], ["q"]), N("Slice", ["q", "zero", "all", "one"], ["y"])],
    "Flatten": [N("Flatten", ["c"], ["t"]), N("MatMul", ["t", "m"], ["y"])],
}
MAKERS = {
    "Conv": N("Conv", ["r1", "w8"], ["c"]),
    "AveragePool": N("AveragePool", ["r1"], ["c"], kernel_shape=[8, 8]),
    "MaxPool": N("MaxPool", ["r1"], ["c"], kernel_shape=[8, 8]),
    "GlobalAveragePool": N("GlobalAveragePool", ["r1"], ["c"]),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("maker", MAKERS)
def test_what_follows_an_image_of_one_pixel_is_done_once(maker: str, end: str) -> None:
    """The optimized file, optimized again, is the same byte for byte; and computes what the original does."""
    rng = np.random.default_rng(0)
    floats = {"w0": (16, 3, 3, 3), "w1": (16, 16, 3, 3), "w8": (16, 16, 8, 8), "m": (16, 4)}
    integers = {
        "s2": [-1, 16],
        "s4": [-1, 1, 1, 16],
        "a": [2, 3],
        "b": [1, 2],
        "zero": [0],
        "sixteen": [16],
        "all": [2**63 - 1],
        "one": [1],
    }
    weights = [numpy_helper.from_array((rng.standard_normal(s) / 8).astype(np.float32), n) for n, s in floats.items()]
    weights += [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in integers.items()]
    nodes = [
        N("Conv", ["x", "w0"], ["c0"], pads=[1, 1, 1, 1]),
        N("Relu", ["c0"], ["r0"]),
        N("Conv", ["r0", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        N("Relu", ["c1"], ["r1"]),
        MAKERS[maker],
        *ENDS[end],
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", 1, None)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    made = onnxfuse.optimize(model)
    again = onnxfuse.optimize(made)
    assert again.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
    assert_same_numbers(model, made, folded=True)


TAKEN_BY_NONE = {
    "ConvTranspose": ("bfloat16[2,C,H,W]", "bfloat16[3,4,3,1] w", "ConvTranspose (x, w)"),
    "ConvTranspose between": ("bfloat16[2,3,7,8]", "bfloat16[3,4,2,2] w", "ConvTranspose (x, w)"),
    "Conv of open channels": (
        "bfloat16[2,C,8,8]",
        "bfloat16[10,1,2,1] w",
        "Conv <group = 5, dilations = [2,1]> (x, w)",
    ),
    "Convs of many channels alone": (
        "bfloat16[2,72,8,8]",
        "bfloat16[72,72,3,3] w",
        "Conv (x, w) b = Conv (c, w) d = Conv (b, w)",
    ),
}


@pytest.mark.parametrize("case", TAKEN_BY_NONE)
def test_a_convolution_that_no_kernel_takes_is_laid_out_once(case: str) -> None:
    """Of bfloat16, where the library has no op and kernels none: no copy before it is added at each turn."""
    image, weight, node = TAKEN_BY_NONE[case]
    dims = [int(d) for d in weight[weight.index("[") + 1 : weight.index("]")].split(",")]
    values = ",".join(["15744"] * int(np.prod(dims)))  # 0.0625
    model = parse(
        f"g ({image} x) => (bfloat16[A,B,C2,D] y) <{weight} = {{{values}}}> "
        f"{{ c = {node} y = Transpose <perm = [0,2,3,1]> ({'d' if 'd =' in node else 'c'}) }}",
        22,
    )
    made = onnxfuse.optimize(model)
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in model.graph.node]
    assert onnxfuse.optimize(made).SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)


@pytest.mark.parametrize("extents", [(8, 8), (4, 8, 8)])
def test_a_convolution_is_laid_out_where_a_kernel_takes_it(extents: tuple[int, ...]) -> None:
    """Of bfloat16 that is decided by fusing: with what follows a kernel takes it, alone none does."""
    shape: list[str | int | None] = ["n", 72, *extents]
    size = (72, 72, *(3 for _ in extents))
    one = np.uint16(15744).tobytes()  # 0.0625
    weight = TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=size, raw_data=one * int(np.prod(size)))
    pads = [1] * 2 * len(extents)
    nodes = [N("Conv", ["x", "w"], ["a"], pads=pads), N("Relu", ["a"], ["b"]), N("Conv", ["b", "w"], ["c"], pads=pads)]
    nodes.append(N("Relu", ["c"], ["y"]))
    values = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight])
    made, report = optimize(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10))
    assert report.by_rule()["implicit_gemm"] == 2
    assert "Conv" not in [n.op_type for n in made.graph.node]
