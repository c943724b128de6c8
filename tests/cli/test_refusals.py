"""Every way to be refused, through the real command: one message with the place, an exit code, no traceback, no file.

What a command's own tests hold already is not here again.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from tests.cli.conftest import Command
from tests.unit.rules.language import test_rule_file as rule_files

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
ROWS = np.ones((4, 2), np.float32), np.ones((4, 3), np.float32)


def model(text: str, head: str = HEAD) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{head} {text}")


# ---- inputs that are given


def _tensor(name: str, array: Any) -> bytes:
    return bytes(numpy_helper.from_array(np.asarray(array), name).SerializeToString())


INPUTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "names.npz": (lambda f: np.savez(f, x=ROWS[0], z=ROWS[1]), "'r'"),
    "type.npz": (lambda f: np.savez(f, x=ROWS[0].astype(np.float64), r=ROWS[1]), "'x' is float64, the model wants"),
    "rank.npz": (lambda f: np.savez(f, x=ROWS[0][0], r=ROWS[1]), "'x' has shape 2, the model wants Nx2"),
    "extent.npz": (lambda f: np.savez(f, x=ROWS[1], r=ROWS[1]), "'x' has shape 4x3, the model wants Nx2"),
    "dimension.npz": (lambda f: np.savez(f, x=ROWS[0], r=ROWS[1][:3]), "dimension N is 4 in 'x' and 3 in 'r'"),
    "single.npy": (lambda f: np.save(f, ROWS[0]), "holds one array, the model has the inputs"),
    "unnamed.npz": (lambda f: _as_npy(f), "holds one array without a name"),
    "broken.json": (lambda f: f.write_text("{"), "is not readable JSON"),
    "number.json": (lambda f: f.write_text("[3]"), "holds no object of inputs by name"),
    "ragged.json": (lambda f: f.write_text('{"x": [[1, 2], [3]], "r": [[1, 2, 3]]}'), "of different lengths"),
    "words.json": (lambda f: f.write_text('{"x": [["a", "b"]], "r": [[1, 2, 3]]}'), "'x' holds <U1, the model wants"),
    "empty": (lambda f: f.mkdir(), "holds neither input_0.pb nor .npy nor test_data_set_*"),
    "few": (lambda f: _folder(f, _tensor("x", ROWS[0])), "1 input, the model has 2"),
    "order": (lambda f: _folder(f, _tensor("r", ROWS[1]), _tensor("x", ROWS[0])), "holds 'r', the model's input there"),
    "bytes": (lambda f: _folder(f, b"hello", b"hello"), "does not hold a tensor"),
}


def _as_npy(file: Path) -> None:
    with file.open("wb") as target:
        np.save(target, ROWS[0])


def _folder(folder: Path, *tensors: bytes) -> None:
    folder.mkdir()
    for number, data in enumerate(tensors):
        (folder / f"input_{number}.pb").write_bytes(data)


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_do_not_fit_are_exit_2(folder: Path, onnxfuse_command: Command, name: str) -> None:
    """The file, what is in it, and what the model wants; `verify` and `optimize --guard` read them alike."""
    make, told = INPUTS[name]
    make(folder / name)
    for call in (
        ("verify", "in.onnx", "in.onnx", "--provider", "cpu", "--inputs", name),
        ("optimize", "in.onnx", "out.onnx", "--guard", "--guard-inputs", name),
    ):
        done = onnxfuse_command(*call)
        assert (done.code, done.out) == (2, "")
        assert told in done.err
        assert name in done.err
    assert not (folder / "out.onnx").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--shape", "x=1x2x3"], "shape x=1x2x3: the input has rank 2 (Nx2)"),
        (["--bisect", "in.onnx"], "is a file"),
    ],
)
def test_more_wrong_calls_of_verify(onnxfuse_command: Command, arguments: list[str], told: str) -> None:
    """Exit 2, and what is wrong with which option."""
    done = onnxfuse_command("verify", "in.onnx", "in.onnx", "--provider", "cpu", *arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.err


# ---- models that cannot be run, compared or timed

LOOSE = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
CANNOT: dict[str, tuple[str, tuple[str, ...], int, str]] = {
    "random": ("g (float[2] x) => (float[2] y) { [dice] r = RandomNormalLike(x) y = Add(r, x) }",
               ("verify",), 2, "RandomNormalLike 'dice' draws random numbers"),
    "sequence out": ("g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct(x, x) }",
                     ("bench", "profile"), 2, "'y' is"),
    "words in": ("g (string[2] x) => (string[2] y) { y = Identity(x) }",
                 ("verify", "bench", "profile"), 2, "input 'x' is of type STRING: no values can be generated for it"),
    "bytes out": ("g (float[2] x) => (string[1] y, float[2] z) <string[1] w = {\"?\"}> { y = Identity(w) z = Relu(x) }",
                  ("verify",), 3, "an output holds a text that is not UTF-8: b'\\xff'"),
    "no such size": ("g (float[4611686018427387904,3] x) => (float[4611686018427387904,3] y) { y = Relu(x) }",
                     ("verify", "bench", "profile"), 2, "input 'x' would be of shape 4611686018427387904x3, which no"),
    "fixed inside": ("g (float[N,4] x) => (float[M,35] y) <int64[2] s = {-1, 35}> { r = Reshape(x, s) y = Relu(r) }",
                     ("verify", "bench", "profile"), 2, "cannot be reshaped"),
}  # fmt: skip


@pytest.mark.parametrize("name", CANNOT)
def test_a_model_that_cannot_be_run_is_told(folder: Path, onnxfuse_command: Command, name: str) -> None:
    """The node, the value or the shapes at fault; the same in every command that runs models."""
    text, commands, code, told = CANNOT[name]
    made = model(text)
    for tensor in made.graph.initializer:
        tensor.string_data[:] = [b"\xff" for _ in tensor.string_data]  # ONNX's syntax has no such text
    onnx.save(made, folder / "odd.onnx")
    for command in commands:
        done = onnxfuse_command(command, "odd.onnx", "odd.onnx", "--provider", "cpu")
        assert (done.code, done.out) == (code, ""), (command, done.err)
        assert told in done.err, command


def test_an_input_of_unknown_rank_is_told(folder: Path, onnxfuse_command: Command) -> None:
    """No shape can be made up for it."""
    odd = model(LOOSE)
    odd.graph.input[0].type.tensor_type.ClearField("shape")
    odd.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(odd, folder / "odd.onnx")
    for command in ("verify", "bench", "profile"):
        done = onnxfuse_command(command, "odd.onnx", "odd.onnx", "--provider", "cpu")
        assert (done.code, done.out) == (2, "")
        assert "input 'x' is not a tensor of known rank" in done.err


def test_an_operator_that_onnx_runtime_lacks_is_told(folder: Path, onnxfuse_command: Command) -> None:
    """Exit 3, the operator's name, and that it is the model and not the fusion."""
    onnx.save(model("g (float[2] x) => (float[2] y) { y = mine.Op(x) }",
                    '<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>'), folder / "odd.onnx")  # fmt: skip
    for command in ("verify", "bench", "profile"):
        done = onnxfuse_command(command, "odd.onnx", "odd.onnx", "--provider", "cpu")
        assert (done.code, done.out) == (3, ""), (command, done.err)
        assert "operator Op of domain 'mine' is neither ONNX Runtime's" in done.err
        assert "--custom-ops" in done.err


