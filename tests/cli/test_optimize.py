"""`onnxfuse optimize`: what it writes, what it says, and what it leaves alone when something is wrong."""

import hashlib
import json
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.files import external, io
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.tf32 import is_strict_fp32
from tests.cli.conftest import Command
from tests.support.small import assert_same_numbers, ops

ROOT = Path(__file__).parents[2]


def digest(path: Path) -> str:
    """Return what tells two files apart."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(folder: Path) -> list[str]:
    """Return the names of all files, hidden ones too."""
    return sorted(p.name for p in folder.iterdir())


# ---- it works


def test_a_fused_model_is_written_and_the_verdict_comes_first(folder: Path, onnxfuse_command: Command) -> None:
    """One screen: node counts, rules, size, the next step."""
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "fused: 6 nodes -> 4, including 2 fused ops"
    assert len(lines) <= 20
    assert "next: onnxfuse verify in.onnx out.onnx" in result.out
    assert result.err == ""
    made = onnx.load(folder / "out.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert ops(made) == ["MatMul", "{Add Relu Add}", "MatMul", "{LayerNormalization}"]
    assert_same_numbers(onnx.load(folder / "in.onnx"), made)


def test_the_second_time_the_file_is_the_same(folder: Path, onnxfuse_command: Command) -> None:
    """Byte for byte, and the command says that there was nothing to do."""
    onnxfuse_command("optimize", "in.onnx", "once.onnx")
    result = onnxfuse_command("optimize", "once.onnx", "twice.onnx")
    assert result.code == 0
    assert digest(folder / "once.onnx") == digest(folder / "twice.onnx")
    assert json.loads(onnxfuse_command("optimize", "once.onnx", "x.onnx", "--json").out)["rules"] == {}


def test_in_and_out_are_one_file_only_where_that_is_asked_for(folder: Path, onnxfuse_command: Command) -> None:
    """The model is read before it is replaced, and nothing else is left in the folder; a link to it is it, too."""
    came = digest(folder / "in.onnx")
    (folder / "link.onnx").symlink_to(folder / "in.onnx")
    for target in ("in.onnx", "link.onnx"):
        refused = onnxfuse_command("optimize", "in.onnx", target)
        assert (refused.code, refused.out) == (2, "")
        assert f"{target}: is IN.onnx itself" in refused.err
    (folder / "link.onnx").unlink()
    assert digest(folder / "in.onnx") == came
    onnxfuse_command("optimize", "in.onnx", "out.onnx")
    expected = digest(folder / "out.onnx")
    (folder / "out.onnx").unlink()
    assert onnxfuse_command("optimize", "in.onnx", "in.onnx", "--in-place").code == 0
    assert digest(folder / "in.onnx") == expected
    assert files(folder) == ["in.onnx"]


def test_a_model_too_big_for_one_file_goes_out_and_comes_in(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights stand beside it (the limits are lowered here); the second time, both files are the same."""
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", 100)
    monkeypatch.setattr(external, "SMALL", 0)
    made = onnx.load(folder / "in.onnx")
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(made, folder / "in.onnx", save_as_external_data=True, location="in.weights", size_threshold=0)
    assert onnxfuse_command("optimize", "in.onnx", "once.onnx").code == 0
    (data,) = (p.name for p in folder.glob("once.onnx.*.data"))
    assert files(folder) == ["in.onnx", "in.weights", "once.onnx", data]
    assert_same_numbers(onnx.load(folder / "in.onnx"), onnx.load(folder / "once.onnx"))
    (folder / "again").mkdir()
    assert onnxfuse_command("optimize", "once.onnx", "again/once.onnx").code == 0
    for name in ("once.onnx", data):
        assert digest(folder / name) == digest(folder / "again" / name)


