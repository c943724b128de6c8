"""`onnxfuse compare`: two results of bench, shape by shape."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command


def result(fused: float, spread: float = 1.0, *, batch: int = 8, device: str = "a card") -> dict[str, Any]:
    """Return what matters of a result of bench: the fused model's median, and half of its interval."""

    def row(model: str, setting: str, p50: float) -> dict[str, Any]:
        return {"model": model, "setting": setting, "p50": p50, "low": p50 - spread, "high": p50 + spread}

    rows = [row("original", "default", 200.0), row("original", "CUDA graph", 150.0), row("fused", "CUDA graph", fused)]
    block = {"dimensions": {"batch": batch}, "shapes": {"x": [batch, 3]}, "rows": rows}
    return {"command": "bench", "blocks": [block], "environment": {"device": device, "onnxruntime": "1.31.1"}}


def write(folder: Path, **results: dict[str, Any]) -> None:
    """Write results to files by their names."""
    for name, facts in results.items():
        (folder / f"{name}.json").write_text(json.dumps(facts))


def test_what_became_slower_is_told_and_may_fail(folder: Path, onnxfuse_command: Command) -> None:
    """Medians of the best settings; the exit code only where it is asked for, and beyond the allowed factor."""
    write(folder, a=result(100.0), b=result(110.0))
    told = onnxfuse_command("compare", "a.json", "b.json")
    assert told.code == 0
    assert told.out.splitlines()[0] == "fused, a.json -> b.json: slower at 1 shape"
    rows = {line.split()[1]: line.split() for line in told.out.splitlines()[2:4]}
    assert rows["fused"] == ["batch=8", "fused", "100", "->", "110", "CUDA", "graph", "0.91x", "slower"]
    assert rows["original"][2:5] == ["150", "->", "150"]
    assert onnxfuse_command("compare", "a.json", "b.json", "--max-slowdown", "1.05").code == 4
    assert onnxfuse_command("compare", "a.json", "b.json", "--max-slowdown", "1.2").code == 0
    facts = json.loads(onnxfuse_command("compare", "b.json", "a.json", "--json").out)
    assert [row["verdict"] for row in facts["rows"]] == ["no difference", "faster"]
    write(folder, a=result(100.0), b=result(100.5))
    told = onnxfuse_command("compare", "a.json", "b.json")
    assert told.out.splitlines()[0] == "fused, a.json -> b.json: no difference at 1 shape"


def test_overlapping_intervals_decide_nothing(folder: Path, onnxfuse_command: Command) -> None:
    """Chance fails no build; another card or shapes that only one has are named. A difference that may be large is not
    called none."""
    other = result(110.0, 20.0, device="another card")
    other["blocks"] += result(50.0, batch=16)["blocks"]
    write(folder, a=result(100.0), b=other)
    told = onnxfuse_command("compare", "a.json", "b.json", "--max-slowdown", "1")
    assert (told.code, told.out.splitlines()[0]) == (0, "fused, a.json -> b.json: undecided at 1 shape")
    (row,) = (line.split() for line in told.out.splitlines() if " fused " in line)
    assert row[-4:] == ["0.76x", "to", "1.12x", "undecided"]
    assert "only in b.json: batch=16" in told.out
    assert "not the same: device a card -> another card" in told.out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "is not a result of onnxfuse bench"), ('{"command": "verify"}', "is of onnxfuse verify"),
        (json.dumps(result(0.0)), "expected a time"), (json.dumps(result(1.0, batch=1)), "no shapes in common"),
        (json.dumps({**result(1.0), "blocks": 3}), "expected a list"),
    ],
)  # fmt: skip
def test_another_file_is_exit_2(folder: Path, onnxfuse_command: Command, text: str, reason: str) -> None:
    """With the place in the file, and the command that writes one."""
    write(folder, a=result(100.0))
    (folder / "b.json").write_text(text)
    told = onnxfuse_command("compare", "a.json", "b.json")
    assert (told.code, reason in told.err) == (2, True), told.err
    assert onnxfuse_command("compare", "a.json", "none.json").code == 2
