"""`onnxfuse export-library`: the folder, what is told of it, its config.pbtxt, and what is refused."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxfuse
from onnxfuse.support.errors import ModelError, UsageError
from tests.cli.conftest import Command

CONFIG = """\
backend: "onnxruntime"
max_batch_size: 16
input [
  {
    name: "x"
    data_type: TYPE_FP32
    dims: [ 2 ]
  }
]
input [
  {
    name: "r"
    data_type: TYPE_FP32
    dims: [ 3 ]
  }
]
output [
  {
    name: "y"
    data_type: TYPE_FP32
    dims: [ 3 ]
  }
]
dynamic_batching { }
# Each instance is a session with a stream of its own.
instance_group [ { kind: KIND_GPU count: 1 } ]
# Where the server sees the library, beside which the model's kernel pack lies.
model_operations { op_library_filename: "/models/m/1/libonnxfuse.so" }
"""


def exported(command: Command, *arguments: Any) -> Any:
    result = command("export-library", "fused.onnx", "m", "--arch", "sm_90", *arguments, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


@pytest.fixture
def fused(folder: Path, onnxfuse_command: Command) -> Path:
    assert onnxfuse_command("optimize", "in.onnx", "fused.onnx").code == 0
    return folder


def test_the_folder_is_a_model_of_a_triton_repository(fused: Path, onnxfuse_command: Command) -> None:
    """With what Triton joins requests to, and the library's path where the server sees it."""
    facts = exported(onnxfuse_command, "--shape", "N=1..16", "--at", "/models/m")
    assert (facts["folder"], facts["triton"], facts["batch"]) == ("m", "", {"dimension": "N", "most": 16})
    assert sorted(facts["files"]) == [
        "1/libonnxfuse.so", "1/model.onnx", "1/model.onnx.kernels", "LICENSE", "README.md", "config.pbtxt",
        "manifest.json",
    ]  # fmt: skip
    assert {n: (fused / "m" / n).stat().st_size for n in facts["files"]} == facts["files"]
    assert (fused / "m" / "config.pbtxt").read_text() == CONFIG
    page = (fused / "m" / "README.md").read_text()
    assert "tritonserver --model-repository /models\n" in page
    assert "`N` 1..16" in page
    assert "$" not in page


def test_exporting_again_takes_the_place_of_what_was_there(fused: Path, onnxfuse_command: Command) -> None:
    """And nothing else is there afterwards."""
    exported(onnxfuse_command)
    before = sorted(p.name for p in (fused / "m").rglob("*"))
    facts = exported(onnxfuse_command, "--no-batch")
    assert facts["batch"] is None
    text = (fused / "m" / "config.pbtxt").read_text()
    assert "max_batch_size: 0" in text
    assert "dims: [ -1, 2 ]" in text
    assert "dynamic_batching" not in text
    assert sorted(p.name for p in (fused / "m").rglob("*")) == before


def test_ptx_is_included_by_the_rule_of_compile(fused: Path, onnxfuse_command: Command) -> None:
    """Not with named GPUs, unless --ptx asks for it."""
    for flags, portable in (((), False), (("--ptx",), True)):
        of_folder = exported(onnxfuse_command, *flags)["pack"]["targets"]
        packed = onnxfuse_command("compile", "fused.onnx", "--arch", "sm_90", *flags, "--json")
        of_pack = json.loads(packed.out)["targets"]
        assert of_folder == of_pack
        assert any(name.startswith("compute_") for name in of_pack) == portable


def test_people_are_told_what_is_assumed(fused: Path, onnxfuse_command: Command) -> None:
    out = onnxfuse_command("export-library", "fused.onnx", "m", "--arch", "sm_90").out
    assert out.startswith("exported: ")
    assert "N: 1..32 (assumed: --shape)" in out
    assert "Triton batches requests along N, to 32 rows; if rows depend on each other, export with --no-batch" in out


def test_a_folder_of_other_things_is_left_as_it_is(fused: Path, onnxfuse_command: Command) -> None:
    """Refused before anything is compiled; so are a file, a model without fused ops, a dimension that is not there."""
    (fused / "m").mkdir()
    (fused / "m" / "mine.txt").write_text("mine")
    result = onnxfuse_command("export-library", "fused.onnx", "m")
    assert result.code == 2
    assert "m: is not empty, and does not hold an exported model" in result.err
    assert [p.name for p in (fused / "m").iterdir()] == ["mine.txt"]
    assert "fused.onnx: is not a folder" in onnxfuse_command("export-library", "fused.onnx", "fused.onnx").err
    assert "has no fused ops" in onnxfuse_command("export-library", "in.onnx", "new").err
    assert "no dimension of that name" in onnxfuse_command("export-library", "fused.onnx", "new", "--shape", "M=3").err
    assert not (fused / "new").exists()


def test_nothing_is_left_of_an_export_that_fails(fused: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of its files cannot be written."""

    def full(*facts: Any) -> None:
        raise ModelError("no space is left")

    monkeypatch.setattr("onnxfuse.deploy.exporting._manifest", full)
    with pytest.raises(ModelError, match="no space"):
        onnxfuse.export_library(fused / "fused.onnx", fused / "m", archs=["sm_90"])
    assert not (fused / "m").exists()


def test_batching_that_there_is_not_is_refused(fused: Path, onnxfuse_command: Command) -> None:
    model = onnx.load(fused / "fused.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(model, fused / "fixed.onnx")
    with pytest.raises(UsageError, match="the inputs and outputs do not all begin with the same dimension"):
        onnxfuse.export_library(fused / "fixed.onnx", fused / "m", archs=["sm_90"], batch=True)
    assert not (fused / "m").exists()


def test_a_model_that_is_not_to_be_rounded_tells_triton_so(fused: Path) -> None:
    strict = onnxfuse.optimize(fused / "in.onnx", strict_fp32=True)
    onnxfuse.export_library(strict, fused / "m", archs=["sm_90"])
    assert 'name: "cuda" parameters { key: "use_tf32" value: "0" }' in (fused / "m" / "config.pbtxt").read_text()
    assert "`use_tf32` must be 0" in (fused / "m" / "README.md").read_text()
