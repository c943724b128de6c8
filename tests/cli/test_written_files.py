"""What is written opens: with weights beside it, in every layout that exporters have, by every command that writes."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.files import external, io, trial
from tests.cli.conftest import Command

OUTPUTS = ("y", "z", "s")


def number(values: Sequence[int] | int, dtype: type = np.int64) -> np.ndarray:
    """Return what shapes are said by."""
    return np.array(values, dtype)


def exported() -> onnx.ModelProto:
    """Return a model with all that says shapes in initializers, as torch writes it, in a branch and a function, too."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((32, 32)).astype(np.float32), "b": rng.standard_normal(32).astype(np.float32),
        "to": number([-1, 2, 4, 4]), "ends": number([3]), "starts": number([1]), "axes": number([2]),
        "pads": number([0, 0, 1, 1, 0, 0, 1, 1]), "scales": number([1, 1, 2, 2], np.float32),
        "parts": number([1] * 256), "flat": number([-1, 16]), "many": number([2, 1, 16]), "k": number([1]),
    }  # fmt: skip
    node = helper.make_node
    inner = rng.standard_normal((32, 32)).astype(np.float32)
    branches = {
        f"{name}_branch": helper.make_graph(
            [node("MatMul", ["h", f"{name}_w"], [f"{name}_m"]), node("Reshape", [f"{name}_m", f"{name}_to"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None])],
            [
                numpy_helper.from_array(inner * sign, f"{name}_w"),
                numpy_helper.from_array(number([-1, 32]), f"{name}_to"),
            ],
        )
        for name, sign in (("then", 1), ("else", -1))
    }
    flattened = helper.make_function(
        "test", "Flattened", ["x", "to"], ["y"], [node("Reshape", ["x", "to"], ["y"])], [helper.make_opsetid("", 18)]
    )
    graph = helper.make_graph(
        [
            node("MatMul", ["x", "w"], ["p"]),
            node("Add", ["p", "b"], ["q"]),
            node("Relu", ["q"], ["h"]),
            node("Reshape", ["h", "to"], ["image"]),
            node("Pad", ["image", "pads"], ["padded"]),
            node("Resize", ["padded", "", "scales"], ["grown"]),
            node("Slice", ["grown", "starts", "ends", "axes"], ["y"]),
            node("If", ["c"], ["chosen"], **branches),
            node("Flattened", ["chosen", "flat"], ["long"], domain="test"),
            node("Expand", ["long", "many"], ["rows"]),
            node("TopK", ["rows", "k"], ["z", "at"], axis=2),
            node("Split", ["r", "parts"], [f"r{n}" for n in range(256)], axis=0),
            node("Add", ["r0", "r255"], ["s"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 32]),
            helper.make_tensor_value_info("r", TensorProto.FLOAT, [256]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in OUTPUTS],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("test", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=[flattened], ir_version=9)


INPUTS = {
    "x": np.random.default_rng(1).standard_normal((16, 32)).astype(np.float32),
    "r": np.arange(256, dtype=np.float32),
    "c": np.array(True),
}  # fmt: skip


def run(file: Path) -> list[np.ndarray]:
    """Return what ONNX Runtime, which opens the file as anyone does, computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return list(session.run(list(OUTPUTS), INPUTS))


def lay_out(folder: Path, layout: str) -> Path:
    """Write the model as an exporter or a tool does."""
    model, file = exported(), folder / "m.onnx"
    if layout == "torch":
        onnx.save(model, file, save_as_external_data=True, location="m.onnx.data")
    elif layout == "everything outside":
        onnx.save(model, file, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    elif layout == "a file for each":
        onnx.save(model, file, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=1024)
    elif layout == "a folder":
        (folder / "onnx").mkdir()
        onnx.save(model, file, save_as_external_data=True, location="onnx/model.onnx_data")
    elif layout == "a link":
        onnx.save(model, file, save_as_external_data=True, location="m.onnx.data")
        (folder / "blobs").mkdir()
        (folder / "m.onnx.data").rename(folder / "blobs" / "0123")
        (folder / "m.onnx.data").symlink_to("blobs/0123")
    else:
        onnx.save(model, file)
    return file


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """What the model computes."""
    file = tmp_path_factory.mktemp("right") / "m.onnx"
    onnx.save(exported(), file)
    return run(file)


LAYOUTS = ("torch", "everything outside", "a file for each", "a folder", "a link", "inside")

FORMS: dict[str, tuple[str, ...]] = {
    "plain": ("m.onnx", "out.onnx"),
    "beside": ("m.onnx", "out.onnx", "--external-data"),
    "in it": ("m.onnx", "out.onnx", "--no-external-data"),
    "undone": ("--undo", "m.onnx", "out.onnx"),
    "for one size": ("m.onnx", "out.onnx", "--shape", "N=16"),
    "half": ("m.onnx", "out.onnx", "--precision", "float16", "--time", "5", "--tolerance", "0.1"),
    "in place": ("m.onnx", "--in-place"),
    "a folder": (".", "-o", "all"),
    "two in one folder": ("m.onnx", "twin.onnx", "-o", "all"),
}  # fmt: skip
"""The calls; the file that is looked at is out.onnx, all/m.onnx, or m.onnx itself."""


def written(folder: Path, call: Sequence[str]) -> list[Path]:
    """Return the models that a call writes."""
    if "all" in call:
        return sorted((folder / "all").rglob("*.onnx"))
    return [folder / ("out.onnx" if "out.onnx" in call else "m.onnx")]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", ["plain", "beside", "in place"])
def test_what_is_written_of_any_layout_opens(
    folder: Path, onnxfuse_command: Command, right: list[np.ndarray], layout: str, form: str
) -> None:
    """And computes the same: what shape inference reads stays in the model, wherever the exporter put it."""
    lay_out(folder, layout)
    done = onnxfuse_command("optimize", *FORMS[form])
    assert done.code == 0, done.err
    for file in written(folder, FORMS[form]):
        for ours, theirs in zip(run(file), right, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_command_writes_what_opens(
    folder: Path, onnxfuse_command: Command, right: list[np.ndarray], form: str
) -> None:
    """Of the layout that torch writes by default."""
    lay_out(folder, "torch")
    (folder / "in.onnx").unlink()
    if form.startswith("two"):
        onnx.save(exported(), folder / "twin.onnx", save_as_external_data=True, location="twin.data")
    done = onnxfuse_command("optimize", *FORMS[form])
    assert done.code == 0, done.err
    files = written(folder, FORMS[form])
    assert len(files) == (2 if form.startswith("two") else 1)
    tolerance = 2e-2 if form == "half" else 1e-5
    for file in files:
        for ours, theirs in zip(run(file), right, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_the_weights_of_branches_go_beside_the_model(folder: Path, onnxfuse_command: Command) -> None:
    """As those of the main graph do: a model whose weights all lie in its branches may pass 2 GB as well."""
    lay_out(folder, "inside")
    assert onnxfuse_command("optimize", "m.onnx", "out.onnx", "--external-data").code == 0
    light = onnx.load(folder / "out.onnx", load_external_data=False)
    (choice,) = (n for n in light.graph.node if n.op_type == "If")
    for branch in choice.attribute:
        outside = {len(t.dims): external.is_external(t) for t in branch.g.initializer}
        assert all(outside[rank] == (rank == 2) for rank in outside)


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that moves everything out of the model, as no writer should."""
    monkeypatch.setattr(external, "belongs_inside", lambda tensor: False)


@pytest.mark.usefixtures("spoiled")
@pytest.mark.parametrize("form", ["plain", "undone", "for one size", "half", "in place", "a folder"])
def test_a_file_that_does_not_open_takes_no_place(folder: Path, onnxfuse_command: Command, form: str) -> None:
    """Exit 3 in ONNX Runtime's words; what was there is there, and nothing else."""
    lay_out(folder, "torch")
    (folder / "in.onnx").unlink()
    (folder / "out.onnx").write_bytes(b"old")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    if form == "a folder":
        (folder / "out.onnx").unlink()
        del before[folder / "out.onnx"]
    done = onnxfuse_command("optimize", *FORMS[form])
    assert done.code == 3
    assert "ONNX Runtime cannot open the file that was written: " in done.out + done.err
    assert "Cannot parse data from external tensors" in done.out + done.err
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


@pytest.mark.usefixtures("spoiled")
def test_ci_says_of_an_output_that_it_does_not_open(folder: Path, onnxfuse_command: Command) -> None:
    """The model does not hold, and its output is not there."""
    lay_out(folder, "torch")
    (folder / "onnxfuse.toml").write_text('[[model]]\npath = "m.onnx"\noutput = "out.onnx"\nverify = false\n')
    done = onnxfuse_command("ci", "onnxfuse.toml")
    assert done.code == 3
    assert "ONNX Runtime cannot open the file that was written" in done.out
    assert not (folder / "out.onnx").exists()


@pytest.mark.parametrize(
    ("direct", "to"),
    [(trial.DIRECT, "file"), (0, "file"), (trial.DIRECT, "pipe"), (0, "pipe"), (trial.DIRECT, "stream")],
)
def test_a_file_that_is_no_model_any_more_is_seen(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch, direct: int, to: str
) -> None:
    """With its weights inside, opened whole or, if it is long, by an outline; a stream gets nothing of it."""
    lay_out(folder, "inside")
    monkeypatch.setattr(trial, "DIRECT", direct)
    assert onnxfuse_command("optimize", "m.onnx", "out.onnx").code == 0  # as long as the writer writes the model
    stream = io._stream

    def wrong(model: onnx.ModelProto, file: Any) -> None:
        spoilt = onnx.ModelProto()
        spoilt.CopyFrom(model)
        for node in spoilt.graph.node:
            node.input[:] = ["nowhere", *node.input[1:]]
        stream(spoilt, file)

    monkeypatch.setattr(io, "_stream", wrong)
    target, taken = folder / "new.onnx", list[bytes]()
    if to == "pipe":
        os.mkfifo(target)
        reader = threading.Thread(target=lambda: taken.append(target.read_bytes()), daemon=True)
        reader.start()
    if to == "stream":
        code = """
import sys
from onnxfuse.files import io
stream = io._stream
def wrong(model, file):
    model.graph.node[0].input[0] = "nowhere"
    stream(model, file)
io._stream = wrong
from onnxfuse.cli.main import main
main()
"""
        done = subprocess.run([sys.executable, "-c", code, "optimize", "m.onnx", "-"], capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (3, b"")
        assert b"ONNX Runtime cannot open the file that was written" in done.stderr
        return
    result = onnxfuse_command("optimize", "m.onnx", "new.onnx")
    assert result.code == 3
    assert "ONNX Runtime cannot open the file that was written" in result.err
    assert not target.is_file()
    if to == "pipe":
        target.open("wb").close()  # lets the reader go
        reader.join(10)
        assert taken == [b""]


@pytest.mark.parametrize("name", ["long" * 50 + "é" * 20, "new\nline", "sp ace", "100%", "back\\slash"])
def test_any_name_of_a_model_finds_its_data(
    folder: Path, onnxfuse_command: Command, right: list[np.ndarray], name: str
) -> None:
    """Letters of several bytes where a temporary name is cut, line ends, what a shell or a URL would take."""
    lay_out(folder, "torch")
    target = folder / f"{name[:110]}.onnx"
    done = onnxfuse_command("optimize", "m.onnx", target)
    assert done.code == 0, done.err
    np.testing.assert_allclose(run(target)[0], right[0], rtol=1e-5, atol=1e-5)


def test_a_name_that_no_model_can_hold_is_told(folder: Path, onnxfuse_command: Command) -> None:
    """It is not UTF-8: a model alone takes it, one with data beside it says where those are, and cannot."""
    lay_out(folder, "inside")
    name = os.fsdecode(b"\xff.onnx")
    done = onnxfuse_command("optimize", "m.onnx", name, "--external-data")
    assert (done.code, "is not UTF-8" in done.err) == (3, True)
    assert onnxfuse_command("optimize", "m.onnx", name).code == 0
    assert (folder / name).exists()
    (folder / os.fsdecode(b"\xfe")).mkdir()
    inside = onnxfuse_command("optimize", "m.onnx", f"{os.fsdecode(bytes([0xFE]))}/m.onnx", "--external-data")
    assert inside.code == 0, inside.err


def test_a_model_without_large_weights_has_no_data_file(folder: Path, onnxfuse_command: Command) -> None:
    """Nothing goes beside it, so nothing empty lies there."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx", "--external-data").code == 0
    assert sorted(p.name for p in folder.iterdir()) == ["in.onnx", "out.onnx"]


def test_verify_says_why_a_file_with_its_shapes_outside_does_not_open(folder: Path, onnxfuse_command: Command) -> None:
    """Of either side, with what mends it."""
    lay_out(folder, "everything outside")
    (folder / "good.onnx").write_bytes(exported().SerializeToString())
    for call in (("m.onnx", "good.onnx"), ("good.onnx", "m.onnx")):
        done = onnxfuse_command("verify", *call, "--provider", "cpu")
        assert done.code == 3
        assert "Cannot parse data from external tensors" in done.err
        assert "onnxfuse optimize writes them into the model" in done.err