def test_models_that_do_not_belong_together(folder: Path, onnxfuse_command: Command) -> None:
    """Other outputs are exit 3 in bench; `verify` says it in its verdict, exit 1; fused ops are no baseline, exit 2."""
    other = onnx.load(folder / "in.onnx")
    other.graph.output[0].name = other.graph.node[-1].output[0] = "z"
    onnx.save(other, folder / "other.onnx")
    onnx.save(onnxfuse.optimize(folder / "in.onnx"), folder / "fused.onnx")
    bench = onnxfuse_command("bench", "in.onnx", "other.onnx", "--provider", "cpu")
    assert (bench.code, bench.out) == (3, "")
    assert "the two models do not belong together" in bench.err
    baseline = onnxfuse_command("bench", "fused.onnx", "fused.onnx", "--provider", "cpu")
    assert (baseline.code, baseline.out) == (2, "")
    assert "already contains fused ops" in baseline.err
    verdict = onnxfuse_command("verify", "in.onnx", "other.onnx", "--provider", "cpu", "--json")
    assert verdict.code == 1
    assert json.loads(verdict.out)["problems"]


def test_a_truth_that_cannot_be_had_is_told(folder: Path, onnxfuse_command: Command) -> None:
    """--truth float64 where ONNX's reference operators lack one: exit 2; without it, float32 and the reason."""
    head = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
    onnx.save(
        model("g (float[2,2] x) => (float[2,2] y) { y = com.microsoft.Inverse(x) }", head), folder / "inverse.onnx"
    )
    call = ("verify", "inverse.onnx", "inverse.onnx", "--provider", "cpu")
    done = onnxfuse_command(*call, "--truth", "float64")
    assert (done.code, done.out) == (2, "")
    assert "the truth is not possible in float64: Node type 'Inverse'" in done.err
    facts = json.loads(onnxfuse_command(*call, "--json").out)
    assert (facts["ok"], facts["truth"]["kind"]) == (True, "float32")


