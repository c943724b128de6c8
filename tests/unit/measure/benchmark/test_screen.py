"""The screen of a benchmark: verdict, a row for each setting, and what the times mean."""

from dataclasses import replace

from onnxfuse.measure.benchmark.ceilings import Ceilings
from onnxfuse.measure.benchmark.report import BenchmarkReport, FusedOps, ReportBlock, TimingRow, WorkPerRun
from onnxfuse.measure.benchmark.screen import screen
from onnxfuse.measure.timing.settings import ModelName, RefusedRun
from onnxfuse.runtime.sessions.memory import MemoryUse
from tests.support.screens import lines
from tests.unit.measure.benchmark.test_report import block, noisy, report, row

TIMED = replace(block(400, 300, 150), runs=20, rounds=3)
PLAIN = replace(report(TIMED), environment={"device": "H"}, runs=20, rounds=3, seconds=1.25)


def shown(of: BenchmarkReport, *, memory: bool = False) -> list[str]:
    """Return the lines with single spaces."""
    return [" ".join(line.split()) for line in lines(screen(of, memory=memory))]


def test_each_setting_is_a_row() -> None:
    """Median, spread, quantiles, throughput, and how much faster the fused model is at its best."""
    verdict, headings, name, *rows = shown(PLAIN)
    assert verdict == "2.00x over ONNX Runtime's best (CUDA graph)"
    assert headings == "p50 us 95% of it p90 p99 min items/s roofline fused faster"
    assert name == "n=4 (4 items)"
    assert rows[:3] == [
        "original: default 400 396..404 400 400 400 10000 2.67x",
        "original: CUDA graph 300 297..303 300 300 300 13333 2.00x",
        "fused: default 150 148..152 150 150 150 26667",
    ]
    assert rows[3:] == [
        "", "nodes per run: ; 0 fused ops",
        "all times in us per run; 95% of it: where the median of the rounds lies; where two of these overlap, neither "
        "is known to be faster", "3 x 20 timed runs of each in turns, inputs and outputs bound; 1.2 s", "device H",
    ]  # fmt: skip


def test_differences_within_the_spread_are_none() -> None:
    """Short times have a digit more."""
    rows = shown(report(block(40, 30, 29.9)))
    assert any("original: CUDA graph 30.0 29.7..30.3" in line and "no difference" in line for line in rows)


def test_fewer_runs_than_asked_for_are_explained() -> None:
    """With the limit that took them; what is undecided then needs more time, else more rounds."""
    noise = replace(TIMED, rows=(noisy("original", 300), noisy("fused", 200)))
    limited = replace(PLAIN, blocks=(noise, replace(noise, runs=2)), seconds=70.0)
    rows = shown(limited)
    method = "3 x 20 timed runs, 3 x 2 timed runs of each in turns, inputs and outputs bound; 70.0 s"
    assert f"{method}; 3 x 20 would take longer than --time 60" in rows
    decide = "to decide it: a machine without other load, or more rounds"
    assert f"{decide} (--time 240)" in rows
    assert f"{decide} (--rounds 9)" in shown(replace(PLAIN, blocks=(noise,)))
    assert not any(decide in line for line in shown(PLAIN))


def test_requirements_and_notes_follow_the_verdict() -> None:
    """The portable form is said of fused ops on the CPU."""
    fused = replace(PLAIN, fused_ops=FusedOps(3, 0, 2, None, ("no kernel",)))
    _, note, not_met, *rest = [" ".join(line.split()) for line in lines(screen(fused, ["--min-speedup 3"]))]
    assert note.startswith("note: no kernel runs on the CPU")
    assert not_met == "not met: --min-speedup 3"
    assert "nodes per run: ; 3 fused ops; 1 as ops of ONNX Runtime's own; 2 as bodies" in rest
    assert "as bodies: no kernel" in rest


def test_refused_settings_are_rows_with_their_reason_once() -> None:
    """How to wait longer is said where one did not answer."""
    refused = (
        RefusedRun("original", "NHWC", "no"), RefusedRun("original", "A", "slow", "hangs"),
        RefusedRun("original", "B", "slow", "hangs"),
    )  # fmt: skip
    rows = shown(replace(PLAIN, blocks=(replace(PLAIN.blocks[0], refused=refused),) * 2))
    assert rows.count("original: NHWC refused") == rows.count("original: A no answer") == 2
    assert rows.count("refused original: NHWC: no") == rows.count("no answer original: A, original: B: slow") == 1
    assert "to wait longer: --patience SECONDS" in rows
    first = replace(PLAIN, blocks=(replace(PLAIN.blocks[0], refused=refused[:1]),))
    assert "to wait longer: --patience SECONDS" not in shown(first)


