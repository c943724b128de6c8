"""`onnxfuse profile`: the verdict first, tables of one screen, facts as JSON, a trace, and an exit code."""

import json
import os
from pathlib import Path

import onnx
import onnxruntime
import pytest

import onnxfuse
from onnxfuse import runtime
from tests.cli.conftest import Command

FAST = ("--provider", "cpu", "--runs", "1", "--shape", "N=64")


@pytest.mark.usefixtures("folder")
def test_the_verdict_comes_first_and_all_fits_one_screen(onnxfuse_command: Command) -> None:
    """Bytes before and after, what no longer exists, what stands in whose place, times, and what they stand on."""
    done = onnxfuse_command("profile", "in.onnx", *FAST)
    assert done.code == 0
    lines = done.out.splitlines()
    # A matrix of 64 x 3 floats is 768 bytes. Before, node by node: 1304 + 1548 + 1536 + 2304 + 1572 + 1548; after, the
    # three nodes in the middle are one: 768 + 12 + 768 + 768. Operations: 768 + 3 x 192 + 1152 + 8 x 192.
    assert lines[0] == "device memory per run at N=64: 9.81 kB -> 6.74 kB (69%); 4.03 kFLOP"
    assert lines[1].startswith("note: no kernel runs on the CPU; after is the portable form")
    assert "x the time of the original's" in done.out
    assert "of 5 intermediate values no longer exist" in done.out
    cells = [line.split() for line in lines]
    # MatMul by w: 64 x 2 and 2 x 3 in, 64 x 3 out; by v: 64 x 3 and 3 x 3 in, 64 x 3 out: 2.9 kB.
    assert ["2", "MatMul", "0.003", "0.003", "0.00"] in cells
    assert any(row[:2] == ["time", "of"] and row.count("count") == 2 for row in cells)
    assert "times: medians of 1 run, ONNX Runtime's profiler, at default" in done.out
    assert len(lines) <= 35


def test_what_is_not_counted_is_left_out_of_the_verdict(folder: Path, onnxfuse_command: Command) -> None:
    """The body of an If runs or does not: the first line says that its bytes are not among those told."""
    branches = "then_branch = t () => (float[4] a) { a = Relu(x) }, else_branch = e () => (float[4] b) { b = Tanh(x) }"
    text = f"g (float[4] x, bool p) => (float[4] y) {{ y = If (p) <{branches}> }}"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), folder / "if.onnx")
    done = onnxfuse_command("profile", "if.onnx", "--no-time", "--alone")
    assert done.out.startswith("device memory per run at x=4 p=scalar without If: 0 B; 0 FLOP\n")


@pytest.mark.usefixtures("folder")
def test_counting_needs_no_run(onnxfuse_command: Command) -> None:
    """--no-time gives the bytes and no times; --nodes a row for each node by its name; --top cuts."""
    done = onnxfuse_command("profile", "in.onnx", "--no-time", "--alone", "--nodes")
    assert done.code == 0
    assert "product (MatMul)" in done.out
    assert "us" not in done.out.split()
    assert "assumed N=1: choose other sizes with --shape N=8" in done.out
    assert "5 more rows: --top 6" in onnxfuse_command("profile", "in.onnx", "--no-time", "--alone", "--nodes",
                                                      "--top", "1").out  # fmt: skip


def test_a_fused_file_is_looked_at_as_it_is(folder: Path, onnxfuse_command: Command) -> None:
    """Alone where it is the only one; beside its original where both are given; its own ops are named by rule."""
    onnx.save(onnxfuse.optimize(folder / "in.onnx"), folder / "out.onnx")
    alone = json.loads(onnxfuse_command("profile", "out.onnx", "--no-time", "--json").out)
    both = json.loads(onnxfuse_command("profile", "in.onnx", "out.onnx", "--no-time", "--json").out)
    assert alone["after"] is None
    assert both["after"]["work"] == alone["before"]["work"]
    assert any(n["kind"].startswith("linear: ") and n["nodes"] for n in alone["before"]["work"]["nodes"])


