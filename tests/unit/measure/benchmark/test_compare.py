"""`onnxfuse.measure.benchmark.bench` end to end on the CPU: every contender runs, and what does not is told."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxfuse
from onnxfuse.measure.benchmark import bench, compare
from onnxfuse.measure.timing.binding import opened
from onnxfuse.measure.timing.settings import Setting, cpu_settings
from onnxfuse.support import process_pool
from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.verification.run.sessions import Model

ROOT = Path(__file__).parents[4]

CPU = ["CPUExecutionProvider"]

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD} {text}")


def test_every_setting_of_both_models_runs_on_every_shape(original: onnx.ModelProto) -> None:
    """One block per shape, one row per model and setting; ids are valid, percentiles ordered, nodes counted."""
    fused = onnxfuse.optimize(original)
    steps: list[tuple[str, int, int]] = []
    found = bench(
        original, fused, shapes={"batch": (1, 5)}, providers=CPU, runs=2, rounds=2,
        progress=lambda *step: steps.append(step),
    )  # fmt: skip
    assert [b.dimensions for b in found.blocks] == [{"batch": 1, "words": 1}, {"batch": 5, "words": 1}]
    assert [b.items for b in found.blocks] == [1, 5]
    assert found.assumed == ("words",)
    settings = [s.name for s in cpu_settings(process_pool.cores())]
    for block in found.blocks:
        assert [(r.model, r.setting) for r in block.rows] == [(m, s) for m in ("original", "fused") for s in settings]
        assert block.refused == ()
        assert all(0 < r.timing.min <= r.timing.p50 <= r.timing.p90 <= r.timing.p99 for r in block.rows)
        assert {r.memory for r in block.rows} == {None}
    assert found.nodes["original"]["CPU"] == 4
    assert found.fused_ops.nodes == found.fused_ops.bodies > 0
    assert found.fused_ops.kernels == 0
    assert found.fused_ops.launches is None
    assert list(dict.fromkeys((done, total) for _, done, total in steps)) == [(n, 9) for n in range(9)]
    said = list(dict.fromkeys(step for step, _, _ in steps if "shape 2 of 2: " in step))
    # The original's further settings last: it is one of them that a GPU may have no room for.
    turns = [(m, s) for m in ("original", "fused") for s in settings[:1]]
    turns += [(m, s) for m in ("fused", "original") for s in settings[1:]]
    assert said[-len(turns) - 2 :] == [
        *(f"shape 2 of 2: warming up {m}: {s}" for m, s in turns), "shape 2 of 2: round 1 of 2",
        "shape 2 of 2: round 2 of 2",
    ]  # fmt: skip
    assert set(found.environment) == {"device", "onnxruntime"}


def test_the_limit_takes_runs_and_rounds(original: onnx.ModelProto) -> None:
    """Whatever the limit is, each contender is timed once in five rounds."""
    (block,) = bench(original, onnxfuse.optimize(original), providers=CPU, runs=9, rounds=7, seconds=1e-9).blocks
    assert (block.rounds, block.runs) == (5, 1)
    (block,) = bench(original, onnxfuse.optimize(original), providers=CPU, runs=2, rounds=2).blocks
    assert (block.rounds, block.runs) == (2, 2)


def test_models_are_taken_from_files_and_bytes(original: onnx.ModelProto, tmp_path: Path) -> None:
    """A path and bytes give what a ModelProto gives."""
    file = tmp_path / "in.onnx"
    onnx.save(original, file)
    fused = onnxfuse.optimize(original).SerializeToString()
    found = bench(file, fused, providers=CPU, runs=1, rounds=1)
    assert found.blocks[0].dimensions == {"batch": 1, "words": 1}


def test_a_refused_setting_is_listed_with_its_reason(
    original: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others run on; the reason is the first line of what ONNX Runtime said."""
    monkeypatch.setattr(process_pool, "cores", lambda: 2)
    refuse(monkeypatch, {("original", "2 threads")})
    (block,) = bench(original, onnxfuse.optimize(original), providers=CPU, runs=1, rounds=1).blocks
    assert [(r.model, r.setting, r.reason) for r in block.refused] == [("original", "2 threads", "no plan was found")]
    assert ("original", "2 threads") not in {(r.model, r.setting) for r in block.rows}
    assert len(block.rows) == 5