def test_models_that_run_the_same_nodes_differ_by_chance() -> None:
    """If nothing is fused."""
    chance = "nothing is fused: both models run the same nodes, and any difference is chance"
    same = replace(PLAIN, nodes={"original": {"CPU": 3}, "fused": {"CPU": 3}})
    assert chance in shown(same)
    assert "nodes per run: 3 on CPU -> 3 on CPU; 0 fused ops" in shown(same)
    assert chance not in shown(replace(same, nodes={"original": {"CPU": 3}, "fused": {"CPU": 2}}))
    assert chance not in shown(replace(same, fused_ops=FusedOps(1, 0, 1, None, ())))


def test_assumed_sizes_are_named_with_the_flag() -> None:
    """That chooses others."""
    rows = shown(replace(PLAIN, assumed=("n", "m")))
    assert "assumed n=1 m=1: choose other sizes with --shape n=8" in rows


def on_cuda(*rows: TimingRow) -> BenchmarkReport:
    """Return a report of these rows on a GPU, under a roofline."""
    work: dict[ModelName, WorkPerRun] = {
        "original": WorkPerRun(1000, 8000, 200.0),
        "fused": WorkPerRun(500, 8000, 100.0),
    }
    one = ReportBlock({"n": 4}, {"x": (4, 8)}, 4, rows, (), work)
    return replace(
        PLAIN, provider="CUDAExecutionProvider", blocks=(one,), ceilings=Ceilings(2e12, {"float16": 4e14}),
        fused_ops=FusedOps(2, 2, 0, 3, ()),
    )  # fmt: skip


def test_on_cuda_memory_and_launches_are_columns() -> None:
    """And the share of the least time that the work allows."""
    slow, fast = replace(row("original", "default", 400), memory=5_000_000, launches=7), row("fused", "default", 150)
    rows = shown(on_cuda(slow, fast))
    assert rows[1] == "p50 us 95% of it p90 p99 min items/s memory launches roofline fused faster"
    assert any(line.startswith("original: default 400") and "5 MB 7 50% 2.67x" in line for line in rows)
    assert any(line.startswith("fused: default 150") and "? 67%" in line for line in rows)
    assert "nodes per run: ; 2 fused ops; 2 as kernels; 3 launches of our kernels" in rows
    assert any(line.endswith("grew, ? where other processes freed some") for line in rows)
    whole = shown(on_cuda(slow, replace(fast, memory=0)))
    assert any(line.endswith("memory is by how much the card's use grew") for line in whole)
    (work,) = (line for line in rows if line.startswith("roofline"))
    assert work.endswith("measured here 2 TB/s, float16 400 TFLOP/s")


def test_memory_is_shown_beside_the_originals_by_what_it_is_for() -> None:
    """Where it is asked for; what is not known is a question mark, with the reason."""
    slow = replace(row("original", "default", 400), memory=5_000_000)
    report = on_cuda(slow, replace(row("fused", "default", 150), memory=4_000_000))
    assert not any("workspaces" in line for line in shown(report))
    unknown = shown(report, memory=True)
    assert "n=4 5 MB 4 MB ? ? ? ? ? ?" in unknown
    assert any("known on CUDA, where fused ops run as kernels" in line for line in unknown)
    use = MemoryUse(1_000_000, 2_000_000, 3_100_000, 800_000, 60_000, 0, ())
    rows = shown(replace(report, blocks=(replace(report.blocks[0], memory=use),)), memory=True)
    assert "memory original fused weights activations arena workspaces kernels graphs" in rows
    assert "n=4 5 MB 4 MB 1 MB 2 MB 3.1 MB 800 kB 60 kB 0 B" in rows
    assert not any("known on CUDA" in line for line in rows)


def test_more_than_the_roofline_allows_is_explained() -> None:
    """What is still in a cache is not read from memory; small shares have a digit more."""
    slow, fast = row("original", "default", 4000), row("fused", "default", 50)
    rows = shown(on_cuda(slow, fast))
    assert any("5.0%" in line for line in rows)
    assert any("200%" in line for line in rows)
    assert any("above 100%: what a node writes is still in a cache" in line for line in rows)


def test_launches_that_were_not_counted_are_explained_on_cuda() -> None:
    """With the package that counts them."""
    uncounted = replace(PLAIN, uncounted="no CUPTI")
    assert not any("not counted" in line for line in shown(uncounted))
    rows = shown(replace(uncounted, provider="CUDAExecutionProvider"))
    assert "launches not counted: no CUPTI: pip install 'onnxfuse[profile]'" in rows