def test_undo_gives_the_plain_model_back(folder: Path, onnxfuse_command: Command) -> None:
    """Without onnxfuse's ops, with the names that the nodes had."""
    onnxfuse_command("optimize", "in.onnx", "out.onnx")
    result = onnxfuse_command("optimize", "--undo", "out.onnx", "plain.onnx")
    assert result.code == 0
    assert result.out.startswith(
        "undone: 2 fused ops are plain nodes again: 6 nodes\nall 6 nodes of the original are back\n"
    )
    plain = onnx.load(folder / "plain.onnx")
    assert [n.name for n in plain.graph.node] == ["product", "bias", "act", "residual", "second", "norm"]
    assert not plain.functions
    assert_same_numbers(onnx.load(folder / "in.onnx"), plain)


def test_undo_of_a_file_that_was_never_fused_says_so_alone(folder: Path, onnxfuse_command: Command) -> None:
    """No line on 0 fused ops before it."""
    result = onnxfuse_command("optimize", "--undo", "in.onnx", "plain.onnx")
    assert result.out.startswith("nothing to undo: the file has no fused op, and no record of rewrites\nplain.onnx: ")
    assert "plain.onnx" in files(folder)


def test_the_reports_of_undo_have_what_the_screen_has(folder: Path, onnxfuse_command: Command) -> None:
    """How many fused ops, the nodes, whether the original is back, and which operators are not."""
    onnxfuse_command("optimize", "in.onnx", "out.onnx")
    undo = (
        "optimize",
        "--undo",
        "out.onnx",
        "plain.onnx",
        "--markdown",
        "r.md",
        "--junit",
        "r.xml",
        "--report",
        "r.html",
    )
    assert onnxfuse_command(*undo).code == 0
    text = (folder / "r.md").read_text()
    assert "all 6 nodes of the original are back\n" in text
    assert "| before | after | fused ops undone |\n|---|---|---|\n| 4 | 6 | 2 |\n" in text
    assert "### Operators" not in text
    assert "4 nodes -&gt; 6, 2 fused ops undone; all 6 nodes of the original are back" in (folder / "r.xml").read_text()
    assert "<p>2 fused ops undone; all 6 nodes of the original are back.</p>" in (folder / "r.html").read_text()


def test_a_strict_file_says_so_until_it_is_undone(folder: Path, onnxfuse_command: Command) -> None:
    """Optimized again, guarded or measured it stays strict; the plain model asks for nothing."""
    onnxfuse_command("optimize", "in.onnx", "strict.onnx", "--strict-fp32")
    onnxfuse_command("optimize", "strict.onnx", "again.onnx")
    onnxfuse_command("optimize", "in.onnx", "guarded.onnx", "--strict-fp32", "--guard")
    onnxfuse_command("optimize", "in.onnx", "out.onnx")
    onnxfuse_command("optimize", "--undo", "strict.onnx", "plain.onnx")
    found = {p.stem: is_strict_fp32(onnx.load(p)) for p in folder.glob("*.onnx")}
    assert found == {
        "in": False, "strict": True, "again": True, "guarded": True, "out": False, "plain": False,
    }  # fmt: skip
    assert digest(folder / "strict.onnx") == digest(folder / "again.onnx") == digest(folder / "guarded.onnx")


@pytest.mark.usefixtures("folder")
def test_json_holds_the_same_facts(onnxfuse_command: Command) -> None:
    """The schema that scripts rely on; nothing but JSON on standard output."""
    facts = json.loads(onnxfuse_command("optimize", "in.onnx", "out.onnx", "--json").out)
    assert facts["ok"] is True
    assert facts["nodes"] == {"before": 6, "after": 4}
    assert (facts["fused_nodes"], facts["distinct_kernels"]) == (2, 2)
    assert set(facts["rules"]) <= {"linear", "layer_norm", "pointwise"}
    assert (facts["source"], facts["target"]) == ("in.onnx", "out.onnx")
    assert facts["bytes"]["before"] > 0
    assert facts["not_met"] == []


