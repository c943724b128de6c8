"""The survey takes files as exporters write them, weights beside the model, and sees a written file that is no use."""

from pathlib import Path
from typing import Any

import onnx
import pytest

from models.survey import AS_EXPORTED, INSIDE, checks, files
from models.survey.checks import (
    NO_ARCH,  # fmt: skip
    Broken,
    Examined,
    examined,
    opened_on_cpu,
    optimized,
    original_on_cpu,
    same_again,
    undone,
)
from tests.survey.exports import LAYOUTS, everything_outside, exported


def begun(layout: str, folder: Path) -> Examined:
    """Return an export that has come as far as that its original runs."""
    one = Examined(exported(layout, folder / "export" / "m.onnx"), folder, ())
    original_on_cpu(one)
    assert one.on_cpu, one.facts
    return one


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_export_goes_through_every_step_wherever_its_weights_are(layout: str, tmp_path: Path) -> None:
    """What is written has its data beside it where the export had, small tensors inside, and is opened by its path."""
    file = exported(layout, tmp_path / "export" / "m.onnx")
    before = files.contents(file.parent)
    *_, row = examined(file, "cpu", (NO_ARCH,))
    assert row["verdict"] == "right", row
    assert row["fused"], row
    assert bool(row["weights"]["before"][1]) == bool(row["weights"]["after"][1]) == (layout != INSIDE)
    assert row["weights"]["after"][0], "the count of TopK is not in the file"
    assert files.contents(file.parent) == before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_only_opens_in_memory_is_found(layout: str, tmp_path: Path) -> None:
    """All that is read into memory is right; ONNX Runtime does not open the file whose tensors are all outside."""
    one = begun(layout, tmp_path)
    optimized(one)
    everything_outside(one.fused)
    with pytest.raises(Broken, match="by its path the written file is of no use"):
        opened_on_cpu(one)


def test_an_undone_file_that_only_opens_in_memory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the optimized one."""
    one = begun(AS_EXPORTED, tmp_path)
    optimized(one)

    def write(make: Any, file: Path) -> Any:
        made = files.write(make, file)
        everything_outside(file)
        return made

    monkeypatch.setattr(checks, "write", write)
    with pytest.raises(Broken, match="undone it does not open"):
        undone(one)


def test_data_that_changes_from_one_call_to_the_next_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte of the file beside the model counts as one of the model does."""
    one = begun(AS_EXPORTED, tmp_path)
    optimized(one)

    def write(make: Any, file: Path) -> Any:
        made = files.write(make, file)
        (data,) = (f for f in file.parent.iterdir() if f != file)
        data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
        return made

    monkeypatch.setattr(checks, "write", write)
    with pytest.raises(Broken, match=r"other bytes: not in its nodes, in fused.onnx\..*\.data"):
        same_again(one)


def test_an_original_that_loses_its_data_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the export are the user's."""
    one = begun(AS_EXPORTED, tmp_path)

    def write(make: Any, file: Path) -> Any:
        made = files.write(make, file)
        one.path.with_name("m.onnx.data").unlink()
        return made

    monkeypatch.setattr(checks, "write", write)
    with pytest.raises(Broken, match="the files of the original are no longer as they were"):
        optimized(one)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_beside_a_model_is_of_its_size(layout: str, tmp_path: Path) -> None:
    """Two matrices of 64x64 floats are in it, wherever they are."""
    file = exported(layout, tmp_path / "m.onnx")
    assert 33_000 < files.size(file) < 40_000
    inside, outside = files.outside(file)
    assert (inside + outside, bool(outside)) == (len(onnx.load(file).graph.initializer), layout != INSIDE)
