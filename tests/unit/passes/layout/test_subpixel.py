"""Transposed convolutions as convolutions over blocks: the same numbers as ONNX Runtime's, and never a product more."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfuse.fusion.steps.pointwise import host_values
from onnxfuse.graph import concrete_shapes
from onnxfuse.passes import pipeline
from onnxfuse.runtime.sessions.opening import refusal
from onnxfuse.shapes.inference import infer
from tests.support.small import graph_of, ops, run

OPSETS = (7, 8, 10, 11, 13, 17, 18, 21, 23)


def model(
    rank: int,
    kernel: list[int],
    size: list[int | str],
    *,
    channels: int = 8,
    filters: int = 8,
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    bias: bool = True,
    behind: bool = True,
    **attributes: Any,
) -> ModelProto:
    """Return Conv -> ConvTranspose -> LeakyRelu -> Conv over whole numbers, of which all sums are exact.

    Without what is `behind` it ends at the transposed convolution.
    """
    ones = [1] * rank
    group = attributes.get("group", 1)
    assert isinstance(group, int)

    def weight(name: str, *shape: int) -> TensorProto:
        numbers = (np.arange(np.prod(shape)) * 7 % 11 - 5).reshape(shape)
        return numpy_helper.from_array(numbers.astype(helper.tensor_dtype_to_np_dtype(dtype)), name)

    nodes = [
        helper.make_node("Conv", ["image", "u"], ["x"]),
        helper.make_node("ConvTranspose", ["x", "w", *["b"] * bias], ["y"], **attributes),
        helper.make_node("LeakyRelu", ["y"], ["r"], alpha=0.5),
        helper.make_node("Conv", ["r", "v"], ["z"]),
    ]
    ends = (("y", filters), ("z", 2)) if behind else (("y", filters),)
    graph = helper.make_graph(
        nodes if behind else nodes[:2], "g", [helper.make_tensor_value_info("image", dtype, ["N", 2, *size])],
        [helper.make_tensor_value_info(o, dtype, ["N", n, *"ABC"[:rank]]) for o, n in ends],
        [weight("u", channels, 2, *ones), weight("w", channels, filters // group, *kernel), weight("b", filters),
         weight("v", 2, filters, *ones)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def image(model: ModelProto, shape: list[int]) -> np.ndarray:
    dtype = helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    return np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)


def optimized(before: ModelProto) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(before)
    pipeline.run(made, opens=refusal)
    return made


def same(before: ModelProto, x: np.ndarray) -> ModelProto:
    """Assert that what is made computes the very numbers, and return it."""
    made = optimized(before)
    for one, other in zip(run(before, {"image": x}), run(made, {"image": x}), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    return made


def is_spread(made: ModelProto) -> bool:
    return any("ConvTranspose" in op for op in ops(made))


@st.composite
def geometries(draw: st.DrawFn, rank: int) -> dict[str, list[int] | str]:
    """Draw kernels, strides and paddings of every kind that ONNX Runtime takes; of volumes products alone."""
    strides = [draw(st.integers(1, 4)) for _ in range(rank)]
    kernel = [s * draw(st.integers(1, 3 if rank < 3 else 1)) for s in strides]
    found: dict[str, list[int] | str] = {"strides": strides, "kernel": kernel}
    more = [draw(st.integers(0, s - 1)) for s in strides]
    if any(more):
        found["output_padding"] = more
    auto = draw(st.sampled_from(["", "", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if auto:
        found["auto_pad"] = auto
    else:
        found["pads"] = [draw(st.integers(0, kernel[at % rank] - 1)) for at in range(2 * rank)]
    return found


@given(data=st.data(), rank=st.sampled_from([1, 2, 3]), bias=st.booleans(), opset=st.sampled_from(OPSETS))
def test_any_geometry_computes_the_same(data: st.DataObject, rank: int, bias: bool, opset: int) -> None:
    """Kernels of whole strides, any padding on either side, output_padding, auto_pad; sizes known or not."""
    told: dict[str, Any] = data.draw(geometries(rank))
    kernel = told.pop("kernel")
    assert isinstance(kernel, list)
    size = [data.draw(st.integers(4, 6)) for _ in range(rank)]
    open_ = data.draw(st.sampled_from(["none", "all", "first"]))
    names: list[int | str] = [
        f"D{at}" if open_ == "all" or (open_ == "first" and at == 0) else n for at, n in enumerate(size)
    ]
    before = model(rank, kernel, names, opset=opset, bias=bias, **told)
    same(before, image(before, [2, 2, *size]))


@given(st.data())
def test_an_output_shape_that_is_asked_for(data: st.DataObject) -> None:
    """It says how much is cut off, of all sides alike. ONNX's inference takes it for a matrix, which none can read."""
    strides, size, cut = ([data.draw(st.integers(*of)) for _ in range(2)] for of in ((1, 3), (4, 6), (0, 3)))
    asked = [(n + 1) * s - c for n, s, c in zip(size, strides, cut, strict=True)]
    before = model(2, [2 * s for s in strides], list(size), strides=strides, output_shape=asked, behind=False)
    same(before, image(before, [1, 2, *size]))


