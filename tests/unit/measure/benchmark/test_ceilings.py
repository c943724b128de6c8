"""What a run takes at the least, and what is measured for it."""

import onnx
import pytest

from onnxfuse.measure.benchmark import bench
from onnxfuse.measure.benchmark.ceilings import Ceilings, measured
from onnxfuse.measure.profile.traffic import ModelTraffic, NodeTraffic
from onnxfuse.measure.profile.work import TrafficEstimate

CPU = ["CPUExecutionProvider"]


def node(size: int, flops: int, element: str = "") -> NodeTraffic:
    return NodeTraffic("n", "op", "op", (), TrafficEstimate(size, 0, flops), element)


CEILINGS = Ceilings(1e6, {"float16": 4e6, "float32": 1e6})
"""A byte in a microsecond; four operations in half precision, one in single."""


def test_each_node_takes_the_longer_of_its_two_times() -> None:
    """Bytes or operations, whichever takes longer, node by node; operations outside of products are free."""
    work = ModelTraffic(
        (node(100, 40, "float16"), node(10, 400, "float16"), node(5, 300, "float32"), node(7, 1000)), {}
    )
    assert CEILINGS.floor(work) == pytest.approx(100 + 100 + 300 + 7)


def test_the_peak_is_that_of_the_type_that_most_operations_are_in() -> None:
    """One number for a roofline; none where nothing is a product."""
    assert CEILINGS.peak(ModelTraffic((node(1, 10, "float16"), node(1, 20, "float32")), {})) == 1e6
    assert CEILINGS.peak(ModelTraffic((node(1, 10),), {})) is None


def test_ceilings_are_measured_for_the_types_that_are_there() -> None:
    """A type that the provider has no product of is left out; a machine moves more than a megabyte in a second."""
    found = measured({"float32", "bfloat16", ""}, CPU)
    assert set(found.flops_per_second) == {"float32"}
    assert 1e6 < found.bytes_per_second < 1e13
    assert 1e6 < found.flops_per_second["float32"] < 1e15


def test_a_benchmark_tells_work_and_roofline() -> None:
    """2 x 512^3 operations at about the rate that was measured: within what the load of a machine does to either."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[512,512] a, float[512,512] b) => (float[512,512] y) '
        "{ y = MatMul(a, b) }"
    )
    found = bench(model, model, providers=CPU, runs=2, rounds=1)
    (block,) = found.blocks
    assert (block.work["original"].bytes, block.work["original"].flops) == (3 * 4 * 512 * 512, 2 * 512**3)
    assert found.ceilings is not None
    assert found.peak == found.ceilings.flops_per_second["float32"]
    assert all(0 < (block.roofline(row) or 0) < 10 for row in block.rows)
    assert found.uncounted == "nothing is launched on a CPU"
