"""What is no ONNX model is told by what it is, with the way to one."""

import gzip
import io as streams
import os
import pickle
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from onnxfuse.files import external, formats, io
from onnxfuse.support.errors import ModelError
from tests.support.precision import model_of

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def zipped(*names: str) -> bytes:
    """Return a zip archive with files of these names."""
    stream = streams.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return stream.getvalue()


def fields(*messages: tuple[int, bytes]) -> bytes:
    """Return protobuf fields of at most 127 bytes each."""
    return b"".join(bytes([number << 3 | 2, len(value)]) + value for number, value in messages)


FILES: Sequence[tuple[bytes, str, str]] = [
    (POINTER, "a Git LFS pointer", "git lfs pull"),
    (zipped("m/data.pkl", "m/data/0"), "a PyTorch archive", "torch.onnx.export"),
    (zipped("archive_format", "models/model.json"), "a PyTorch archive", "torch.onnx.export"),
    (zipped("model.onnx"), "a zip archive", "Unpack it"),
    (pickle.dumps({"weight": [1.0]}), "a Python pickle", "torch.onnx.export"),
    (struct.pack("<I4s", 28, b"TFL3") + bytes(40), "a TensorFlow Lite model", "tf2onnx"),
    (struct.pack("<I4s", 28, b"ORTM") + bytes(40), "ONNX Runtime's own format", ".onnx file"),
    (b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file", "tf2onnx"),
    (b"\x08\x01" + fields((2, fields((1, fields((4, b"serve")))))), "a TensorFlow SavedModel", "--saved-model"),
    (fields((1, fields((1, b"input"), (2, b"Placeholder")))), "a TensorFlow graph", "--graphdef"),
    (
        struct.pack("<Q", 40) + b'{"weight":{"dtype":"F32","shape":[2]}}  ' + bytes(8),
        "safetensors",
        "torch.onnx.export",
    ),
    (b"GGUF" + bytes(40), "a GGUF file", "torch.onnx.export"),
    (gzip.compress(b"x" * 100, mtime=0), "compressed", "Unpack it"),
    (b"<!DOCTYPE html><title>Sign in</title>", "text that begins with '<!DOCTYPE html>", "server"),
    (b"Entry not found", "text that begins with 'Entry not found'", "server"),
]


@pytest.mark.parametrize(("data", "what", "hint"), FILES, ids=[what for _, what, _ in FILES])
def test_what_somebody_took_for_a_model_is_named(tmp_path: Path, data: bytes, what: str, hint: str) -> None:
    """With the way to a model, however it is read."""
    path = tmp_path / "in.onnx"
    path.write_bytes(data)
    for read in (io.load, io.outline):
        with pytest.raises(ModelError) as caught:
            read(path)
        assert f"{caught.value}".startswith(f"{path}: is not an ONNX model, but ")
        assert what in f"{caught.value}"
        assert hint in caught.value.hint


@pytest.mark.parametrize(("length", "shown"), [(60, "x" * 60), (61, "x" * 59 + "…")])
def test_of_a_text_the_first_line_is_quoted(length: int, shown: str) -> None:
    """In as many letters as a message has room for; blank lines are no line."""
    found = formats.recognized(b"\n  \n  " + b"x" * length + b"\nmore")
    assert found is not None
    assert found.what == f"text that begins with '{shown}'"


@pytest.mark.parametrize("before", range(4))
def test_a_text_may_be_cut_within_a_letter(before: int) -> None:
    """Where what is looked at ends; a file that ends so is no text."""
    for letters in ("é", "字", "𝕏"):
        text = ("x" * before + letters * formats.HEAD).encode()
        found = formats.recognized(text)
        assert found is not None
        assert found.what.startswith("text that begins with 'x" if before else f"text that begins with '{letters}")
        assert formats.recognized(("x" * before + letters).encode()[:-1]) is None


@pytest.mark.parametrize(("protocol", "known"), [(1, False), (2, True), (5, True), (6, False)])
def test_pickles_of_known_protocols_are_told(protocol: int, known: bool) -> None:
    found = formats.recognized(b"\x80" + bytes([protocol]) + b"}q\x00.")
    assert (found is not None and "pickle" in found.what) is known


def test_a_file_that_is_too_large_is_looked_at_first(tmp_path: Path) -> None:
    """Checkpoints are: what it is says more than its size."""
    path = tmp_path / "in.onnx"
    path.write_bytes(zipped("m/data.pkl"))
    os.truncate(path, io.PROTOBUF_READS)
    with pytest.raises(ModelError, match="a PyTorch archive"):
        io.load(path)
    path.write_bytes(b"")
    os.truncate(path, io.PROTOBUF_READS)
    with pytest.raises(ModelError, match=r"has 2.1 GB, and an .onnx file has at most 2"):
        io.load(path)


@pytest.mark.parametrize("version", [1, 4, 10])
@pytest.mark.parametrize("producer", ["", "a tool", "pytorch"])
def test_a_damaged_model_is_nothing_else(version: int, producer: str) -> None:
    """Wherever it broke off, it is told as what it is."""
    model = model_of("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    model.ir_version, model.producer_name = version, producer
    data = model.SerializeToString()
    for end in range(1, len(data), 7):
        with pytest.raises(ModelError) as caught:
            io.parse(data[:end], "in.onnx")
        assert ", but " not in f"{caught.value}"


def test_a_data_file_that_was_not_fetched_is_named(tmp_path: Path) -> None:
    """A repository has the model, and of its weights the pointer alone."""
    model = model_of("g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { y = Mul(x, w) }")
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), "w"))
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").write_bytes(POINTER)
    light = onnx.load(tmp_path / "in.onnx", load_external_data=False)
    for entry in light.graph.initializer[0].external_data:
        entry.value = "4096" if entry.key == "offset" else entry.value
    onnx.save(light, tmp_path / "in.onnx")
    assert external.is_external(light.graph.initializer[0])
    with pytest.raises(ModelError, match=r"w.bin, which has \d+, and is a Git LFS pointer") as caught:
        io.load(tmp_path / "in.onnx")
    assert "git lfs pull" in caught.value.hint
