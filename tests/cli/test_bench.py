"""`onnxfuse bench`: the verdict first, facts as JSON, and an exit code for pipelines."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse import runtime
from onnxfuse.measure.benchmark import compare
from onnxfuse.measure.benchmark.ceilings import Ceilings
from onnxfuse.support import process_pool
from tests.cli.conftest import Command

FAST = ("--provider", "cpu", "--runs", "1", "--rounds", "1")


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one core: the original takes 300 us, and 240 with one thread; the fused model 200, and 160 with one thread.

    The memory moves a byte in a microsecond; products take no time.
    """
    monkeypatch.setattr(process_pool, "cores", lambda: 1)

    def interleaved(
        runs: Sequence[Callable[[], None]], rounds: int, count: int, **_: Callable[[int], None]
    ) -> list[list[float]]:
        for run in runs:
            run()
        return [[us / 1e6] * rounds * count for us in (300, 240, 200, 160)]

    monkeypatch.setattr(compare, "interleaved", interleaved)
    monkeypatch.setattr(compare, "measured", lambda types, providers, setting: Ceilings(1e6, {"float32": 1e15}))


@pytest.mark.usefixtures("times")
def test_where_nothing_is_fused_a_difference_is_called_chance(folder: Path, onnxfuse_command: Command) -> None:
    """Nobody is to look for the cause of noise. A model without inputs has a name for its one row, too."""
    text = '<ir_version: 8, opset_import: ["": 17]> g () => (float[2] y) { y = Constant <value = float[2] {1, 2}> () }'
    onnx.save(onnx.parser.parse_model(text), folder / "constant.onnx")
    done = onnxfuse_command("bench", "constant.onnx", *FAST)
    assert "nothing is fused: both models run the same nodes, and any difference is chance" in done.out
    assert "\nno inputs (1 item)" in done.out
    assert "is chance" not in onnxfuse_command("bench", "in.onnx", *FAST).out


@pytest.mark.usefixtures("folder", "times")
def test_the_verdict_comes_first_and_all_fits_one_screen(onnxfuse_command: Command) -> None:
    """Best against best; a row per setting; what was assumed, what ran, how it was measured, and on what."""
    done = onnxfuse_command("bench", "in.onnx", *FAST)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "1.50x over ONNX Runtime's best (1 thread)"
    assert "above 100%: what a node writes is still in a cache where the next reads it" in done.out
    assert lines[1].startswith("note: no kernel runs on the CPU, so this times the portable form")
    assert len(lines) <= 18
    cells = [line.split() for line in lines]
    # A row of 3 floats is 12 bytes. Before: 44 + 36 + 24 + 36 + 60 + 36 = 236; with three nodes as one: 188.
    assert ["original:", "default", "300", "300..300", "300", "300", "300", "3333", "79%", "1.88x"] in cells
    assert ["original:", "1", "thread", "240", "240..240", "240", "240", "240", "4167", "98%", "1.50x"] in cells
    assert ["fused:", "1", "thread", "160", "160..160", "160", "160", "160", "6250", "118%"] in cells
    assert "own work: 236 B -> 188 B and 63 FLOP at N=1; measured here 1 MB/s, float32 1000 TFLOP/s" in done.out
    assert "assumed N=1: choose other sizes with --shape N=8" in done.out
    assert re.search(r"nodes per run: \d+ on CPU -> \d+ on CPU; (\d+) fused ops?; \1 as bodies", done.out)
    assert "1 x 1 timed run of each in turns" in done.out
    assert "onnxruntime" in lines[-1]


@pytest.mark.usefixtures("times")
def test_the_fused_file_is_the_one_that_is_timed(folder: Path, onnxfuse_command: Command) -> None:
    """OUT.onnx is run as it is: here a copy of the original, with nothing fused."""
    onnx.save(onnx.load(folder / "in.onnx"), folder / "same.onnx")
    onnx.save(onnxfuse.optimize(folder / "in.onnx"), folder / "out.onnx")
    counts = {}
    for name in ("same.onnx", "out.onnx"):
        facts = json.loads(onnxfuse_command("bench", "in.onnx", name, *FAST, "--json").out)
        counts[name] = facts["fused_ops"]["nodes"]
    assert counts["same.onnx"] == 0
    assert counts["out.onnx"] > 0