TAKEN: Mapping[str, tuple[int, Any, list[int | str], dict[str, Any]]] = {
    "a vocoder": (1, [8], [9], {"strides": [4], "pads": [2, 2]}),
    "a vocoder, open": (1, [8], ["L"], {"strides": [4], "pads": [2, 2]}),
    "a decoder of sound": (1, [10], ["L"], {"strides": [5]}),
    "U-Net": (2, [2, 2], [5, 6], {"strides": [2, 2]}),
    "U-Net, open": (2, [2, 2], ["H", "W"], {"strides": [2, 2]}),
    "U-Net of volumes": (3, [2, 2, 2], [3, 4, "W"], {"strides": [2, 2, 2]}),
    "frames stay": (3, [1, 2, 3], [3, "H", 4], {"strides": [1, 2, 3]}),
    "DCGAN": (2, [4, 4], ["H", "W"], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "columns alone": (2, [3, 4], ["H", "W"], {"strides": [1, 2], "pads": [1, 1, 1, 1]}),
    "more than a block is cut at one end": (1, [4], [6], {"strides": [2], "pads": [4, 0]}),
    "rows alone": (2, [4, 1], ["H", 6], {"strides": [2, 1], "pads": [1, 0, 1, 0]}),
}


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_the_layers_of_real_nets_are_taken(name: str, dtype: int) -> None:
    rank, kernel, size, told = TAKEN[name]
    before = model(rank, kernel, size, dtype=dtype, **told)
    x = image(before, [2, 2, *(n if isinstance(n, int) else 6 for n in size)])
    made = same(before, x) if dtype == TensorProto.FLOAT else optimized(before)
    assert not is_spread(made)


@pytest.mark.parametrize("opset", [7, 8, 9])
def test_old_operator_sets(opset: int) -> None:
    """Before opset 9 a Constant holds no whole numbers: no op has a Reshape inside."""
    before = model(2, [2, 2], [5, 6], opset=opset, strides=[2, 2])
    made = same(before, image(before, [1, 2, 5, 6]))
    assert any("MatMul Add Reshape" in op for op in ops(made)) == (opset == 9)


LEFT: Mapping[str, tuple[int, Any, list[int | str], dict[str, Any]]] = {
    "unlike numbers of taps": (2, [3, 3], [5, 6], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "groups": (2, [2, 2], [5, 6], {"strides": [2, 2], "group": 2}),
    "dilations": (2, [2, 2], [5, 6], {"strides": [2, 2], "dilations": [2, 1]}),
    "stride 1": (2, [3, 3], [5, 6], {"pads": [1, 1, 1, 1]}),
    "channels that are no multiple of 8": (2, [2, 2], [5, 6], {"strides": [2, 2], "channels": 7}),
    "pixels of a block that are none": (2, [2, 2], [5, 6], {"strides": [2, 2], "filters": 3}),
    "rows alone, open": (2, [2, 1], ["H", "W"], {"strides": [2, 1]}),
    "volumes of overlapping windows": (3, [4, 4, 4], [3, 4, 5], {"strides": [2, 2, 2], "pads": [1] * 6}),
    "volumes of open sizes": (3, [2, 2, 2], [3, "H", "W"], {"strides": [2, 2, 2]}),
    "an odd number to cut": (2, [4, 2], [6, 6], {"strides": [2, 2], "output_shape": [13, 12], "behind": False}),
    "all of the first blocks are cut": (1, [4], [6], {"strides": [2], "pads": [4, 4]}),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_known_to_be_exact_and_no_slower_stays(name: str) -> None:
    rank, kernel, size, told = LEFT[name]
    before = model(rank, kernel, size, **told)
    assert is_spread(same(before, image(before, [1, 2, *(n if isinstance(n, int) else 6 for n in size)])))


@pytest.mark.parametrize("name", TAKEN)
def test_an_infinity_reaches_what_it_reached(name: str) -> None:
    """No weight of zero is put where there was none: 0 times an infinity is NaN."""
    rank, kernel, size, told = TAKEN[name]
    before = model(rank, kernel, size, **told)
    x = image(before, [1, 2, *(n if isinstance(n, int) else 6 for n in size)])
    x[(0, 0, *[2] * rank)] = np.inf
    made = optimized(before)
    for one, other in zip(run(before, {"image": x}), run(made, {"image": x}), strict=True):
        np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))


def test_the_work_after_it_and_the_crop_are_one_kernel() -> None:
    """Bias in the convolution's kernel; what cuts the padding off applies the activation, and writes both."""
    made = optimized(model(1, [8], [9], channels=48, dtype=TensorProto.FLOAT16, strides=[4], pads=[2, 2]))
    found = ops(made)
    assert "{Transpose Transpose Conv Transpose Add}" in found
    assert "{Slice LeakyRelu}" in found


@pytest.mark.parametrize(("opset", "nodes"), [(14, 4), (15, 3)])
def test_the_target_of_open_extents_takes_few_nodes_on_the_host(opset: int, nodes: int) -> None:
    """Whatever the batch is, none included; and what is behind keeps its extents: ONNX's inference reads the target."""
    before = model(1, [8], ["L"], strides=[4], pads=[2, 2], opset=opset)
    behind, window = before.graph.node[3], np.ones((2, 8, 3), np.float32)
    behind.attribute.append(helper.make_attribute("pads", [1, 1]))
    before.graph.initializer[3].CopyFrom(numpy_helper.from_array(window, "v"))
    for batch in (3, 0):
        made = same(before, image(before, [batch, 2, 9]))
    graph = graph_of(made)
    host = host_values(graph)
    assert sum(not host.isdisjoint(n.outputs) for n in graph.nodes) == nodes
    sized, _ = concrete_shapes.with_sizes(made, dict.fromkeys(concrete_shapes.open_dims(made), 9))
    types = concrete_shapes.every_type(infer(sized).graph)
    assert all(isinstance(d, int) for n in made.graph.node for o in n.output for d in types[o].shape or (None,))
