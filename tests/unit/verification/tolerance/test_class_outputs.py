"""Top-k agreement is told of outputs that choose a class, and of no others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import models
from onnxfuse.cli.main import main
from onnxfuse.verification.tolerance.class_outputs import class_outputs
from tests.support.verification.small_models import model, text_model

LINEAR = "m = MatMul(x, w)  n = Add(m, b)  "
HIDDEN = np.zeros((32, 20), np.float32)
VOCABULARY = np.zeros((32, 100), np.float32)


@pytest.mark.parametrize(
    ("body", "scores"),
    [
        (LINEAR + "y = Identity(n)", True),
        (LINEAR + "y = Softmax(n)", True),
        ("y = Softmax(x)", True),
        ("y = LogSoftmax <axis = 1> (x)", True),
        ("y = Softmax <axis = 0> (x)", False),
        ("y = Gemm(x, w, b)", True),
        ("y = Gemm(x, w)", False),
        ("y = Gemm(x, few, nine)", False),
        (LINEAR + "t = Constant <value_float = 2.0> ()  y = Div(n, t)", True),
        (LINEAR + "t = Constant <value_float = 2.0> ()  y = Div(t, n)", False),
        ("m = MatMul(x, w)  y = Sub(m, b)", True),
        ("m = MatMul(x, w)  y = Sub(b, m)", False),
        (LINEAR + "c = Cast <to = 10> (n)  y = Cast <to = 1> (c)", True),
        (LINEAR + "y = Tanh(n)", False),
        (LINEAR + "y = LayerNormalization(n, g, b)", False),
        (LINEAR + "y = Add(n, x)", False),
        (LINEAR + "y = LpNormalization(n)", False),
        ("y = MatMul(x, w)", False),
        ("y = Relu(x)", False),
        ("y = Identity(x)", False),
    ],
)
def test_scores_are_told_from_hidden_states(body: str, scores: bool) -> None:
    """By how they are computed, in the last steps."""
    made = model(body)
    made.graph.initializer.append(numpy_helper.from_array(HIDDEN[:, :9], "few"))
    made.graph.initializer.append(numpy_helper.from_array(HIDDEN[0, :9], "nine"))
    assert class_outputs(made) == ({"y"} if scores else set())


def test_what_an_unknown_operator_gives_are_no_scores() -> None:
    """Whatever it reads."""
    made = model(LINEAR + "y = Identity(n)")
    made.graph.node[-1].op_type, made.graph.node[-1].domain = "Anything", "custom"
    made.opset_import.add(domain="custom", version=1)
    assert class_outputs(made) == set()


def test_ranks_and_axes() -> None:
    """A language model's head gives scores at every position; attention maps, split heads and pixels are none."""
    graph = (
        "g (float[n, s, 32] x, float[n, 4, s, s] p, float[n, 12, 8, 8] i) => (float[n, s, 100] y, float[n, 4, s, s] a, "
    )
    graph += """float[n, s, 4, 25] heads, float[n, 12, 8, 8] pixels, float[n, s, 20] narrow, float[n, s, 20] biased) {
        y = MatMul(x, v)  a = Softmax(p)  to = Constant <value_ints = [0, 0, 4, 25]> ()  heads = Reshape(y, to)
        pixels = Softmax <axis = 1> (i)  narrow = MatMul(x, h)  biased = Add(b, narrow)
    }"""
    made = text_model(graph, v=VOCABULARY, h=HIDDEN, b=np.zeros(20, np.float32))
    assert class_outputs(made) == {"y", "biased"}


@pytest.mark.parametrize(
    ("name", "sizes", "scores"),
    [
        ("resnet50", {"image": 64}, {"logits"}),
        ("vit_b_16", {"image": 64, "layers": 1}, {"logits"}),
        ("gpt2", {"layers": 1, "vocabulary": 1000}, set()),
        ("lenet5", {}, {"logits"}),
        ("bert_base", {"layers": 1, "vocabulary": 1000}, set()),
        ("mlp", {}, set()),
    ],
)
def test_architectures(name: str, sizes: dict[str, Any], scores: set[str]) -> None:
    """Classifiers have scores; hidden states and a regression have none."""
    assert class_outputs(models.build(name, **sizes)) == scores


def test_the_command_tells_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unasked of class scores alone; asked, of every output."""
    file = str(tmp_path / "m.onnx")
    onnx.save(
        text_model("g (float[n, 20] x) => (float[n, 20] y, float[n, 20] h) { h = Tanh(x)  y = Softmax(h) }"), file
    )
    told = []
    for more in ([], ["--top-k", "3"]):
        with pytest.raises(SystemExit) as left:
            main(["verify", file, file, "--provider", "cpu", "--json", *more])
        assert left.value.code == 0
        facts = json.loads(capsys.readouterr().out)
        told.append({row["output"]: row["difference"]["agreement"] for row in facts["outputs"]})
    assert told == [{"y": {"1": 1.0, "5": 1.0}, "h": {}}, {"y": {"3": 1.0}, "h": {"3": 1.0}}]
