"""Recurrent layers, run by the host's compiler: every kind, direction and size, cells shared by warps and blocks."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from bench.cases import ops
from bench.cases.ops import BRAIN, FLOAT
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.arch import SUPPORTED
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.recurrent import plan as recurrent
from onnxfuse.cuda.templates.recurrent.costs import costs_of
from tests.emulator import emulate
from tests.emulator.test_whole_kernels import H200
from tests.support.arches import on
from tests.support.kernels import recurrents
from tests.support.kernels.recurrents import Case

DIRECTIONS = ("forward", "reverse", "bidirectional")


def check(case: Case, aligned: bool = True, arch: Arch = H200) -> LaunchPlan:
    """Run the plan of a layer; return it."""
    op, inputs = case.op(), case.inputs(np.random.default_rng(0))
    plan = cuda.plan(op, tuple(case.shapes()), aligned, arch)
    recurrents.within_budget(case, inputs, emulate.run(plan, inputs, [ops.NUMPY[t] for t in op.outputs], aligned))
    return plan


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_every_kind_and_direction(kind: str, direction: str) -> None:
    check(Case(kind, 32, 4, 5, direction=direction))


@pytest.mark.parametrize(
    "case",
    [
        Case("LSTM", 32, 3, 3, bias=False), Case("LSTM", 32, 3, 3, states=False),
        Case("GRU", 32, 3, 3, bias=False, states=False), Case("LSTM", 32, 3, 3, outputs="h"),
        Case("LSTM", 32, 3, 3, outputs="yc"), Case("RNN", 32, 3, 3, outputs="h", states=False),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_node_may_lack(case: Case) -> None:
    """The biases, the first states, readers of the outputs."""
    check(case)


@pytest.mark.parametrize(
    ("hidden", "terms", "batch"), [(1, 1, 1), (5, 3, 2), (31, 7, 9), (33, 33, 8), (64, 40, 17), (96, 8, 3), (100, 2, 1)]
)
@pytest.mark.parametrize("aligned", [True, False])
def test_odd_sizes(hidden: int, terms: int, batch: int, aligned: bool) -> None:
    """Cells, terms and sequences that fill no tile, and pointers off their boundaries."""
    check(Case("LSTM", hidden, 2, batch, terms, "bidirectional"), aligned)


@pytest.mark.parametrize("cluster", [2, 4, 8])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_blocks_that_share_a_direction(kind: str, cluster: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They send each other what their cells give, and each goes on when it has all of that."""
    cost = replace(costs_of(), clusters=(cluster,))
    monkeypatch.setattr(recurrent, "costs_of", lambda *arch: cost)
    assert recurrent.partition(40, cost).cluster == cluster
    plan = check(Case(kind, 40, 5, 3, 8, "bidirectional"))
    assert f"CLUSTER_KERNEL({cluster}, THREADS)" in plan.then[0].kernel.text


@pytest.mark.parametrize("hidden", [40, 64])
def test_weights_that_do_not_fit_the_registers(hidden: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the later terms lie in shared memory; a warp has several tiles."""
    cost = replace(costs_of(), clusters=(2,), most_warps=4, most_resident=4)
    monkeypatch.setattr(recurrent, "costs_of", lambda *arch: cost)
    cut = recurrent.partition(hidden, cost)
    assert (cut.tiles, cut.resident, cut.slices) == (2, 2, 4)
    check(Case("LSTM", hidden, 3, 2, 8))


@pytest.mark.parametrize("batch", [9, 64])
def test_more_sequences_in_a_cluster(batch: int) -> None:
    """On a GPU of one multiprocessor more of them go together."""
    plan = check(Case("LSTM", 32, 3, batch, 8, "bidirectional"), arch=replace(H200, sm_count=1))
    assert re.findall(r"ROWS = (\d+);", plan.then[0].kernel.text) == ["32" if batch == 64 else "16"]


def test_bfloat16() -> None:
    check(Case("LSTM", 32, 4, 5, direction="bidirectional", dtype=BRAIN))
    check(Case("GRU", 32, 4, 5, dtype=BRAIN))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_no_position_and_no_sequence(kind: str) -> None:
    """Without positions the last states are the first ones; without sequences nothing is launched."""
    check(Case(kind, 32, 0, 5))
    assert check(Case(kind, 32, 3, 0)).grid[0] == 0


def test_the_general_plan_is_for_all_shapes() -> None:
    """It runs on pointers off their boundaries; of one layer its texts are two."""
    texts = set()
    for steps, batch in ((1, 1), (7, 3), (2, 200)):
        case = Case("GRU", 20, steps, batch, 6)
        op, inputs = case.op(), case.inputs(np.random.default_rng(0))
        plan = cuda.general(op, tuple(case.shapes()), H200)
        texts |= {p.kernel.text for p in (plan, *plan.then)}
        if batch < 8:
            recurrents.within_budget(case, inputs, emulate.run(plan, inputs, [np.float16] * 2, False))
    assert len(texts) == 2


@pytest.mark.parametrize(("hidden", "batch"), [(64, 8), (256, 8), (256, 5000), (384, 5000), (512, 8)])
def test_kernels_compile_without_spills(hidden: int, batch: int) -> None:
    """Weights and sums stay in registers."""
    case = Case("LSTM", hidden, 128, batch, direction="bidirectional")
    plan = cuda.plan(case.op(), tuple(case.shapes()), True, H200)
    _, log = nvrtc.build(plan.then[0].kernel, H200, ("-Xptxas=-v",))
    assert set(re.findall(r"(\d+) bytes spill stores", log)) == {"0"}


@pytest.mark.parametrize(
    ("case", "change", "reason"),
    [
        (Case("LSTM", 32, 1, 1, dtype=FLOAT), {}, "LSTM of FLOAT, expected float16 or bfloat16"),
        (Case("LSTM", 32, 1, 1), {"clip": 3.0}, "LSTM with clip"),
        (Case("LSTM", 32, 1, 1), {"input_forget": 1}, "LSTM with input_forget = 1, expected 0"),
        (Case("GRU", 32, 1, 1), {"linear_before_reset": 0}, "GRU with linear_before_reset = 0, expected 1"),
        (Case("RNN", 32, 1, 1), {"activations": ["Relu"]}, "the activations relu"),
        (Case("LSTM", 32, 1, 1), {"layout": 1}, "LSTM with layout = 1"),
        (Case("LSTM", 640, 1, 1), {}, "640 cells do not fit the shared memory of eight blocks"),
    ],
)
def test_what_the_kernel_does_not_compute_is_refused(case: Case, change: dict[str, Any], reason: str) -> None:
    """With the reason in one line; the node stays."""
    op = case.op()
    (node,) = op.body.node
    kept = [a for a in node.attribute if a.name not in change]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(*pair) for pair in change.items())])
    assert reason in str(cuda.supports(op, lambda: H200))


def test_usual_activations_may_be_written_out() -> None:
    op = Case("LSTM", 32, 1, 1, direction="bidirectional").op()
    op.body.node[0].attribute.append(helper.make_attribute("activations", ["Sigmoid", "Tanh", "tanh"] * 2))
    assert cuda.supports(op, lambda: H200) is None


def test_gpus_without_clusters_run_the_node() -> None:
    reasons = {a.name: cuda.supports(Case("LSTM", 512, 1, 1).op(), on(a)) for a in SUPPORTED}
    assert [name for name, reason in reasons.items() if reason is None] == ["sm_90a", "sm_100"]
    assert reasons["sm_80"] == "the kernel needs sm_90, this is sm_80"
