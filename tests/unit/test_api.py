"""The front door: `import onnxfuse` and what it takes."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import pytest

import onnxfuse
from onnxfuse.api.optimize import optimizing
from onnxfuse.api.request.options import Dump
from onnxfuse.cli.main import main
from onnxfuse.contract.config import Requirement
from onnxfuse.explanation import explaining
from onnxfuse.files import io

TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y) { a = Exp (x)  y = Neg (a) }'


@pytest.mark.parametrize("form", ["model", "path", "text path", "graphsurgeon"])
def test_a_model_is_taken_in_every_form(form: str, tmp_path: Path) -> None:
    """A ModelProto, a path, or a graph of onnx-graphsurgeon; what was given stays as it is."""
    plain = onnx.parser.parse_model(TEXT)
    io.save(plain, tmp_path / "m.onnx")
    forms = {
        "model": plain,
        "path": tmp_path / "m.onnx",
        "text path": str(tmp_path / "m.onnx"),
        "graphsurgeon": gs.import_onnx(plain),
    }
    made = onnxfuse.optimize(forms[form])
    assert [n.domain for n in made.graph.node] == ["onnxfuse"]
    assert len(plain.graph.node) == 2
    assert len(onnxfuse.explain(forms[form]).applied) == 1
    assert [n.op_type for n in onnxfuse.unfuse(made).graph.node] == ["Exp", "Neg"]
    profile = onnxfuse.profile(forms[form], made, shapes={"N": (3,)}, time=False)
    assert profile.after is not None
    assert (profile.removed.count, profile.before.work.bytes, profile.after.work.bytes) == (1, 192, 96)
    report = onnxfuse.verify(forms[form], made, providers=["CPUExecutionProvider"], shapes={"N": (3,)})
    assert report.ok


BLOCK = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,16] x) => (float[N,16] y)
<float[16] scale = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}> {
  a = Exp (x)  b = Relu (a)  n = LayerNormalization (b, scale)  y = Sigmoid (n) }"""