def test_only_and_skip_choose_the_rules(folder: Path, onnxfuse_command: Command) -> None:
    """Both may be repeated; together they leave what is in the one and not in the other."""
    onnxfuse_command("optimize", "in.onnx", "out.onnx", "--only", "linear")
    assert ops(onnx.load(folder / "out.onnx")) == ["MatMul", "{Add Relu Add}", "MatMul", "LayerNormalization"]
    onnxfuse_command(
        "optimize", "in.onnx", "out.onnx", "--skip", "linear", "--skip", "pointwise", "--skip", "layer_norm"
    )
    assert all(n.domain != DOMAIN for n in onnx.load(folder / "out.onnx").graph.node)
    facts = onnxfuse_command(
        "optimize", "in.onnx", "out.onnx", "--only", "linear", "--only", "layer_norm", "--skip", "layer_norm", "--json"
    )
    assert json.loads(facts.out)["rules"] == {"linear": 1}


def test_a_folder_of_rules_joins(folder: Path, onnxfuse_command: Command) -> None:
    """`--rules DIR` adds a user's own, which `--only` can name."""
    (folder / "mine").mkdir()
    (folder / "mine" / "gelu_for_relu.toml").write_text(
        'summary = "Not the same numbers, but seen at once."\n[[rewrite]]\n'
        'from = "(x) => (y) { y = Relu (x) }"\nto = "(x) => (y) { y = Tanh (x) }"\n'
    )
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--rules", "mine", "--only", "gelu_for_relu")
    assert result.code == 0
    assert ops(onnx.load(folder / "out.onnx")) == ["MatMul", "Add", "Tanh", "Add", "MatMul", "LayerNormalization"]


