"""Masks that are beyond float16's range: what they become, and that rules still know them."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import models
import onnxfuse
from onnxfuse.precision import mask_constants
from onnxfuse.precision.scopes import scopes_of
from tests.support.precision import model_of, normalized

LOWEST = "-3.4028234663852886e38"
ADDED = "[add] m = Where(seen, zero, low) [score] s = Add(x, m)"


def _hiding(nodes: str) -> ModelProto:
    """Return a Softmax over scores x of which `seen` says what is seen, after `nodes`, which give s."""
    return normalized(
        model_of(f"""g (float[2,8] x, bool[2,8] seen) => (float[2,8] y)
        <float low = {{{LOWEST}}}, float zero = {{0}}> {{ {nodes} y = Softmax<axis = -1>(s) }}""")
    )


@pytest.mark.parametrize(
    ("nodes", "becomes"),
    [
        (ADDED, -30_720.0),
        ("s = Where(seen, x, low)", -30_720.0),
        (ADDED.replace("s = Add", "t = Add") + " s = Add(t, m)", -10_000.0),
        ("m = Where(seen, zero, low) n = Sub(m, zero) s = Add(x, n)", -10_000.0),
        ("m = Where(seen, zero, low) n = Flatten(m) s = Add(x, n)", -30_720.0),
    ],
    ids=["added", "chosen", "added twice", "added to another", "moved"],
)
def test_a_mask_becomes_a_number_that_hides_in_float16(nodes: str, becomes: float) -> None:
    """The lowest that leaves room for what is added to it, so that it hides whatever the scores are."""
    model = _hiding(nodes)
    assert mask_constants.clamp(scopes_of(model)) == ["low"]
    (low,) = (numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "low")
    assert low == becomes
    assert np.float16(low) == low


def test_what_does_more_than_hide_stays_as_it_is() -> None:
    """An output is no mask."""
    model = normalized(_hiding(ADDED))
    model.graph.output.add().CopyFrom(helper.make_tensor_value_info("m", TensorProto.FLOAT, (2, 8)))
    assert mask_constants.clamp(scopes_of(model)) == []


def test_rows_that_are_hidden_as_a_whole_stay_numbers() -> None:
    """The same for all positions, as in float32."""
    model = _hiding(ADDED)
    made = onnxfuse.optimize(model, precision="float16")
    inputs = [{"x": np.full((2, 8), x, np.float32), "seen": np.zeros((2, 8), bool)} for x in (0.0, 7.0, -900.0)]
    report = onnxfuse.verify(model, made, inputs=inputs, providers=["CPUExecutionProvider"], isolate=False)
    assert report.ok, report.summary


def test_a_converted_decoder_is_fused_as_one_that_was_exported_in_float16() -> None:
    """GPT-2's causal mask is an attribute of the library's attention in both, and not read."""
    sizes: dict[str, Any] = {"layers": 1, "hidden": 128, "heads": 2, "vocabulary": 100, "batch": 2, "sequence": 128}
    feed = models.example_inputs("gpt2", batch=2, sequence=128) | {"input_ids": np.arange(256).reshape(2, 128) % 100}
    native = onnxfuse.optimize(models.build("gpt2", dtype="float16", **sizes))
    converted = onnxfuse.optimize(models.build("gpt2", **sizes), precision="float16", inputs=[feed])
    assert _libraries(native) == _libraries(converted)
    assert any("unidirectional: int = 1" in library for library in _libraries(native))


def _libraries(model: ModelProto) -> list[str]:
    """Return what the library computes for each kind of fused op."""
    return sorted(p.value for f in model.functions for p in f.metadata_props if p.key == "onnxfuse.library")
