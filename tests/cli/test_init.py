"""`onnxfuse init`: a first onnxfuse.toml, which `ci` takes as it is."""

import json
from pathlib import Path

import onnx

from onnxfuse.contract.config import read
from tests.cli.conftest import Command


def test_a_first_configuration_holds(folder: Path, onnxfuse_command: Command) -> None:
    """Every model below the folder, but for fused ones, hidden ones and what is no model; ci takes it as it is."""
    model = (folder / "in.onnx").read_bytes()
    (folder / ".hidden").mkdir()
    (folder / "sub dir").mkdir()
    for name in (".hidden/x.onnx", "sub dir/b.onnx"):
        (folder / name).write_bytes(model)
    onnxfuse_command("optimize", "in.onnx", "fused.onnx")
    (folder / "broken.onnx").write_bytes(b"no model")
    result = onnxfuse_command("init")
    assert result.code == 0, result.err
    assert result.out.startswith(
        "onnxfuse.toml written: 2 models\n  in.onnx\n  sub dir/b.onnx\nleft out: broken.onnx: "
    )
    assert "left out: fused.onnx: already contains fused ops" in result.out
    assert "# shapes = { N = [1, 8] }  # the sizes that you serve" in (folder / "onnxfuse.toml").read_text()
    assert [str(m.output) for m in read(Path("onnxfuse.toml")).models] == ["in.fused.onnx", "sub dir/b.fused.onnx"]
    assert onnxfuse_command("ci", "--update").code == 0
    assert json.loads(onnxfuse_command("init", "--force", "--json").out)["models"] == ["in.onnx", "sub dir/b.onnx"]


def test_its_commented_lines_are_valid(folder: Path, onnxfuse_command: Command) -> None:
    """Sizes by name, whatever the name, and the precision: ci reads the file with these lines, too."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n,k] x) => (float[n,k] y) { y = Relu (x) }"""
    odd = onnx.parser.parse_model(text)
    odd.graph.input[0].type.tensor_type.shape.dim[1].dim_param = 'a "b" + 1'
    (folder / "odd").mkdir()
    onnx.save(odd, folder / "odd" / "odd.onnx")
    assert onnxfuse_command("init", "odd").code == 0
    written = folder / "odd" / "onnxfuse.toml"
    written.write_text(written.read_text().replace("\n# shapes", "\nshapes").replace("\n# precision", "\nprecision"))
    (model,) = read(written).models
    assert model.shapes == {"n": (1, 8), 'a "b" + 1': (128,)}
    assert model.options["precision"] == "float16"


def test_models_of_one_name_get_names_of_their_own(folder: Path, onnxfuse_command: Command) -> None:
    """By their folders; others keep that of the file."""
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "model.onnx").write_bytes((folder / "in.onnx").read_bytes())
    assert onnxfuse_command("init").code == 0
    assert [m.name for m in read(Path("onnxfuse.toml")).models] == ["in", "a/model", "b/model"]


def test_what_is_there_is_kept(folder: Path, onnxfuse_command: Command) -> None:
    """A file is not overwritten unasked; a folder without models is exit 2."""
    (folder / "onnxfuse.toml").write_text("mine")
    result = onnxfuse_command("init")
    assert (result.code, (folder / "onnxfuse.toml").read_text()) == (2, "mine")
    assert "onnxfuse.toml: already exists" in result.err
    (folder / "empty").mkdir()
    assert "contains no models" in onnxfuse_command("init", "empty").err
    assert onnxfuse_command("init", "nowhere").code == 2
