"""A language model says the same, token after token, once it is optimized."""

import numpy as np
import onnx
import onnxruntime as ort

import onnxfuse
from tests.support.decoder import Arrays, decoder, generate

STEPS = 256


def tokens(model: onnx.ModelProto) -> list[int]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def step(given: Arrays) -> list[np.ndarray]:
        return list(session.run(None, dict(given)))

    return generate(step, STEPS)


def test_greedy_tokens_are_those_of_the_original() -> None:
    """Over 256 steps in float32, each of which reads what the one before has said; they are not all alike."""
    model = decoder()
    expected = tokens(model)
    assert len(set(expected)) > 20
    made = onnxfuse.optimize(decoder())
    assert sum("attention" in n.op_type.lower() for n in made.graph.node) == 2
    assert tokens(made) == expected