@pytest.fixture
def block(tmp_path: Path) -> Path:
    io.save(onnx.parser.parse_model(BLOCK), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def test_the_library_makes_what_the_command_writes(block: Path) -> None:
    """With one `Options` the same bytes come out of Python and of the command line, guarded and dumped as well."""
    options = onnxfuse.Options(skip=("layer_norm",), strict_fp32=True)
    asked = ("--skip", "layer_norm", "--strict-fp32", "--guard", "--dump", str(block.parent / "dump1"))
    with pytest.raises(SystemExit) as left:
        main(["optimize", str(block), str(block.parent / "out.onnx"), *asked, "--quiet"])
    assert not left.value.code
    steps: list[str] = []
    made = onnxfuse.guard(
        block,
        options=replace(options, dump=Dump(block.parent / "dump2", sizes={"N": 3})),
        progress=steps.append,
    )
    written = io.load(block.parent / "out.onnx")
    assert made.model.SerializeToString(deterministic=True) == written.SerializeToString(deterministic=True)
    assert made.guarded is not None
    assert (made.guarded.checked, made.guarded.undone) == (1, ())
    assert {a.rule for a in made.report.applied} == {"pointwise"}
    assert made.dumped is not None
    assert [op.rule for op in made.dumped.ops] == ["pointwise"]
    assert {p.name for p in (block.parent / "dump1" / "phases").iterdir()} == {
        p.name for p in (block.parent / "dump2" / "phases").iterdir()
    }
    assert steps[0] == "normalize"
    assert {"open", "dump"} < set(steps)


def test_a_dump_of_python_tells_each_op(block: Path) -> None:
    """A value for each fused op, and its folder; a folder that is full is refused before anything is done."""
    made = onnxfuse.dump(block, block.parent / "dump", arch="sm_80", shapes={"N": 4})
    assert made.dumped is not None
    (op,) = made.dumped.ops
    assert (op.rule, op.plans) == ("layer_norm", 1)
    assert (block.parent / "dump" / "ops" / op.folder).is_dir()
    with pytest.raises(onnxfuse.ModelError, match="is not empty"):
        onnxfuse.dump(block, block.parent / "dump")


def test_what_is_required_keeps_a_model_from_being_written(block: Path) -> None:
    """`written` puts the file in its place when the block ends well, and not where something is missed."""
    target = block.parent / "out.onnx"
    for least, there in ((99, False), (1, True)):
        options = onnxfuse.Options(require=(Requirement("layer_norm", ">=", least),))
        with optimizing.written(partial(optimizing.optimize, block, options), target) as made:
            assert not target.exists()
        assert (target.exists(), not made.missed) == (there, there)
    with pytest.raises(onnxfuse.UsageError, match=r"'layer_nrom' is not a rule\. Did you mean layer_norm\?"):
        optimizing.optimize(block, onnxfuse.Options(only=("layer_nrom",)))


def test_what_there_is_is_offered_by_completion() -> None:
    """`Options`, too, which is imported when it is asked for; and no module that happens to be there."""
    assert set(onnxfuse.__all__) <= set(dir(onnxfuse))
    assert "passes" not in dir(onnxfuse)


def test_optimize_takes_what_the_command_takes(block: Path) -> None:
    """Rules by name, what is required, sizes, the guard: typed, and by the names of the command's options."""
    made = onnxfuse.optimize(block, only=["pointwise"], require=["pointwise==1"], shapes={"N": 3}, guard=True)
    assert [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim] == [3, 16]
    assert [n.domain for n in made.graph.node] == ["onnxfuse", "", ""]
    with pytest.raises(onnxfuse.RequirementError, match=r"layer_norm==2: applied 1 time") as missed:
        onnxfuse.optimize(block, require=["layer_norm==2"])
    assert (missed.value.exit_code, isinstance(missed.value, onnxfuse.OnnxfuseError)) == (4, True)
    with pytest.raises(onnxfuse.RequirementError, match=r"(?s)applied 1 time.*layer_norm applied at "):
        onnxfuse.optimize(block, require=["layer_norm==0"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"only": "pointwise"}, "only is 'pointwise' (str); expected a list of strings"),
        ({"skip": [3]}, "expected a list of strings"),
        ({"rules": "mine"}, "rules is 'mine' (str); expected a list of paths"),
        ({"guard": "yes"}, "guard is 'yes' (str); expected True or False"),
        ({"require": ["layer_norm=2"]}, "is not of the form RULE, RULE>=N or RULE==N"),
        ({"tuning": 3}, "tuning is 3 (int); expected a path"),
        ({"shapes": {"N": "three"}}, "expected an integer of at least 0"),
        ({"shapes": {"M": 3}}, "no dynamic dimension and no input of that name"),
        ({"tolerance": "low", "precision": "float16"}, "tolerance is 'low' (str); expected a number"),
        ({"inputs": "x.npz"}, "expected a list of paths, or of dicts"),
        ({"precision": "float8"}, "precision is 'float8', expected one of float16"),
    ],
)
def test_a_wrong_argument_is_told_with_what_is_expected(block: Path, arguments: dict[str, Any], told: str) -> None:
    """An OnnxfuseError as all else that a caller can mend, never a fault from the midst of the work."""
    with pytest.raises(onnxfuse.UsageError, match=re.escape(told)):
        onnxfuse.optimize(block, **arguments)


def test_a_model_of_a_wrong_type_is_told(block: Path) -> None:
    """Whatever is done with it."""
    for call in (onnxfuse.optimize, onnxfuse.explain, onnxfuse.unfuse):
        with pytest.raises(
            onnxfuse.UsageError, match="the model is of the type int; expected a ModelProto, a path, or"
        ):
            call(3)  # that is the mistake


def test_the_text_of_an_error_has_its_hint(block: Path) -> None:
    """What to do next stands below the message; who puts a place before a message has the message alone."""
    error = onnxfuse.ModelError("x.onnx: no such file", "Check the path.")
    assert str(error) == "x.onnx: no such file\nCheck the path."
    assert f"{error}" == "x.onnx: no such file"
    assert str(onnxfuse.ModelError("m")) == "m"
    with pytest.raises(onnxfuse.ModelError) as told:
        onnxfuse.optimize(block.parent / "none.onnx")
    assert str(told.value).splitlines() == [f"{block.parent / 'none.onnx'}: no such file", "Check the path."]


