"""GPT-2 computes what transformers' GPT-2 computes, and never looks ahead."""

import numpy as np
import pytest

from tests.models import small


def test_no_token_sees_the_next() -> None:
    """Another last token changes the last hidden state, and no other."""
    model, feeds = small.build("gpt2"), small.inputs("gpt2")
    before = small.run(model, feeds)[0]
    feeds["input_ids"][:, -1] = (feeds["input_ids"][:, -1] + 1) % 97
    after = small.run(model, feeds)[0]
    np.testing.assert_array_equal(after[:, :-1], before[:, :-1])
    assert np.abs(after[:, -1] - before[:, -1]).max() > 1e-2


def test_transformers_agrees() -> None:
    """The same weights in transformers' GPT2Model give the same hidden states."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    pytest.importorskip("transformers", reason="transformers is not installed (extra `export`)")
    from models.export import torch_model

    model, feeds = small.build("gpt2"), small.inputs("gpt2")
    reference = torch_model("gpt2", **small.SIZES["gpt2"]).inner
    weights = {name: torch.from_numpy(values) for name, values in small.parameters(model).items()}
    reference.load_state_dict(weights, strict=True)
    with torch.no_grad():
        expected = reference(torch.from_numpy(feeds["input_ids"])).last_hidden_state
    np.testing.assert_allclose(small.run(model, feeds)[0], expected.numpy(), atol=1e-5)
