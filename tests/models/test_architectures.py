"""Laws that hold for every sample model."""

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import models
from models.network import Form, start
from models.weights import seeded
from onnxfuse import UsageError
from tests.models import small

NAMES = sorted(small.SIZES)


def test_every_drawn_model_has_a_small_twin() -> None:
    """A new architecture is not forgotten here."""
    assert {*NAMES, "minilm", "training_step"} == set(models.ARCHITECTURES)


@pytest.mark.parametrize("opset", [13, 17, 20, 23])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_every_form_is_valid_and_alive(name: str, dtype: str, opset: int) -> None:
    """A model passes the checker and its outputs neither explode, nor vanish, nor ignore the input."""
    model = small.build(name, dtype=dtype, opset=opset)
    onnx.checker.check_model(model, full_check=True)
    for output in small.run(model, small.inputs(name, dtype=dtype)):
        assert np.isfinite(output).all()
        assert 0.05 < output.std() < 20
        assert np.abs(output[0] - output[1]).max() > 0.01 * output.std()


@pytest.mark.parametrize("name", NAMES)
def test_the_opset_changes_the_spelling_only(name: str) -> None:
    """LayerNormalization and Gelu compute the same whether they are one op or spelled out."""
    feeds = small.inputs(name)
    expected = small.run(small.build(name, opset=20), feeds)
    for opset in (13, 17):
        for output, same in zip(small.run(small.build(name, opset=opset), feeds), expected, strict=True):
            # Tens of float32 roundings in sequence, each 6e-8 of the largest value.
            assert np.abs(output - same).max() < 1e-5 * np.abs(same).max()


@pytest.mark.parametrize("name", NAMES)
def test_float16_is_the_same_model_rounded(name: str) -> None:
    """A float16 model has the weights of the float32 one, and float16 all through."""
    model = small.build(name, dtype="float16")
    assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.FLOAT16}
    feeds = small.inputs(name)
    halves = {key: x.astype(np.float16) if x.dtype == np.float32 else x for key, x in feeds.items()}
    for half, single in zip(small.run(model, halves), small.run(small.build(name), feeds), strict=True):
        # Tens of float16 roundings in sequence, each 5e-4 of the value, that add up like a random walk.
        assert np.abs(half - single).max() < 1e-2 * np.abs(single).max()


@pytest.mark.parametrize("name", NAMES)
def test_open_and_fixed_dimensions_compute_the_same(name: str) -> None:
    """A dimension given as a number stands in inputs and outputs, is the size computed, and changes no result."""
    feeds = small.inputs(name)
    fixed, opened = small.build(name, batch=3, sequence=11), small.build(name)
    outputs = small.run(fixed, feeds)
    declared = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in fixed.graph.output]
    assert declared == [list(output.shape) for output in outputs]
    for output, same in zip(outputs, small.run(opened, feeds), strict=True):
        np.testing.assert_allclose(output, same, rtol=1e-5, atol=1e-6)
    # A batch of one sums in another order: a few float32 roundings of values up to about 10.
    alone = small.run(opened, {key: values[:1] for key, values in feeds.items()})
    for row, rows in zip(alone, outputs, strict=True):
        np.testing.assert_allclose(row[0], rows[0], atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_call_gives_the_same_bytes(name: str) -> None:
    """A model is a function of its arguments; another seed is another model."""
    once = small.build(name).SerializeToString(deterministic=True)
    assert small.build(name).SerializeToString(deterministic=True) == once
    assert small.build(name, seed=1).SerializeToString(deterministic=True) != once


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_is_neutral(name: str) -> None:
    """No parameter is all 0 or all 1 and every bias has both signs: to lose one changes the output."""
    for parameter, values in small.parameters(small.build(name)).items():
        assert np.abs(values).max() > 0, parameter
        assert np.abs(values - 1).max() > 0, parameter
        if parameter.endswith("bias") and values.size > 10:
            assert values.min() < 0 < values.max(), parameter


def test_weights_are_the_same_on_every_machine() -> None:
    """A weight depends on the seed and its name alone; these three were written down once."""
    written = [-0.3470863103866577, 2.1252801418304443, -0.028964024037122726]
    assert seeded(0)("encoder.bias", (3,), 1.0, 0.0).tolist() == written


def test_fewer_layers_keep_their_weights() -> None:
    """A model cut to one layer has the weights that the whole model has there."""
    whole = small.parameters(small.build("bert_base"))
    cut = small.parameters(models.build("bert_base", **{**small.SIZES["bert_base"], "layers": 1}))
    assert len(cut) < len(whole)
    for name, values in cut.items():
        np.testing.assert_array_equal(values, whole[name])


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mlp", 1_052_673),
        ("lenet5", 61_706),
        # As torchvision (the image models) and transformers (BertModel, GPT2Model) count them.
        ("resnet50", 25_557_032),
        ("efficientnet_b0", 5_288_548),
        ("convnext_tiny", 28_589_128),
        ("bert_base", 109_482_240),
        ("vit_b_16", 86_567_656),
        ("gpt2", 124_439_808),
    ],
)
def test_the_default_size_is_the_published_one(name: str, count: int) -> None:
    """By default a model has as many parameters as the one in the paper."""
    seen: dict[str, int] = {}

    def empty(name: str, shape: tuple[int, ...], std: float, mean: float) -> NDArray[np.float32]:
        seen[name] = int(np.prod(shape))
        return np.zeros(shape, np.float32)

    models.architecture(name).write(start(name, Form(dtype="float16"), empty))
    assert sum(size for parameter, size in seen.items() if "running_" not in parameter) == count


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"name": "bert"}, "no model 'bert'", "bert_base"),
        ({"name": "bert_base", "layer": 2}, "no size 'layer'", "layers"),
        ({"name": "bert_base", "layers": 0}, "layers is 0, expected at least 1", ""),
        ({"name": "bert_base", "heads": 5}, "hidden is 768, expected a multiple of heads, which is 5", ""),
        ({"name": "bert_base", "sequence": 513, "vocabulary": 9}, "sequence is 513, expected at most 512", ""),
        ({"name": "vit_b_16", "image": 100}, "image is 100, expected a multiple of patch, which is 16", ""),
        ({"name": "mlp", "dtype": "float8"}, "dtype is 'float8', expected one of float32, float16", ""),
        ({"name": "mlp", "opset": 9}, "opset is 9, expected 13 to", ""),
        ({"name": "mlp", "batch": 0}, "batch is 0, expected at least 1", "keep it open"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments: dict[str, Any], message: str, hint: str) -> None:
    """The error says what was given, what was expected, and the nearest valid word."""
    with pytest.raises(UsageError, match=message) as refused:
        models.build(**arguments)
    assert hint in refused.value.hint