# ---- expectations


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("require", ["linear", "linear>=1", " linear >= 1 ", "linear>=0", "linear==1", "linear<2"])
def test_a_requirement_that_is_met_changes_nothing(onnxfuse_command: Command, require: str) -> None:
    """Exit 0."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx", "--require", require).code == 0


@pytest.mark.parametrize("require", ["linear>=2", "softmax"])
def test_a_requirement_that_is_not_met_is_exit_4_and_no_file(
    folder: Path, onnxfuse_command: Command, require: str
) -> None:
    """Nothing is written, and what was there before is untouched."""
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--require", require)
    assert result.code == 4
    assert result.out.startswith(f"not met: {require.split('>=')[0]}>=")
    assert "nothing was written" in result.out
    assert files(folder) == ["in.onnx"]
    (folder / "out.onnx").write_bytes(b"the old one")
    facts = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--require", require, "--json")
    assert facts.code == 4
    assert json.loads(facts.out)["ok"] is False
    assert json.loads(facts.out)["target"] is None
    assert (folder / "out.onnx").read_bytes() == b"the old one"


STALE = "out.onnx not written: the file there is of an earlier run"


def test_an_output_of_an_earlier_run_is_named(folder: Path, onnxfuse_command: Command) -> None:
    """After a missed requirement and after an error; not where there is none, or where the model itself is there."""
    missed = ("optimize", "in.onnx", "out.onnx", "--require", "softmax", "--markdown", "r.md")
    (folder / "bad.onnx").write_bytes(b"text")
    assert "earlier run" not in onnxfuse_command(*missed).out + onnxfuse_command("optimize", *missed[1:3]).out
    assert onnxfuse_command(*missed).out.count(f"note: {STALE}\n") == 1
    assert (folder / "r.md").read_text().count(STALE) == 1
    failed = onnxfuse_command("optimize", "bad.onnx", "out.onnx")
    assert (failed.code, failed.err.count(f"\n{STALE}\n")) == (3, 1)
    assert "earlier run" not in onnxfuse_command("optimize", "in.onnx", "--in-place", "--require", "softmax").out
    assert "earlier run" not in onnxfuse_command("optimize", "bad.onnx", "--in-place").err


def test_a_missed_requirement_says_why(folder: Path, onnxfuse_command: Command) -> None:
    """Of a rule that applied too rarely where it stopped short, of one that applied too often where it did."""
    lost = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--require", "linear==2")
    assert lost.code == 4
    assert "not met: linear==2: applied 1 time; nothing was written\n  why: linear at " in lost.out
    often = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--require", "linear==0")
    assert often.code == 4
    assert "  why: linear applied at MatMul product\n" in often.out
    assert files(folder) == ["in.onnx"]


# ---- which models, and where they go


@pytest.fixture
def several(folder: Path) -> Path:
    """A folder with three models, one of them in a folder of its own."""
    (folder / "zoo" / "deep").mkdir(parents=True)
    for name in ("a.onnx", "b.onnx", "deep/a.onnx"):
        (folder / "zoo" / name).write_bytes((folder / "in.onnx").read_bytes())
    return folder


def test_an_output_of_an_earlier_run_is_named_of_each_of_several_models(
    several: Path, onnxfuse_command: Command
) -> None:
    """In the lines below the table."""
    (several / "zoo" / "b.onnx").write_bytes(b"text")
    (several / "new").mkdir()
    for name in ("a.onnx", "b.onnx"):
        (several / "new" / name).write_bytes(b"the old one")
    done = onnxfuse_command("optimize", "zoo", "-o", "new", "--require", "softmax")
    lines = [line for line in done.out.splitlines() if "earlier run" in line]
    assert lines == [f"zoo/a.onnx: note: new/a.{STALE[4:]}", f"new/b.{STALE[4:]}"]


def test_a_folder_and_several_models_go_to_a_folder(several: Path, onnxfuse_command: Command) -> None:
    """Each under its name, those of a folder below it as they were; a line for each."""
    onnxfuse_command("optimize", "in.onnx", "one.onnx")
    done = onnxfuse_command("optimize", "zoo", "in.onnx", "-o", "out/new")
    assert (done.code, done.out.splitlines()[0]) == (0, "optimized: 4 of 4 models")
    made = sorted(str(p.relative_to(several / "out" / "new")) for p in several.glob("out/new/**/*") if p.is_file())
    assert made == ["a.onnx", "b.onnx", "deep/a.onnx", "in.onnx"]
    assert {digest(several / "out" / "new" / name) for name in made} == {digest(several / "one.onnx")}
    facts = json.loads(onnxfuse_command("optimize", "zoo/a.onnx", "zoo/b.onnx", "-o", "x", "--json").out)
    assert [one["target"] for one in facts["models"]] == ["x/a.onnx", "x/b.onnx"]
    assert onnxfuse_command("optimize", "in.onnx", "-o", "file.onnx").out.startswith("fused: 6 nodes -> 4")


def test_one_wrong_model_keeps_no_other_from_being_made(several: Path, onnxfuse_command: Command) -> None:
    """It is told, the exit code is its, and nothing is left in its place."""
    (several / "zoo" / "b.onnx").write_bytes(b"no model")
    done = onnxfuse_command("optimize", "zoo", "-o", "out")
    assert (done.code, done.out.splitlines()[0]) == (3, "optimized: 2 of 3 models")
    assert "error: zoo/b.onnx: is not an ONNX model" in done.out
    assert sorted(p.name for p in (several / "out").rglob("*.onnx")) == ["a.onnx", "a.onnx"]
    assert onnxfuse_command("optimize", "zoo/a.onnx", "in.onnx", "-o", "y", "--require", "softmax").code == 4
    assert not (several / "y").exists() or files(several / "y") == []


@pytest.mark.parametrize("where", [("--in-place",), ("-o", "out")])
def test_no_model_is_written_where_another_is_missing(
    where: tuple[str, ...], several: Path, onnxfuse_command: Command
) -> None:
    """A name that is mistyped is found before the first of them is lost."""
    before = {path: digest(path) for path in several.rglob("*.onnx")}
    done = onnxfuse_command("optimize", "in.onnx", "mising.onnx", *where)
    assert (done.code, "error: mising.onnx: no such file" in done.err) == (3, True)
    assert {path: digest(path) for path in several.rglob("*.onnx")} == before


def test_in_place_is_each_over_itself(several: Path, onnxfuse_command: Command) -> None:
    """And nothing is, without it."""
    came = digest(several / "in.onnx")
    assert onnxfuse_command("optimize", "zoo", "in.onnx", "--in-place").code == 0
    assert {digest(p) for p in several.rglob("*.onnx")} != {came}
    assert len({digest(p) for p in several.rglob("*.onnx")}) == 1
    assert len(list(several.rglob("*.onnx"))) == 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["zoo/a.onnx", "zoo/b.onnx", "in.onnx"], "3 models, but no output"),
        (
            ["zoo/a.onnx", "zoo/deep/a.onnx", "-o", "out"],
            "zoo/deep/a.onnx and zoo/a.onnx would both be written to out/a.onnx",
        ),
        (["zoo", "-o", "zoo"], "zoo/a.onnx: is IN.onnx itself"),
        (["in.onnx", "--in-place", "-o", "out"], "so it cannot be combined with -o"),
        (["zoo", "-o", "out", "--dump", "d"], "--dump is for one model, and there are 3"),
        (["zoo", "in.onnx", "-o", "-"], "standard input has no name for a file in a folder"),
        (["in.onnx", "-", "--compile"], "--compile writes a file beside OUT.onnx, and - has none"),
    ],
)
def test_what_has_no_clear_place_is_refused(
    several: Path, onnxfuse_command: Command, arguments: list[str], told: str
) -> None:
    """Before anything is read; no file is lost by a call that was meant otherwise."""
    before = sorted((str(p), digest(p)) for p in several.rglob("*.onnx"))
    result = onnxfuse_command("optimize", *arguments)
    assert (result.code, result.out) == (2, "")
    assert told in result.err
    assert sorted((str(p), digest(p)) for p in several.rglob("*.onnx")) == before


def test_a_model_comes_and_goes_through_pipes(
    folder: Path, onnxfuse_command: Command, warm_onnxfuse: Sequence[str]
) -> None:
    """`-` is standard input and standard output; what is told goes to standard error. Other commands read it, too."""
    onnxfuse_command("optimize", "in.onnx", "out.onnx")
    model = (folder / "in.onnx").read_bytes()

    def run(*arguments: str, given: bytes = model) -> subprocess.CompletedProcess[bytes]:
        call = [*warm_onnxfuse, *arguments]
        return subprocess.run(call, cwd=folder, input=given, capture_output=True, check=False)

    done = run("optimize", "-", "-")
    assert (done.returncode, done.stdout) == (0, (folder / "out.onnx").read_bytes())
    assert done.stderr.startswith(b"fused: 6 nodes -> 4")
    assert b"verify" not in done.stderr  # of a file that is gone
    assert b"why not more" not in done.stderr
    assert run("optimize", "-", "x.onnx").returncode == 0
    assert digest(folder / "x.onnx") == digest(folder / "out.onnx")
    missed = run("optimize", "-", "-", "--require", "softmax")
    assert (missed.returncode, missed.stdout) == (4, b"")
    assert run("profile", "-", "--no-time").returncode == 0
    assert run("inspect", "-").stdout.startswith(b"-: 6 nodes")
    assert run("verify", "in.onnx", "-", given=done.stdout).stdout.startswith(b"ok")
    assert run("profile", "in.onnx", "-", "--no-time", given=done.stdout).returncode == 0
    both = run("verify", "-", "-")
    assert (both.returncode, both.stdout) == (2, b"")
    assert both.stderr == (
        b"error: -: standard input carries one model, and two arguments are -\nGive the other model as a file.\n"
    )
    assert run("optimize", "-", "-", given=b"").returncode == 3
    assert b"--json prints to standard output, where the model goes" in run("optimize", "-", "-", "--json").stdout


def test_external_data_stays_as_it_was(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In files of its own where it was so, in the model where not; the options say otherwise. The numbers stay."""
    monkeypatch.setattr(external, "SMALL", 0)  # these weights are
    made = onnx.load(folder / "in.onnx")
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(made, folder / "apart.onnx", save_as_external_data=True, location="apart.weights", size_threshold=0)
    calls = {
        "kept": ["apart.onnx"], "whole": ["apart.onnx", "--no-external-data"], "in": ["in.onnx"],
        "out": ["in.onnx", "--external-data"],
    }  # fmt: skip
    for name, (source, *options) in calls.items():
        (folder / name).mkdir()
        assert onnxfuse_command("optimize", source, f"{name}/m.onnx", *options).code == 0
        assert_same_numbers(onnx.load(folder / "in.onnx"), onnx.load(folder / name / "m.onnx"))
    assert {name: len(files(folder / name)) for name in calls} == {"kept": 2, "whole": 1, "in": 1, "out": 2}
    onnxfuse_command("optimize", "--undo", "kept/m.onnx", "kept/plain.onnx")
    assert len(files(folder / "kept")) == 4