def test_a_report_prints_as_the_commands_screen_and_in_notebooks_as_html(block: Path) -> None:
    """The verdict first; names from files are no markup."""
    made = onnxfuse.optimize(block)
    cpu: dict[str, Any] = {"providers": ["CPUExecutionProvider"], "shapes": {"N": (3,)}}
    told = onnxfuse.explain(block)
    assert str(told) == repr(told)
    assert str(told).splitlines()[:2] == ["4 nodes -> 1, including 1 fused op", "rule        applied  first at"]
    assert str(explaining.explain(block)).splitlines()[0] == "fuses: 4 nodes -> 1, including 1 fused op"
    assert str(explaining.explain(block, at=["n"])).startswith("n: ")
    assert "<td>layer_norm</td>" in explaining.explain(block)._repr_html_()
    verified = onnxfuse.verify(block, made, isolate=False, **cpu)
    assert str(verified).startswith("ok same within the error budget")
    assert str(verified).splitlines()[2].split()[:2] == ["y", "float32"]
    timed = onnxfuse.bench(block, made, isolate=False, runs=1, rounds=1, **cpu)
    assert "no kernel runs on the CPU, so this times the portable form" in str(timed).splitlines()[1]
    assert "N=3 (3 items)" in str(timed).splitlines()
    profile = onnxfuse.profile(block, made, time=False, shapes={"N": (3,)})
    assert "    1  layer_norm: " in str(profile)
    assert "--" not in str(profile) + str(timed)  # options of the commands are none of Python
    for report in (told, verified, timed, profile):
        assert len(str(report).splitlines()) <= 22
        assert report._repr_html_().startswith("<p><b>")
        assert "width:160px" in report._repr_html_() or report is verified  # a bar beside each row
    evil = onnx.parser.parse_model(BLOCK)
    evil.graph.node[0].name = "<script>\x1b[2J"
    page = onnxfuse.explain(evil)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page + str(onnxfuse.explain(evil))


def test_a_contract_is_held_from_python(block: Path) -> None:
    """One outcome per model; a mistake in one does not keep the others from being run, the exit code is the worst."""
    config = block.parent / "onnxfuse.toml"
    config.write_text("[[model]]\npath = 'in.onnx'\nverify = false\n[[model]]\npath = 'none.onnx'\n")
    held = onnxfuse.ci(config)
    assert [(o.entry.name, o.exit_code) for o in held.outcomes] == [("in", 0), ("none", 3)]
    assert (held.exit_code, held.lock_state) == (3, "absent")
    assert str(held).splitlines()[0] == f"failed: 1 of 2 models meets {config}"
    assert "<td>none</td>" in held._repr_html_()
    assert held.outcomes[0].optimized is not None
    assert held.outcomes[0].optimized["rules"] == {"layer_norm": 1}
    only = onnxfuse.ci(config, names=["in"])
    assert (only.exit_code, len(only.outcomes)) == (0, 1)
    config.write_text("[[model]]\npath = 'in.onnx'\nverify = false\n")
    assert onnxfuse.ci(config, update=True).lock_state == "written"
    assert onnxfuse.ci(config, locked=True).exit_code == 0


def test_an_error_about_a_file_names_it(tmp_path: Path) -> None:
    """Also where the rewriter finds it; a model without a file has no name to tell."""
    wrong = onnx.parser.parse_model(TEXT.replace("Neg (a)", "MatMul (a, w)").replace("{", "<float[3,4] w> {"))
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [3, 4], [1.0] * 12)
    wrong.graph.initializer.append(weight)
    (tmp_path / "m.onnx").write_bytes(wrong.SerializeToString())
    with pytest.raises(onnxfuse.ModelError, match=r"m\.onnx: the model is not valid"):
        onnxfuse.optimize(tmp_path / "m.onnx")
    with pytest.raises(onnxfuse.ModelError, match=r"^the model is not valid"):
        onnxfuse.optimize(wrong)


def test_bench_makes_the_fused_model_where_none_is_given(block: Path) -> None:
    """As the command does; what is compared is the model that `optimize` makes."""
    where: dict[str, Any] = {"providers": ["CPUExecutionProvider"], "runs": 1, "rounds": 1}
    assert onnxfuse.bench(block, **where).fused_ops.nodes == 1
    timed = onnxfuse.profile(block, alone=False, time=False)
    assert timed.after is not None
    assert onnxfuse.profile(block, time=False).after is None
