"""Weights that stay where they are: in the model that was given, or in its file."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.files import detached, external
from onnxfuse.support.errors import ModelError

LARGE = np.arange(detached.LEAST // 4 + 1, dtype=np.float32)
SMALL = LARGE[:-1]
"""The largest that stays in a model."""
PACKED = TensorProto(name="packed", data_type=TensorProto.INT4, dims=[1 << 18], raw_data=bytes([0x21]) * (1 << 17))


def model() -> onnx.ModelProto:
    words = helper.make_tensor("words", TensorProto.STRING, [1], [b"x" * (detached.LEAST + 1)])  # type: ignore[list-item]  # its types know no strings
    weights = [numpy_helper.from_array(LARGE, "large"), numpy_helper.from_array(SMALL, "small"), words, PACKED]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [], [], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def weights_of(made: onnx.ModelProto) -> dict[str, TensorProto]:
    return {t.name: t for t in made.graph.initializer}


@pytest.mark.parametrize("form", ["message", "file"])
def test_large_weights_are_read_where_they_are(form: str, tmp_path: Path) -> None:
    """Also packed numbers; small ones and strings are in the model."""
    source: Path | onnx.ModelProto = model()
    if form == "file":
        source = tmp_path / "m.onnx"
        onnx.save(model(), source, save_as_external_data=True, location="m.data", size_threshold=0)
    with detached.detaching():
        made = detached.load(source)
        weights = weights_of(made)
        assert [n for n, t in weights.items() if external.is_detached(t)] == ["large", "packed"]
        for name, expected in (("large", LARGE), ("small", SMALL), ("packed", numpy_helper.to_array(PACKED))):
            np.testing.assert_array_equal(detached.array_of(weights[name]), expected)
            np.testing.assert_array_equal(numpy_helper.to_array(detached.attached(weights[name])), expected)
        assert detached.attached(weights["small"]) is weights["small"]


def test_weights_are_there_until_the_outermost_block_ends() -> None:
    with detached.detaching():
        with detached.detaching():
            weight = weights_of(detached.load(model()))["large"]
        assert detached.is_detaching()
        np.testing.assert_array_equal(detached.array_of(weight), LARGE)
    assert not detached.is_detaching()
    with pytest.raises(ModelError, match="the data of weight 'large' no longer exists"):
        detached.array_of(weight)


def test_data_that_is_missing_or_short_is_told_with_the_models_name(tmp_path: Path) -> None:
    """Before any of it is read."""
    path = tmp_path / "m.onnx"
    onnx.save(model(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    data = (tmp_path / "m.data").read_bytes()
    with detached.detaching():
        (tmp_path / "m.data").write_bytes(data[:-1])
        with pytest.raises(ModelError, match=r"m\.onnx: .*weight"):
            detached.load(path)
        (tmp_path / "m.data").unlink()
        with pytest.raises(ModelError, match=r"m\.onnx: its weights are in .*m\.data, which does not exist"):
            detached.load(path)
        (tmp_path / "m.data").mkdir()
        with pytest.raises(ModelError, match=r"m\.onnx: its data file m\.data is not a regular file"):
            detached.load(path)


def test_external_data_that_was_not_loaded_is_none(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    weight = weights_of(onnx.load(tmp_path / "m.onnx", load_external_data=False))["large"]
    assert detached.array_of(weight) is None
    assert detached.attached(weight) is weight
