"""A decoder says the same, token after token, on a real GPU: by our kernels and by ONNX Runtime's own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxfuse
from tests.gpu.test_kernels import _gpu
from tests.support.decoder import Arrays, decoder, generate

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

STEPS = 256
EXACT: list[str | tuple[str, Mapping[str, Any]]] = [
    ("CUDAExecutionProvider", {"use_tf32": "0"}),
    "CPUExecutionProvider",
]


def tokens(session: ort.InferenceSession) -> list[int]:
    def step(given: Arrays) -> list[np.ndarray]:
        return list(session.run(None, dict(given)))

    return generate(step, STEPS)


def test_greedy_tokens_in_float32() -> None:
    """All 256 of a model whose products keep float32's digits, from caches that grow step after step."""
    model = onnxfuse.optimize(decoder())
    session = onnxfuse.session(model, EXACT)
    original = ort.InferenceSession(decoder().SerializeToString(), providers=EXACT)
    assert tokens(session) == tokens(original)


def test_caches_hold_what_was_given() -> None:
    """In float16 what a cache already has is copied as it is, to the last bit, and one row comes behind it."""
    model: onnx.ModelProto = onnxfuse.optimize(decoder(np.float16))
    session = onnxfuse.session(model, EXACT)
    seen: list[np.ndarray] = []

    def step(given: Arrays) -> list[np.ndarray]:
        outputs = list(session.run(None, dict(given)))
        for name, grown in zip([n for n in given if n.startswith("past_")], outputs[1:], strict=True):
            seen.append(grown)
            assert grown[:, :, :-1].tobytes() == given[name].tobytes()
        return outputs

    generate(step, 8, np.float16)
    assert len(seen) == 32