@pytest.mark.usefixtures("folder", "times")
def test_json_holds_every_fact(onnxfuse_command: Command) -> None:
    """The schema that scripts rely on; several shapes are several blocks."""
    done = onnxfuse_command("bench", "in.onnx", *FAST, "--shape", "N=1,8", "--json")
    assert done.code == 0
    facts = json.loads(done.out, parse_constant=pytest.fail)
    assert set(facts) == {
        "schema", "command",
        "ok", "summary", "speedup", "provider", "blocks", "assumed", "nodes", "fused_ops", "environment", "runs",
        "rounds", "limit", "seconds", "min_speedup", "not_met", "ceilings", "uncounted", "plot", "portable",
    }  # fmt: skip
    assert (facts["ok"], facts["min_speedup"], facts["not_met"], facts["assumed"]) == (True, None, [], [])
    assert facts["speedup"] == pytest.approx(1.5)
    assert facts["provider"] == "CPUExecutionProvider"
    assert [b["dimensions"] for b in facts["blocks"]] == [{"N": 1}, {"N": 8}]
    block = facts["blocks"][1]
    assert set(block) == {
        "dimensions", "shapes", "items", "speedup", "differs", "verdict", "measured", "best_setting", "fused_setting",
        "rows", "refused", "work", "faster", "runs", "rounds", "memory",
    }  # fmt: skip
    assert (block["faster"], block["runs"], block["rounds"], facts["limit"]) == ("1.50x", 1, 1, 60)
    assert (block["shapes"], block["memory"]) == ({"x": [8, 2], "r": [8, 3]}, None)
    assert (block["best_setting"], block["fused_setting"], block["items"]) == ("1 thread", "1 thread", 8)
    row = block["rows"][0]
    assert set(row) == {"model", "setting", "p50", "p90", "p99", "min", "low", "high", "items_per_second",
                        "memory_bytes", "launches", "roofline"}  # fmt: skip
    assert block["work"]["original"] == {"bytes": 8 * 152 + 84, "flops": 8 * 63, "floor_us": pytest.approx(1300)}
    assert (row["launches"], row["roofline"]) == (None, pytest.approx(1300 / 300))
    assert facts["ceilings"] == {"bytes_per_second": 1e6, "flops_per_second": 1e15, "by_type": {"float32": 1e15}}
    assert row["p50"] == pytest.approx(300)
    assert row["items_per_second"] == pytest.approx(8 / 300e-6)
    assert set(facts["fused_ops"]) == {"nodes", "kernels", "bodies", "launches", "reasons"}


@pytest.mark.usefixtures("folder", "times")
def test_a_speedup_that_was_asked_for(onnxfuse_command: Command) -> None:
    """1.5 was measured: 1.4 is met, 1.6 is not; then the exit code is 4 and the row that missed is named."""
    assert onnxfuse_command("bench", "in.onnx", *FAST, "--min-speedup", "1.4").code == 0
    missed = onnxfuse_command("bench", "in.onnx", *FAST, "--shape", "N=8", "--min-speedup", "1.6")
    assert missed.code == 4
    assert "not met: --min-speedup 1.6: 1.5x over 1 thread at N=8 (p50 240 -> 160 us)" in missed.out
    as_json = onnxfuse_command("bench", "in.onnx", *FAST, "--shape", "N=8", "--min-speedup", "1.6", "--json")
    assert as_json.code == 4
    facts = json.loads(as_json.out)
    assert facts["ok"] is False
    assert facts["not_met"] == ["--min-speedup 1.6: 1.5x over 1 thread at N=8 (p50 240 -> 160 us)"]


@pytest.mark.usefixtures("times")
@pytest.mark.parametrize(("name", "begins"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml"), ("p.pdf", b"%PDF")])
def test_the_plot_is_a_picture(folder: Path, onnxfuse_command: Command, name: str, begins: bytes) -> None:
    """Of the kind that its name says; its place is told."""
    pytest.importorskip("matplotlib", reason="an extra")
    done = onnxfuse_command("bench", "in.onnx", *FAST, "--shape", "N=1,8", "--plot", name)
    assert (done.code, done.out.splitlines()[-1]) == (0, f"plot: {name}")
    assert (folder / name).read_bytes().startswith(begins)


@pytest.mark.usefixtures("folder")
def test_a_plot_without_matplotlib_is_exit_5(onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told before the work, with the command that mends it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = onnxfuse_command("bench", "in.onnx", *FAST, "--plot", "p.png")
    assert (done.code, done.out) == (5, "")
    assert "pip install 'onnxfuse[plot]'" in done.err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "p.jpg"], "not one of .png, .svg, .pdf"),
        (["--shape", "N=one"], "neither DIMENSION=1,7 nor DIMENSION=1..32 nor INPUT=1x3x224x224"),
        (["--shape", "M=1"], "shape M: no input or dimension has that name"),
        (["--shape", "x=1x9"], "axis 1 must be 2"),
        (["--runs", "0"], "0 is not in the range"),
        (["--min-speedup", "-1"], "-1.0 is not in the range"),
        (["--provider", "tpu"], "'tpu' is not one of"),
    ],
)
def test_wrong_usage_is_told_in_one_message(arguments: list[str], message: str, onnxfuse_command: Command) -> None:
    """Exit 2, and the word that is wrong."""
    done = onnxfuse_command("bench", "in.onnx", *FAST, *arguments)
    assert done.code == 2
    assert message in done.err


def test_files_that_are_no_models(folder: Path, onnxfuse_command: Command) -> None:
    """Exit 3 for a missing or a foreign file, whichever of the two it is."""
    (folder / "text.onnx").write_text("hello")
    for name in ("missing.onnx", "text.onnx"):
        for arguments in ((name,), (name, "in.onnx"), ("in.onnx", name)):
            done = onnxfuse_command("bench", *arguments, *FAST)
            assert (done.code, done.out) == (3, "")
            assert name in done.err


@pytest.mark.usefixtures("folder")
def test_no_cuda_where_it_was_asked_for(onnxfuse_command: Command) -> None:
    """Exit 5; never a benchmark of the CPU under the name of the GPU."""
    if runtime.cuda_unusable() is None:
        pytest.skip("CUDA works here")
    done = onnxfuse_command("bench", "in.onnx", "--provider", "cuda")
    assert done.code == 5
    assert "CUDA" in done.err
