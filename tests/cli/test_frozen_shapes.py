"""A file that was made for some sizes carries them: every command that compares or times it takes them from it."""

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxfuse
from onnxfuse.support.errors import UsageError
from tests.cli.conftest import Command

HEAD = '<ir_version: 9, opset_import: ["": 17]> '
FORMS = {
    "two inputs": (
        "g (float[B,S,8] x, float[B,P,8] past) => (float[B,S,8] y) { t = Transpose <perm = [0, 2, 1]> (past) "
        "s = MatMul (x, t) p = Softmax <axis = -1> (s) y = MatMul (p, past) }",
        ["S=1"],
    ),
    "one input": (
        "g (float[B,S,8] x) => (float[B,S,8] y) { a = Relu (x) b = Mul (a, x) y = Softmax <axis = -1> (b) }",
        ["S=1"],
    ),
    "all sizes": (
        "g (float[B,S,8] x) => (float[B,S,8] y) { a = Relu (x) b = Mul (a, x) y = Softmax <axis = -1> (b) }",
        ["S=5", "B=2"],
    ),
    "without a name": ("g (float[?,8] x) => (float[?,8] y) { a = Relu (x) y = Mul (a, x) }", ["x[0]=4"]),
    "by an input's shape": (
        "g (float[B,S,8] x, float[S] z) => (float[B,S,8] y) { a = Relu (x) y = Softmax <axis = -1> (a) }", ["x=2x6x8"],
    ),
    "none of the usual sizes": ("g (float[B,S] x) => (float[B,S] y) { a = Relu (x) y = Mul (a, x) }", ["S=77"]),
}  # fmt: skip


@pytest.fixture(params=FORMS)
def made(request: pytest.FixtureRequest, folder: Path, onnxfuse_command: Command) -> str:
    """What `optimize --shape` printed; the files are there."""
    text, sizes = FORMS[request.param]
    onnx.save(onnx.parser.parse_model(HEAD + text), folder / "in.onnx")
    shapes = [word for size in sizes for word in ("--shape", size)]
    done = onnxfuse_command("optimize", "in.onnx", "out.onnx", *shapes)
    assert done.code == 0
    return done.out


def test_the_next_command_holds(made: str, onnxfuse_command: Command) -> None:
    """The one that optimize prints, which names no sizes."""
    hint = re.search(r"next: onnxfuse (verify .*)", made)
    assert hint is not None
    done = onnxfuse_command(*shlex.split(hint[1]), "--provider", "cpu")
    assert done.code == 0, done.out
    assert "left out" not in done.out


def test_bench_and_profile_run_at_its_sizes(made: str, onnxfuse_command: Command) -> None:
    """And say so, as of sizes that were asked for."""
    assert onnxfuse_command("bench", "in.onnx", "out.onnx", "--provider", "cpu", "--runs", 1, "--rounds", 2).code == 0
    assert onnxfuse_command("profile", "in.onnx", "out.onnx", "--provider", "cpu").code == 0


def specialised() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a model and what is made of it for S=5."""
    original = onnx.parser.parse_model(HEAD + FORMS["one input"][0])
    return original, onnxfuse.optimize(original, shapes={"S": 5})


def test_in_python_too(tmp_path: Path) -> None:
    """What is open in both is varied as ever; the inputs that are saved are those that were run."""
    original, fused = specialised()
    report = onnxfuse.verify(original, fused, save_inputs=tmp_path / "inputs")
    assert report.ok
    ran = {case.shapes["x"] for case in report.cases}
    assert {shape[1] for shape in ran} == {5}
    assert len({shape[0] for shape in ran}) > 1
    custom_ops_arguments = onnxfuse.verify(original, fused, inputs=tmp_path / "inputs")
    assert custom_ops_arguments.ok
    assert {case.shapes["x"] for case in custom_ops_arguments.cases} == ran
    timed = onnxfuse.bench(original, fused, runs=1, rounds=2, providers=["CPUExecutionProvider"])
    assert [block.dimensions for block in timed.blocks] == [{"B": 1, "S": 5}]
    assert timed.assumed == ("B",)


def test_lower_precision_is_compared_at_its_sizes() -> None:
    """The contract of float16 is held at the sizes that the file takes."""
    original, _ = specialised()
    lowered = onnxfuse.optimize(original, shapes={"S": 5}, precision="float16")
    report = onnxfuse.verify(original, lowered)
    assert report.ok
    assert {case.shapes["x"][1] for case in report.cases} == {5}


def test_sizes_that_are_asked_for_come_first() -> None:
    """Whoever asks for others learns that the file does not take them."""
    original, fused = specialised()
    assert onnxfuse.verify(original, fused, shapes={"S": 5, "B": 3}).ok
    assert not onnxfuse.verify(original, fused, shapes={"S": 4}).ok


def test_real_inputs_have_their_own_sizes() -> None:
    """Nothing is taken from the file where inputs are given, and sizes beside them are refused as ever."""
    original, fused = specialised()
    given = {"x": np.ones((2, 5, 8), np.float32)}
    assert onnxfuse.verify(original, fused, inputs=given).ok
    with pytest.raises(UsageError, match="shapes are those of the real inputs"):
        onnxfuse.verify(original, fused, inputs=given, shapes={"S": 5})


def test_a_size_of_0_that_leaves_nothing_to_compute_is_refused(folder: Path, onnxfuse_command: Command) -> None:
    """By its name; an empty cache is none."""
    onnx.save(onnx.parser.parse_model(HEAD + "g (float[B,4] x) => (float[B,4] y) { y = Relu (x) }"), folder / "in.onnx")
    done = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--shape", "B=0")
    assert (done.code, "--shape B=0: the output 'y' would have no elements" in done.err) == (2, True)
    cached = HEAD + "g (float[B,P] past, float[B,S] x) => (float[B,T] y) { y = Concat <axis = 1> (past, x) }"
    onnx.save(onnx.parser.parse_model(cached), folder / "in.onnx")
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx", "--shape", "P=0").code == 0
