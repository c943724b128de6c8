"""`optimize --dump`: every phase, body, kernel and plan as files in which a person finds the layer."""

import json
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

import onnxfuse
from onnxfuse.api.optimize.dumping import dumping
from onnxfuse.api.request.options import Dump
from onnxfuse.cli.main import main
from onnxfuse.cuda import Arch
from onnxfuse.cuda.planning.arch import H200, ORIN, RTX5090, named
from onnxfuse.passes.phases import PIPELINE
from onnxfuse.verification.run import sessions
from tests.cli.conftest import Command

PHASES = [
    "0-before-normalize", "1-before-rewrite", "2-before-layout", "3-before-fuse", "4-before-check", "5-result",
]  # fmt: skip


def test_the_graph_is_there_before_and_after_each_phase(folder: Path, onnxfuse_command: Command) -> None:
    """As a model that opens and as text, the ops of each state in it."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx", "--dump", "d").code == 0
    assert sorted(p.stem for p in (folder / "d" / "phases").glob("*.onnx")) == PHASES
    before, after = (onnx.load(folder / "d" / "phases" / f"{PHASES[i]}.onnx") for i in (0, -1))
    assert [n.op_type for n in before.graph.node] == ["MatMul", "Add", "Relu", "Add", "MatMul", "LayerNormalization"]
    assert len(after.graph.node) == 4
    assert after.functions
    assert "LayerNormalization" in (folder / "d" / "phases" / f"{PHASES[0]}.txt").read_text()


def test_each_fused_op_has_a_folder_with_its_layers_name(folder: Path, onnxfuse_command: Command) -> None:
    """Rule, layer and op are the folder's name; body, source, cubin, registers and launch plan are in it."""
    onnxfuse_command("optimize", "in.onnx", "out.onnx", "--dump", "d", "--shape", "N=7", "--arch", "sm_80")
    facts = json.loads((folder / "d" / "index.json").read_text())
    assert (facts["arch"], facts["assumed"]) == ("sm_80", {})
    (linear,) = [op for op in facts["ops"] if op["rule"] == "linear"]
    assert linear["folder"] == f"linear--residual--{linear['op']}"
    assert linear["layers"] == ["residual"]
    place = folder / "d" / "ops" / linear["folder"]
    assert place.joinpath("nodes.txt").read_text() == "residual: bias, act, residual\n"
    plan = json.loads(place.joinpath("kernel.plan.json").read_text())
    assert plan["outputs"] == [[7, 3]]
    assert plan["registers"] == linear["registers"] > 0
    assert plan["spill_stores"] == plan["spill_loads"] == linear["spill_bytes"] == 0
    assert all(extent >= 1 for extent in (*plan["grid"], *plan["block"]))
    assert place.joinpath("kernel.cubin").read_bytes()[:4] == b"\x7fELF"
    assert plan["entry"] in place.joinpath("kernel.cu").read_text()


def test_the_dumped_body_runs(folder: Path, onnxfuse_command: Command) -> None:
    """It is a model of its own, with the types of the place it came from."""
    onnxfuse_command("optimize", "in.onnx", "out.onnx", "--dump", "d", "--shape", "N=2")
    for body in (folder / "d" / "ops").glob("*/body.onnx"):
        onnx.checker.check_model(onnx.load(body), full_check=True)
        onnxruntime.InferenceSession(body, providers=["CPUExecutionProvider"])


def test_dimensions_that_nobody_named_count_as_1_and_the_index_says_so(folder: Path, onnxfuse_command: Command) -> None:
    """JSON tells the same as the files."""
    facts = json.loads(onnxfuse_command("optimize", "in.onnx", "out.onnx", "--dump", "d", "--json").out)["dump"]
    index = json.loads((folder / "d" / "index.json").read_text())
    assert index["assumed"] == {"N": 1}
    assert facts["ops"] == index["ops"]
    assert facts["arch"] == index["arch"]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--dump", "in.onnx"], 2, "--dump in.onnx: is named twice"),
        (["--dump", "file"], 3, "file: is not a folder"),
        (["--dump", "full"], 3, "full: is not empty"),
        (["--dump", "in.onnx/d"], 3, "in.onnx/d: cannot be written"),
        (["--dump", "d", "--arch", "hopper"], 2, "--arch hopper is not of the form"),
        (["--dump", "d", "--shape", "N=1,2"], 2, "--shape N=1,2: a dump takes one size"),
        (["--arch", "sm_90"], 2, "--arch goes with --dump or --compile"),
        (["--dump", "d", "--arch", "sm_80", "--arch", "sm_90"], 2, "kernels of one GPU, and --arch names 2"),
        (["--undo", "--dump", "d"], 2, "--undo cannot be combined with any of"),
    ],
)
def test_a_wrong_call_is_told(
    folder: Path, onnxfuse_command: Command, arguments: list[str], code: int, told: str
) -> None:
    """One message and its exit code; no model is written."""
    (folder / "file").touch()
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("old")
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", *arguments)
    assert (result.code, told in result.err) == (code, True), result.err
    assert not (folder / "out.onnx").exists()


