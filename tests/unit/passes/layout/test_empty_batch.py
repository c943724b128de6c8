"""A model that runs with an empty batch runs with it once its images lie channels last."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto

import onnxfuse
from tests.support.small import numbers, parse

EXTENTS = {"N": 2, "H": 4, "W": 5, "D": 3}


def network(extents: tuple[int | str, ...]) -> ModelProto:
    """Return two convolutions from an image of one channel to another one."""
    window = [3] * (len(extents) - 2)
    pads = [1] * (2 * len(window))
    weights = [f"float{shape} {name} = {{{numbers(int(np.prod(shape)), step)}}}"
               for name, shape, step in (("w", [8, 1, *window], 5), ("v", [1, 8, *window], 7))]  # fmt: skip
    return parse(f"""g (float[{",".join(map(str, extents))}] x) => (float[{",".join("abcde"[: len(extents)])}] y)
    <{", ".join(weights)}> {{ c = Conv <pads = {pads}> (x, w) r = Relu (c) y = Conv <pads = {pads}> (r, v) }}""")


def run(model: ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("extents", [
    ("N", 1, 3, "W"), ("N", 1, "H", 3), ("N", 1, "H", "W"), ("N", 1, 3, 4), ("N", 1, 1, "W"),
    ("N", 1, "W"), ("N", 1, 4), ("N", 1, 3, 3, "W"), ("N", 1, "D", 2, 2), (2, 1, 3, "W"),
])  # fmt: skip
def test_a_batch_may_be_empty(extents: tuple[int | str, ...]) -> None:
    """Whichever extents are open: no Reshape is left to find one out from a value without elements."""
    model = network(extents)
    made = onnxfuse.optimize(model)
    assert any("Conv" in n.op_type for n in made.graph.node)
    assert onnxfuse.optimize(made).SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
    for batch in (0, 1, 2) if extents[0] == "N" else (2,):
        shape = [batch, *(EXTENTS.get(str(e), e) for e in extents[1:])]
        x = np.random.default_rng(0).standard_normal([int(e) for e in shape]).astype(np.float32)
        before, after = run(model, x), run(made, x)
        assert before.shape == after.shape
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)
