"""What needs no session: percentiles, speed-ups, the order of runs, the settings, the shapes."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import onnx
import pytest

from onnxfuse.measure.benchmark.report import BenchmarkReport, FusedOps, ReportBlock, TimingRow
from onnxfuse.measure.timing.settings import ModelName, cpu_settings, cuda_settings
from onnxfuse.measure.timing.shapes import cases_per_shape, unsaid
from onnxfuse.measure.timing.stopwatch import Timing, interleaved, interval
from onnxfuse.verification.inputs.input_specs import input_specs


def row(model: ModelName, setting: str, p50: float) -> TimingRow:
    return TimingRow(model, setting, Timing(p50, p50, p50, p50, p50 * 0.99, p50 * 1.01), None)


def block(original: float, graph: float, fused: float) -> ReportBlock:
    rows = (row("original", "default", original), row("original", "CUDA graph", graph), row("fused", "default", fused))
    return ReportBlock({"n": 4}, {"x": (4, 8)}, 4, rows, ())


def report(*blocks: ReportBlock) -> BenchmarkReport:
    return BenchmarkReport("CPUExecutionProvider", blocks, (), {}, FusedOps(0, 0, 0, None, ()), {}, 1, 1, 0.0)


def test_percentiles_are_interpolated_and_in_microseconds() -> None:
    """Of 1 to 101 ms, the percentile p is 1 + p ms; the order of the runs does not matter."""
    timing = Timing.of([n / 1e3 for n in range(101, 0, -1)])
    assert (timing.p50, timing.p90, timing.p99, timing.min) == pytest.approx((51e3, 91e3, 100e3, 1e3))
    assert Timing.of([1e-3, 2e-3]).p50 == pytest.approx(1500)


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
    assert report(near).summary == (
        "no difference to ONNX Runtime's best (CUDA graph): 1.01x is within the spread of the rounds"
    )
    assert (block(400, 300, 150).differs, block(400, 300, 150).verdict) == (True, "2.00x over CUDA graph")
    assert (
        near.measured == "1.007x over CUDA graph at n=4 (p50 300 -> 298 us), which is within the spread: no difference"
    )
    assert report(near, block(300, 400, 100)).summary == (
        "3.00x over ONNX Runtime's best settings, 2 shapes; no difference at n=4"
    )
    assert report(near, near).summary == "no difference to ONNX Runtime's best settings at any of 2 shapes"


def test_the_interval_of_a_median() -> None:
    """Of ten samples the second and the ninth (97.9%); of few the whole range; a round is one sample."""
    assert interval([float(n) for n in range(10)]) == (1.0, 8.0)
    assert interval([float(n) for n in range(6)]) == (0.0, 5.0)
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert interval([float(n) for n in range(100)]) == (39.0, 60.0)
    rounds = Timing.of([1e-6, 1e-6, 9e-6, 2e-6, 2e-6, 2e-6], rounds=2)
    assert (rounds.low, rounds.high) == pytest.approx((1, 2))


def test_what_is_timed_on_a_cpu_is_called_the_portable_form() -> None:
    """No kernel runs there: how the bodies compare is said, and by how much."""
    fused = replace(report(block(400, 300, 600)), fused_ops=FusedOps(2, 0, 2, None, ()))
    assert fused.portable == (
        "no kernel runs on the CPU; this is the portable form, the bodies of the fused ops: "
        "2.00x as slow as the original at n=4"
    )
    assert replace(fused, blocks=(block(400, 300, 299),)).portable.endswith("no faster and no slower than the original")
    both = replace(fused, blocks=(block(400, 300, 320), block(400, 300, 302)))
    assert both.portable.endswith("1.07x as slow as the original at n=4")
    assert (report(block(4, 3, 6)).portable, replace(fused, provider="CUDAExecutionProvider").portable) == ("", "")


def test_every_shape_has_to_be_fast_enough() -> None:
    """A report is as fast as its slowest shape, and names the shapes below the bound; the bound itself passes."""
    slow, fast = block(300, 400, 250), block(300, 400, 100)
    both = report(fast, slow)
    assert both.speedup == pytest.approx(1.2)
    assert both.summary == "1.20x to 3.00x over ONNX Runtime's best settings, 2 shapes"
    assert both.missed(1.5) == (slow,)
    assert both.missed(both.speedup) == ()


def test_runs_take_turns_and_the_first_of_a_turn_is_not_timed() -> None:
    """Two rounds of two, there and back: a (a a) b (b b) b (b b) a (a a), the timer around the timed ones only."""
    log: list[str] = []
    ticks = itertools.count()

    def timer(run: Callable[[], object]) -> float:
        log.append("|")
        run()
        return float(next(ticks))

    times = interleaved([lambda: log.append("a"), lambda: log.append("b")], rounds=2, count=2, timer=timer)
    assert "".join(log) == "a|a|a" + "b|b|b" + "b|b|b" + "a|a|a"
    assert times == [[0, 1, 6, 7], [2, 3, 4, 5]]


def test_nhwc_is_tried_where_there_are_convolutions() -> None:
    """NHWC with and without CUDA graph and conv bias; never for a model without convolutions."""
    plain, convolving = cuda_settings(convolutions=False), cuda_settings(convolutions=True)
    assert [s.name for s in plain] == ["default", "CUDA graph"]
    assert convolving[:2] == plain
    nhwc = [tuple(s.options) for s in convolving[2:]]
    assert nhwc == [
        ("prefer_nhwc",),
        ("prefer_nhwc", "enable_cuda_graph"),
        ("prefer_nhwc", "fuse_conv_bias"),
        ("prefer_nhwc", "fuse_conv_bias", "enable_cuda_graph"),
    ]


@pytest.mark.parametrize(("cores", "threads"), [(1, [0, 1]), (2, [0, 1, 2]), (64, [0, 1, 32, 64])])
def test_thread_counts(cores: int, threads: list[int]) -> None:
    """ONNX Runtime's own choice, then one thread, half of the cores, all; none twice."""
    assert [s.threads for s in cpu_settings(cores)] == threads


def test_one_case_per_shape_and_unsaid_dimensions() -> None:
    """Sizes are taken together, in the order given; an input's shape says something about each of its dimensions."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 20]>
    g (float[n, m] x, float[n, 8] r) => (float[n, m] y) { y = Relu (x) }""")
    specs = input_specs(model)
    assert unsaid(specs, {}) == ("n", "m")
    assert unsaid(specs, {"n": (1, 4)}) == ("m",)
    assert unsaid(specs, {"x": (2, 3)}) == ()
    found = cases_per_shape(specs, {"n": (1, 4, 32), "m": (5,)}, seed=0)
    assert [c.shapes["x"] for c in found] == [(1, 5), (4, 5), (32, 5)]
    assert [c.shapes["x"] for c in cases_per_shape(specs, {"x": (2, 3)}, seed=0)] == [(2, 3)]
