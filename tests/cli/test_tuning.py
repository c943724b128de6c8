"""`optimize --tune`, `--tuning FILE` and what `explain` shows of it, with a stopwatch that says what it is told."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import onnxruntime
import pytest

import onnxfuse
from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.dispatch.measurements import Machine
from onnxfuse.measure import tune as tuning
from onnxfuse.measure.tune import Stopwatch
from onnxfuse.measure.tune.work import TuningTask
from onnxfuse.runtime.engine.cuda_provider import cuda_unusable
from tests.cli.conftest import Command
from tests.cli.test_report_files import FORM
from tests.support.tuning import H200, Times, block, by_kind, short_attention, stopwatch

HERE = Machine("Some GPU", "580.1", onnxruntime.__version__)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> "Gpu":
    return Gpu(monkeypatch)


class Gpu:
    """Stands for the GPU; `seen` is the work that was measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[TuningTask] = []
        self.times: Times = by_kind(fused=1, split=2, alone=3)
        monkeypatch.setattr(tuning, "on_gpu", self.stopwatch)

    def stopwatch(self) -> Stopwatch:
        return Stopwatch(HERE, H200, stopwatch(self.times, self.seen).time)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(block(32), "in.onnx")
    onnx.save(block(), "dynamic.onnx")
    return tmp_path


def fused(path: Path) -> list[str]:
    """The rules of the fused ops in a file."""
    return sorted(f.metadata_props[0].value for f in onnx.load(path).functions)


def facts(result: Any) -> dict[str, Any]:
    """What `--json` printed, which has the documented form."""
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    jsonschema.Draft202012Validator(FORM).validate(found)
    return found


def test_tune_measures_decides_and_keeps_the_times(folder: Path, onnxfuse_command: Command, gpu: Gpu) -> None:
    """The file stands beside the model; the model carries what is about its own ops."""
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--tune")
    assert result.code == 0, result.err
    assert "tuned: 4 fused ops stay kernels, 0 of them in another variant than the plan's own" in result.out
    assert "out.tuning.json: 4 measured now, 4 used" in result.out
    assert fused(folder / "out.onnx") == ["gemm", "gemm", "layer_norm", "plain_product"]
    book = measurements.read(folder / "out.tuning.json")
    assert measurements.of_model(onnx.load("out.onnx")) == book
    assert set(book[HERE]) == {w.key for w in gpu.seen}


def test_a_file_is_reused_where_there_is_no_gpu(folder: Path, onnxfuse_command: Command, gpu: Gpu) -> None:
    """On another machine the same bytes come out, and nothing is measured."""
    onnxfuse_command("optimize", "in.onnx", "tuned.onnx", "--tune", "--tuning", "t.json")
    count = len(gpu.seen)
    result = facts(onnxfuse_command("optimize", "in.onnx", "out.onnx", "--tuning", "t.json", "--json"))
    assert len(gpu.seen) == count
    assert (folder / "out.onnx").read_bytes() == (folder / "tuned.onnx").read_bytes()
    assert result["tuning"]["measured_now"] == 0
    assert result["tuning"]["machines"] == [str(HERE)]
    api = onnxfuse.optimize("in.onnx", tuning="t.json")
    assert api.SerializeToString(deterministic=True) == onnx.load("out.onnx").SerializeToString(deterministic=True)


