"""Data files that nobody reads once their model is replaced, and those that somebody may."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfuse.files import orphaned_data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model with two weights in one data file, in a folder of its own."""
    weights = [numpy_helper.from_array(np.ones(2000, np.float32), name) for name in "ab"]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "g", [], [], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "models").mkdir()
    onnx.save(made, tmp_path / "models" / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return tmp_path / "models" / "m.onnx"


def test_a_data_file_ends_with_the_last_weight(path: Path) -> None:
    """What is longer holds something else, too; a link or a second name is another's."""
    data = path.with_name("m.data")
    assert orphaned_data.read_by(path) == (data,)
    whole = data.read_bytes()
    data.write_bytes(whole + b"x")
    assert orphaned_data.read_by(path) == ()
    data.write_bytes(whole)
    second = path.with_name("second")
    second.hardlink_to(data)
    assert orphaned_data.read_by(path) == ()
    data.unlink()
    data.symlink_to(second)
    assert orphaned_data.read_by(path) == ()
    data.unlink()
    assert orphaned_data.read_by(path) == ()


def test_a_weight_without_an_offset_begins_with_the_file(path: Path) -> None:
    light = onnx.load(path, load_external_data=False)
    del light.graph.initializer[1]
    (weight,) = light.graph.initializer
    kept = [fact for fact in weight.external_data if fact.key == "location"]
    del weight.external_data[:]
    weight.external_data.extend(kept)
    path.write_bytes(light.SerializeToString())
    data = path.with_name("m.data")
    data.write_bytes(bytes(8000))
    assert orphaned_data.read_by(path) == (data,)


def test_data_in_a_folder_below_may_be_another_models(path: Path) -> None:
    light = onnx.load(path, load_external_data=False)
    for tensor in light.graph.initializer:
        for fact in tensor.external_data:
            fact.value = "below/m.data" if fact.key == "location" else fact.value
    path.write_bytes(light.SerializeToString())
    path.with_name("below").mkdir()
    path.with_name("m.data").rename(path.parent / "below" / "m.data")
    assert orphaned_data.read_by(path) == ()


def test_weights_without_elements_end_where_an_empty_file_ends(path: Path) -> None:
    light = onnx.load(path, load_external_data=False)
    for tensor in light.graph.initializer:
        tensor.dims[:] = [0]
        for fact in tensor.external_data:
            fact.value = "0" if fact.key in ("offset", "length") else fact.value
    path.write_bytes(light.SerializeToString())
    path.with_name("m.data").write_bytes(b"")
    assert orphaned_data.read_by(path) == (path.with_name("m.data"),)


def test_what_is_no_model_has_no_data(path: Path) -> None:
    """Nor has one whose weights are at no place."""
    assert orphaned_data.read_by(path.with_name("none.onnx")) == ()
    light = onnx.load(path, load_external_data=False)
    for fact in light.graph.initializer[0].external_data:
        fact.value = "x" if fact.key == "offset" else fact.value
    path.write_bytes(light.SerializeToString())
    assert orphaned_data.read_by(path) == ()
    path.write_bytes(b"\xff\xff")
    assert orphaned_data.read_by(path) == ()


def test_a_file_that_may_name_the_data_keeps_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any file of its folder, a model above; an empty one, a dangling link and what is too long for a model do not."""
    data = path.with_name("m.data")
    for name in ("notes.txt", "../above.onnx"):
        other = path.parent / name
        for text in (b"it reads m.data here", b"m.data is here, too."):
            other.write_bytes(text)
            assert orphaned_data.removable([data], [path]) == []
        monkeypatch.setattr(orphaned_data, "LARGEST", 19)
        assert orphaned_data.removable([data], [path]) == [data]
        monkeypatch.undo()
        other.write_bytes(b"")
        assert orphaned_data.removable([data], [path]) == [data]
        other.unlink()
    path.with_name("gone.onnx").symlink_to("nowhere")
    assert orphaned_data.removable([data], [path]) == [data]
    path.unlink()
    assert orphaned_data.remove([data]) == [data]
    assert not data.exists()


@pytest.mark.parametrize("at_once", [1, 2, 5, 6, 7, 100])
@pytest.mark.parametrize("before", [0, 1, 4, 6, 10])
def test_a_name_is_found_wherever_it_lies(
    path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, before: int
) -> None:
    """Also in two parts of what is read at once; a part of the name is not the name."""
    data, other = path.with_name("m.data"), path.with_name("other")
    monkeypatch.setattr(orphaned_data, "AT_ONCE", at_once)
    monkeypatch.setattr(orphaned_data, "_around", lambda file, aside: [other])
    other.write_bytes(b"m" * before + b"m.data" + b"m" * 3)
    assert orphaned_data.removable([data]) == []
    other.write_bytes(b"m" * before + b"m.dat" + b"m.dat")
    assert orphaned_data.removable([data]) == [data]


def test_a_file_that_is_too_long_for_a_model_is_not_searched(path: Path) -> None:
    """Whatever it begins with."""
    data, other = path.with_name("m.data"), path.with_name("other")
    other.write_bytes(b"m.data")
    os.truncate(other, (1 << 31) + 1)
    assert orphaned_data.removable([data], [path]) == [data]
    os.truncate(other, 1 << 31)
    assert orphaned_data.removable([data], [path]) == []


def test_a_file_that_is_cut_while_it_is_read_ends_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process writes it anew: that is no reason to die."""
    data, other = path.with_name("m.data"), path.with_name("other")
    other.write_bytes(bytes(1 << 16))
    opens = Path.open

    def cut(self: Path, *how: Any) -> Any:
        opened = opens(self, *how)
        if self == other:
            os.truncate(self, 10)
        return opened

    monkeypatch.setattr(Path, "open", cut)
    assert orphaned_data.removable([data], [path]) == [data]
    assert other.stat().st_size == 10


def test_a_file_that_cannot_be_read_may_name_anything(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that cannot be deleted stays, without an error."""
    data, other = path.with_name("m.data"), path.with_name("other")
    other.write_bytes(b"secret")
    opens, unlink = Path.open, Path.unlink

    def denied(self: Path, *how: Any) -> Any:
        if self == other:
            raise PermissionError(13, "Permission denied")
        return opens(self, *how)

    monkeypatch.setattr(Path, "open", denied)
    assert orphaned_data.removable([data], [path]) == []
    other.unlink()
    path.unlink()

    def kept(self: Path, missing_ok: bool = False) -> None:
        if self == data:
            raise PermissionError(13, "Permission denied")
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", kept)
    assert orphaned_data.removable([data, path.with_name("gone.data")]) == [data]
    assert orphaned_data.remove([data]) == []
    assert data.exists()


def test_a_model_and_files_that_go_away_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot be opened has read nothing, a file that is gone names nothing."""
    data, other = path.with_name("m.data"), path.with_name("other")
    other.write_bytes(b"m.data")
    opens = Path.open

    def gone(self: Path, *how: Any) -> Any:
        if self in (path, other):
            raise FileNotFoundError(2, "No such file")
        return opens(self, *how)

    monkeypatch.setattr(Path, "open", gone)
    assert orphaned_data.removable([data], [path]) == [data]
    assert orphaned_data.read_by(path) == ()

    def denied(self: Path, **how: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", denied)
    assert orphaned_data.removable([data], [path]) == []
