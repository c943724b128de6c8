"""Launch programs on a real GPU: a stream of shapes gives, bit for bit, what planning each of them gives."""

import random
import threading

import numpy as np
import onnxruntime
import pytest

import models
import onnxfuse
from onnxfuse import runtime
from onnxfuse.runtime.engine.bridge import bridge
from onnxfuse.runtime.kernels import ahead_of_time, programs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(runtime.cuda_unusable() is not None, reason=f"no GPU: {runtime.cuda_unusable()}"),
]

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
SHAPES = 60
THREADS = 8


def feeds(chance: random.Random) -> dict[str, np.ndarray]:
    return models.example_inputs(
        "bert_base", batch=chance.randint(1, 8), sequence=chance.randint(1, 200), dtype="float16"
    )


def stream() -> list[dict[str, np.ndarray]]:
    chance = random.Random(1)
    return [feeds(chance) for _ in range(SHAPES)]


def bits(session: onnxruntime.InferenceSession, given: dict[str, np.ndarray]) -> list[bytes]:
    return [y.tobytes() for y in session.run(None, given)]


def wrong_in_threads(session: onnxruntime.InferenceSession, planned: list[list[bytes]]) -> list[int]:
    """Return which of the stream came out otherwise than `planned` in threads, each of which takes its own order."""
    given, wrong = stream(), list[int]()

    def work(seed: int) -> None:
        order = random.Random(seed).sample(range(SHAPES), SHAPES)
        wrong.extend(n for n in order if bits(session, given[n]) != planned[n])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


@pytest.fixture(scope="module")
def fused() -> bytes:
    made = onnxfuse.optimize(models.build("bert_base", dtype="float16", layers=2))
    return bytes(made.SerializeToString())


@pytest.fixture(scope="module")
def planned(fused: bytes) -> list[list[bytes]]:
    """The outputs for each shape of the stream, by a session that learns no program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs.Programs, "learn", lambda *facts: None)
        session = runtime.session(fused, CUDA)
        return [bits(session, given) for given in stream()]


def test_a_stream_is_what_is_planned_shape_by_shape(
    fused: bytes, planned: list[list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead_of_time, "MOST_THREADS", 0)  # a run waits until its programs are recorded
    session = runtime.session(fused, CUDA)
    before = sum(bridge().answers().values())
    assert [bits(session, given) for given in stream()] == planned
    # Seven ops, of which each has seen its first shape, and others that its program had to learn.
    assert sum(bridge().answers().values()) - before > 3 * SHAPES


def test_threads_with_shapes_in_other_orders(fused: bytes, planned: list[list[bytes]]) -> None:
    assert not wrong_in_threads(runtime.session(fused, CUDA), planned)
