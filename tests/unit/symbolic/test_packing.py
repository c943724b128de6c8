"""Weights in few bits: what is packed comes out again, and as ONNX Runtime reads it."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxfuse.symbolic.packing import Packing, packing_of


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed", "real"])
def test_unpacked_is_what_was_packed(bits: int, zeros: str) -> None:
    """Also of an odd number of blocks, whose zero points leave room in their last byte."""
    rng, packing = np.random.default_rng(0), Packing(bits, 16, 48)
    numbers, scales = rng.integers(0, 1 << bits, (5, 48)), rng.standard_normal((5, 3))
    packed, offsets = packing.pack(numbers), rng.integers(0, 1 << bits, (5, 3))
    assert packed.shape == (5, packing.blocks, packing.block_bytes)
    stored = {"none": None, "packed": packing.pack_zero_points(offsets), "real": offsets + 0.25}[zeros]
    assert packing.pack_zero_points(offsets).shape == (5, packing.zero_bytes)
    subtracted = {"none": np.full_like(offsets, packing.middle), "packed": offsets, "real": offsets + 0.25}[zeros]
    expected = (numbers - np.repeat(subtracted, 16, 1)) * np.repeat(scales, 16, 1)
    np.testing.assert_array_equal(packing.unpack(packed, scales, stored, np.float64), expected)


@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (4, True), (8, False), (8, True)])
def test_onnx_runtime_reads_the_same(bits: int, zeros: bool) -> None:
    rng, packing = np.random.default_rng(0), Packing(bits, 32, 96)
    packed = packing.pack(rng.integers(0, 1 << bits, (8, 96)))
    scales = rng.standard_normal((8, 3)).astype(np.float32)
    offsets = packing.pack_zero_points(rng.integers(0, 1 << bits, (8, 3))) if zeros else None
    feeds: dict[str, Any] = {"x": np.eye(96, dtype=np.float32), "w": packed, "s": scales}
    if zeros:
        feeds["z"] = offsets
    kinds = {"x": TensorProto.FLOAT, "w": TensorProto.UINT8, "s": TensorProto.FLOAT, "z": TensorProto.UINT8}
    node = helper.make_node(
        "MatMulNBits", [*feeds], ["y"], domain="com.microsoft", K=96, N=8, bits=bits, block_size=32
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [96, 8])],
    )  # fmt: skip
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, feeds)
    np.testing.assert_allclose(theirs.T, packing.unpack(packed, scales, offsets, np.float32), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("packing", "reason"),
    [
        (Packing(3, 32, 64), "weights of 3 bits, expected 2, 4 or 8"),
        (Packing(4, 8, 64), "blocks of 8 terms, expected a power of two of at least 16"),
        (Packing(4, 48, 96), "blocks of 48 terms, expected a power of two of at least 16"),
        (Packing(4, 32, 80), "80 terms, expected a multiple of the block size, 32"),
        (Packing(4, 32, 64), None),
    ],
)
def test_what_no_kernel_reads_has_a_reason(packing: Packing, reason: str | None) -> None:
    assert packing.reason == reason


def test_the_attributes_of_a_node_say_how_its_weight_is_packed() -> None:
    said = {"K": 64, "block_size": 32}
    assert packing_of(lambda name, default: said.get(name, default)) == Packing(4, 32, 64)
