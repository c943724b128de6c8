"""Model files: read and written whole or not at all, of any size, with one clear message when it cannot be done."""

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.files import io
from onnxfuse.files.detached import detach, detaching
from onnxfuse.files.external import ALIGNMENT
from onnxfuse.support.errors import DeviceError, ModelError

WEIGHT = np.arange(-500, 500, dtype=np.float32)


@pytest.fixture
def model() -> onnx.ModelProto:
    """A model with a big weight, a small one, and one that is not held as raw bytes."""
    graph = helper.make_graph(
        [helper.make_node("Sum", ["x", "w", "s", "t"], ["y"], name="sum")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1000])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1000])],
        [
            numpy_helper.from_array(WEIGHT, "w"),
            numpy_helper.from_array(np.array(2, np.float32), "s"),
            helper.make_tensor("t", TensorProto.FLOAT, [1], [0.5]),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="test", ir_version=10)
    made.metadata_props.add(key="author", value="someone")
    return made


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protobuf limit so small that the weights must go beside the model."""
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", 1000)


def data_name(folder: Path) -> str:
    """Return the name of the one data file in `folder`."""
    (path,) = folder.glob("*.onnx.????????????????.data")
    return path.name


# ---- reading


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "is empty"),
        (
            b"not a model, but a text of some length\n" * 4,
            "is not an ONNX model, but text that begins with 'not a model",
        ),
        (b"\x0f no field" + bytes(range(128, 200)), "is not an ONNX model, or is truncated"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not an ONNX model"),
        (b"\x08\x08", "is not an ONNX model: it has no graph"),
        (b"\x08\x08\x3a\x03\x12\x01g", "is not an ONNX model: it has no graph or no operator set"),
        (b"\x08\x08\x42\x02\x10\x11", "is not an ONNX model: it has no graph or no operator set"),
    ],
)
def test_what_is_no_model_is_told_in_one_message(tmp_path: Path, data: bytes, told: str) -> None:
    """The message names the file, the fact and what to do."""
    path = tmp_path / "in.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        io.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert told in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_model_is_told(tmp_path: Path, model: onnx.ModelProto, part: float) -> None:
    """A download that broke off anywhere gives the message, never half a model."""
    data = model.SerializeToString()
    path = tmp_path / "in.onnx"
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(ModelError, match=r"truncated|no graph"):
        io.load(path)


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path) -> None:
    """Both name the path."""
    with pytest.raises(ModelError, match="no such file"):
        io.load(tmp_path / "nowhere.onnx")
    with pytest.raises(ModelError, match="is a directory"):
        io.load(tmp_path)


def test_what_does_not_end_is_not_read(tmp_path: Path) -> None:
    """A device, and a file that is longer than any model: told before memory is taken for them."""
    endless = tmp_path / "endless.onnx"
    endless.symlink_to("/dev/zero")
    with pytest.raises(ModelError, match="is a device, which has no end"):
        io.load(endless)
    weights = tmp_path / "weights.onnx"
    weights.touch()
    os.truncate(weights, 1 << 40)
    with pytest.raises(ModelError, match=r"has 1099.5 GB, and an .onnx file has at most 2"):
        io.load(weights)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_told(tmp_path: Path, model: onnx.ModelProto) -> None:
    """The system's own words are in the message."""
    path = tmp_path / "in.onnx"
    io.save(model, path)
    path.chmod(0)
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        io.load(path)


# ---- external data


