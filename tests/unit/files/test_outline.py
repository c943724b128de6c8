"""A file read without its weights is the file read whole, but for the weights; and damaged files are told alike."""

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper, parser

from onnxfuse.files import external, io
from onnxfuse.files.outline import GRAPH as GRAPH_FIELD
from onnxfuse.files.outline import INITIALIZER, _bytes, _StrangeError, embedded, outline
from onnxfuse.support.errors import ModelError

GRAPH = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 64] x) => (float[n, 64] z) {
      y = MatMul (x, w)  c = Constant <value = float[3] {1, 2, 3}> ()  [add] z = Add (y, b)
    }"""


def model() -> onnx.ModelProto:
    """Weights beyond what is small, one of them not as raw bytes, one that shapes are made of; and a bias within."""
    made = parser.parse_model(GRAPH)
    chance = np.random.default_rng(0)
    w = chance.normal(size=(64, 64)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(w, "w"))
    made.graph.initializer[0].doc_string = "of x"
    made.graph.initializer.append(numpy_helper.from_array(np.arange(64, dtype=np.float32), "b"))
    made.graph.initializer.append(onnx.helper.make_tensor("spelled", TensorProto.FLOAT, [400], range(400)))
    made.graph.initializer.append(numpy_helper.from_array(np.arange(200), "sizes"))
    made.metadata_props.add(key="kept", value="yes")
    return made


def whole(light: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Return the model with the weights that are in its file."""
    tensor = light.graph.initializer[0]
    external.read([tensor], path)
    tensor.ClearField("data_location")  # the default is written down
    return light


def test_all_but_the_large_weights_is_there(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    made = model()
    path.write_bytes(made.SerializeToString())
    light = io.outline(path)
    placed = [t.name for t in light.graph.initializer if external.is_external(t)]
    assert placed == ["w"]
    assert light.ByteSize() < 8000 < path.stat().st_size
    assert whole(light, path) == made


def test_a_model_behind_a_link_reads_its_weights(tmp_path: Path) -> None:
    """As in the caches of model hubs, where other files would have to be followed to on purpose."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "blobs" / "5d0c").write_bytes(model().SerializeToString())
    path = tmp_path / "snapshot" / "m.onnx"
    path.symlink_to("../blobs/5d0c")
    assert whole(io.outline(path), path) == model()


def test_a_name_that_is_not_utf_8_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"m\xff.onnx")
    path.write_bytes(model().SerializeToString())
    assert io.outline(path) == model()


def test_external_data_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path, save_as_external_data=True, location="w.bin", size_threshold=2000)
    assert io.outline(path) == io.load(path, weights=False)
    (tmp_path / "w.bin").unlink()
    assert [t.name for t in io.outline(path).graph.initializer if external.is_external(t)] == ["w"]


def test_a_name_that_is_not_utf_8_leaves_external_data_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"m\xff.onnx")
    onnx.save(model(), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=2000)
    (tmp_path / "m.onnx").rename(path)
    assert [t.name for t in io.outline(path).graph.initializer if external.is_external(t)] == ["w"]


def test_what_is_long_beside_its_numbers_stays(tmp_path: Path) -> None:
    """A few numbers with a long text, and numbers of 64 bits that a writer put one by one: the outline has both."""
    made = model()
    noted = made.graph.initializer.add()
    noted.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "noted"))
    noted.doc_string = "x" * 4000
    one_by_one = b"".join(bytes([10 << 3 | 1]) + struct.pack("<d", n) for n in range(200))
    tensor = TensorProto(name="doubles", data_type=TensorProto.DOUBLE, dims=[200]).SerializeToString() + one_by_one
    data = made.SerializeToString() + embedded(GRAPH_FIELD, len(embedded(INITIALIZER, len(tensor))) + len(tensor))
    (tmp_path / "m.onnx").write_bytes(data + embedded(INITIALIZER, len(tensor)) + tensor)
    light = outline(tmp_path / "m.onnx")
    assert light is not None
    found = onnx.ModelProto.FromString(light)
    assert [t.name for t in found.graph.initializer if external.is_external(t)] == ["w"]
    assert found.graph.initializer[-2] == noted
    np.testing.assert_array_equal(numpy_helper.to_array(found.graph.initializer[-1]), np.arange(200.0))


def test_a_weight_of_an_impossible_shape_stays_for_the_message(tmp_path: Path) -> None:
    """And a file that is cut while it is read is none."""
    made = model()
    made.graph.initializer[0].dims[:] = [-64, 64]
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    light = outline(path)
    assert light is not None
    assert onnx.ModelProto.FromString(light).graph.initializer[0] == made.graph.initializer[0]
    assert told(io.outline, path) == told(io.load, path) != ""
    with path.open("rb") as file:
        size = path.stat().st_size
        assert len(_bytes(file, 0, size)) == size
        with pytest.raises(_StrangeError):
            _bytes(file, 0, size + 1)


def told(read: Callable[[Path], onnx.ModelProto], path: Path) -> str:
    try:
        read(path)
    except ModelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", range(4))
def test_what_is_damaged_is_told_as_of_the_whole_file(tmp_path: Path, seed: int) -> None:
    """Cut anywhere, or with other bytes anywhere: nothing else is raised, and nothing is taken that `load` refuses."""
    data, chance = model().SerializeToString(), random.Random(seed)
    graph = data.index(b"of x")  # what comes first; behind it is one large weight
    path = tmp_path / "m.onnx"
    for n in range(200):
        place = chance.randrange(len(data)) if n % 2 else chance.randrange(graph)
        if n % 3:
            wrong = bytearray(data)
            wrong[place] ^= 1 << chance.randrange(8)
        else:
            wrong = bytearray(data[:place])
        path.write_bytes(bytes(wrong))
        assert told(io.outline, path) == told(io.load, path)
