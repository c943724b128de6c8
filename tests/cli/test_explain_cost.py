"""`onnxfuse explain --cost`: the candidates for a node, their times, and who decided."""

import json
from pathlib import Path

import onnx
import onnxruntime
import pytest

from onnxfuse.api.request.options import Options, TuningOptions
from onnxfuse.cuda.costs.library import times as library_times
from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.dispatch.estimates import launch_and_traffic
from onnxfuse.cuda.dispatch.measurements import Machine, MeasuredVariants, Timed
from onnxfuse.cuda.planning.arch import A100, H200
from onnxfuse.cuda.templates.gemm.variant import GemmTile, GemmVariant
from onnxfuse.explanation.node_costs import LIBRARY, node_costs
from onnxfuse.support.errors import UsageError
from tests.cli.conftest import Command
from tests.support.tuning import block

HERE = Machine("NVIDIA H200", "580.1", onnxruntime.__version__)
SCALED = "estimates measured on NVIDIA H200, scaled to NVIDIA A100 by its clock, tensor cores, lanes and bandwidth"


def test_a_product_s_tiles_are_estimated() -> None:
    """The product with its bias and GELU: tiles by warpgroups and blocks, of which the plan takes one."""
    (cost,) = node_costs(block(512), "h", arch=H200).costs
    assert (cost.rule, cost.decided_by, cost.note) == ("gemm", "estimate", "estimates measured on NVIDIA H200")
    assert cost.shapes == ((512, 64), (64, 4104), (4104,))
    (chosen,) = [c for c in cost.candidates if c.is_chosen]
    assert chosen.name.startswith("gemm tile ")
    times = [c.microseconds for c in cost.candidates if c.microseconds is not None]
    assert times == sorted(times)
    assert len(times) > 10
    (other,) = node_costs(block(512), "h", arch=A100).costs
    assert other.note == SCALED
    assert {c.name.split(" ")[1] for c in other.candidates if c.name != LIBRARY} == {"block"}


def test_a_kernel_without_estimates_says_that_sizes_decide() -> None:
    (cost,) = node_costs(block(512), "y", arch=H200).costs
    assert cost.rule == "layer_norm"
    assert cost.decided_by == "rule"
    assert [c.name for c in cost.candidates if c.name != LIBRARY] == ["row"]


def test_the_library_s_kernels_are_estimated_beside_ours() -> None:
    """Products by cuBLAS's times, and every other node by the least that memory allows."""
    row = library_times(H200.name).kernels["product_float16"]
    (cost,) = node_costs(block(512), "h", arch=H200).costs
    (norm,) = node_costs(block(512), "y", arch=H200).costs
    (library,) = [c for c in cost.candidates if c.name == LIBRARY]
    size, wide = 2, 512 * 4104
    product = row.microseconds((512 * 64 + 64 * 4104 + wide) * size, 2 * wide * 64)
    bias = launch_and_traffic((2 * wide + 4104) * size, H200)
    gelu = launch_and_traffic(2 * wide * size, H200)
    assert library.microseconds == pytest.approx(product + bias + gelu)
    assert not library.is_chosen
    assert [c.name for c in norm.candidates] == ["row", LIBRARY]


def test_measured_times_decide_through_the_same_door(tmp_path: Path) -> None:
    """Failures last; the fastest one is chosen, whatever the estimates say."""
    (cost,) = node_costs(block(512), "h", arch=H200).costs
    slow, fast = Timed("fused", None, 9.0, (8.9, 9.1)), GemmVariant(tile=GemmTile(64, 128, 1))
    times = (slow, Timed("fused", fast, 7.0, (6.9, 7.1)), Timed("alone", None, 20.0), Timed("split", failed="no"))
    measured = MeasuredVariants(cost.op, cost.rule, (), ("float",) * 3, cost.shapes, times)
    measurements.write(tmp_path / "t.json", {HERE: {measured.key: measured}})
    options = Options(tuning=TuningOptions(tmp_path / "t.json"))
    (now,) = node_costs(block(512), "h", options, arch=H200).costs
    assert (now.decided_by, now.note) == ("measured", f"measured on {HERE}")
    assert [(c.name, c.microseconds, c.is_chosen) for c in now.candidates] == [
        ("fused tile 64x128x1", 7.0, True), ("fused", 9.0, False), ("alone", 20.0, False), ("split", None, False)
    ]  # fmt: skip


def test_the_command_prints_candidates(folder: Path, onnxfuse_command: Command) -> None:
    """A dozen of them, and with --all every one; the same facts as JSON; a typo is answered."""
    onnx.save(block(512), folder / "block.onnx")
    out = onnxfuse_command("explain", "block.onnx", "--cost", "h").out
    assert "decided by estimates; estimates measured on NVIDIA H200" in out
    assert out.count("chosen") == 1
    assert "more candidate" in out
    assert "more candidate" not in onnxfuse_command("explain", "block.onnx", "--cost", "h", "--all").out
    facts = json.loads(onnxfuse_command("explain", "block.onnx", "--cost", "h", "--json").out)
    (cost,) = facts["costs"]
    assert sum(c["chosen"] for c in cost["candidates"]) == 1
    assert cost["decided_by"] == "estimate"
    assert onnxfuse_command("explain", "block.onnx", "--cost", "h", "--near").code == 2
    with pytest.raises(UsageError, match="nowhere"):
        node_costs(block(512), "nowhere")