def test_a_dimension_is_frozen(folder: Path, onnxfuse_command: Command) -> None:
    """The model is for that size alone, by the dimension's name or by an input's shape; what there is not is told."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx", "--shape", "N=8").code == 0
    made = onnx.load(folder / "out.onnx")
    values = [*made.graph.input, *made.graph.output]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    assert shapes == {"x": [8, 2], "r": [8, 3], "y": [8, 3]}
    assert onnxfuse_command("optimize", "in.onnx", "same.onnx", "--shape", "x=8x2").code == 0
    assert digest(folder / "same.onnx") == digest(folder / "out.onnx")
    facts = json.loads(onnxfuse_command("optimize", "in.onnx", "out.onnx", "--shape", "N=8", "--guard", "--json").out)
    assert facts["shapes"] == {"N": [8]}
    for shape, told in (
        ("M=8", "no dynamic dimension and no input of that name"),
        ("N=1,8", "a model is specialized to one size"),
        ("x=8x2x1", "the input has 2 dimensions"),
        ("x=8x3", "x[1] is 2, not 3"),
    ):
        refused = onnxfuse_command("optimize", "in.onnx", "no.onnx", "--shape", shape)
        assert (refused.code, told in refused.err) == (2, True), refused.err
    assert not (folder / "no.onnx").exists()


# ---- what the user got wrong


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["in.onnx"], "Missing argument 'OUT.onnx'"),
        (["in.onnx", "out.onnx", "--onyl", "linear"], "No such option '--onyl'"),
        (["in.onnx", "out.onnx", "--only", "liner"], "'liner' is not a rule. Did you mean linear?"),
        (["in.onnx", "out.onnx", "--skip", "xyz"], "'xyz' is not a rule. There are: attention, batch_first,"),
        (["in.onnx", "out.onnx", "--require", "liner>=2"], "'liner' is not a rule. Did you mean linear?"),
        (["in.onnx", "out.onnx", "--skip", "linear", "--require", "linear"], "'linear' is required, but excluded by"),
        (["in.onnx", "out.onnx", "--require", "linear=>2"], "is not of the form RULE, RULE>=N or RULE==N"),
        (["in.onnx", "out.onnx", "--require", f"linear>={'9' * 5000}"], "is not of the form RULE, RULE>=N or RULE==N"),
        (["in.onnx", "out.onnx", "--undo", "--only", "linear"], "--undo cannot be combined with any of"),
        (["in.onnx", "out.onnx", "--rules", "nowhere"], "nowhere: no such folder of rules"),
    ],
)
def test_a_wrong_call_is_exit_2(folder: Path, onnxfuse_command: Command, arguments: list[str], told: str) -> None:
    """One message that says what was expected; nothing is written."""
    result = onnxfuse_command("optimize", *arguments)
    assert result.code == 2
    assert told in result.err
    assert files(folder) == ["in.onnx"]


def test_a_wrong_rule_file_is_exit_2_with_its_line(folder: Path, onnxfuse_command: Command) -> None:
    """The message names file, line and nearest word."""
    (folder / "mine").mkdir()
    (folder / "mine" / "bad.toml").write_text('summary = "x."\n[fuse]\nanchor = "pointwise"\ntemplate = "pointwize"\n')
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--rules", "mine")
    assert result.code == 2
    assert (
        "mine/bad.toml:4: 'pointwize' is not a template. Did you mean pointwise?\nSee onnxfuse docs rule-language.\n"
        in result.err
    )
    assert files(folder) == ["in.onnx", "mine"]


def _bad_files(folder: Path) -> dict[str, str]:
    """Write one file for each way in which a model can be bad; return what is told of each."""
    whole = (folder / "in.onnx").read_bytes()
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "text.onnx").write_text("hello\n" * 50)
    (folder / "truncated.onnx").write_bytes(whole[:-20])
    for name, body in (
        ("unknown", "y = Rleu (x)"),
        ("shapes", "y = MatMul (x, x)"),
        ("dangling", "y = Relu (nothing)"),
    ):
        text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) {{ {body} }}'
        onnx.save(onnx.parser.parse_model(text), folder / f"{name}.onnx")
    lonely = onnx.load(folder / "in.onnx")
    raw = numpy_helper.from_array(numpy_helper.to_array(lonely.graph.initializer[0]), "w")
    lonely.graph.initializer[0].CopyFrom(raw)
    onnx.save(lonely, folder / "lonely.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (folder / "w.bin").unlink()
    (folder / "folder.onnx").mkdir()
    return {
        "missing.onnx": "no such file",
        "empty.onnx": "is empty",
        "text.onnx": "is not an ONNX model",
        "truncated.onnx": "truncated",
        "unknown.onnx": "Rleu",
        "shapes.onnx": "not valid",
        "dangling.onnx": "nothing",
        "lonely.onnx": "w.bin, which does not exist",
        "folder.onnx": "is a directory",
    }


def test_a_bad_model_is_exit_3_one_message_and_no_file(folder: Path, onnxfuse_command: Command) -> None:
    """Every way in which a model can be bad: the message names the file, an old result stays as it is."""
    bad = _bad_files(folder)
    (folder / "old.onnx").write_bytes(b"the old one")
    before = files(folder)
    for name, told in bad.items():
        for target in ("new.onnx", "old.onnx"):
            result = onnxfuse_command("optimize", name, target)
            assert result.code == 3, name
            assert name in result.err, name
            assert told in result.err, name
            assert 1 <= len(result.err.splitlines()) <= 3, result.err
        result = onnxfuse_command("optimize", name, "new.onnx", "--json")
        assert json.loads(result.out)["exit_code"] == 3
        assert onnxfuse_command("explain", name).code == 3
    assert (folder / "old.onnx").read_bytes() == b"the old one"
    assert files(folder) == before


@pytest.mark.parametrize("target", ["nowhere/out.onnx", "folder"])
def test_a_target_that_cannot_be_written_is_exit_3(folder: Path, onnxfuse_command: Command, target: str) -> None:
    """Told before the work starts."""
    (folder / "folder").mkdir()
    result = onnxfuse_command("optimize", "in.onnx", target)
    assert result.code == 3
    assert target in result.err
    assert files(folder) == ["folder", "in.onnx"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_exit_3(folder: Path, onnxfuse_command: Command) -> None:
    """The system's own words are in the message."""
    (folder / "closed").mkdir()
    (folder / "closed").chmod(stat.S_IRUSR | stat.S_IXUSR)
    result = onnxfuse_command("optimize", "in.onnx", "closed/out.onnx")
    assert result.code == 3
    assert "Permission denied" in result.err