def test_with_guard_the_dump_is_of_what_stays(folder: Path, onnxfuse_command: Command) -> None:
    """The phases by which it was made, the model that is written as their result, and the ops that are in it."""
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--dump", "d", "--guard")
    assert result.code == 0, result.err
    assert "guard:" in result.out
    assert sorted(p.stem for p in (folder / "d" / "phases").glob("*.onnx")) == PHASES
    left = onnx.load(folder / "out.onnx")
    dumped = onnx.load(folder / "d" / "phases" / f"{PHASES[-1]}.onnx")
    assert [n.op_type for n in dumped.graph.node] == [n.op_type for n in left.graph.node]
    ops = {op["op"] for op in json.loads((folder / "d" / "index.json").read_text())["ops"]}
    assert ops == {n.op_type for n in left.graph.node if n.domain == "onnxfuse"}


def test_with_guard_what_was_taken_back_is_not_dumped(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fused op whose kernel is wrong is undone: it is neither in the result nor among the ops."""
    opened = sessions.with_kernels

    def with_a_wrong_kernel(model: Any, *options: Any) -> Any:
        broken = onnx.ModelProto.FromString(model.SerializeToString())
        for node in (n for f in broken.functions for n in f.node if n.op_type == "Relu"):
            node.op_type = "Tanh"
        return opened(broken, *options)

    monkeypatch.setattr(sessions, "with_kernels", with_a_wrong_kernel)
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--dump", "d", "--guard")
    assert result.code == 0, result.err
    assert "1 reverted" in result.out
    nodes = onnx.load(folder / "out.onnx").graph.node
    left = [n.op_type for n in nodes]
    assert "Relu" in left
    assert [n.op_type for n in onnx.load(folder / "d" / "phases" / f"{PHASES[-1]}.onnx").graph.node] == left
    ops = {op["op"] for op in json.loads((folder / "d" / "index.json").read_text())["ops"]}
    assert ops == {n.op_type for n in nodes if n.domain == "onnxfuse"}


def test_what_does_not_compile_is_told_and_the_rest_is_there(folder: Path, onnxfuse_command: Command) -> None:
    """The model is written, with bodies, sources and plans; the compiler's words stand in place of the registers."""
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--dump", "d", "--arch", "sm_1")
    assert result.code == 0
    assert "NVRTC does not compile it for sm_1" in result.out
    for op in json.loads((folder / "d" / "index.json").read_text())["ops"]:
        assert f"no kernel of {op['op']}: " in result.out
    assert len(list((folder / "d" / "ops").glob("*/kernel.cu"))) == 2


def test_a_dump_is_for_the_gpu_that_is_named(folder: Path) -> None:
    """With its own multiprocessors, as it is compiled for; of one that is not listed those of the nearest."""
    for name, arch in (("sm_87", ORIN), ("sm_90", H200), ("sm_121", Arch("sm_121", RTX5090.sm_count, 1536))):
        assert dumping(Dump(folder / "d", name)).arch == arch == named(name)


def test_a_session_dumps_what_it_runs(folder: Path) -> None:
    """The keyword `dump` of onnxfuse.session gives the same folders."""
    with pytest.raises(SystemExit):
        main(["optimize", "in.onnx", "out.onnx", "-q"])
    onnxfuse.session(folder / "out.onnx", ["CPUExecutionProvider"], dump=folder / "d")
    index = json.loads((folder / "d" / "index.json").read_text())
    assert [op["rule"] for op in index["ops"]] == ["layer_norm", "linear"]
    assert index["arch"] == "sm_90a"


def test_each_pass_that_changed_something_is_written(folder: Path, onnxfuse_command: Command) -> None:
    """In their order, by name, as text."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx", "--dump", "d").code == 0
    written = sorted((folder / "d" / "passes").glob("*.txt"))
    names = [p.stem.partition("-")[2] for p in written]
    assert "fuse" in names
    assert set(names) <= {one.name for phase in PIPELINE for one, _ in phase.listed()}
    assert "Linear_" in written[names.index("fuse")].read_text()


def test_each_rewrite_rule_that_was_applied_is_written(folder: Path, onnxfuse_command: Command) -> None:
    """Among the passes, by its name: the graph has what it wrote."""
    (folder / "mine").mkdir()
    source, target = "y = Ceil (x)", "n = Neg (x)\n  f = Floor (n)\n  y = Neg (f)"
    rule = "\n".join(f"{key} = '''(x) => (y) {{\n  {of}\n}}'''" for key, of in (("from", source), ("to", target)))
    (folder / "mine" / "down.toml").write_text(f'summary = "Rounds down."\n\n[[rewrite]]\n{rule}\n')
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Ceil (x) }'
    onnx.save(onnx.parser.parse_model(text), "in.onnx")
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--dump", "d", "--rules", "mine")
    assert result.code == 0, result.err
    (written,) = (folder / "d" / "passes").glob("*-down.txt")
    assert written.read_text().count("Neg") == 2
