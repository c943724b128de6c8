"""Where the data of a weight lies, and which weights stay in the model file."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.files import external
from onnxfuse.model.validate import MOST_NODES
from onnxfuse.support.errors import ModelError


def at(offset: str, shape: tuple[int, ...] = (3, 5), type_: int = TensorProto.FLOAT) -> TensorProto:
    """Return a weight whose data begins there in its file; "" says nothing."""
    tensor = TensorProto(name="w", dims=shape, data_type=type_, data_location=TensorProto.EXTERNAL)
    if offset:
        tensor.external_data.add(key="offset", value=offset)
    return tensor


@pytest.mark.parametrize(
    ("tensor", "end"),
    [
        (at("100"), 160), (at(""), 60), (at("8", (0, 4)), 8),
        (at("4096", (7,), TensorProto.INT4), 4100), (at("8", (), TensorProto.DOUBLE), 16),
    ],
)  # fmt: skip
def test_data_ends_with_the_last_byte_of_its_elements(tensor: TensorProto, end: int) -> None:
    """Behind its offset, which may be absent; elements of four bits end within a byte."""
    assert external.end_of(tensor) == end


@pytest.mark.parametrize("offset", ["-1", "1e3", "0x10", " 8", "9" * 19])
def test_an_offset_that_is_no_number_is_told(offset: str) -> None:
    with pytest.raises(ModelError, match=r"weight 'w': the offset of its data is .*, no number"):
        external.end_of(at(offset))


def test_a_data_file_that_cannot_be_opened_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the system says; small weights that are read as far as they are there are left then."""
    opens = Path.open

    def denied(self: Path, *how: Any) -> Any:
        if self.name == "data":
            raise PermissionError(13, "Permission denied")
        return opens(self, *how)

    (tmp_path / "data").write_bytes(bytes(60))
    tensor = at("0")
    tensor.external_data.add(key="location", value="data")
    model = onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor]))
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(ModelError, match="its data file data cannot be read: Permission denied"):
        external.fetch(model, tmp_path / "m.onnx")
    external.fetch(model, tmp_path / "m.onnx", small=True)
    assert external.is_external(model.graph.initializer[0])
    monkeypatch.undo()
    external.fetch(model, tmp_path / "m.onnx", small=True)
    assert model.graph.initializer[0].raw_data == bytes(60)


def test_weights_of_bodies_move_too() -> None:
    """Wherever they are nested; what is small stays, and text, which has no bytes of one length."""
    large = numpy_helper.from_array(np.ones(300, np.float32), "large")
    small, text = (
        numpy_helper.from_array(np.ones(3, np.float32), "small"),
        numpy_helper.from_array(np.array(["x"] * 999, object), "t"),
    )

    def body(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return onnx.helper.make_graph([node], name, [], [], [large, small, text])

    inner = onnx.helper.make_node(
        "If", ["c"], ["y"], then_branch=body("inner", onnx.helper.make_node("Neg", ["x"], ["y"]))
    )
    outer = onnx.helper.make_node("If", ["c"], ["z"], then_branch=body("outer", inner))
    graph, data = onnx.helper.make_graph([outer], "g", [], [], [large]), io.BytesIO()
    moved = external.Moved(data)
    moved.move_of_bodies(graph)
    (first,) = [a.g for a in graph.node[0].attribute]
    (second,) = [a.g for a in first.node[0].attribute]
    for one in (first, second):
        assert [external.is_external(t) for t in one.initializer] == [True, False, False]
        assert external.bytes_of(one.initializer[0]) == 1200
    assert not external.is_external(graph.initializer[0])
    assert [external.fact(one.initializer[0], "offset") for one in (first, second)] == ["0", "4096"]
    assert data.getvalue() == large.raw_data + bytes(4096 - 1200) + large.raw_data
    assert moved.name(Path("m.onnx")).startswith("m.onnx.")


def test_what_shape_inference_reads_stays_inside() -> None:
    """What is small, and integer vectors as long as the outputs of a Split; no integer matrix of that size."""
    of = numpy_helper.from_array
    assert external.belongs_inside(of(np.zeros(256, np.float32)))
    assert not external.belongs_inside(of(np.zeros(257, np.float32)))
    assert external.belongs_inside(of(np.zeros(129, np.int64)))
    assert external.belongs_inside(of(np.zeros(MOST_NODES, np.int32)))
    assert not external.belongs_inside(of(np.zeros(MOST_NODES + 1, np.int32)))
    assert not external.belongs_inside(of(np.zeros((129, 1), np.int64)))


def test_a_link_out_of_the_folder_is_followed_on_request(tmp_path: Path) -> None:
    """As in the caches of model hubs; not before, and not after."""
    (tmp_path / "models").mkdir()
    (tmp_path / "data").write_bytes(np.arange(15, dtype=np.float32).tobytes())
    (tmp_path / "models" / "data").symlink_to(tmp_path / "data")
    tensor, path = at(""), tmp_path / "models" / "m.onnx"
    tensor.external_data.add(key="location", value="data")
    for _ in range(2):
        with pytest.raises(ModelError, match=r"is a link to .*, outside the model's folder"):
            external.array(tensor, path)
        with external.following_links():
            assert (external.array(tensor, path) == np.arange(15).reshape(3, 5)).all()


def test_data_files_of_former_models_are_deleted(tmp_path: Path) -> None:
    """Those of this model's name with a hash, but for the one that is kept; what another tool wrote stays."""
    path, digits = tmp_path / "m.onnx", "0123456789abcdef"
    former, kept = f"m.onnx.{digits}.data", f"m.onnx.{digits[::-1]}.data"
    others = [f"m.onnx.{digits}0.data", f"n.onnx.{digits}.data", "m.onnx.data", f"m.onnx.{digits.upper()}.data"]
    for name in (former, kept, *others):
        (tmp_path / name).write_bytes(b"x")
    external.remove_stale(path, kept)
    assert {file.name for file in tmp_path.iterdir()} == {kept, *others}


def test_the_name_of_moved_weights_is_set_in_them_alone() -> None:
    """A weight that lies in another file keeps its place."""
    moved, other = at("0"), at("0")
    external.locate(moved, "", 0, 60)
    external.locate(other, "theirs", 0, 60)
    model = onnx.ModelProto(graph=onnx.GraphProto(initializer=[moved, other]))
    external.name_data(model, "ours")
    assert [external.location(t) for t in model.graph.initializer] == ["ours", "theirs"]
    external.name_data(model, "", "ours")
    assert [external.location(t) for t in model.graph.initializer] == ["", "theirs"]


def test_a_large_weight_without_its_data_is_its_type_and_shape() -> None:
    """A small one stays, and one that is elsewhere as it is."""
    small, large = (numpy_helper.from_array(np.ones(n, np.float32), "w") for n in (256, 257))
    assert external.without_data(small) is small
    light = external.without_data(large)
    assert (light.name, light.data_type, list(light.dims)) == ("w", TensorProto.FLOAT, [257])
    assert external.is_external(light)
    assert light.ByteSize() < 20
    elsewhere = at("0", (257,))
    assert external.without_data(elsewhere) is elsewhere