def test_an_interrupted_tuning_goes_on_where_it_stopped(
    folder: Path, onnxfuse_command: Command, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each measurement is in the file as soon as it is made."""

    def interrupted() -> Stopwatch:
        whole = gpu.stopwatch()

        def time(work: TuningTask, candidates: Any) -> Any:
            if len(gpu.seen) == 2:
                raise KeyboardInterrupt
            return whole.time(work, candidates)

        return Stopwatch(HERE, H200, time)

    monkeypatch.setattr(tuning, "on_gpu", interrupted)
    with pytest.raises(KeyboardInterrupt):
        onnxfuse.tune("in.onnx", "t.json")
    assert len(measurements.read(folder / "t.json")[HERE]) == 2
    monkeypatch.setattr(tuning, "on_gpu", gpu.stopwatch)
    result = facts(onnxfuse_command("optimize", "in.onnx", "out.onnx", "--tune", "--tuning", "t.json", "--json"))
    assert result["tuning"]["measured_now"] == 2


def test_a_second_tuning_adds_to_the_file(folder: Path, onnxfuse_command: Command, gpu: Gpu) -> None:
    """What is known is not measured again; what was measured elsewhere stays in the file."""
    call = ("optimize", "dynamic.onnx", "out.onnx", "--tune", "--tuning", "t.json")
    onnxfuse_command(*call, "--shape", "N=8")
    first, count = measurements.read(folder / "t.json"), len(gpu.seen)
    elsewhere = Machine("Another", "1", "1")
    measurements.write(folder / "t.json", {**first, elsewhere: first[HERE]})
    onnxfuse_command(*call, "--shape", "N=8,64")
    assert len(gpu.seen) == 2 * count
    both = measurements.read(folder / "t.json")
    assert both[elsewhere] == first[HERE]
    assert set(first[HERE]) < set(both[HERE])


def test_explain_shows_candidates_and_times(folder: Path, onnxfuse_command: Command, gpu: Gpu) -> None:
    """With a file, or of a model that carries it; the nodes that were left alone say why."""
    gpu.times = by_kind(fused=30, split=20, alone=10.5)
    onnxfuse_command("optimize", "in.onnx", "out.onnx", "--tune", "--tuning", "t.json")
    told = onnxfuse_command("explain", "in.onnx", "--tuning", "t.json").out
    assert f"measured on {HERE}" in told
    assert "left alone" in told
    assert "10.5 alone" in told
    assert "30.0 fused" in told
    assert "measured 32x64, 64x4104, 4104: fused 30.0 us, split 20.0 us, alone 10.5 us" in told.replace("\n", " ")
    assert "31.0 fused tile" not in told
    assert "31.0 fused tile" in onnxfuse_command("explain", "in.onnx", "--tuning", "t.json", "--all").out
    shown = facts(onnxfuse_command("explain", "in.onnx", "--tuning", "t.json", "--json"))["tuning"]
    (first,) = shown["decisions"][0]["measured"]
    assert first["fastest"] == {"fused": "fused", "split": "split", "alone": "alone"}
    assert [c["kind"] for c in first["candidates"]][-2:] == ["split", "alone"]
    gpu.times = by_kind(fused=1, split=20, alone=10.5)
    onnxfuse_command("optimize", "in.onnx", "kernels.onnx", "--tune")
    assert "1.0 fused" in onnxfuse_command("explain", "kernels.onnx").out
    carried = [a["rule"] for a in facts(onnxfuse_command("explain", "kernels.onnx", "--json"))["applied"]]
    assert [a.rule for a in onnxfuse.explain("kernels.onnx").applied] == carried != []
    assert "measured on" not in onnxfuse_command("explain", "in.onnx").out


def test_the_librarys_op_is_told_beside_the_kernel(folder: Path, onnxfuse_command: Command, gpu: Gpu) -> None:
    """Attention has both; what measured fastest is in the file, and both are in `explain` and its JSON."""
    onnx.save(short_attention(128), "in.onnx")
    gpu.times = by_kind(fused=20, library=10, split=30, alone=40)
    told = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--tune")
    assert (told.code, fused(folder / "out.onnx")) == (0, ["attention"]), told.err
    assert "1 runs as the library's op" in told.out
    page = onnxfuse_command("explain", "in.onnx", "--tuning", "out.tuning.json").out
    assert "library's op" in page
    assert page.index("10.0 library") < page.index("20.0 fused") < page.index("30.0 split")
    found = facts(onnxfuse_command("explain", "in.onnx", "--tuning", "out.tuning.json", "--json"))
    assert "library" in {d["verdict"] for d in found["tuning"]["decisions"]}


def test_times_of_elsewhere_are_told_in_one_line(folder: Path, onnxfuse_command: Command, gpu: Gpu) -> None:
    onnxfuse_command("optimize", "in.onnx", "out.onnx", "--tune", "--tuning", "t.json")
    book = measurements.read(folder / "t.json")
    old = Machine("Some GPU", "580.1", "0.9")
    measurements.write(folder / "t.json", {old: book[HERE]})
    result = onnxfuse_command("optimize", "in.onnx", "plain.onnx", "--tuning", "t.json")
    assert result.code == 0
    assert (
        f"tuning not used: measured on {old}; here is onnxruntime {onnxruntime.__version__}, without a GPU"
        in result.out
    )
    assert "this model has no measurements" in result.out
    onnxfuse_command("optimize", "in.onnx", "static.onnx")
    assert (folder / "plain.onnx").read_bytes() == (folder / "static.onnx").read_bytes()
    with pytest.warns(UserWarning, match="tuning not used"):
        onnxfuse.optimize("in.onnx", tuning="t.json")


def test_the_guard_decides_by_the_times_too(folder: Path, onnxfuse_command: Command, gpu: Gpu) -> None:
    gpu.times = by_kind(fused=3, split=2, alone=1)
    result = facts(onnxfuse_command("optimize", "in.onnx", "out.onnx", "--tune", "--guard", "--json"))
    assert result["guard"]["undone"] == []
    assert result["fused_nodes"] == 0
    assert {d["verdict"] for d in result["tuning"]["decisions"]} == {"alone"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--tuning", "t.json"], "t.json: cannot be read as a tuning file"),
        (["--tune", "--undo"], "--undo cannot be combined with any of"),
        (["--tune", "--tuning", "nowhere/t.json"], "the folder nowhere does not exist"),
        (["--tune", "--shape", "M=8"], "no dynamic dimension called 'M'"),
    ],
)
def test_what_does_not_go_together(
    folder: Path, onnxfuse_command: Command, gpu: Gpu, options: list[str], told: str
) -> None:
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", *options)
    assert result.code in (2, 3)
    assert told in result.err
    assert not (folder / "out.onnx").exists()


def test_dynamic_dimensions_need_a_size(folder: Path, onnxfuse_command: Command, gpu: Gpu) -> None:
    result = onnxfuse_command("optimize", "dynamic.onnx", "out.onnx", "--tune")
    assert result.code == 2
    assert "--shape N=8" in result.err


def test_without_a_gpu_nothing_is_tuned(folder: Path, onnxfuse_command: Command) -> None:
    """Exit code 5, as wherever CUDA is asked for and is not there."""
    if cuda_unusable() is None:
        pytest.skip("there is a GPU here")
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--tune")
    assert result.code == 5
    assert not (folder / "out.onnx").exists()
    assert not (folder / "out.tuning.json").exists()
