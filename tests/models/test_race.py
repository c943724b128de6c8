"""Models in turns: what is done before the race and what in it, and which settings run to its end."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import models
from bench import race as racing
from bench.race import against, race
from bench.speed import write
from onnxfuse import optimize
from onnxfuse.files import io
from onnxfuse.measure.timing.binding import opened, warmed
from onnxfuse.measure.timing.contenders import Contender
from onnxfuse.measure.timing.settings import CUDA_GRAPH, Setting
from onnxfuse.options.functions import ROUNDS, RUNS
from onnxfuse.support.errors import DeviceError

CPU = ["CPUExecutionProvider"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, dict[str, Any]]:
    """A small model, the same fused, and an input."""
    feeds = write("training_step", "float32", 4, 1, tmp_path / "a.onnx")
    io.save(optimize(tmp_path / "a.onnx"), tmp_path / "b.onnx")
    return tmp_path / "a.onnx", tmp_path / "b.onnx", feeds


def test_no_session_that_is_timed_runs_before_its_turn(
    files: tuple[Path, Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are open by then: in a first run cuDNN searches, which must not be beside others."""
    original, fused, feeds = files
    happened: list[str] = []

    def bound(*facts: Any) -> Any:
        happened.append("bound")
        return warmed(*facts)

    def opening(*facts: Any, **more: Any) -> Any:
        happened.append("opened")
        return opened(*facts, **more)

    monkeypatch.setattr(racing, "warmed", bound)
    monkeypatch.setattr(racing, "opened", opening)
    contenders = against(original, fused, CPU)
    found = race(contenders, feeds, CPU, lambda: happened.append("turn"))
    assert happened == ["opened"] * (1 + len(contenders)) + ["turn"] + ["bound"] * len(contenders)
    assert {(r.model, r.setting) for r in found.block.rows} == {(c.name, c.setting.name) for c in contenders}
    assert len(found.bodies) > 0  # on the CPU fused ops are their bodies, and why is told


class Slow:
    """A session whose runs take so long by the test's clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.runs = seconds, 0


def test_a_setting_that_has_lost_leaves_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that is near, not the CUDA graph, nothing of the fused model; what is left out keeps its median."""
    sides = {"best": 1.0, "near": 1.09, "lost": 1.2, CUDA_GRAPH.name: 3.0, "fused": 2.0}
    ready = [
        (Contender("fused" if name == "fused" else "original", Path(), Setting(name)), Slow(seconds))
        for name, seconds in sides.items()
    ]

    def by_the_clock(runs: Any, rounds: int, count: int) -> list[list[float]]:
        for run in runs:
            run.__self__.runs += rounds * count
        return [[run.__self__.seconds] * rounds * count for run in runs]

    monkeypatch.setattr(Slow, "run", lambda self: None, raising=False)
    monkeypatch.setattr(racing, "interleaved", by_the_clock)
    rows = racing._rows(ready)  # type: ignore[arg-type] # no sessions
    assert [row.timing.p50 for row in rows] == pytest.approx([1e6 * seconds for seconds in sides.values()])
    assert [slow.runs for _, slow in ready] == [
        (racing.FIRST_ROUNDS if name == "lost" else ROUNDS) * RUNS for name in sides
    ]


def test_a_setting_that_onnx_runtime_refuses_is_told(files: tuple[Path, Path, dict[str, Any]]) -> None:
    """The others are timed; where none is left of a model the reason is raised."""
    original, fused, feeds = files
    model, broken = io.load(original), original.with_name("broken.onnx")
    model.graph.node[0].op_type = "NoSuchOp"
    io.save(model, broken)
    good = against(original, fused, CPU)
    bad = Contender("original", broken, Setting("bad"))
    found = race([*good, bad], feeds, CPU)
    assert [r.setting for r in found.block.refused] == ["bad"]
    assert len(found.block.rows) == len(good)
    with pytest.raises(DeviceError, match="the original model runs with none of the settings"):
        race([bad, *(c for c in good if c.name == "fused")], feeds, CPU)


def test_other_forms_race_at_the_settings_of_the_original(files: tuple[Path, Path, dict[str, Any]]) -> None:
    """Under their names, as the original; on CUDA those for convolutions too, where there are any."""
    original, fused, _ = files
    cuda = ["CUDAExecutionProvider"]
    found = against(original, fused, cuda, others={"theirs": fused})
    assert [(c.name, c.setting.name) for c in found] == [
        ("original", "default"), ("original", "CUDA graph"), ("fused", "default"), ("fused", "CUDA graph"),
        ("original", "theirs, default"), ("original", "theirs, CUDA graph"),
    ]  # fmt: skip
    io.save(models.build("lenet5", batch=2), original)
    assert "NHWC" in {c.setting.name for c in against(original, fused, cuda)}


def aborting(*facts: Any, **more: Any) -> None:
    """End the process."""
    os.kill(os.getpid(), signal.SIGABRT)


def test_settings_that_end_the_process_are_left_out(
    files: tuple[Path, Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ONNX Runtime's NHWC of LeViT does; it is tried in another process, and the rest is timed."""
    original, fused, feeds = files
    ending = Setting("ending", {racing.ENDING: "1"})
    contenders = [*against(original, fused, CPU), Contender("original", original, ending)]
    assert racing._ended(contenders, feeds, CPU) == {}
    monkeypatch.setattr(racing, "_run_once", aborting)
    block = race(contenders, feeds, CPU).block
    assert [(one.setting, one.kind) for one in block.refused] == [("ending", "crashed")]
    assert "ending" not in {row.setting for row in block.rows}
