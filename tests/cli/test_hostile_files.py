"""What a stranger's folder or file asks for: no link leads a write away, and every limit is told in one message."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.conftest import Command

LOCKED = '[[model]]\npath = "in.onnx"\nverify = false\n'


@pytest.fixture
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file elsewhere, which nobody named."""
    file = tmp_path_factory.mktemp("elsewhere") / "victim"
    file.write_text("mine")
    return file


@pytest.mark.parametrize("there", [True, False])
def test_the_lock_is_no_way_out_of_the_repository(
    folder: Path, onnxfuse_command: Command, victim: Path, there: bool
) -> None:
    """A link in its place leads to what nobody named, or makes it; a lock that is a file is written as ever."""
    (folder / "onnxfuse.toml").write_text(LOCKED)
    if not there:
        victim.unlink()
    (folder / "onnxfuse.lock").symlink_to(victim)
    done = onnxfuse_command("ci", "--update")
    assert (done.code, "onnxfuse.lock is a link" in done.err) == (3, True), done.err
    assert victim.exists() == there
    assert not there or victim.read_text() == "mine"
    (folder / "onnxfuse.lock").unlink()
    assert onnxfuse_command("ci", "--update").code == 0
    assert (folder / "onnxfuse.lock").is_file()


LINKS = {
    "the pack": ("o.onnx.kernels", ("compile", "o.onnx", "--arch", "sm_90a")),
    "inputs": ("sets/test_data_set_0/input_0.pb", ("verify", "in.onnx", "in.onnx", "--save-inputs", "sets")),
    "a folder of inputs": ("sets/test_data_set_0", ("verify", "in.onnx", "in.onnx", "--save-inputs", "sets")),
    "a window": ("w/model.onnx", ("verify", "in.onnx", "other.onnx", "--bisect", "w")),
    "a folder of a window": ("w/test_data_set_0", ("verify", "in.onnx", "other.onnx", "--bisect", "w")),
}  # fmt: skip


@pytest.mark.parametrize("what", LINKS)
def test_what_lies_in_a_named_folder_or_beside_a_file_is_no_link(
    folder: Path, onnxfuse_command: Command, victim: Path, what: str
) -> None:
    """The user named the folder or the file, and not what a link there leads to."""
    other = onnx.load(folder / "in.onnx")
    other.graph.node[2].op_type = "Neg"
    onnx.save(other, folder / "other.onnx")
    assert onnxfuse_command("optimize", "in.onnx", "o.onnx").code == 0
    name, call = LINKS[what]
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(victim.parent if "folder" in what else victim)
    done = onnxfuse_command(*call, *(() if call[0] == "compile" else ("--provider", "cpu")))
    assert (done.code, "is a link, to" in done.err) == (3, True), done.err
    assert [p.name for p in victim.parent.iterdir()] == ["victim"]
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["1", "1/model.onnx", "1/model.onnx.kernels", "config.pbtxt", "README.md"])
def test_an_exported_folder_with_links_is_not_exported_to_again(
    folder: Path, onnxfuse_command: Command, victim: Path, name: str
) -> None:
    """Whoever made the folder may have put them there: a manifest says that it was exported, and not by whom."""
    assert onnxfuse_command("optimize", "in.onnx", "o.onnx").code == 0
    place = folder / "served" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    (folder / "served" / "manifest.json").write_text("{}")
    place.symlink_to(victim.parent if name == "1" else victim)
    done = onnxfuse_command("export-library", "o.onnx", "served", "--arch", "sm_90a")
    assert (done.code, "is a link, to" in done.err) == (3, True), done.err
    assert [p.name for p in victim.parent.iterdir()] == ["victim"]
    assert victim.read_text() == "mine"


# ---- limits


