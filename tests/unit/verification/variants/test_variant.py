"""Variants of an original: another model of the same weights, run like it, unless it is too large for a second copy."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from onnxfuse.verification.reference.float64_reference import parameters
from onnxfuse.verification.variants import variant
from onnxfuse.verification.variants.variant import running, with_weights
from tests.support.small import parse

CPU = ["CPUExecutionProvider"]
TEXT = """g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
  k = Constant <value = float[2] {3, 4}> ()  n = Constant <value_float = 5.0> ()
  y = If (c) <
    then_branch = t () => (float[2] a) { i = Constant <value = float[2] {6, 7}> () a = Add (x, i) },
    else_branch = e () => (float[2] b) { b = Add (x, w) }
  > }"""


def test_weights_and_constants_are_replaced_everywhere() -> None:
    """In bodies, too, each by its name; the model itself stays."""
    model, seen = parse(TEXT), dict[str, list[float]]()

    def negated(name: str, tensor: TensorProto) -> TensorProto:
        array = numpy_helper.to_array(tensor)
        seen[name] = array.tolist()
        return numpy_helper.from_array(-array, tensor.name)

    made = with_weights(model, negated)
    assert seen == {"w": [1, 2], "k": [3, 4], "i": [6, 7]}
    assert numpy_helper.to_array(made.graph.initializer[0]).tolist() == [-1, -2]
    assert model == parse(TEXT)
    run = running(lambda _: made, model, CPU, {})
    assert run is not None
    feeds = {"x": np.zeros(2, np.float32)}
    assert run({**feeds, "c": np.array(True)})["y"].tolist() == [-6, -7]
    assert run({**feeds, "c": np.array(False)})["y"].tolist() == [-1, -2]


def test_without_a_form_or_room_there_is_no_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The form of a model that is too large is not even made."""
    model, made = parse(TEXT), list[ModelProto]()

    def form(of: ModelProto) -> ModelProto:
        made.append(of)
        return of

    assert running(lambda _: None, model, CPU, {}) is None
    count = parameters(model)
    monkeypatch.setattr(variant, "FLOAT64_PARAMETERS", count - 1)
    assert running(form, model, CPU, {}) is None
    assert made == []
    monkeypatch.setattr(variant, "FLOAT64_PARAMETERS", count)
    assert running(form, model, CPU, {}) is not None
