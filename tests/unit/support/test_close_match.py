"""Suggestions for words and files that are not there."""

from pathlib import Path

from onnxfuse.support.close_match import did_you_mean, hint_for_missing, no_such_file


def test_a_word_gets_the_closest_one() -> None:
    """None if none is close."""
    assert did_you_mean("bach", ["batch", "sequence"]) == " Did you mean batch?"
    assert did_you_mean("nosuch", ["batch", "sequence"]) == ""


def test_a_missing_file_gets_a_neighbour_or_the_missing_folder(tmp_path: Path) -> None:
    """What to correct: the name, or the folder before it."""
    (tmp_path / "bert.onnx").touch()
    (tmp_path / "other.txt").touch()
    missing = tmp_path / "bort.onnx"
    assert no_such_file(missing) == f"{missing}: no such file. Did you mean {tmp_path / 'bert.onnx'}?"
    assert no_such_file(tmp_path / "far.onnx") == f"{tmp_path / 'far.onnx'}: no such file"
    assert no_such_file(tmp_path / "zzz") == f"{tmp_path / 'zzz'}: no such file"
    nowhere = tmp_path / "zoo" / "bert.onnx"
    assert no_such_file(nowhere, "file or folder") == (
        f"{nowhere}: no such file or folder: there is no folder {tmp_path / 'zoo'}"
    )


def test_an_address_is_not_taken_for_a_path_with_a_slip() -> None:
    """It is downloaded first."""
    assert hint_for_missing(Path("https://host/model.onnx")).startswith("Download it first")
    assert hint_for_missing(Path("models/model.onnx")) == "Check the path."
