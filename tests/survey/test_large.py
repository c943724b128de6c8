"""What a model of more than 2 GB goes through: the commands of a user, on a small one with its weights beside it."""

from pathlib import Path

from models.survey import AS_EXPORTED, OPTIMUM
from models.survey.large import promised
from tests.survey.exports import everything_outside, exported

STEPS = ["the original runs", "optimize", "by its path it runs", "onnxfuse.session runs it", "verify",
         "optimize --undo", "undone it runs"]  # fmt: skip


def test_every_command_takes_it(tmp_path: Path) -> None:
    """Each in a process of its own, whose time and memory are told; what is written has its data beside it."""
    file = exported(OPTIMUM, tmp_path / "m.onnx")
    (tmp_path / "out").mkdir()
    took = list(promised(file, tmp_path / "out"))
    assert [t.code for t in took] == [0] * len(STEPS), took[-1].said
    assert [t.step for t in took] == STEPS
    assert all(t.seconds > 0 and 0.01 < t.gigabytes < 3 for t in took)
    runs = {t.said.partition(" on ")[0] for t in took if t.step in ("the original runs", "undone it runs")}
    assert len(runs) == 1
    assert len(list((tmp_path / "out").iterdir())) == 4


def test_it_ends_at_the_first_that_fails(tmp_path: Path) -> None:
    """The last line that the command said is told."""
    file = exported(AS_EXPORTED, tmp_path / "m.onnx")
    everything_outside(file)
    (took,) = promised(file, tmp_path)
    assert (took.step, took.code) == ("the original runs", 1)
    assert "external" in took.said
