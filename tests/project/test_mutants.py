"""What `python -m tools.mutants` does not try is still written where it says."""

import shutil
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from tools import mutants

NOTES = tomllib.loads(mutants.NOTES.read_text(encoding="utf-8"))
EXPLAINED = NOTES["equivalent"]


@pytest.mark.parametrize("module", sorted({entry["module"] for entry in EXPLAINED}))
def test_an_explained_mutant_is_one_that_there_is(module: str) -> None:
    """Its line is in the module, and the change is one that the tool makes of it."""
    path = mutants.ROOT / module
    lines = path.read_text(encoding="utf-8").splitlines()
    there = {(lines[m.line - 1].strip(), m.before, m.after) for m in mutants.mutants(path)}
    assert mutants.equivalent(path) <= there
    assert all(entry["why"] for entry in EXPLAINED)


def test_tests_elsewhere_are_among_the_nearest() -> None:
    """Of modules and tests that there are."""
    for module, files in NOTES["tests"].items():
        assert all((mutants.ROOT / file).is_file() for file in files)
        assert {mutants.ROOT / file for file in files} <= {*mutants.nearest(mutants.ROOT / module)}


def test_an_explanation_of_a_line_that_is_gone_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[[equivalent]]\nmodule = "tools/mutants.py"\nline = "if gone:"\nbefore = "a"\nafter = "b"\nwhy = "-"\n'
    (tmp_path / "mutants.toml").write_text(text)
    monkeypatch.setattr(mutants, "NOTES", tmp_path / "mutants.toml")
    with pytest.raises(ValueError, match=r"mutants.toml: tools/mutants.py has no line 'if gone:'"):
        mutants.equivalent(Path(mutants.__file__))


def test_a_mutant_deletes_nothing_but_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be in what cleans up: a folder and a file elsewhere are still there."""
    for folder in ("temporary", "elsewhere"):
        (tmp_path / folder / "a").mkdir(parents=True)
        (tmp_path / folder / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", f"{tmp_path / 'temporary'}")

    def mutant() -> str:
        mutants.stay_in_temporary_folders()
        for folder in ("elsewhere", "temporary"):
            with suppress(PermissionError):
                (tmp_path / folder / "file").unlink()
            with suppress(PermissionError):
                shutil.rmtree(tmp_path / folder / "a")
        return "done"

    assert mutants._forked(mutant) == "done"
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert left == {"temporary", "elsewhere", "elsewhere/a", "elsewhere/file"}
