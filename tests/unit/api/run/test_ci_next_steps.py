"""What to do about a model that ci failed: commands with the options of its entry, ready to be copied."""

import re
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


def pairs(command: str) -> list[str]:
    """Return the options of a command with their values."""
    return re.findall(r"--\w+ (?:'[^']*'|\S+)", command)


def test_nothing_failed() -> None:
    """Or was not run: there is nothing to do."""
    assert steps() == steps(verified={"ok": True, "verdict": "ok"}, benched={"ok": True}) == {}


def test_a_mismatch_is_bisected() -> None:
    """By the same rules, inputs and sizes, into files of its own name."""
    entry = ModelEntry(
        "a/b", Path("my model.onnx"), 1, inputs=(Path("in.npz"),), shapes={"n": (1, 8)},
        options={"rules": (Path("mine"),), "also": ("x",)},
    )  # fmt: skip
    (line,) = steps(entry, FAILED).values()
    made, compared = line.split(" && ")
    assert made.startswith("find the fusion or rule at fault: onnxfuse optimize 'my model.onnx' a-b.failed.onnx ")
    assert compared.startswith("onnxfuse verify 'my model.onnx' a-b.failed.onnx ")
    assert {"--rules mine", "--also x"} <= {*pairs(made)}
    assert {*pairs(compared)} == {"--rules mine", "--inputs in.npz", "--shape n=1,8", "--bisect a-b.fault"}
    precise = ModelEntry("m", Path("m.onnx"), 1, inputs=(Path("in.npz"),), options={"precision": "float16"})
    made, _ = steps(precise, FAILED)["verify"].split(" && ")
    assert {"--precision float16", "--inputs in.npz"} <= {*pairs(made)}


@pytest.mark.parametrize("verdict", ["undecided", "blunt"])
def test_too_weak_inputs_are_replaced(verdict: str) -> None:
    """There is no fault to be found."""
    assert steps(verified={"ok": False, "verdict": verdict}) == {
        "verify": 'generated inputs test too little of this model: give real ones, verify = { inputs = ["FILE.npz"] }'
    }


def test_a_lost_fusion_is_explained_at_a_node() -> None:
    """The first at which a rule stopped; without one, near misses are ranked."""
    entry = ModelEntry("m", Path("m.onnx"), 1, options={"also": ("x", "y"), "rules": (Path("r"),)})
    line = steps(entry, fewer=True, nodes=["p q", "p q", "z"])["optimize"]
    assert line.startswith("see what would help: onnxfuse explain m.onnx ")
    assert sorted(pairs(line)) == ["--also x", "--also y", "--at 'p q'", "--rules r"]
    assert steps(fewer=True)["optimize"].endswith("onnxfuse explain 'my model.onnx' --near")


def test_a_slow_model_is_profiled_at_one_size() -> None:
    """The first at which it is too slow, by its dimensions, also where the entry has the shape of an input."""
    blocks = [{"speedup": s, "dimensions": {"n": n, "s": 16}} for s, n in ((2.0, 2), (1.1, 4), (1.0, 8))]
    entry = ModelEntry("m", Path("m.onnx"), 1, shapes={"n": (2, 4, 8), "x": (1, 16)})
    line = steps(entry, benched={"ok": False, "min_speedup": 1.5, "blocks": blocks})["bench"]
    assert line.startswith("see where the time goes: onnxfuse ")
    assert line.endswith(" --shape n=4 --shape s=16")
    assert "onnxfuse profile m.onnx" in line