def test_json_and_trace_hold_every_fact(folder: Path, onnxfuse_command: Command) -> None:
    """One run of each model in the trace, which is a file that viewers of Chrome's traces read."""
    facts = json.loads(onnxfuse_command("profile", "in.onnx", *FAST, "--trace", "t.json", "--json").out)
    assert (facts["ok"], facts["trace"], facts["provider"]) == (True, "t.json", "CPUExecutionProvider")
    assert facts["before"]["kernels"] is None
    assert {n["name"] for n in facts["before"]["nodes"]} >= {"second", "norm"}
    trace = json.loads((folder / "t.json").read_text())
    assert {"second", "norm"} <= {e["name"] for e in trace["traceEvents"]}
    told = onnxfuse_command("profile", "in.onnx", *FAST, "--trace", "t.json")
    assert told.out.splitlines()[-1] == "trace: t.json"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "N=one"], "neither DIMENSION=1,7 nor DIMENSION=1..32 nor INPUT=1x3x224x224"),
        (["--shape", "N=1,2"], "2 sets of shapes: a profile is of one"),
        (["--shape", "M=1"], "shape M: no input or dimension has that name"),
        (["--runs", "0"], "0 is not in the range"),
        (["--top", "0"], "0 is not in the range"),
        (["--provider", "tpu"], "'tpu' is not one of"),
        (["--no-time", "--trace", "t.json"], "--no-time runs nothing"),
        (["--no-time", "--cuda-graph"], "--no-time runs nothing"),
        (["in.onnx", "--alone"], "--alone profiles one model"),
        (["--provider", "cpu", "--cuda-graph"], "the models run on the CPU"),
    ],
)
def test_wrong_usage_is_told_in_one_message(arguments: list[str], message: str, onnxfuse_command: Command) -> None:
    """Exit 2, and the word that is wrong."""
    done = onnxfuse_command("profile", "in.onnx", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_bad_files_are_exit_3(folder: Path, onnxfuse_command: Command) -> None:
    """Missing, foreign, or of another interface; a trace that cannot be written is told before the work."""
    (folder / "text.onnx").write_text("hello")
    other = onnx.load(folder / "in.onnx")
    other.graph.output[0].name = other.graph.node[-1].output[0] = "z"
    onnx.save(other, folder / "other.onnx")
    for arguments, word in (
        (("missing.onnx",), "missing.onnx"), (("text.onnx",), "text.onnx"), (("in.onnx", "text.onnx"), "text.onnx"),
        (("in.onnx", "other.onnx", "--no-time"), "do not belong together"),
        (("in.onnx", "--trace", "no/folder/t.json"), "no/folder"), (("in.onnx", "--trace", "."), "directory"),
    ):  # fmt: skip
        done = onnxfuse_command("profile", *arguments)
        assert (done.code, done.out) == (3, "")
        assert word in done.err


@pytest.mark.usefixtures("folder")
def test_no_cuda_where_it_was_asked_for(onnxfuse_command: Command) -> None:
    """Exit 5; never the times of the CPU under the name of the GPU."""
    if runtime.cuda_unusable() is None:
        pytest.skip("CUDA works here")
    done = onnxfuse_command("profile", "in.onnx", "--provider", "cuda")
    assert (done.code, done.out) == (5, "")
    assert "CUDA" in done.err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["profile", "bench"])
def test_a_profile_that_a_full_disk_cuts_is_told(
    onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """ONNX Runtime says nothing of it, and leaves half a file."""
    ended = onnxruntime.InferenceSession.end_profiling

    def cut(session: onnxruntime.InferenceSession) -> str:
        name = str(ended(session))
        os.truncate(name, 100)
        return name

    monkeypatch.setattr(onnxruntime.InferenceSession, "end_profiling", cut)
    done = onnxfuse_command(command, "in.onnx", "--provider", "cpu")
    assert (done.code, "profile is truncated" in done.err, "TMPDIR" in done.err) == (5, True, True), done.err
