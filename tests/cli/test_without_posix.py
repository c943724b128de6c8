"""What runs on Windows: optimize, verify and explain need none of what POSIX systems alone have."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import onnx, onnxfuse
from onnxfuse.support import process_limits
head = '<ir_version: 8, opset_import: ["" : 17]> '
onnx.save(onnx.parser.parse_model(head + '''g (float[n,64] x) => (float[n,64] y) {
    a = Mul (x, x) b = Sigmoid (a) y = Mul (a, b) }'''), "m.onnx")
onnx.save(onnxfuse.optimize("m.onnx"), "fused.onnx")
print(onnxfuse.verify("m.onnx", "fused.onnx").ok)  # in a new process, which starts no fork
long = onnx.parser.parse_model(head + '''g (float[a,b] x) => (int64[n] y)
    <int64 z = {0}, int64 o = {1}> { s = Shape (x) h = Gather (s, o) r = Range (z, h, o) y = Add (r, o) }''')
print(len(onnxfuse.optimize(long).graph.node))  # its types are inferred in another process
print("pointwise" in f"{onnxfuse.explain('m.onnx')}")
print(process_limits.no_memory_limit())
"""


def without_posix(code: str, folder: Path) -> str:
    """Return what code prints in a process that looks like one on Windows."""
    command = [sys.executable, "-m", "tests.support.without_posix", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def _found_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}")


def test_the_library_needs_no_posix(tmp_path: Path) -> None:
    """A model is optimized, verified and explained, and the missing memory limit is said."""
    assert without_posix(CODE, tmp_path).splitlines() == [
        "True", "4", "True", "this system has no memory limit for a process",
    ]  # fmt: skip


COMMANDS = """
import onnx
from onnxfuse.cli import main

def run(*words):
    try:
        main([*words])
    except SystemExit as end:
        assert not end.code, (words, end.code)

onnx.save(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["" : 17]> g (float[n,64] x) => (float[n,64] y) {
    a = Mul (x, x) b = Sigmoid (a) y = Mul (a, b) }'''), "m.onnx")
for _ in range(2):
    run("optimize", "m.onnx", "out.onnx", "--external-data")
for words in (("verify", "m.onnx", "out.onnx"), ("explain", "m.onnx")):
    print("--")
    run(*words)
"""


def test_the_commands_need_no_posix(tmp_path: Path) -> None:
    """Files are written and replaced, also with weights beside them; nothing is left of the temporary ones."""
    _, verified, explained = without_posix(COMMANDS, tmp_path).split("--\n")
    assert "ok" in verified
    assert "fuses: 3 nodes -> 1" in explained
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "out.onnx"]
