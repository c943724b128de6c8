"""What blocks a CUDA graph: asked of ONNX Runtime's own CUDA provider, on the stand-in CUDA libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

import onnxfuse
from models.survey import samples
from onnxfuse.runtime.engine.cuda_provider import cuda_unusable
from onnxfuse.runtime.sessions.capture import capture
from tests.support.scenarios import ROOT, FakeCuda

HEAD = '<ir_version: 10, opset_import: ["" : 22]>'

BLOCKED = {
    "no kernel": """g (float[N,8] x) => (float[N,8] y) {
      [up] a = Relu (x)  [curve] b = Asinh (a)  [down] y = Relu (b) }""",
    "no kernel in float16": """g (float16[N,2,8,8] x, float16[N,8,8,2] t) => (float16[N,2,8,8] y) {
      [warp] w = GridSample (x, t)  [act] y = Relu (w) }""",
    "copied shape": """g (float[N,8] x) => (float[N,8] y) {
      s = Shape <start = 0, end = 1> (x)  [count] n = Cast <to = 1> (s)
      [act] a = Relu (x)  [scaled] y = Mul (a, n) }""",
    "copied extents": """g (float[N,2] x) => (float[N,2] y) {
      s = Shape (x)  [count] n = Cast <to = 1> (s)  [act] a = Relu (x)  [scaled] y = Mul (a, n) }""",
    "of an input": """g (float[N,8] x, int64[1] past) => (int64[N,8] y) {
      s = Shape <start = 0, end = 1> (x)  [all] n = Add (s, past)
      [whole] k = Cast <to = 7> (x)  [at] y = Add (k, n) }""",
    "input on the CPU": """g (float[N,8] x) => (float[N,8] y) {
      s = Shape <start = 0, end = 1> (x)  [count] n = Cast <to = 1> (s)  [scaled] y = Mul (x, n) }""",
    "shapes alone": """g (float[N,2,4] x) => (float[M,K] y) {
      [extents] s = Shape <start = 0, end = 1> (x)  m1 = Constant <value = int64[1] {-1}> ()
      [both] d = Concat <axis = 0> (s, m1)  [flat] r = Reshape (x, d)  [act] y = Relu (r) }""",
    "control flow": """g (float[N,8] x, bool c) => (float[N,8] y) {
      [choice] y = If (c) <then_branch = a () => (float[N,8] t) { t = Relu (x) },
                           else_branch = b () => (float[N,8] e) { e = Neg (x) }> }""",
    "waits": "g (float[N,8] x) => (int64[2,K] y) { [found] y = NonZero (x) }",
    "angles": """g (float[N,2,P,8] past, float[N,1,8] x) => (float[N,1,8] y) {
      s = Shape <start = 2, end = 3> (past)  speeds = Constant <value = float[8] {1, 2, 3, 4, 5, 6, 7, 8}> ()
      f = Cast <to = 1> (s)  a = Mul (f, speeds)  [angle] c = Cos (a)  [act] r = Relu (x)  [turned] y = Mul (r, c) }""",
    "read at capture": "g (float[N,8] x, int64[2] s) => (float[A,B] y) { [as_told] y = Reshape (x, s) }",
    "random": "g (float[N,8] x) => (float[N,8] y) { [noise] r = RandomNormalLike (x)  [sum] y = Add (x, r) }",
}

EXPORTS = ("gpt2+cache", "bert", "qwen2")
"""Of the survey's samples."""


def model(name: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + BLOCKED[name])


def reasons() -> Any:
    found = {}
    for name in BLOCKED:
        told = capture(model(name))
        found[name] = {
            "ok": told.ok,
            "blocking": [[b.kind, list(b.nodes)] for b in told.blocking],
            "mend": [b.mend for b in told.blocking],
            "frozen": [[b.kind, list(b.nodes)] for b in told.frozen],
            "on CPU": told.on_cpu,
            "opens": opens(model(name)),
        }
    return found


