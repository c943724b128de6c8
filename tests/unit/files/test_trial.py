"""A written model is opened before it takes its place, cheaply, and under the names that it will have."""

import io as streams
from pathlib import Path

import onnx
import pytest

from onnxfuse.files import external, io, trial
from onnxfuse.support.errors import ModelError
from tests.unit.files.test_outline import model


@pytest.mark.parametrize(("name", "valid"), [("é\ue000", True), ("\udc80", False), ("a\udcff", False), ("", True)])
def test_a_name_that_a_model_may_refer_to(name: str, valid: bool) -> None:
    """Bytes that are no UTF-8 are the lone surrogates of Python's names."""
    assert trial.is_utf8(Path(name)) is valid


@pytest.mark.parametrize("direct", [1 << 26, 0])
def test_a_long_file_is_opened_by_its_outline(direct: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which refers to the weights in the file itself, and is gone after that."""
    monkeypatch.setattr(trial, "DIRECT", direct)
    seen: list[onnx.ModelProto] = []
    written = tmp_path / "written.onnx"
    io.save(model(), written)
    trial.opened_whole(written, tmp_path / "out.onnx", lambda path: seen.append(io.load(path, weights=False)))
    (found,) = seen
    assert external.is_external(found.graph.initializer[0]) is (direct == 0)
    if direct == 0:
        assert external.location(found.graph.initializer[0]) == "written.onnx"
    assert list(tmp_path.iterdir()) == [written]


def test_a_model_names_its_data_as_it_will_be_called_whatever_happens(tmp_path: Path) -> None:
    """It is opened with the file as it is called now."""
    light, seen = model(), list[str]()
    tensor = light.graph.initializer[0]
    tensor.ClearField("raw_data")
    external.locate(tensor, "later.data", 0, 64 * 64 * 4)

    def refuse(path: Path) -> None:
        seen.append(external.location(onnx.load(path, load_external_data=False).graph.initializer[0]))
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        trial.opened_with_data(light, tmp_path / "out.onnx", "later.data", tmp_path / "now.data", refuse)
    assert (seen, external.location(tensor)) == (["now.data"], "later.data")
    assert not list(tmp_path.iterdir())


def test_a_stream_gets_what_was_opened_and_nothing_where_the_block_fails() -> None:
    """What has gone into a stream cannot be taken back."""
    opened: list[bytes] = []
    stream = streams.BytesIO()
    with io.streaming(model(), stream, lambda path: opened.append(path.read_bytes())):
        assert stream.getvalue() == b""
    assert opened == [stream.getvalue()]
    assert onnx.ModelProto.FromString(opened[0]) == model()

    def refuse(path: Path) -> None:
        raise ModelError("ONNX Runtime does not open it")

    empty = streams.BytesIO()
    with pytest.raises(ModelError, match="does not open"), io.streaming(model(), empty, refuse):
        pytest.fail("the block is entered")
    assert empty.getvalue() == b""


def test_what_needs_a_file_beside_it_is_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", 1000)
    stream = streams.BytesIO()
    with pytest.raises(ModelError, match="a model over 2 GB"), io.streaming(model(), stream, lambda path: None):
        pytest.fail("the block is entered")
    assert stream.getvalue() == b""
