"""Weights that are stored as a row for each group of terms are those of a product in few bits."""

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from tests.support.small import assert_same_numbers, ops, optimize, parse

FORMS = {
    "rows as blocks": "d = DequantizeLinear <axis = 1, block_size = 32> (w, s, z)",
    "rows": "d = DequantizeLinear <axis = 0> (w, r, q)",
}


def product(form: str, low: int, high: int, zero: int, opset: int = 21) -> ModelProto:
    """Return a product by a weight [16, 64] in rows of 32."""
    model = parse(
        f"""g (float[N,64] x) => (float[N,16] y) <int64[2] shape = {{16,64}}> {{
  {FORMS[form]}
  k = Reshape (d, shape)
  t = Transpose <perm = [1,0]> (k)
  y = MatMul (x, t)
}}""",
        opset=opset,
    )
    rng = np.random.default_rng(0)
    scale, zeros = rng.uniform(0.1, 1, 32).astype(np.float32), np.full(32, zero, np.int8)
    constants: dict[str, np.ndarray] = {
        "w": rng.integers(low, high, (32, 32)).astype(np.int8), "s": scale[:, None], "z": zeros[:, None],
        "r": scale, "q": zeros,
    }  # fmt: skip
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("low", "high", "zero", "bits"), [
    (0, 16, 8, 4), (-8, 8, 0, 4), (100, 110, 104, 4), (-128, 128, 3, 8), (0, 17, 8, 8), (-9, 8, 0, 8),
])  # fmt: skip
def test_they_are_packed(form: str, low: int, high: int, zero: int, bits: int) -> None:
    """In 4 bits where their numbers and zero points need no more."""
    model = product(form, low, high, zero)
    made, _ = optimize(model)
    assert ops(made) == ["MatMulNBits"]
    assert next(a.i for a in made.graph.node[0].attribute if a.name == "bits") == bits
    assert_same_numbers(model, made)


def test_before_there_are_blocks() -> None:
    model = product("rows", 0, 16, 8, opset=19)
    made, _ = optimize(model)
    assert "DequantizeLinear" in ops(made)
    assert_same_numbers(model, made)