def of_rank(rank: int, where: str) -> onnx.ModelProto:
    """Return a model in which a tensor of so many axes is a weight, a Constant, an input, or computed."""
    wide = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1] * rank, raw_data=bytes(4))
    nodes, weights = [helper.make_node("Add", ["x", "w"], ["y"])], list[TensorProto]()
    if where == "a weight":
        weights = [wide]
    elif where == "a Constant":
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=wide))
    elif where == "computed":
        nodes = [helper.make_node("Unsqueeze", ["x", "axes"], ["y"])]
        weights = [numpy_helper.from_array(np.arange(rank - 1), "axes")]
    else:
        nodes = [helper.make_node("Relu", ["x"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1] * rank if where == "an input" else [3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


COMMANDS = {
    "optimize": ("optimize", "m.onnx", "o.onnx"), "undo": ("optimize", "--undo", "m.onnx", "o.onnx"),
    "half": ("optimize", "m.onnx", "o.onnx", "--precision", "float16"), "explain": ("explain", "m.onnx"),
    "inspect": ("inspect", "m.onnx"), "profile": ("profile", "m.onnx", "--no-time"),
    "verify": ("verify", "m.onnx", "m.onnx", "--provider", "cpu"),
}  # fmt: skip


@pytest.mark.parametrize("where", ["a weight", "a Constant", "an input", "computed"])
@pytest.mark.parametrize("command", COMMANDS)
def test_more_axes_than_numpy_has_are_refused(
    folder: Path, onnxfuse_command: Command, where: str, command: str
) -> None:
    """64 are taken; with 65 every command says so, or does what needs no array of them."""
    onnx.save(of_rank(65, where), folder / "m.onnx")
    done = onnxfuse_command(*COMMANDS[command])
    assert done.code == 3 or (where == "computed" and done.code == 0), done.err
    assert done.code == 0 or "axes" in done.err
    onnx.save(of_rank(64, where), folder / "m.onnx")
    assert onnxfuse_command("optimize", "m.onnx", "o.onnx").code == 0


def branches(depth: int, name: str) -> onnx.GraphProto:
    """Return a graph of Ifs in one another."""
    body = helper.make_graph([helper.make_node("Relu", ["x"], [f"{name}{depth}"])], "b", [], [])
    for i in range(depth - 1, -1, -1):
        other = helper.make_graph([helper.make_node("Neg", ["x"], [f"{name}e{i}"])], "e", [], [])
        for graph, value in ((body, f"{name}{i + 1}"), (other, f"{name}e{i}")):
            graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))
        node = helper.make_node("If", ["c"], [f"{name}{i}"], then_branch=body, else_branch=other)
        body = helper.make_graph([node], "b", [], [])
    return body


def nested(depth: int, called: int) -> onnx.ModelProto:
    """Return a model of so many Ifs in one another, and in a function that the innermost calls so many more."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(
        branches(depth, "o").node, "g", [x, c], [helper.make_tensor_value_info("o0", TensorProto.FLOAT, None)]
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("test", 1)]
    functions = []
    if called:
        inner = branches(called, "f")
        functions = [helper.make_function("test", "Choose", ["x", "c"], ["f0"], inner.node, imports[:1])]
        node = graph.node[0]
        while node.op_type == "If":
            node = next(a for a in node.attribute if a.name == "then_branch").g.node[0]
        node.op_type, node.domain = "Choose", "test"
        node.input.append("c")
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8)


@pytest.mark.parametrize(("depth", "called"), [(31, 0), (15, 16)])
@pytest.mark.parametrize("command", COMMANDS)
def test_branches_nest_as_deep_as_protobuf_reads(
    folder: Path, onnxfuse_command: Command, depth: int, called: int, command: str
) -> None:
    """So many are taken; one more is refused by every command, also where a function adds to them."""
    (folder / "m.onnx").write_bytes(nested(depth, called).SerializeToString())
    taken = onnxfuse_command(*COMMANDS[command])
    assert taken.code == 0, taken.err
    (folder / "m.onnx").write_bytes(nested(depth + 1, called).SerializeToString())
    done = onnxfuse_command(*COMMANDS[command])
    assert (done.code, "its branches and loops nest 32 deep" in done.err) == (3, True), done.err


# ---- inputs


def test_data_of_inputs_is_read_beside_them_alone(
    folder: Path, onnxfuse_command: Command, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the data of a model is: from inside the folder of the .pb, never by `..`, an absolute path or a link out."""
    sets = folder / "sets"
    sets.mkdir()
    onnx.save(of_rank(1, "an input"), folder / "m.onnx")
    (folder / "cwd.bin").write_bytes(np.float32(1).tobytes())
    (sets / "own.bin").write_bytes(np.float32(42).tobytes())
    victim.write_bytes(np.float32(2).tobytes())
    (sets / "link.bin").symlink_to(victim)

    def run(location: str, *more: str) -> tuple[int, str]:
        tensor = TensorProto(name="x", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
        (sets / "input_0.pb").write_bytes(tensor.SerializeToString())
        call = ("verify", "m.onnx", "m.onnx", "--inputs", "sets", "--save-inputs", "s.npz", "--provider", "cpu", *more)
        done = onnxfuse_command(*call)
        return done.code, done.err

    for location in ("cwd.bin", "../cwd.bin", f"{victim}", "link.bin", "nothing", "", "sub/../../cwd.bin"):
        code, told = run(location)
        assert (code, told.startswith("error: sets/input_0.pb: ")) == (2, True), told
        assert not (folder / "s.npz").exists()
    assert run("own.bin") == (0, "")
    assert np.load(folder / "s.npz")["x"] == [42]
    assert run("link.bin", "--follow-links")[0] == 0


# ---- streams


class _Standard:
    """What stands for sys.stdin."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)

    def isatty(self) -> bool:
        return False


STREAMED: dict[str, Callable[[], tuple[str, ...]]] = {
    "optimize": lambda: ("optimize", "-", "o.onnx"), "verify": lambda: ("verify", "-", "in.onnx"),
    "bench": lambda: ("bench", "-", "in.onnx"), "profile": lambda: ("profile", "-", "--no-time"),
    "explain": lambda: ("explain", "-"),
}  # fmt: skip


@pytest.mark.parametrize("command", STREAMED)
def test_a_stream_that_lacks_its_weights_is_told_in_the_callers_words(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """No path of ours is in the message, and what it says can be done."""
    model = onnx.load(folder / "in.onnx")
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, folder / "apart.onnx", save_as_external_data=True, location="apart.data", size_threshold=0)
    for data, told in (
        ((folder / "apart.onnx").read_bytes(), "-: the model's weights are in apart.data, which"),
        (b"some text", "-: is not an ONNX model, but text"),
    ):
        monkeypatch.setattr(sys, "stdin", _Standard(data))
        done = onnxfuse_command(*STREAMED[command]())
        assert done.code == 3
        assert done.err.startswith(f"error: {told}"), done.err
        assert "stdin.onnx" not in done.err
    monkeypatch.setattr(sys, "stdin", _Standard((folder / "apart.onnx").read_bytes()))
    assert json.loads(onnxfuse_command("inspect", "-", "--json").out)["missing"] == ["apart.data"]
