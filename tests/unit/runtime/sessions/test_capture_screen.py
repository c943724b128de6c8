"""The screen of what prevents a CUDA graph: reasons with their nodes and advice, then what a replay needs."""

from onnxfuse.runtime.sessions.capture import Blocker, Capture
from onnxfuse.runtime.sessions.capture_screen import screen
from tests.support.screens import lines

SOFTWARE = {"onnxruntime": "1.31"}
COPY = Blocker("waits", ("Loop a", "If b", "Scan c"), "it reads the result on the host", "compute it before")


def test_a_model_that_can_be_captured() -> None:
    """What stays on the CPU and each set of sizes is said only where there is some."""
    verdict = "can be captured in a CUDA graph by ONNX Runtime 1.31 on CUDA"
    advice = "next: onnxfuse.runner(model) captures and replays; onnxfuse bench times it"
    assert lines(screen(Capture((), software=SOFTWARE), None)) == [verdict, advice]
    assert lines(screen(Capture((), on_cpu=2, dims=("n", "m"), software=SOFTWARE), None)) == [
        verdict, "2 nodes of arithmetic on shapes stay on the CPU and block nothing",
        "one graph for each set of sizes of n, m", advice,
    ]  # fmt: skip


def test_reasons_list_their_nodes_up_to_a_limit() -> None:
    """And say how many more there are, and the flag that lists them."""
    blocked = Capture((COPY,), (COPY,), on_cpu=2, dims=("n",), software=SOFTWARE)
    verdict, *shown = lines(screen(blocked, 2))
    assert verdict == "no CUDA graph: 3 nodes in the way, 1 reason; ONNX Runtime 1.31 on CUDA"
    nodes = ["  Loop a", "  If b", "  ... and 1 more: --all", "  next: compute it before"]
    assert shown == [
        "", "blocked by waits: it reads the result on the host", *nodes,
        "", "not recomputed in a replay: waits: it reads the result on the host", *nodes,
    ]  # fmt: skip
    for limit in (3, None):
        assert not any("more" in line for line in lines(screen(blocked, limit)))
        assert "  Scan c" in lines(screen(blocked, limit))