# ---- models that are not valid


def _weight_too_short() -> onnx.ModelProto:
    odd = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    odd.graph.initializer[0].CopyFrom(TensorProto(name="w", data_type=1, dims=[2], raw_data=b"1234"))
    return odd


def _computed_twice() -> onnx.ModelProto:
    odd = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    odd.graph.node.append(helper.make_node("Neg", ["x"], ["y"], "again"))
    return odd


def _calls_itself() -> onnx.ModelProto:
    body = helper.make_function(
        "mine", "F", ["a"], ["b"], [helper.make_node("F", ["a"], ["b"], domain="mine")],
        [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    odd = model("g (float[2] x) => (float[2] y) { y = mine.F(x) }",
                '<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>')  # fmt: skip
    odd.functions.append(body)
    return odd


INVALID: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "weight": (_weight_too_short, "weight 'w' holds 4 bytes"),
    "twice": (_computed_twice, "not valid"),
    "recursion": (_calls_itself, "local functions cannot be inlined"),
    "no graph": (lambda: onnx.ModelProto(ir_version=8), "has no graph or no operator set"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_a_model_that_is_not_valid_is_exit_3(folder: Path, onnxfuse_command: Command, name: str) -> None:
    """The file and the place in it; whoever optimizes says the same."""
    make, told = INVALID[name]
    (folder / "odd.onnx").write_bytes(make().SerializeToString())
    for call in (("optimize", "odd.onnx", "out.onnx"), ("explain", "odd.onnx"), ("bench", "odd.onnx")):
        done = onnxfuse_command(*call)
        assert (done.code, done.out) == (3, ""), (call, done.err)
        assert told in done.err, call
        assert "odd.onnx" in done.err, call
    assert not (folder / "out.onnx").exists()


def test_undo_needs_to_know_the_nodes(folder: Path, onnxfuse_command: Command) -> None:
    """Where another tool dropped what a fused op remembers, `--undo` says so and writes nothing."""
    odd = onnxfuse.optimize(folder / "in.onnx")
    for node in odd.graph.node:
        del node.metadata_props[:]
    onnx.save(odd, folder / "odd.onnx")
    done = onnxfuse_command("optimize", "--undo", "odd.onnx", "out.onnx")
    assert (done.code, (folder / "out.onnx").exists()) == (3, False)
    assert "another tool dropped its metadata_props" in done.err


def test_fused_ops_without_their_metadata_are_told(folder: Path, onnxfuse_command: Command) -> None:
    """Whoever has to know them says which function, and what dropped it."""
    odd = onnxfuse.optimize(folder / "in.onnx")
    for function in odd.functions:
        del function.metadata_props[:]
    onnx.save(odd, folder / "odd.onnx")
    for call in (
        ("bench", "odd.onnx", "--provider", "cpu"),
        ("profile", "odd.onnx", "--no-time"),
        ("verify", "in.onnx", "odd.onnx", "--provider", "cpu"),
    ):
        done = onnxfuse_command(*call)
        assert (done.code, done.out) == (3, ""), call
        assert "lacks its metadata" in done.err, call


# ---- rule files


def _rows(test: Any) -> list[tuple[Any, ...]]:
    """Return the table of a test of rule files: the same mistakes, made through the command."""
    return list(next(m for m in test.pytestmark if m.name == "parametrize").args[1])


MISTAKES = [
    *((rule_files.GOOD.replace(good, bad, 1), told)
      for good, bad, _, told in _rows(rule_files.test_a_mistake_is_told_with_file_line_and_nearest_word)),
    *((rule_files.FUSE.replace(good, bad, 1), told)
      for good, bad, _, told in _rows(rule_files.test_a_mistake_in_a_fuse_rule_is_told_too)),
    *_rows(rule_files.test_what_is_missing_is_told),
]  # fmt: skip


@pytest.mark.parametrize(("text", "told"), MISTAKES)
def test_a_mistake_in_a_rule_file_is_exit_2(folder: Path, onnxfuse_command: Command, text: str, told: str) -> None:
    """File, line and the nearest word, wherever rules are read; nothing is written."""
    (folder / "mine").mkdir()
    (folder / "mine" / "bad.toml").write_text(text)
    for call in (("rules", "--rules", "mine"), ("optimize", "in.onnx", "out.onnx", "--rules", "mine")):
        done = onnxfuse_command(*call)
        assert (done.code, done.out) == (2, "")
        assert told in done.err
        assert "mine/bad.toml" in done.err
    assert not (folder / "out.onnx").exists()


@pytest.mark.parametrize("command", [("rules",), ("optimize", "in.onnx", "out.onnx"), ("explain", "in.onnx")])
def test_folders_of_rules_that_are_none(folder: Path, onnxfuse_command: Command, command: tuple[str, ...]) -> None:
    """Empty, missing, not text: exit 2."""
    (folder / "empty").mkdir()
    (folder / "bytes").mkdir()
    (folder / "bytes" / "mine.toml").write_bytes(b"\xff\xfe\x00summary")
    for name, told in (("empty", "holds no .toml"), ("nowhere", "no such folder"), ("bytes", "mine.toml")):
        done = onnxfuse_command(*command, "--rules", name)
        assert (done.code, done.out) == (2, "")
        assert told in done.err


# ---- files that cannot be written


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("option", ["--report", "--junit", "--markdown"])
def test_a_full_disk_is_told(onnxfuse_command: Command, option: str) -> None:
    """The system's own words, exit 3: /dev/full takes nothing."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    done = onnxfuse_command("optimize", "in.onnx", "out.onnx", option, "/dev/full")
    assert done.code == 3
    assert "/dev/full: cannot be written: No space left on device" in done.err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("optimize", "in.onnx", "NAME.onnx"), 3),
        (("profile", "in.onnx", "--provider", "cpu", "--runs", "1", "--trace", "NAME.json"), 3),
        (("verify", "in.onnx", "in.onnx", "--provider", "cpu", "--save-inputs", "NAME"), 3),
    ],
)
def test_a_name_that_the_system_does_not_take_is_told(
    onnxfuse_command: Command, command: tuple[str, ...], code: int
) -> None:
    """No traceback where the file system refuses."""
    done = onnxfuse_command(*(part.replace("NAME", "n" * 300) for part in command))
    assert done.code == code
    assert "cannot be written: File name too long" in done.err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "command",
    [
        ("optimize", "NAME", "out.onnx"), ("explain", "NAME"), ("verify", "in.onnx", "NAME"), ("bench", "NAME"),
        ("profile", "NAME"), ("verify", "in.onnx", "in.onnx", "--inputs", "NAME"), ("rules", "--rules", "NAME"),
    ],
)  # fmt: skip
def test_nor_is_there_a_traceback_where_it_is_read(onnxfuse_command: Command, command: tuple[str, ...]) -> None:
    """Exit 3, the name and the system's words."""
    done = onnxfuse_command(*(part.replace("NAME", "n" * 300) for part in command))
    assert (done.code, done.out) == (3, "")
    assert "nnn: File name too long" in done.err


def test_a_lock_that_cannot_be_written_is_told(folder: Path, onnxfuse_command: Command) -> None:
    """A folder in its place: exit 3, by name, as for any file that is to be written."""
    (folder / "onnxfuse.toml").write_text('[[model]]\npath = "in.onnx"\nprovider = "cpu"\nverify = false\n')
    (folder / "onnxfuse.lock").mkdir()
    done = onnxfuse_command("ci", "--update")
    assert done.code == 3
    assert "onnxfuse.lock" in done.err


# ---- CUDA where there is none


@pytest.mark.parametrize(
    "command",
    [
        ("verify", "in.onnx", "in.onnx", "--provider", "cuda"),
        ("verify", "in.onnx", "in.onnx", "--provider", "both"),
        ("bench", "in.onnx", "--provider", "cuda"),
        ("profile", "in.onnx", "--provider", "cuda"),
        ("doctor", "--provider", "cuda"),
        ("ci",),
    ],
)
def test_cuda_that_was_asked_for_and_is_not_there_is_exit_5(
    folder: Path, onnxfuse_command: Command, command: tuple[str, ...]
) -> None:
    """Wherever it can be asked for; in JSON too."""
    if onnxfuse.runtime.cuda_unusable() is None:
        pytest.skip("CUDA works here")
    (folder / "onnxfuse.toml").write_text('[[model]]\npath = "in.onnx"\nprovider = "cuda"\n')
    done = onnxfuse_command(*command, "--json")
    assert done.code == 5
    assert json.loads(done.out)["ok"] is False
    assert "CUDA" in done.out
