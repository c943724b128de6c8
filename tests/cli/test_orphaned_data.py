"""A data file that a replaced model left behind goes with it, and one that anything else may read never does."""

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.files import io
from tests.cli.conftest import Command

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,32] x) => (float[N,32] y) {
  p = MatMul (x, w) a = Tanh (p) y = Exp (a) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model with its weights in another file, as exporters write it."""
    made = onnx.parser.parse_model(TEXT.replace("{", "<float[32,32] w> {", 1))
    made.graph.initializer.append(numpy_helper.from_array(np.eye(32, dtype=np.float32), "w"))
    file = tmp_path / "in" / "m.onnx"
    file.parent.mkdir()
    onnx.save(made, file, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    return file


def names(folder: Path) -> set[str]:
    """Return the names of the files in a folder, ours without their hash."""
    return {f"{n[:6]}.HASH.data" if len(n) > 20 else n for n in os.listdir(folder)}


def test_it_goes_with_the_model_that_alone_read_it(model: Path, onnxfuse_command: Command) -> None:
    """In place the new weights have another name; what is done is said."""
    done = onnxfuse_command("optimize", str(model), "--in-place")
    assert done.code == 0
    assert "m.onnx.data, which only the replaced model read" in done.out
    assert names(model.parent) == {"m.onnx", "m.onnx.HASH.data"}
    custom_ops_arguments = onnxfuse_command("optimize", str(model), "--in-place")
    assert custom_ops_arguments.code == 0
    assert "removed" not in custom_ops_arguments.out  # the same bytes under the same name
    assert names(model.parent) == {"m.onnx", "m.onnx.HASH.data"}
    assert io.load(model).graph.initializer[0].raw_data


@pytest.mark.parametrize("other", ["model", "model above", "any file", "link to it", "second name", "it is a link"])
def test_it_stays_where_something_else_may_mean_it(model: Path, other: str, onnxfuse_command: Command) -> None:
    """Another model, of whatever name, one above, a list of files, links of either kind."""
    data, folder = model.with_name("m.onnx.data"), model.parent
    if other == "model":
        shutil.copy(model, folder / "twin.backup")
    elif other == "model above":
        above = onnx.load(model, load_external_data=False)
        above.graph.initializer[0].external_data[0].value = "in/m.onnx.data"
        onnx.save(above, folder.parent / "above.onnx")
    elif other == "any file":
        (folder / "manifest.json").write_text('{"files": ["m.onnx.data"]}')
    elif other == "link to it":
        (folder / "alias").symlink_to(model.with_name("twin"))
        shutil.copy(model, folder / "twin")
    elif other == "second name":
        os.link(data, folder.parent / "kept")
    else:
        data.rename(folder / "blob")
        data.symlink_to(folder / "blob")
    assert onnxfuse_command("optimize", str(model), "--in-place").code == 0
    assert data.exists()
    assert io.load(model).graph.initializer[0].raw_data


def test_a_file_that_is_more_than_weights_stays(model: Path, onnxfuse_command: Command) -> None:
    """A stranger's model may name anyone's file as its data: it can tell neither its size nor what else is in it."""
    data = model.with_name("m.onnx.data")
    data.write_bytes(data.read_bytes() + b"and more")
    assert onnxfuse_command("optimize", str(model), "--in-place").code == 0
    assert data.read_bytes().endswith(b"and more")


def test_a_replaced_output_takes_its_data_too_but_never_the_inputs(
    model: Path, tmp_path: Path, onnxfuse_command: Command
) -> None:
    """Another tool's model stood where OUT.onnx goes; the data that IN.onnx reads stays."""
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(model, out / "m.onnx")
    shutil.copy(model.with_name("m.onnx.data"), out / "m.onnx.data")
    assert onnxfuse_command("optimize", str(model), str(out / "m.onnx")).code == 0
    assert names(out) == {"m.onnx", "m.onnx.HASH.data"}
    assert names(model.parent) == {"m.onnx", "m.onnx.data"}
    shutil.copy(model, model.with_name("o.onnx"))
    assert onnxfuse_command("optimize", str(model), str(model.with_name("o.onnx"))).code == 0
    assert model.with_name("m.onnx.data").exists()


def test_it_stays_where_the_model_is_not_written(model: Path, onnxfuse_command: Command) -> None:
    """What is required is missed, or the work fails: all is as it was."""
    assert onnxfuse_command("optimize", str(model), "--in-place", "--require", "softmax").code == 4
    with pytest.raises(RuntimeError), io.saving(io.load(model), model, external_data=True):
        raise RuntimeError("in the midst")
    assert names(model.parent) == {"m.onnx", "m.onnx.data"}
    assert io.load(model).graph.initializer[0].raw_data