def external(model: onnx.ModelProto, path: Path) -> None:
    """Write `model` with its weights in a file beside it, as onnx itself does."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, path, save_as_external_data=True, location="weights.bin", size_threshold=100)


def test_external_data_is_read(tmp_path: Path, model: onnx.ModelProto) -> None:
    """Whatever wrote it; the loaded model holds its weights itself."""
    external(model, tmp_path / "in.onnx")
    loaded = io.load(tmp_path / "in.onnx")
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.graph.initializer[0]), WEIGHT)
    assert not loaded.graph.initializer[0].external_data
    assert loaded.graph.initializer[0].data_location == TensorProto.DEFAULT


def test_missing_external_data_is_told(tmp_path: Path, model: onnx.ModelProto) -> None:
    """The message names the file that is not there; without weights the model can still be looked at."""
    external(model, tmp_path / "in.onnx")
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"its weights are in .*weights\.bin, which does not exist"):
        io.load(tmp_path / "in.onnx")
    assert io.load(tmp_path / "in.onnx", weights=False).graph.node[0].name == "sum"


def test_truncated_external_data_is_told(tmp_path: Path, model: onnx.ModelProto) -> None:
    """A data file that is too short never gives a model with wrong weights."""
    external(model, tmp_path / "in.onnx")
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"in\.onnx"):
        io.load(tmp_path / "in.onnx")


def test_external_data_outside_the_folder_is_refused(tmp_path: Path, model: onnx.ModelProto) -> None:
    """A model from a stranger reads no file outside its own folder."""
    (tmp_path / "inner").mkdir()
    external(model, tmp_path / "inner" / "in.onnx")
    (tmp_path / "inner" / "weights.bin").rename(tmp_path / "weights.bin")
    stranger = io.load(tmp_path / "inner" / "in.onnx", weights=False)
    location = next(e for e in stranger.graph.initializer[0].external_data if e.key == "location")
    location.value = "../weights.bin"
    (tmp_path / "inner" / "in.onnx").write_bytes(stranger.SerializeToString())
    with pytest.raises(ModelError):
        io.load(tmp_path / "inner" / "in.onnx")


@pytest.mark.usefixtures("no_room")
def test_a_model_over_the_limit_goes_out_and_comes_in(tmp_path: Path, model: onnx.ModelProto) -> None:
    """Its weights stand beside it, page-aligned; onnx, ONNX Runtime's way of reading, and we read the same model."""
    path = tmp_path / "out.onnx"
    io.save(model, path)
    assert path.stat().st_size < 1000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx", data_name(tmp_path)]
    for loaded in (io.load(path), onnx.load(path)):
        assert [t.name for t in loaded.graph.initializer] == ["w", "s", "t"]
        for ours, theirs in zip(loaded.graph.initializer, model.graph.initializer, strict=True):
            np.testing.assert_array_equal(numpy_helper.to_array(ours), numpy_helper.to_array(theirs))
    for tensor in io.load(path, weights=False).graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "offset":
                assert int(entry.value) % ALIGNMENT == 0


@pytest.mark.usefixtures("no_room")
def test_a_model_with_external_data_is_overwritten_in_place(tmp_path: Path, model: onnx.ModelProto) -> None:
    """In and out may be one path: the old data is read before the new is put in its place."""
    path = tmp_path / "same.onnx"
    io.save(model, path)
    io.save(io.load(path), path)
    np.testing.assert_array_equal(numpy_helper.to_array(io.load(path).graph.initializer[0]), WEIGHT)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["same.onnx", data_name(tmp_path)]


@pytest.mark.usefixtures("no_room")
def test_onnxruntime_reads_what_was_written_beside(tmp_path: Path, model: onnx.ModelProto) -> None:
    """The reader that counts."""
    import onnxruntime as ort

    io.save(model, tmp_path / "out.onnx")
    session = ort.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.zeros(1000, np.float32)})
    np.testing.assert_array_equal(y, WEIGHT + 2.5)


# ---- writing


def test_the_streamed_file_is_the_model(tmp_path: Path, model: onnx.ModelProto) -> None:
    """Weight by weight it parses to the very message that `SerializeToString` would have held."""
    io.save(model, tmp_path / "out.onnx")
    assert onnx.ModelProto.FromString((tmp_path / "out.onnx").read_bytes()) == model
    assert io.load(tmp_path / "out.onnx") == model