def test_undo_of_a_bad_model_is_exit_3(folder: Path, onnxfuse_command: Command) -> None:
    """The way back has the same manners."""
    (folder / "text.onnx").write_text("hello\n" * 50)
    assert onnxfuse_command("optimize", "--undo", "text.onnx", "out.onnx").code == 3
    assert not (folder / "out.onnx").exists()


def test_the_module_is_the_command(folder: Path, warm_onnxfuse: Sequence[str]) -> None:
    """`python -m onnxfuse` in a process of its own gives the same exit codes."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def run(command: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
        call = [*command, *arguments]
        return subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    assert run((sys.executable, "-m", "onnxfuse"), "optimize", "in.onnx", "out.onnx").returncode == 0
    missing = run(warm_onnxfuse, "optimize", "nowhere.onnx", "out2.onnx")
    assert missing.returncode == 3
    assert missing.stderr.startswith("error: nowhere.onnx: no such file")
    assert run(warm_onnxfuse, "optimize", "in.onnx", "out2.onnx", "--require", "softmax").returncode == 4
    assert files(folder) == ["in.onnx", "out.onnx"]


def test_a_dry_run_writes_nothing_and_tells_what_would_be(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit code says whether the requirements hold; the model needs no place, and one that is named stays empty."""
    before = {file: file.read_bytes() for file in folder.iterdir()}
    plain = onnxfuse_command("optimize", "in.onnx", "--dry-run")
    assert (plain.code, plain.out.splitlines()[0][:6]) == (0, "fused:")
    for places in ((), ("out.onnx",), ("--in-place",), ("-o", "made")):
        result = onnxfuse_command("optimize", "in.onnx", *places, "--dry-run", "--require", "linear==1", "--json")
        assert result.code == 0, result.out
        assert json.loads(result.out).get("target") is None
    for places in (("out.onnx",), ("-o", "out.onnx")):  # one model is told as one
        assert (
            json.loads(onnxfuse_command("optimize", "in.onnx", *places, "--dry-run", "--json").out)["fused_nodes"] == 2
        )
    with (folder / "in.onnx").open() as model:
        monkeypatch.setattr(sys, "stdin", model)
        assert onnxfuse_command("optimize", "-", "--dry-run").out.startswith("fused:")
    assert onnxfuse_command("optimize", "in.onnx", "--dry-run", "--require", "linear>=2").code == 4
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    told = onnxfuse_command("optimize", "in.onnx", "--dry-run", "--dump", "d").err
    assert "--dry-run cannot be combined with any of --dump, --compile and --tune" in told