def test_a_model_that_runs_at_no_setting_is_an_error(
    original: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No table without a fused row."""
    monkeypatch.setattr(process_pool, "cores", lambda: 1)
    refuse(monkeypatch, {("fused", "default"), ("fused", "1 thread")})
    with pytest.raises(ModelError, match="the fused model runs with none of the settings: no plan was found"):
        bench(original, onnxfuse.optimize(original), providers=CPU, runs=1, rounds=1)


def refuse(monkeypatch: pytest.MonkeyPatch, settings: set[tuple[str, str]]) -> None:
    """Let ONNX Runtime refuse these settings of these models."""

    def opened_or_not(model: Model, setting: Setting, providers: Sequence[str], *, fused: bool) -> Any:
        if ("fused" if fused else "original", setting.name) in settings:
            raise RuntimeError("no plan was found\nand more")
        return opened(model, setting, providers, fused=fused)

    monkeypatch.setattr(compare, "opened", opened_or_not)


def test_a_baseline_that_is_fused_already_is_refused(original: onnx.ModelProto) -> None:
    """ONNX Runtime would inline the bodies and fuse them again: its time would say nothing."""
    fused = onnxfuse.optimize(original)
    with pytest.raises(UsageError, match="already contains fused ops"):
        bench(fused, fused, providers=CPU)


def test_models_that_do_not_belong_together(original: onnx.ModelProto) -> None:
    """Other inputs: the first difference is named."""
    other = parsed("g (float[batch, words, 4] r) => (float[batch, words, 4] y) { y = Relu (r) }")
    with pytest.raises(ModelError, match="input 'ids' is missing in the fused model"):
        bench(original, other, providers=CPU)


def test_shapes_on_which_the_original_does_not_run() -> None:
    """The shapes, ONNX Runtime's words, and what to say."""
    made = parsed("g (float[n] x, float[m] r) => (float[k] y) { y = Add (x, r) }")
    with pytest.raises(UsageError, match="the original model does not run on x=2 r=3") as raised:
        bench(made, made, shapes={"n": (2,), "m": (3,)}, providers=CPU)
    assert "--shape" in raised.value.hint


def test_bfloat16_and_scalars_can_be_bound() -> None:
    """NumPy has no bfloat16; a scalar has no extent, so the next input tells the number of items."""
    made = parsed("g (float c, bfloat16[n] x) => (float d, bfloat16[n] y) { d = Neg (c)  y = Identity (x) }")
    (block,) = bench(made, made, shapes={"n": (6,)}, providers=CPU, runs=1, rounds=1).blocks
    assert block.items == 6


def test_outputs_that_are_no_tensors() -> None:
    """A sequence cannot be bound: the output is named."""
    made = parsed("g (float[n] x) => (seq(float[n]) y) { y = SequenceConstruct (x, x) }")
    with pytest.raises(UsageError, match="output 'y' is a seq"):
        bench(made, made, providers=CPU)


HALF_VIT = """
import sys
from onnxfuse import bench, optimize
from onnxfuse.measure.profile import profile
from tests.models import small
model = small.build("vit_b_16", dtype="float16")
bench(model, optimize(model), providers=["CPUExecutionProvider"], runs=1, rounds=1)
profile(model, providers=["CPUExecutionProvider"], runs=1)
"""


def test_a_float16_model_that_kills_onnx_runtime_elsewhere_is_timed() -> None:
    """Its NCHWc pass crashes on this one (1.31.1); all sessions on the CPU go without the pass, in a process or not."""
    done = subprocess.run([sys.executable, "-c", HALF_VIT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
