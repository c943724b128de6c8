"""What is timed against what: both models at their settings, and which of them ran at none."""

from pathlib import Path

import pytest

from onnxfuse import runtime
from onnxfuse.measure.timing.contenders import Contender, absent, contenders_of, convolves, refusals
from onnxfuse.measure.timing.settings import CUDA_GRAPH, DEFAULT, ModelName, RefusedRun, Setting
from onnxfuse.support import process_pool
from onnxfuse.support.errors import DeviceLostError
from tests.support.small import parse

BEFORE, AFTER = Path("before.onnx"), Path("after.onnx")
BRANCHES = "y = If (c) <then_branch = t () => (a) { a = NODE }, else_branch = e () => (b) { b = Relu (x) }>"
TEXT = "g (float[1,2,4,4] x, float[2,2,1,1] w, bool c) => (float[1,2,4,4] y) { OPS }"


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("y = Conv (x, w)", True), ("y = Relu (x)", False),
        (BRANCHES.replace("NODE", "Conv (x, w)"), True), (BRANCHES.replace("NODE", "Neg (x)"), False),
    ],
)  # fmt: skip
def test_convolutions_are_found_in_bodies(nodes: str, found: bool) -> None:
    """And in functions."""
    model = parse(TEXT.replace("OPS", nodes))
    assert convolves(model) == found
    empty = parse(TEXT.replace("OPS", "y = Relu (x)"))
    empty.functions.add(name="f", domain="d").node.extend(model.graph.node)
    assert convolves(empty) == found


def names(found: list[Contender]) -> list[tuple[ModelName, str]]:
    """Return model and setting of each."""
    return [(one.name, one.setting.name) for one in found]


def test_on_cuda_the_fused_model_runs_with_and_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original at every setting; on the CPU both at every number of threads."""
    monkeypatch.setattr(process_pool, "cores", lambda: 4)
    common = Setting("common", {"use_tf32": "0"}, rules=("mine",))
    found = contenders_of(BEFORE, AFTER, common, on_cuda=True, convolutions=True)
    originals = [setting for name, setting in names(found) if name == "original"]
    assert len(originals) == 6
    assert names(found)[6:] == [("fused", DEFAULT.name), ("fused", CUDA_GRAPH.name)]
    assert {one.model for one in found[:6]} == {BEFORE}
    assert {one.model for one in found[6:]} == {AFTER}
    assert all(one.setting.rules == ("mine",) and one.setting.options["use_tf32"] == "0" for one in found)
    plain = contenders_of(BEFORE, AFTER, common, on_cuda=True, convolutions=False)
    assert len(plain) == 4
    on_cpu = contenders_of(BEFORE, AFTER, common, on_cuda=False, convolutions=True)
    settings = ["default", "1 thread", "2 threads", "4 threads"]
    assert names(on_cpu) == [(name, s) for name in ("original", "fused") for s in settings]


CONTENDER = Contender("original", BEFORE, Setting("NHWC"))


def test_a_refusal_is_recorded_and_ends_the_block() -> None:
    """Of ONNX Runtime's alone; a lost GPU is an error."""
    refused = list[RefusedRun]()
    with refusals(CONTENDER, refused):
        raise RuntimeError("no such kernel")
    assert [(one.model, one.setting, one.kind) for one in refused] == [("original", "NHWC", "refused")]
    assert "no such kernel" in refused[0].reason
    with pytest.raises(KeyError), refusals(CONTENDER, refused):
        raise KeyError
    assert len(refused) == 1


def test_a_lost_gpu_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else runs in this process."""
    monkeypatch.setattr(runtime, "device_fault", lambda: "an illegal address")
    refused = list[RefusedRun]()
    with pytest.raises(DeviceLostError), refusals(CONTENDER, refused):
        raise RuntimeError
    assert refused == []


def test_a_model_that_runs_at_no_setting_has_a_first_reason() -> None:
    """One that runs at some is not absent."""
    others = (Contender("original", BEFORE, DEFAULT), Contender("fused", AFTER, DEFAULT))
    refused = [RefusedRun("original", "NHWC", "a"), RefusedRun("fused", "default", "b"), RefusedRun("fused", "x", "c")]
    assert absent((CONTENDER, *others), others, refused) is None
    assert absent((CONTENDER, *others), others[:1], refused) == refused[1]
    assert absent((CONTENDER, *others), (), refused) == refused[0]
