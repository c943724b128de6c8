"""What to do about a model that ci failed: commands with the options of its entry, ready to be copied."""

from pathlib import Path
from typing import Any

import pytest

from onnxfuse.api.run.ci_next_steps import next_steps
from onnxfuse.contract.config import ModelEntry

ENTRY = ModelEntry("a/b", Path("my model.onnx"), 1)
FAILED = {"ok": False, "verdict": "mismatch"}


def steps(entry: ModelEntry = ENTRY, verified: Any = None, benched: Any = None, **more: Any) -> dict[str, str]:
    """Return the steps."""
    return next_steps(entry, verified, benched, **{"fewer": False, "nodes": (), **more})


def test_nothing_failed() -> None:
    """Or was not run: there is nothing to do."""
    assert steps() == steps(verified={"ok": True, "verdict": "ok"}, benched={"ok": True}) == {}


def test_a_mismatch_is_bisected() -> None:
    """By the same rules, inputs and sizes, into files of its own name."""
    entry = ModelEntry(
        "a/b", Path("my model.onnx"), 1, inputs=(Path("in.npz"),), shapes={"n": (1, 8)},
        options={"rules": (Path("mine"),), "also": ("x",)},
    )  # fmt: skip
    assert steps(entry, FAILED) == {
        "verify": "find the fusion or rule at fault: onnxfuse optimize 'my model.onnx' a-b.failed.onnx --rules mine "
        "--also x && onnxfuse verify 'my model.onnx' a-b.failed.onnx --rules mine --inputs in.npz --shape n=1,8 "
        "--bisect a-b.fault"
    }
    precise = ModelEntry("m", Path("m.onnx"), 1, inputs=(Path("in.npz"),), options={"precision": "float16"})
    assert "optimize m.onnx m.failed.onnx --precision float16 --inputs in.npz &&" in steps(precise, FAILED)["verify"]


@pytest.mark.parametrize("verdict", ["undecided", "blunt"])
def test_too_weak_inputs_are_replaced(verdict: str) -> None:
    """There is no fault to be found."""
    assert steps(verified={"ok": False, "verdict": verdict}) == {
        "verify": 'generated inputs test too little of this model: give real ones, verify = { inputs = ["FILE.npz"] }'
    }


def test_a_lost_fusion_is_explained_at_a_node() -> None:
    """The first at which a rule stopped; without one, near misses are ranked."""
    entry = ModelEntry("m", Path("m.onnx"), 1, options={"also": ("x", "y"), "rules": (Path("r"),)})
    assert steps(entry, fewer=True, nodes=["p q", "p q", "z"]) == {
        "optimize": "see what would help: onnxfuse explain m.onnx --at 'p q' --also x --also y --rules r"
    }
    assert steps(fewer=True)["optimize"].endswith("onnxfuse explain 'my model.onnx' --near")


def test_a_slow_model_is_profiled_at_one_size() -> None:
    """The first of each dimension."""
    entry = ModelEntry("m", Path("m.onnx"), 1, shapes={"n": (4, 8), "s": (16,)})
    assert steps(entry, benched={"ok": False}) == {
        "bench": "see where the time goes: onnxfuse profile m.onnx --shape n=4 --shape s=16"
    }
