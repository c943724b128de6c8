"""Speed-ups and verdicts of a benchmark, from its times."""

from dataclasses import replace

import pytest

from onnxfuse.measure.benchmark.report import BenchmarkReport, FusedOps, ReportBlock, TimingRow
from onnxfuse.measure.timing.settings import ModelName
from onnxfuse.measure.timing.stopwatch import Timing


def row(model: ModelName, setting: str, p50: float) -> TimingRow:
    return TimingRow(model, setting, Timing(p50, p50, p50, p50, p50 * 0.99, p50 * 1.01), None)


def block(original: float, graph: float, fused: float) -> ReportBlock:
    rows = (row("original", "default", original), row("original", "CUDA graph", graph), row("fused", "default", fused))
    return ReportBlock({"n": 4}, {"x": (4, 8)}, 4, rows, ())


def report(*blocks: ReportBlock) -> BenchmarkReport:
    return BenchmarkReport("CPUExecutionProvider", blocks, (), {}, FusedOps(0, 0, 0, None, ()), {}, 1, 1, 0.0)


def test_speedup_is_against_the_best_setting() -> None:
    """The original's fastest setting counts, not its default; throughput counts items."""
    one = block(original=400, graph=300, fused=150)
    assert one.speedup == pytest.approx(2)
    assert one.best("original").setting == "CUDA graph"
    assert one.throughput(one.best("fused")) == pytest.approx(4 / 150e-6)
    assert report(one).summary == "2.00x over ONNX Runtime's best (CUDA graph)"
    assert report(block(400, 300, 600)).summary == "slower, 0.50x of ONNX Runtime's best (CUDA graph)"


def test_what_overlaps_is_no_difference() -> None:
    """A median that may as well be the other's is no speed-up, nor a loss; of several shapes it is named."""
    near = block(400, 300, 298)
    assert (near.differs, near.verdict) == (False, "no difference to CUDA graph")
    assert report(near).summary == ("no difference to ONNX Runtime's best (CUDA graph): 0.99x to 1.03x")
    assert (block(400, 300, 150).differs, block(400, 300, 150).verdict) == (True, "2.00x over CUDA graph")
    assert near.measured == "1.007x over CUDA graph at n=4 (p50 300 -> 298 us), no difference"
    assert report(near, block(300, 400, 100)).summary == (
        "3.00x over ONNX Runtime's best settings, 2 shapes; no difference at n=4"
    )
    assert report(near, near).summary == "no difference to ONNX Runtime's best settings at any of 2 shapes"


def test_what_may_be_a_large_difference_is_not_called_none() -> None:
    """Overlapping intervals of noisy rounds leave it open: the range is reported in place of the medians' ratio."""
    slow = replace(block(400, 300, 200), rows=(noisy("original", 300), noisy("fused", 200)))
    assert (slow.differs, slow.verdict, slow.speedup) == (False, "undecided, 0.50x to 4.50x over default", 1.5)
    assert slow.measured == "1.5x over default at n=4 (p50 300 -> 200 us), undecided, 0.50x to 4.50x"
    assert report(slow).summary == (
        "undecided: 0.50x to 4.50x over ONNX Runtime's best (default); the rounds vary by more than the models differ"
    )
    near = block(400, 300, 298)
    assert report(near, slow).summary == "no difference at n=4; undecided at n=4 (0.50x to 4.50x)"
    assert report(block(300, 400, 100), slow).summary == (
        "3.00x over ONNX Runtime's best settings, 2 shapes; undecided at n=4 (0.50x to 4.50x)"
    )


def noisy(model: ModelName, p50: float) -> TimingRow:
    """Return a row whose interval reaches from half to one and a half of its median."""
    return TimingRow(model, "default", Timing(p50, p50, p50, p50, p50 / 2, p50 * 1.5), None)


def test_what_is_timed_on_a_cpu_is_called_the_portable_form() -> None:
    """No kernel runs there; how it compares is what the verdict says, whatever was measured."""
    fused = replace(report(block(400, 300, 600)), fused_ops=FusedOps(2, 0, 2, None, ()))
    note = "no kernel runs on the CPU, so this times the portable form, the bodies of the fused ops"
    for times in ((400, 300, 600), (400, 300, 299), (400, 300, 100)):
        assert replace(fused, blocks=(block(*times),)).portable == note
    assert (report(block(4, 3, 6)).portable, replace(fused, provider="CUDAExecutionProvider").portable) == ("", "")


def test_every_shape_has_to_be_fast_enough() -> None:
    """A report is as fast as its slowest shape, and names the shapes below the bound; the bound itself passes."""
    slow, fast = block(300, 400, 250), block(300, 400, 100)
    both = report(fast, slow)
    assert both.speedup == pytest.approx(1.2)
    assert both.summary == "1.20x to 3.00x over ONNX Runtime's best settings, 2 shapes"
    assert both.missed(1.5) == (slow,)
    assert both.missed(both.speedup) == ()