def test_two_writes_give_the_same_bytes(tmp_path: Path, model: onnx.ModelProto) -> None:
    """Also after a round trip."""
    io.save(model, tmp_path / "a.onnx")
    io.save(io.load(tmp_path / "a.onnx"), tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize("limit", [io.PROTOBUF_LIMIT, 1000])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The disk fills up at the second weight: the old model is whole, and no half file lies around."""
    path = tmp_path / "out.onnx"
    path.write_bytes(b"the old model")
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", limit)

    def fail(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(io, "embedded", fail)
    with pytest.raises(ModelError, match="cannot be written: No space left on device"):
        io.save(model, path)
    assert path.read_bytes() == b"the old model"
    assert [p.name for p in tmp_path.iterdir()] == ["out.onnx"]


def test_an_interrupt_while_writing_leaves_the_old_file(
    tmp_path: Path, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control-C is no excuse."""
    path = tmp_path / "out.onnx"
    path.write_bytes(b"the old model")

    def interrupt(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(io, "embedded", interrupt)
    with pytest.raises(KeyboardInterrupt):
        io.save(model, path)
    assert path.read_bytes() == b"the old model"
    assert [p.name for p in tmp_path.iterdir()] == ["out.onnx"]


def test_a_target_that_cannot_be_written_is_told(tmp_path: Path, model: onnx.ModelProto) -> None:
    """A folder that does not exist, a folder in the file's place."""
    with pytest.raises(ModelError, match=r"nowhere/out\.onnx: cannot be written"):
        io.save(model, tmp_path / "nowhere" / "out.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ModelError, match=r"folder\.onnx: cannot be written"):
        io.save(model, tmp_path / "folder.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.onnx"]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc, which not even root can write to")
def test_a_folder_that_takes_no_files_is_told(model: onnx.ModelProto) -> None:
    """Where the system says no, its words are passed on."""
    with pytest.raises(ModelError, match=r"/proc/out\.onnx: cannot be written: \w+"):
        io.save(model, "/proc/out.onnx")


@pytest.mark.parametrize("beside", [False, True])
def test_a_written_model_is_opened_before_it_takes_its_place(
    tmp_path: Path, model: onnx.ModelProto, beside: bool
) -> None:
    """With its weights, also those that get their name later."""
    opened = list[onnx.ModelProto]()

    def opens(path: Path) -> None:
        assert not (tmp_path / "out.onnx").exists()
        opened.append(onnx.load(path))

    with io.saving(model, tmp_path / "out.onnx", external_data=beside, opens=opens):
        assert len(opened) == 1
    np.testing.assert_array_equal(numpy_helper.to_array(opened[0].graph.initializer[0]), WEIGHT)
    assert bool(list(tmp_path.glob("*.data"))) is beside
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load(tmp_path / "out.onnx").graph.initializer[0]), WEIGHT)


def test_the_data_files_of_a_model_are_the_other_ones(tmp_path: Path, model: onnx.ModelProto) -> None:
    """Weights within the file are looked at as references into it, which is no other file."""
    io.save(model, tmp_path / "whole.onnx")
    external(model, tmp_path / "in.onnx")
    assert io.data_files(tmp_path / "whole.onnx") == ()
    assert io.data_files(tmp_path / "in.onnx") == ("weights.bin",)
    assert io.data_files(tmp_path / "gone.onnx") == ()
    (tmp_path / "text").write_bytes(b"no model")
    assert io.data_files(tmp_path / "text") == ()
    assert io.has_external_data(tmp_path / "in.onnx")


def test_a_model_without_weights_needs_no_file_beside_it(tmp_path: Path, model: onnx.ModelProto) -> None:
    """Though one was asked for."""
    del model.graph.initializer[:]
    model.training_info.add().algorithm.name = "kept"
    with io.saving(model, tmp_path / "out.onnx", external_data=True):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["out.onnx"]
    assert onnx.load(tmp_path / "out.onnx") == model


def test_a_damaged_node_is_in_no_model_with_data(tmp_path: Path) -> None:
    """What is read of the file, its weights apart, is no message either."""
    (tmp_path / "damaged.onnx").write_bytes(b"\x08\x08\x3a\x04\x0a\x02\xff\xff")
    assert io.data_files(tmp_path / "damaged.onnx") == ()


def test_a_place_that_is_no_number_is_told_by_an_outline(tmp_path: Path, model: onnx.ModelProto) -> None:
    """As by `load`: it reads the weights that shapes are made of."""
    model.graph.initializer.append(numpy_helper.from_array(np.arange(200), "sizes"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    light = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    for fact in light.graph.initializer[-1].external_data:
        fact.value = "x" if fact.key == "offset" else fact.value
    (tmp_path / "m.onnx").write_bytes(light.SerializeToString())
    for read in (io.outline, io.load):
        with pytest.raises(ModelError, match=r"m\.onnx: weight 'sizes': the offset of its data is 'x', no number"):
            read(tmp_path / "m.onnx")


def test_the_size_of_a_detached_weight_is_that_of_its_data() -> None:
    with detaching():
        light = detach("w", TensorProto.FLOAT, (3, 4), lambda: np.zeros((3, 4), np.float32))
        assert io.tensor_bytes(light) == 48


def test_the_permissions_of_an_existing_file_stay(tmp_path: Path, model: onnx.ModelProto) -> None:
    """And a new file gets those of the umask, not those of a temporary one."""
    old = tmp_path / "old.onnx"
    old.write_bytes(b"")
    old.chmod(0o640)
    io.save(model, old)
    assert old.stat().st_mode & 0o777 == 0o640
    mask = os.umask(0o022)
    try:
        io.save(model, tmp_path / "new.onnx")
    finally:
        os.umask(mask)
    assert (tmp_path / "new.onnx").stat().st_mode & 0o777 == 0o644


def test_a_model_without_weights_is_a_copy_in_all_else(model: onnx.ModelProto) -> None:
    """`without_weights` that keeps every weight gives an equal model, and never touches the one given."""
    before = model.SerializeToString(deterministic=True)
    assert io.without_weights(model, lambda tensor: tensor) == model
    light = io.without_weights(model, lambda _: None)
    assert not light.graph.initializer
    assert light.graph.node == model.graph.node
    assert light.metadata_props == model.metadata_props
    assert model.SerializeToString(deterministic=True) == before


def test_weights_that_do_not_fit_memory_are_told_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of a process that is killed without a word: what is needed, what is left, what to do."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[4] x) => (float[4] y) { y = Add(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    monkeypatch.setattr(io, "memory_left", lambda: 15)
    with pytest.raises(DeviceError, match=r"weights take .* GB of memory are left"):
        io.load(tmp_path / "m.onnx")
    monkeypatch.setattr(io, "memory_left", lambda: 16)
    io.load(tmp_path / "m.onnx")
    monkeypatch.undo()
    assert (io.memory_left() or 0) > 2**20


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 5)])
def test_the_size_of_a_weight_is_told_by_its_shape(shape: tuple[int, ...]) -> None:
    """Of every element type that fills bytes: it is that of the data, which is not looked at."""
    for dtype in io.ELEMENT_BYTES:
        tensor = numpy_helper.from_array(np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(dtype)))
        assert tensor.HasField("raw_data")
        assert io.tensor_bytes(tensor) == len(tensor.raw_data)
    four_bits = onnx.helper.make_tensor("w", TensorProto.INT4, (3,), b"\x21\x03", raw=True)
    assert io.tensor_bytes(four_bits) == 2
    spelled = onnx.helper.make_tensor("w", TensorProto.FLOAT, (3,), [1, 2, 3])
    assert io.tensor_bytes(spelled) == spelled.ByteSize()


def test_a_name_that_onnx_runtime_does_not_take_is_told(tmp_path: Path) -> None:
    """It opens files by names in UTF-8."""
    assert io.name_in_utf8(tmp_path / "é.onnx") == f"{tmp_path}/é.onnx"
    with pytest.raises(ModelError, match="the name is not UTF-8, and ONNX Runtime cannot open such a file"):
        io.name_in_utf8(tmp_path / "\udce9.onnx")


def test_what_the_system_refuses_to_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason."""
    path = tmp_path / "in.onnx"
    path.write_bytes(b"x" * 100)

    def broken(self: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", broken)
    with pytest.raises(ModelError, match=r"in\.onnx: cannot be read: Input/output error"):
        io.load(path)


def test_where_the_system_does_not_tell_the_memory_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sandbox without /proc."""
    assert (io.memory_left() or 0) > 1 << 20

    def none(self: Path, encoding: str) -> str:
        raise FileNotFoundError(2, "No such file")

    monkeypatch.setattr(Path, "read_text", none)
    assert io.memory_left() is None