def opens(given: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime itself opens a session with CUDA graphs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    cuda = ("CUDAExecutionProvider", {"enable_cuda_graph": "1"})
    try:
        onnxruntime.InferenceSession(given.SerializeToString(), options, providers=[cuda, "CPUExecutionProvider"])
    except Exception as error:
        return "graph capture" not in str(error)
    return True


def test_each_reason_is_told_with_its_nodes(on_fake_cuda: FakeCuda) -> None:
    """And the verdict is ONNX Runtime's, but for what waits, which it refuses only in the run that captures."""
    found = on_fake_cuda(reasons)
    assert {n: f["blocking"] for n, f in found.items()} == {
        "no kernel": [["no kernel", ["Asinh curve"]]],
        "no kernel in float16": [["no kernel", ["GridSample warp"]]],
        "copied shape": [["copied shape", ["Cast count"]]],
        "copied extents": [["copied shape", ["Cast count"]]],
        "of an input": [["copied shape", ["Add all"]]],
        "input on the CPU": [["copied shape", ["Mul scaled"]]],
        "shapes alone": [],
        "control flow": [["control flow", ["If choice"]]],
        "waits": [["waits", ["NonZero found"]]],
        "angles": [["copied shape", ["Cos angle"]]],
        "read at capture": [],
        "random": [],
    }
    assert "--shape" in found["copied extents"]["mend"][0]
    assert "--shape" not in found["of an input"]["mend"][0]  # no size makes a constant of it
    assert {n: f["frozen"] for n, f in found.items() if f["frozen"]} == {
        "control flow": [["read at capture", ["c"]]],
        "read at capture": [["read at capture", ["s"]]],
        "random": [["random", ["RandomNormalLike noise"]]],
    }
    assert all(f["ok"] == f["opens"] for n, f in found.items() if n != "waits")
    assert found["shapes alone"]["on CPU"] == 1


def optimized() -> Any:
    return [name for name in BLOCKED if not capture(onnxfuse.optimize(model(name))).ok]


def test_what_optimizing_takes_out_of_the_way(on_fake_cuda: FakeCuda) -> None:
    """A number from shapes reaches kernels as an argument, what has no CUDA kernel is fused, or runs in float32.

    What an input has a part in is copied as before: a replay would not see that input change.
    """
    left = ["copied extents", "of an input", "control flow", "waits"]
    assert on_fake_cuda(optimized) == left


def of_exports() -> Any:
    return [capture(onnxfuse.optimize(samples.unpacked(file.read_bytes()))).ok for name in EXPORTS
            for file in samples.FOLDER.glob(f"*-{name}-*")]  # fmt: skip


def test_exports_can_be_captured(on_fake_cuda: FakeCuda) -> None:
    """Positions behind a cache, a mask gathered by row, heads that are merged, heads repeated to a computed shape."""
    assert on_fake_cuda(of_exports) == [True] * len(EXPORTS)


def of_a_fused_model() -> Any:
    made = onnx.parser.parse_model(
        HEAD
        + """g (float[N,2] x) => (float[N,2] y) {
          [up] a = Relu (x)  [twice] b = Add (a, a)  s = Shape (x)  [count] n = Cast <to = 1> (s)
          [scaled] c = Mul (b, n)  [down] y = Sigmoid (c) }"""
    )
    found = capture(onnxfuse.optimize(made))
    return [found.as_dict(), str(found), found._repr_html_()]


def test_a_fused_op_is_told_by_its_original_nodes(on_fake_cuda: FakeCuda) -> None:
    """What reads the copied number is a node inside a fused op, and is called as it was. The result prints itself."""
    facts, text, page = on_fake_cuda(of_a_fused_model)
    (blocker,) = facts["blocking"]
    assert blocker["nodes"] == ["Cast count"]
    assert "Mul scaled" in blocker["why"]
    assert "--shape" in blocker["mend"]
    assert text.startswith("no CUDA graph: 1 node in the way, 1 reason; ONNX Runtime")
    assert "blocked by copied shape" in text
    assert "\n  Cast count\n" in text
    assert "<p>  Cast count</p>" in page


def command(file: Path, libraries: Path | None, *more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {}) | {"COLUMNS": "200"}
    line = [sys.executable, "-m", "onnxfuse", "explain", str(file), "--graph", *more]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_names_what_blocks_and_what_to_do(fake_cuda: Path, tmp_path: Path) -> None:
    """Of the model as optimize makes it; without CUDA it says that it has nobody to ask."""
    file = tmp_path / "in.onnx"
    onnx.save(model("copied extents"), file)
    told = command(file, fake_cuda)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("no CUDA graph: 1 node in the way, 1 reason; ONNX Runtime")
    assert "Cast count" in told.stdout
    assert "next: Fix the sizes" in told.stdout
    facts = json.loads(command(file, fake_cuda, "--json").stdout)
    assert facts["graph"]["dims"] == ["N"]
    assert not facts["graph"]["ok"]
    if cuda_unusable() is not None:
        missing = command(file, None)
        assert missing.returncode == 5
        assert "takes ONNX Runtime's CUDA provider, which cannot be used here" in missing.stderr
