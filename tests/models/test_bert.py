"""BERT computes what transformers' BERT computes, and never looks at padding."""

import numpy as np
import pytest

import models
from tests.models import small


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_padding_changes_no_token(dtype: str) -> None:
    """The embeddings of real tokens depend neither on how much padding follows nor on what stands in it."""
    model = small.build("bert_base", dtype=dtype)
    feeds = small.inputs("bert_base", sequence=11)
    feeds["attention_mask"][:] = np.arange(11) < 7
    padded, pooled = small.run(model, feeds)
    short, pooled_short = small.run(model, {key: values[:, :7] for key, values in feeds.items()})
    # The length may change the order of sums: a few roundings of values up to about 4.
    step = 4 * 2.0 ** (-20 if dtype == "float32" else -8)
    np.testing.assert_allclose(padded[:, :7], short, atol=step)
    np.testing.assert_allclose(pooled, pooled_short, atol=step)
    feeds["input_ids"][:, 7:] = 1
    np.testing.assert_array_equal(small.run(model, feeds)[0][:, :7], padded[:, :7])


def test_every_token_is_seen() -> None:
    """A token that is not masked changes the embeddings of the others."""
    model, feeds = small.build("bert_base"), small.inputs("bert_base")
    feeds["attention_mask"][:] = 1
    feeds["input_ids"][:, -1] = 5
    before = small.run(model, feeds)[0]
    feeds["input_ids"][:, -1] = 6
    assert np.abs(small.run(model, feeds)[0] - before)[:, :-1].max() > 1e-3


def test_inputs_hold_padding_and_two_segments() -> None:
    """Example inputs have a full row, shorter rows, and both token types."""
    feeds = small.inputs("bert_base", batch=8, sequence=16)
    lengths = feeds["attention_mask"].sum(1)
    assert lengths[0] == 16
    assert lengths.min() < 16
    assert set(np.unique(feeds["token_type_ids"])) == {0, 1}
    assert (feeds["input_ids"][feeds["attention_mask"] == 0] == 0).all()


def test_transformers_agrees() -> None:
    """The same weights in transformers' BertModel give the same outputs."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    pytest.importorskip("transformers", reason="transformers is not installed (extra `export`)")
    from models.export import torch_model

    model, feeds = small.build("bert_base"), small.inputs("bert_base")
    reference = torch_model("bert_base", **small.SIZES["bert_base"]).inner
    weights = {name: torch.from_numpy(values) for name, values in small.parameters(model).items()}
    reference.load_state_dict(weights, strict=True)
    with torch.no_grad():
        expected = reference(*map(torch.from_numpy, feeds.values())).to_tuple()
    hidden, pooled = small.run(model, feeds)
    real = feeds["attention_mask"] == 1
    np.testing.assert_allclose(hidden[real], expected[0].numpy()[real], atol=1e-5)
    np.testing.assert_allclose(pooled, expected[1].numpy(), atol=1e-5)


def test_a_fixed_sequence_needs_no_shape_arithmetic() -> None:
    """Where the sequence is a number, the positions are constants, as exporters write them."""
    ops = {
        node.op_type for node in models.build("bert_base", batch=2, sequence=8, **small.SIZES["bert_base"]).graph.node
    }
    assert not ops & {"Shape", "Slice"}