@pytest.mark.parametrize(
    "options",
    [
        ("--skip", "linear"),
        ("--only", "gemm"),
        ("--shape", "N=2"),
        ("--precision", "float16", "--keep-fp32", "product"),
    ],
    ids=["skip", "only", "shape", "precision"],
)
def test_the_suggested_explanation_is_of_the_file_that_was_made(
    options: tuple[str, ...], folder: Path, onnxfuse_command: Command
) -> None:
    """Its options are those of the call: the same nodes remain, for the same reasons."""
    told = onnxfuse_command("optimize", "in.onnx", "out.onnx", *options).out
    (line,) = [line for line in told.splitlines() if line.startswith("why not more: ")]
    made = json.loads(onnxfuse_command("optimize", "in.onnx", "out.onnx", *options, "--json").out)
    explained = json.loads(onnxfuse_command(*shlex.split(line)[4:], "--json").out)
    assert explained["left"] == made["left"]
    assert sum(made["rules"].values()) == len(explained["applied"])


def test_a_requirement_that_the_shell_split_is_refused(folder: Path) -> None:
    """`--require gemm>=3` without quotes requires gemm once, and sends the output to a file called =3."""
    call = [sys.executable, "-m", "onnxfuse", "optimize", "in.onnx", "out.onnx", "--require", "linear"]
    for name, refused in (("=3", True), ("3", True), ("log", False)):
        with (folder / name).open("w", encoding="utf-8") as output:
            done = subprocess.run(call, stdout=output, stderr=subprocess.PIPE, text=True, check=False, cwd=folder)
        assert (done.returncode == 2) == refused, done.stderr
        assert (f'Quote the requirement: --require "linear>{name}".' in done.stderr) == refused
