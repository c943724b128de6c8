"""Models that take no small sizes are run on larger ones: audio windows, images, tables of one length."""

import numpy as np
import pytest
from onnx import ModelProto

from onnxfuse.support.errors import UsageError
from onnxfuse.verification import verify
from onnxfuse.verification.localize.guard import guard
from tests.support.verification.small_models import text_model

CPU = ["CPUExecutionProvider"]
RNG = np.random.default_rng(0)
WINDOW = RNG.standard_normal((4, 1, 400)).astype(np.float32)
TABLE = RNG.standard_normal((1500, 8)).astype(np.float32)


def audio(activation: str = "Relu") -> ModelProto:
    """A window of 400 samples, over [batch, 1, samples]."""
    return text_model(
        "g (float[batch, 1, samples] x) => (float[batch, 4] y) "
        f"{{ c = Conv <strides = [160]> (x, w)  r = {activation} (c)  y = ReduceMax <keepdims = 0> (r, last) }}",
        w=WINDOW, last=np.array([2]),
    )  # fmt: skip


def test_the_sizes_of_an_audio_model_are_found_and_told() -> None:
    """From the constants of the model, where they are: its window; then an odd size, four times that, and a batch."""
    report = verify(audio(), audio(), providers=CPU)
    assert report.ok
    assert report.searched == {"batch": (1, 1, 1, 3), "samples": (400, 451, 1600, 400)}
    sizes = {(1, 1, 400), (1, 1, 451), (1, 1, 1600), (3, 1, 400), (65, 1, 400)}
    assert {c.shapes["x"] for c in report.cases} == sizes
    assert not any(c.note for c in report.cases)
    assert report.as_dict()["searched"]["samples"] == [400, 451, 1600, 400]
    assert not verify(audio(), audio("Identity"), providers=CPU).ok


def test_one_axis_alone_is_searched_too() -> None:
    """An input of rank 1 has no batch: its axis is what there is of samples."""
    model = text_model(
        "g (float[n] x) => (float[b, c, k] y) { u = Unsqueeze (x, front)  y = Conv (u, w) }",
        w=WINDOW, front=np.array([0, 1]),
    )  # fmt: skip
    assert verify(model, model, providers=CPU).searched == {"n": (400, 451, 1600)}


def test_a_size_that_must_be_exact_is_found() -> None:
    """1 stretches to the table's rows, which tells little: the table's own length is found in its shape."""
    model = text_model("g (float[batch, time, 8] x) => (float[batch, k, 8] y) { y = Add (x, table) }", table=TABLE)
    report = verify(model, model, providers=CPU)
    assert report.ok
    assert report.searched["time"][0] == 1500


def test_the_state_of_a_recurrent_model_keeps_its_own_size() -> None:
    """Nothing says that its axis is the batch: all inputs but one are left at 1 in turn."""
    model = text_model(
        "g (float[batch, samples] x, float[2, rows, 4] state) => (float[b, c, d] y, float[s, t, u] next) { "
        "u = Unsqueeze (x, one)  c = Conv <strides = [160]> (u, w)  y = Relu (c)  "
        "top = ReduceMax <keepdims = 0> (c, last)  next = Add (state, top) }",
        w=WINDOW, one=np.array([1]), last=np.array([2]),
    )  # fmt: skip
    searched = verify(model, model, providers=CPU).searched
    assert searched == {"batch": (1, 1, 1, 3), "samples": (400, 451, 1600, 400), "rows": (1, 1, 1, 3)}


def test_images_are_searched_among_those_that_models_are_trained_on() -> None:
    """A patch of 100 pixels fits in none of the small images."""
    rng = np.random.default_rng(0)
    model = text_model(
        "g (float[batch, 1, h, w] x) => (float[a, b, c, d] y) { y = Conv <strides = [100, 100]> (x, k) }",
        k=rng.standard_normal((2, 1, 100, 100)).astype(np.float32),
    )
    assert verify(model, model, providers=CPU).searched["h"][0] == 100


def test_what_was_said_is_not_searched() -> None:
    """A size that was asked for and is refused is an error, as before."""
    with pytest.raises(UsageError, match="the original runs on none of the inputs"):
        verify(audio(), audio(), shapes={"samples": [16], "batch": [1]}, providers=CPU)
    assert verify(audio(), audio(), shapes={"batch": [2]}, providers=CPU).searched["samples"][0] == 400


def test_guard_searches_as_well() -> None:
    """What it checks a fusion on is what the original takes."""

    def optimize(without: object) -> tuple[ModelProto, tuple[str, ...]]:
        return audio("Relu"), ()

    assert guard(audio(), optimize, lambda model, values: 0, providers=CPU).undone == ()
