"""`onnxfuse ci`: a repository's models are held to onnxfuse.toml, and to what onnxfuse.lock remembers."""

import json
import os
import re
import shlex
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.api.run import ci
from onnxfuse.api.run.running import verify
from onnxfuse.rules.language import rule_file
from onnxfuse.support.errors import DeviceError
from onnxfuse.verification import VerifyReport
from onnxfuse.verification.compare.case_comparison import Comparison
from onnxfuse.verification.inputs.inputs import Case
from tests.cli.conftest import MODEL, Command

CONFIG = """[[model]]
path = "in.onnx"
name = "small"
output = "out.onnx"
shapes = { N = [1, 3] }
provider = "cpu"
require = { linear = 1, layer_norm = "==1" }
budget = { nodes = 5, megabytes = 1, error = 1.0 }
"""


@pytest.fixture
def repository(folder: Path) -> Path:
    """A folder with a model and its contract."""
    (folder / "onnxfuse.toml").write_text(CONFIG)
    return folder


def change(folder: Path, old: str, new: str) -> None:
    """Write the model again as another exporter might."""
    assert old in MODEL
    onnx.save(onnx.parser.parse_model(MODEL.replace(old, new)), folder / "in.onnx")


def own_rule(folder: Path) -> None:
    """Write the folder `mine` with a rule `other` that nothing of the model matches."""
    (folder / "mine").mkdir()
    rule = 'summary = "x."\n[[rewrite]]\nfrom = "(x) => (y) { y = Tan (x) }"\nto = "(x) => (y) { y = Sin (x) }"\n'
    (folder / "mine" / "other.toml").write_text(rule)


def test_a_model_that_holds_is_written(repository: Path, onnxfuse_command: Command) -> None:
    """Exit 0, the optimized model, and a word on the lock that is not there yet."""
    result = onnxfuse_command("ci")
    assert result.code == 0
    assert result.out.startswith("ok: 1 of 1 model meets onnxfuse.toml")
    assert "onnxfuse ci onnxfuse.toml --update writes it" in result.out
    onnx.checker.check_model(onnx.load(repository / "out.onnx"), full_check=True)
    assert not (repository / "onnxfuse.lock").exists()


def test_nodes_that_lower_precision_leaves_are_locked(repository: Path, onnxfuse_command: Command) -> None:
    """As `optimize --keep-fp32` has them; one more that stays is a loss."""
    config = '[[model]]\npath = "in.onnx"\nverify = false\nprecision = "float16"\nkeep_fp32 = ["%s"]\n'
    (repository / "onnxfuse.toml").write_text(config % "Relu")
    assert onnxfuse_command("ci", "--update").code == 0
    kept = json.loads((repository / "onnxfuse.lock").read_text())["models"]["in"]["kept"]
    assert list(kept.values()) == ["--keep-fp32 Relu says so"]
    (repository / "onnxfuse.toml").write_text(config % "*")
    result = onnxfuse_command("ci")
    assert result.code == 4
    assert "in: regressed: precision of MatMul " in result.out
    assert ": float16 -> float32 (against onnxfuse.lock)" in result.out
    assert "why: --keep-fp32 * says so" in result.out


def test_the_file_is_found_in_a_folder_above(
    repository: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From anywhere in the repository; the nearest one counts, and its paths are relative to it."""
    (repository / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(repository / "a" / "b")
    result = onnxfuse_command("ci")
    assert (result.code, result.out.splitlines()[0]) == (0, "ok: 1 of 1 model meets ../../onnxfuse.toml")
    assert (repository / "out.onnx").is_file()
    (repository / "a" / "onnxfuse.toml").write_text("[[model]]\npath = 'none.onnx'\n")
    assert "../none.onnx: no such file" in onnxfuse_command("ci").out


def test_a_time_without_a_gpu_is_called_so(repository: Path, onnxfuse_command: Command) -> None:
    """What was timed there is the portable form; no figure stands without that."""
    (repository / "onnxfuse.toml").write_text(CONFIG + "bench = { min_speedup = 0 }\n")
    told = " ".join(onnxfuse_command("ci").out.split())
    assert "small: note: no kernel runs on the CPU, so this times the portable form" in told
    assert "--no-bench skips the timing" in told


def test_the_lock_holds_rules_fusions_operators_and_tolerances(repository: Path, onnxfuse_command: Command) -> None:
    """Written by --update; the same facts give the same bytes, and nothing differs the next time."""
    assert onnxfuse_command("ci", "--update").code == 0
    first = (repository / "onnxfuse.lock").read_bytes()
    lock = json.loads(first)
    model = lock["models"]["small"]
    assert model["applied"] == {"layer_norm": 1, "linear": 1}
    assert model["exported"] == {"Add": 2, "LayerNormalization": 1, "MatMul": 2, "Relu": 1}
    assert model["operators"] == {"MatMul": 2, "onnxfuse:Linear_AddReluAdd": 1, "onnxfuse:LayerNormalization": 1}
    assert model["tolerances"]["y"] > 0
    assert all(len(digest) == 64 for digest in lock["rules"].values())
    assert onnxfuse_command("ci", "--update").code == 0
    assert (repository / "onnxfuse.lock").read_bytes() == first
    result = onnxfuse_command("ci", "--locked")
    assert result.code == 0
    assert "changed" not in result.out


def test_an_export_that_loses_a_fusion_fails_and_says_which_and_why(
    repository: Path, onnxfuse_command: Command
) -> None:
    """The weight of a product became an input: the diff names the rule, the count, and what stopped it."""
    (repository / "onnxfuse.toml").write_text(CONFIG.replace("linear = 1, ", "").replace("nodes = 5, ", ""))
    onnxfuse_command("ci", "--update")
    (repository / "out.onnx").unlink()
    change(repository, "(float[N,2] x,", "(float[2,3] weight, float[N,2] x,")
    change_back = MODEL.replace("(float[N,2] x,", "(float[2,3] weight, float[N,2] x,")
    onnx.save(
        onnx.parser.parse_model(change_back.replace("MatMul (x, w)", "MatMul (x, weight)")), repository / "in.onnx"
    )
    result = onnxfuse_command("ci")
    assert result.code == 4
    reason = "linear at MatMul product: stopped at product: 'weight' is not a constant"
    lines = result.out.splitlines()
    assert lines[3:6] == [
        "small: regressed: input weight: none -> float32[2,3] (against onnxfuse.lock)",
        "  why: callers have to give it",
        f"  and so: applications of linear: 1 -> 0; {reason}",
    ]
    assert "small: out.onnx not written" in lines
    assert lines[-1] == "if this is intended, accept it: onnxfuse ci onnxfuse.toml --update"
    assert not (repository / "out.onnx").exists()
    found = json.loads(onnxfuse_command("ci", "--json").out)
    facts = found["models"][0]
    assert facts["regressed"][:2] == ["input weight: none -> float32[2,3]", "applications of linear: 1 -> 0"]
    assert facts["why"]["applications of linear: 1 -> 0"] == [reason]
    assert found["accept"] == "onnxfuse ci onnxfuse.toml --update"
    assert facts["exit_code"] == 4


def test_a_requirement_that_is_missed_names_the_node_that_broke_it(repository: Path, onnxfuse_command: Command) -> None:
    """With a lock the place where the rule applied before, whichever other attempts came as far; without, these too."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,4,8] x, float[8,8] u, float[8,8] t) => (float[N,4,8] y)<float[8] b = {1,2,3,4,5,6,7,8}> {
  [early] a = MatMul (x, u)
  [early_bias] c = Add (a, b)
  [early_act] d = Relu (c)
  [late] e = MatMul (d, WEIGHT)
  [late_bias] f = Add (e, b)
  y = Relu (f)
}"""
    model = onnx.parser.parse_model(text.replace("WEIGHT", "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w"))
    config = '[[model]]\npath = "in.onnx"\nverify = false\nrequire = { gemm = 1 }\n'
    (repository / "onnxfuse.toml").write_text(config)
    onnx.save(model, repository / "in.onnx")
    assert onnxfuse_command("ci", "--update").code == 0
    onnx.save(onnx.parser.parse_model(text.replace("WEIGHT", "t")), repository / "in.onnx")
    facts = json.loads(onnxfuse_command("ci", "--json").out)["models"][0]
    (reason,) = facts["why"]["gemm>=1: applied 0 times"]
    assert reason == "gemm at MatMul late: stopped at late: 't' is not a constant"
    assert facts["next_steps"]["optimize"] == "see what would help: onnxfuse explain in.onnx --at late"
    (repository / "onnxfuse.lock").unlink()
    reasons = json.loads(onnxfuse_command("ci", "--json").out)["models"][0]["why"]["gemm>=1: applied 0 times"]
    assert {"early", "late"} == {reason.partition(":")[0].split()[-1] for reason in reasons}


def test_a_required_rule_that_nothing_comes_near_says_so(repository: Path, onnxfuse_command: Command) -> None:
    """An empty reason would look like a defect of the report."""
    (repository / "onnxfuse.toml").write_text(
        '[[model]]\npath = "in.onnx"\nverify = false\nrequire = { attention = 1 }\n'
    )
    why = json.loads(onnxfuse_command("ci", "--json").out)["models"][0]["why"]
    assert why == {"attention>=1: applied 0 times": ["no node of the model comes near the pattern of attention"]}


def test_an_export_that_callers_cannot_use_fails(repository: Path, onnxfuse_command: Command) -> None:
    """A size that became fixed, another type, an input or output that is gone; a name of a dimension may change."""
    (repository / "onnxfuse.toml").write_text('[[model]]\npath = "in.onnx"\nverify = false\n')
    assert onnxfuse_command("ci", "--update").code == 0

    change(repository, "(float[N,2] x, float[N,3] r)", "(float[8,2] x, float[N,3] r)")
    result = onnxfuse_command("ci")
    assert result.code == 4
    assert "in: regressed: input x: float32[N,2] -> float32[8,2] (against onnxfuse.lock)" in result.out
    assert "why: other sizes are refused now: N -> 8" in result.out
    for old, new, reason in (
        ("float[N,3] r)", "float[1,N,3] r)", "it has another number of dimensions"),
        ("float[N,3] r)", "float[N,3] rest)", "callers that use it fail"),
        ("float[N,3] r)", "float[N,3] r, float[N,3] z)", "callers have to give it"),
    ):
        text = MODEL.replace(old, new).replace("(a, r)", "(a, rest)" if "rest" in new else "(a, r)")
        onnx.save(onnx.parser.parse_model(text), repository / "in.onnx")
        assert f"why: {reason}" in onnxfuse_command("ci").out
    onnx.save(onnx.parser.parse_model(MODEL.replace("[N,", "[rows,")), repository / "in.onnx")
    renamed = onnxfuse_command("ci")
    assert (renamed.code, "input x: float32[N,2] -> float32[rows,2]" in renamed.out) == (0, True)


def test_every_report_says_what_regressed_why_and_how_to_accept_it(
    repository: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JUnit, Markdown, the page and annotations hold what the console says: from, to, the cause, the command."""
    (repository / "onnxfuse.toml").write_text(CONFIG.replace("linear = 1, ", "").replace("nodes = 5, ", ""))
    onnxfuse_command("ci", "--update")
    text = MODEL.replace("(float[N,2] x,", "(float[2,3] weight, float[N,2] x,")
    onnx.save(onnx.parser.parse_model(text.replace("MatMul (x, w)", "MatMul (x, weight)")), repository / "in.onnx")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = onnxfuse_command("ci", "--junit", "r.xml", "--markdown", "r.md", "--report", "r.html")
    reason = "linear at MatMul product: stopped at product: 'weight' is not a constant"
    accept = "if this is intended, accept it: onnxfuse ci onnxfuse.toml --update"
    step = "see what would help: onnxfuse explain in.onnx --at product"
    found = ElementTree.parse(repository / "r.xml").findall(".//failure")[1].text
    assert found == f"applications of linear: 1 -> 0 (against onnxfuse.lock)\nwhy: {reason}\n{step}\n{accept}"
    annotation = next(line for line in result.err.splitlines() if "applications of linear" in line)
    assert annotation.endswith(f"%0Awhy: {reason}%0A{step}%0A{accept}")
    summary = (repository / "r.md").read_text()
    assert f"| {reason} |" in summary
    assert "\nSee what would help: `onnxfuse explain in.onnx --at product`\n" in summary
    assert re.search(r"\| small \| 6 -\\> \d \| \d \| ok \(bodies only\) \| not run \| failed \|", summary)
    assert "If this is intended, accept it: `onnxfuse ci onnxfuse.toml --update`" in summary
    assert f"why: {escape(reason)}\n{step}\n{accept}" in (repository / "r.html").read_text()
    monkeypatch.delenv("GITHUB_ACTIONS")
    (repository / "onnxfuse.toml").write_text(CONFIG.replace("linear = 1, ", "").replace("nodes = 5", "nodes = 1"))
    onnxfuse_command("ci", "--junit", "r.xml", "--markdown", "refused.md")
    assert accept not in (repository / "r.xml").read_text()  # --update would refuse: a budget is exceeded
    assert "accept it" not in (repository / "refused.md").read_text()


def test_the_command_after_a_mismatch_names_the_rule_at_fault(repository: Path, onnxfuse_command: Command) -> None:
    """It repeats the options of the file, so that it makes the same model; its advice leaves the rule out."""
    (repository / "own").mkdir()
    (repository / "own" / "wrong.toml").write_text(
        "summary = \"Wrong.\"\n[[rewrite]]\nfrom = '''(x) => (y) { y = Relu (x) }'''\n"
        "to = '''(x) => (y) { y = Sigmoid (x) }'''\n"
    )
    plain = "".join(line for line in CONFIG.splitlines(keepends=True) if not line.startswith(("require", "budget")))
    (repository / "onnxfuse.toml").write_text(f'{plain}rules = ["own"]\nskip = ["gemm"]\n')
    assert onnxfuse_command("ci").code == 1
    step = json.loads(onnxfuse_command("ci", "--json").out)["models"][0]["next_steps"]["verify"]
    made, compared = step.partition(": ")[2].split(" && ")
    assert made == "onnxfuse optimize in.onnx small.failed.onnx --rules own --skip gemm"
    assert onnxfuse_command(*shlex.split(made)[1:]).code == 0
    found = onnxfuse_command(*shlex.split(compared)[1:])
    assert "bisect: rule wrong" in found.out
    assert "leave it out: onnxfuse optimize --skip wrong" in found.out
    assert onnxfuse_command("ci", "--sarif", "r.sarif").code == 1
    assert step in (repository / "r.sarif").read_text()


def test_a_file_that_was_changed_since_is_told_from_a_wrong_rule(repository: Path, onnxfuse_command: Command) -> None:
    """Then no rule is to be left out: the file is to be made again."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx").code == 0
    model = onnx.load("out.onnx")
    (changed,) = [n for f in model.functions for n in f.node if n.op_type == "Relu"]
    changed.op_type = "Tanh"
    onnx.save(model, "out.onnx")
    result = onnxfuse_command("verify", "in.onnx", "out.onnx", "--bisect", "report")
    assert result.code == 1
    assert "of rule linear: error" in result.out
    assert "nothing else differs there; optimize makes this part right today" in result.out
    assert "-> make the file again: onnxfuse optimize\n" in f"{result.out}\n"
    assert "--skip" not in result.out


def test_a_fusion_that_became_a_larger_one_says_which(repository: Path, onnxfuse_command: Command) -> None:
    """The reason names the rule that took its nodes; what nearly fused elsewhere is no reason."""
    skipping = '[[model]]\npath = "in.onnx"\nverify = false\nskip = ["linear"]\n'
    (repository / "onnxfuse.toml").write_text(skipping)
    assert onnxfuse_command("ci", "--update").code == 0
    (repository / "onnxfuse.toml").write_text(skipping.replace('skip = ["linear"]\n', ""))
    facts = json.loads(onnxfuse_command("ci", "--json").out)["models"][0]
    assert facts["why"]["applications of pointwise: 1 -> 0"] == ["linear took Add bias with 3 other nodes"]
    assert (facts["exit_code"], facts["regressed"], facts["next_steps"]) == (0, [], {})
    assert "applications of pointwise: 1 -> 0" in facts["changed"]
    shown = " ".join(onnxfuse_command("ci").out.split())
    assert "small: applications of pointwise: 1 -> 0; linear took Add bias with 3 other nodes" in shown.replace(
        "in: ", "small: "
    )


def test_a_model_that_is_no_longer_checked_is_named(repository: Path, onnxfuse_command: Command) -> None:
    """Every line begins with its model. A model that the lock does not have, in place of one that is gone, fails: it
    was compared with nothing. One that is only gone, or only new, passes, and with --locked nothing does."""
    both = "".join(f'[[model]]\npath = "in.onnx"\nname = "{name}"\nverify = false\n' for name in ("first", "second"))
    (repository / "onnxfuse.toml").write_text(both)
    assert onnxfuse_command("ci", "--update").code == 0
    (repository / "onnxfuse.toml").write_text(both.replace('"second"', '"renamed"'))
    gone = "second: model: locked -> no longer checked"
    result = onnxfuse_command("ci", "--markdown", "r.md")
    assert (result.code, f"\n  {gone}\n" in result.out) == (4, True)
    shown = " ".join(result.out.split())
    assert (
        "renamed: regressed: model: not locked -> new (against onnxfuse.lock) why: it was compared with nothing: "
        in shown
    )
    assert "the lock has second instead, which is no longer checked; a renamed model keeps its place" in shown
    assert f"| {gone.replace('>', chr(92) + '>')} |" in (repository / "r.md").read_text()
    strict = onnxfuse_command("ci", "--locked", "--junit", "r.xml", "--json")
    assert (strict.code, json.loads(strict.out)["changed"]) == (4, [gone])
    (failure, new) = ElementTree.parse(repository / "r.xml").findall(".//failure")
    assert {failure.get("message"), new.get("message")} == {
        f"{gone} (--locked)",
        "model: not locked -> new (against onnxfuse.lock)",
    }
    (repository / "onnxfuse.toml").write_text(both[: both.index("[[model]]", 1)])
    assert onnxfuse_command("ci").code == 0
    (repository / "onnxfuse.toml").write_text(both + both[: both.index("[[model]]", 1)].replace("first", "third"))
    result = onnxfuse_command("ci")
    assert result.code == 0
    assert "third: note: it is not in the lock yet, so it was compared with nothing: onnxfuse ci --update adds it" in (
        " ".join(result.out.split())
    )
    assert onnxfuse_command("ci", "--locked").code == 4


def test_update_lists_what_it_accepts(repository: Path, onnxfuse_command: Command) -> None:
    """Each difference from the lock that it replaces, regressions too; nothing the first time, or for a broken lock."""
    assert "accepted" not in onnxfuse_command("ci", "--update").out
    change(repository, "Relu (h)", "Tanh (h)")
    lock = json.loads((repository / "onnxfuse.lock").read_text())
    lock["models"]["small"]["tolerances"]["y"] = -1.0
    (repository / "onnxfuse.lock").write_text(json.dumps(lock))
    (repository / "onnxfuse.toml").write_text(CONFIG + 'skip = ["gemm"]\n')
    lines = onnxfuse_command("ci", "--update").out.splitlines()
    start = lines.index("accepted by --update:")
    assert '  small: option skip: default -> ["gemm"]' in lines[start:]
    assert any(line.startswith("  small: exported operators: Relu 1 -> 0, Tanh 0 -> 1") for line in lines[start:])
    assert any("small: difference of output y: at most -1 -> " in line for line in lines[start:])
    assert [line for line in lines[start:] if "(a regression)" in line] == [
        line for line in lines[start:] if "difference of output y" in line
    ]
    assert not any("accept it" in line for line in lines)
    (repository / "onnxfuse.lock").write_text("{")
    result = onnxfuse_command("ci", "--update")
    assert (result.code, "accepted" in result.out) == (0, False)
    (repository / "onnxfuse.toml").write_text(CONFIG.replace("nodes = 5", "nodes = 1") + 'skip = ["pointwise"]\n')
    result = onnxfuse_command("ci", "--update")
    assert (result.code, "to be accepted by --update:" in result.out, "accepted by --update:\n" in result.out) == (
        4, True, True,
    )  # fmt: skip


def test_a_changed_precision_is_named_as_the_cause(repository: Path, onnxfuse_command: Command) -> None:
    """Once per model, and in the reasons of each regression; what the outputs are computed in as well."""
    onnxfuse_command("ci", "--update")
    (repository / "onnxfuse.toml").write_text(CONFIG + 'precision = "float16"\n')
    result = onnxfuse_command("ci")
    assert result.code == 4
    options = 'onnxfuse.toml has other options than the lock: precision: default -> "float16"'
    shown = " ".join(result.out.split())
    assert shown.count(options) == 1
    assert f"small: note: {options}; this may be why" in shown
    assert "the lock has the difference in the types of the original, and it is computed in float16 now" in shown
    assert "small: out.onnx not written: the file there is of an earlier run" in shown
    facts = json.loads(onnxfuse_command("ci", "--json").out)["models"][0]
    assert facts["regressed"]
    assert all(facts["why"][line][-1] == options for line in facts["regressed"])


def test_the_steps_after_a_failure_repeat_the_options_of_the_model(repository: Path, onnxfuse_command: Command) -> None:
    """Each is about the model that failed, in its precision, and can be typed."""
    config = '[[model]]\npath = "in.onnx"\nverify = false\nshapes = { N = [2, 4] }\nprecision = "float16"\n'
    (repository / "onnxfuse.toml").write_text(
        f'{config}skip = ["linear"]\nprovider = "cpu"\nrequire = {{ gemm = 1 }}\nbench = {{ min_speedup = 1000 }}\n'
    )
    steps = json.loads(onnxfuse_command("ci", "--json").out)["models"][0]["next_steps"]
    explained = steps["optimize"].partition(": ")[2]
    assert explained == "onnxfuse explain in.onnx --at product --precision float16 --skip linear"
    assert onnxfuse_command(*shlex.split(explained)[1:]).code == 0
    for command in steps["bench"].partition(": ")[2].split(" && "):
        assert onnxfuse_command(*shlex.split(command)[1:]).code == 0
    assert "onnxfuse profile in.onnx in.failed.onnx --provider cpu --shape N=2" in steps["bench"]


def test_a_model_that_is_fused_already_is_noted(repository: Path, onnxfuse_command: Command) -> None:
    """A pattern may match what an earlier run wrote."""
    onnxfuse_command("optimize", "in.onnx", "again.onnx")
    (repository / "onnxfuse.toml").write_text('[[model]]\npath = "a*.onnx"\noutput = "out"\n')
    assert "again: note: again.onnx already contains fused ops" in onnxfuse_command("ci").out


def test_nodes_that_stay_float32_are_noted(repository: Path, onnxfuse_command: Command) -> None:
    """A tolerance that no conversion meets leaves the model as it was, which is said."""
    plain = "".join(line for line in CONFIG.splitlines(keepends=True) if not line.startswith(("require", "budget")))
    (repository / "onnxfuse.toml").write_text(f'{plain}precision = "float16"\ntolerance = 1e-6\n')
    result = onnxfuse_command("ci", "--markdown", "r.md")
    assert "small: note: float16: no node was converted" in result.out
    assert "small: float16: no node was converted" in (repository / "r.md").read_text()
    (note,) = json.loads(onnxfuse_command("ci", "--json").out)["models"][0]["notes"]
    assert "less than one rounding of the type, 0.00049: allow more with `tolerance`; " in note
    assert note.endswith("onnxfuse explain in.onnx --precision float16 --tolerance 1e-06")
    assert "--tolerance" not in note.rpartition("onnxfuse explain")[0]  # ci has no such option
    with pytest.warns(UserWarning, match="allow more with `tolerance`") as warned:
        made = onnxfuse.optimize("in.onnx", precision="float16", tolerance=1e-6)
    onnx.save(made, "made.onnx")
    (advice,) = [f"{one.message}".rpartition("which nodes, and why: ")[2] for one in warned]
    command, *_ = advice.replace("FILE", "made.onnx").partition(",")
    assert "stays float32" in onnxfuse_command(*shlex.split(command)[1:]).out


def test_a_change_that_loses_nothing_passes_unless_locked(repository: Path, onnxfuse_command: Command) -> None:
    """It is told; --locked makes it exit 4, and then no output is written."""
    onnxfuse_command("ci", "--update")
    change(repository, "Relu (h)", "Tanh (h)")
    result = onnxfuse_command("ci")
    assert result.code == 0
    assert "small: exported operators: Relu 1 -> 0, Tanh 0 -> 1" in result.out
    (repository / "out.onnx").unlink()
    result = onnxfuse_command("ci", "--locked")
    assert result.code == 4
    assert "failed: 0 of 1 model meets" in result.out
    assert not (repository / "out.onnx").exists()


def test_an_option_that_changed_is_told(repository: Path, onnxfuse_command: Command) -> None:
    """The lock records the options that the file sets; the reason of a difference is the first thing to see."""
    onnxfuse_command("ci", "--update")
    assert json.loads((repository / "onnxfuse.lock").read_text())["models"]["small"]["options"] == {}
    (repository / "onnxfuse.toml").write_text(CONFIG + 'skip = ["gemm"]\n')
    result = onnxfuse_command("ci")
    assert result.code == 0
    assert 'small: option skip: default -> ["gemm"]' in result.out
    assert onnxfuse_command("ci", "--update").code == 0
    assert "changed" not in onnxfuse_command("ci").out


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("provider =", "verify = false\nprovider =", "verify: true -> false"),
        ("provider =", "verify = { seeds = 2 }\nprovider =", "verify.seeds: 1 -> 2"),
        ("linear = 1, ", "", 'require.linear: ">=1" -> none'),
        ("N = [1, 3]", "N = [1, 4]", "shapes.N: [1, 3] -> [1, 4]"),
        ('provider = "cpu"\n', "", 'provider: "cpu" -> "auto"'),
        (", error = 1.0", "", "budget.error: 1.0 -> none"),
        ("budget =", "bench = { min_speedup = 1 }\nbudget =", "bench.min_speedup: none -> 1.0"),
        ("budget =", 'rules = ["mine"]\nbudget =', 'option rules: default -> ["mine"]'),
    ],
)
def test_what_decides_the_result_is_locked(
    repository: Path, onnxfuse_command: Command, old: str, new: str, told: str
) -> None:
    """A check that is taken away or done otherwise is listed by its name, and fails with --locked, of one model too."""
    own_rule(repository)
    assert onnxfuse_command("ci", "--update").code == 0
    assert old in CONFIG
    (repository / "onnxfuse.toml").write_text(CONFIG.replace(old, new))
    for call, code in (([], 0), (["--locked"], 4), (["--locked", "--model", "small"], 4)):
        result = onnxfuse_command("ci", "--no-bench", *call)
        assert (result.code, f"small: {told}" in result.out) == (code, True), result.out


def test_another_opset_is_told(repository: Path, onnxfuse_command: Command) -> None:
    """The exporter has changed, even where every count is the same."""
    assert onnxfuse_command("ci", "--update").code == 0
    change(repository, '"" : 17', '"" : 18')
    result = onnxfuse_command("ci", "--locked")
    assert (result.code, "small: opset of ai.onnx: 17 -> 18" in result.out) == (4, True), result.out


def test_the_rules_of_one_model_are_compared_when_it_runs_alone(repository: Path, onnxfuse_command: Command) -> None:
    """Those of another model are not: nothing is known of them."""
    own_rule(repository)
    two = f'{CONFIG}\n[[model]]\npath = "in.onnx"\nname = "two"\nverify = false\nrules = ["mine"]\n'
    (repository / "onnxfuse.toml").write_text(two)
    assert onnxfuse_command("ci", "--update").code == 0
    assert onnxfuse_command("ci", "--locked", "--model", "small").code == 0
    lock = json.loads((repository / "onnxfuse.lock").read_text())
    lock["rules"] |= {"linear": "0" * 64, "other": "1" * 64}
    (repository / "onnxfuse.lock").write_text(json.dumps(lock))
    result = onnxfuse_command("ci", "--locked", "--model", "small")
    assert (result.code, "rule linear: 000000000000 -> " in result.out) == (4, True)
    assert "rule other" not in result.out
    assert "rule other: 111111111111 -> " in onnxfuse_command("ci", "--model", "two").out


def test_a_rule_folder_that_is_gone_is_the_cause(repository: Path, onnxfuse_command: Command) -> None:
    """The note names it, whatever another rule made of its nodes, and of one model, too."""
    (repository / "mine").mkdir()
    source = next(r.path for r in rule_file.shipped() if r.name == "linear").read_text()
    (repository / "mine" / "own.toml").write_text(source)
    plain = '[[model]]\npath = "in.onnx"\nverify = false\nskip = ["linear"]\n'
    (repository / "onnxfuse.toml").write_text(f'{plain}rules = ["mine"]\n')
    assert onnxfuse_command("ci", "--update").code == 0
    (repository / "onnxfuse.toml").write_text(plain)
    for call in ((), ("--model", "in")):
        result = onnxfuse_command("ci", *call)
        told = 'in: note: onnxfuse.toml has other options than the lock: rules: ["mine"] -> default; this may be why'
        assert (result.code, told in " ".join(result.out.split())) == (4, True), result.out


def test_sizes_that_a_model_no_longer_takes_are_not_the_news(repository: Path, onnxfuse_command: Command) -> None:
    """A dynamic dimension that became fixed is a regression; that `shapes` names it only means that nothing ran."""
    assert onnxfuse_command("ci", "--update").code == 0
    onnx.save(onnx.parser.parse_model(MODEL.replace("[N,", "[4,")), repository / "in.onnx")
    result = onnxfuse_command("ci")
    shown = " ".join(result.out.split())
    assert result.code == 4, result.out
    assert "small: regressed: input x: float32[N,2] -> float32[4,2]" in shown
    assert "small: not checked: verify (shape N: no input or dimension has that name." in shown
    before = (repository / "onnxfuse.lock").read_text()
    accepted = onnxfuse_command("ci", "--update")
    assert (accepted.code, "shape N: no input" in accepted.out) == (2, True), (accepted.out, accepted.err)
    assert (repository / "onnxfuse.lock").read_text() == before  # what was not verified is not locked
    (repository / "onnxfuse.lock").unlink()
    assert onnxfuse_command("ci").code == 2


def test_a_mismatch_has_its_numbers(repository: Path, onnxfuse_command: Command) -> None:
    """On the console too: which element, by how much, in which case."""
    (repository / "mine").mkdir()
    rule = 'summary = "x."\n[[rewrite]]\nfrom = "(x) => (y) { y = Relu (x) }"\nto = "(x) => (y) { y = Tanh (x) }"\n'
    (repository / "mine" / "wrong.toml").write_text(rule)
    (repository / "onnxfuse.toml").write_text(f'rules = ["mine"]\n{CONFIG}')
    shown = " ".join(onnxfuse_command("ci").out.split())
    assert re.search(r"y\[\d+, \d+\]: error [\d.]+, allowed [\de.-]+, worst case \w+ ", shown), shown


def test_weights_that_are_nan_are_named(repository: Path, onnxfuse_command: Command) -> None:
    """No input tests such a model."""
    model = onnx.load(repository / "in.onnx")
    (weight,) = [w for w in model.graph.initializer if w.name == "w"]
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full((2, 3), np.nan, np.float32), "w"))
    onnx.save(model, repository / "in.onnx")
    told = "w holds NaN in the original, so no input can test it: export it again"
    for call in (["ci"], ["verify", "in.onnx", "in.onnx"]):
        result = onnxfuse_command(*call)
        shown = " ".join(result.out.split())
        assert ("generated inputs test too little" in shown, told in shown) == (False, True), shown


def test_what_was_not_checked_is_no_pass(
    repository: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A requirement that was skipped, a missing lock, and kernels that did not run: skipped cases, and said."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (repository / "onnxfuse.toml").write_text(CONFIG + "bench = { min_speedup = 1.2 }\n")
    result = onnxfuse_command("ci", "--no-bench", "--junit", "r.xml", "--markdown", "r.md", "--report", "r.html")
    assert result.code == 0
    assert "ok (bodies only)" in result.out
    assert "small: not checked: min_speedup 1.2 (--no-bench)" in result.out
    assert "no onnxfuse.lock yet: nothing was compared with earlier results" in result.out
    root = ElementTree.parse(repository / "r.xml").getroot()
    skipped = {case.get("name"): case[0].get("message") for case in root.iter("testcase") if case[0].tag == "skipped"}
    missing = "no onnxfuse.lock yet: nothing was compared with earlier results"
    write = "write it, then commit it: onnxfuse ci onnxfuse.toml --update"
    assert skipped == {
        "min_speedup 1.2": "not checked: --no-bench",
        "verify: kernels": "kernels were not verified here: bodies only",
        "lock": f"{missing}\n{write}",
    }
    assert root.get("skipped") == "3"
    contract = next(case for case in root.iter("testcase") if case.get("name") == "contract")
    assert contract[0].text == "all requirements that were checked are met"
    assert [line for line in result.err.splitlines() if line.startswith("::")] == [
        f"::warning file=onnxfuse.toml,title=onnxfuse onnxfuse.lock%3A lock::{missing}%0A{write}"
    ]
    text = (repository / "r.md").read_text()
    assert "### Not checked" in text
    assert "| small | min\\_speedup 1.2 | not checked: --no-bench |" in text
    assert "| ok (bodies only) |" in text
    assert "3 not run" in (repository / "r.html").read_text()
    (repository / "onnxfuse.toml").write_text(CONFIG.replace("provider =", "verify = false\nprovider ="))
    facts = json.loads(onnxfuse_command("ci", "--json").out)["models"][0]
    assert facts["unchecked"] == {"verify": "verify = false", "error<=1": "verify = false"}


def test_a_rule_that_changed_is_told(repository: Path, onnxfuse_command: Command) -> None:
    """The lock knows each rule by its content."""
    onnxfuse_command("ci", "--update")
    lock = json.loads((repository / "onnxfuse.lock").read_text())
    lock["rules"]["linear"] = "0" * 64
    (repository / "onnxfuse.lock").write_text(json.dumps(lock))
    result = onnxfuse_command("ci")
    assert result.code == 0
    assert "rule linear: 000000000000 -> " in result.out
    (repository / "out.onnx").unlink()
    assert onnxfuse_command("ci", "--locked").code == 4
    assert not (repository / "out.onnx").exists()


@pytest.mark.parametrize("name", ["[/]", "[/red]", "[link=file:///x]y[/link]", "[bold"])
def test_a_name_is_no_markup(repository: Path, onnxfuse_command: Command, name: str) -> None:
    """It is shown as it stands, also where the step at hand is."""
    (repository / "onnxfuse.toml").write_text(CONFIG.replace('"small"', f'"{name}"'))
    result = onnxfuse_command("ci")
    assert result.code == 0, result.err
    assert name in result.out


def test_a_lock_that_does_not_end_is_not_read(repository: Path, onnxfuse_command: Command) -> None:
    """A device or a pipe in its place is told at once."""
    lock = repository / "onnxfuse.lock"
    lock.symlink_to("/dev/zero")
    result = onnxfuse_command("ci")
    assert (result.code, "onnxfuse.lock: is not a lock file of onnxfuse (is not a regular file)" in result.err) == (
        2,
        True,
    )
    lock.unlink()
    os.mkfifo(lock)
    assert onnxfuse_command("ci").code == 2


def test_a_larger_difference_than_locked_is_lost(repository: Path, onnxfuse_command: Command) -> None:
    """On the provider that the tolerance was measured on."""
    onnxfuse_command("ci", "--update")
    lock = json.loads((repository / "onnxfuse.lock").read_text())
    lock["models"]["small"]["tolerances"]["y"] = -1.0
    (repository / "onnxfuse.lock").write_text(json.dumps(lock))
    result = onnxfuse_command("ci")
    assert result.code == 4
    assert "regressed: difference of output y: at most -1" in result.out


def test_tolerances_of_another_provider_or_none_are_told(repository: Path, onnxfuse_command: Command) -> None:
    """They are not compared, which is said; a lock that lost one differs."""
    onnxfuse_command("ci", "--update")
    lock = json.loads((repository / "onnxfuse.lock").read_text())
    lock["models"]["small"]["provider"] = "CUDAExecutionProvider"
    (repository / "onnxfuse.lock").write_text(json.dumps(lock))
    result = onnxfuse_command("ci", "--locked")
    told = "small: not checked: tolerances of the lock (measured on CUDAExecutionProvider, this ran on CPUExecution"
    assert (result.code, told in result.out) == (0, True), result.out
    for provider in ("CPUExecutionProvider", ""):
        lock["models"]["small"] |= {"provider": provider, "tolerances": {}}
        (repository / "onnxfuse.lock").write_text(json.dumps(lock))
        result = onnxfuse_command("ci", "--locked")
        assert (result.code, "small: tolerance of output y: none -> " in result.out) == (4, True), result.out


def test_two_runs_on_one_lock_draw_the_same_sizes(
    repository: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that is busy the second time as well: else a difference could exceed the locked one by chance."""
    (repository / "onnxfuse.toml").write_text(CONFIG.replace("shapes = { N = [1, 3] }\n", ""))
    run, reports = Comparison.run, list[VerifyReport]()

    def keeping(*args: Any, **named: Any) -> VerifyReport:
        reports.append(verify(*args, **named))
        return reports[-1]

    def slow(self: Comparison, case: Case) -> None:
        run(self, case)
        object.__setattr__(self.limits, "began", self.limits.began - 10)

    monkeypatch.setattr(ci, "verify", keeping)
    assert onnxfuse_command("ci", "--update").code == 0
    monkeypatch.setattr(Comparison, "run", slow)
    assert onnxfuse_command("ci").code == 0
    first, second = reports
    assert first.sizes == second.sizes == {"N": (1, 3, 8, 65)}
    assert [r.measure for r in first.rows] == [r.measure for r in second.rows]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("linear = 1", "linear = 2", "not met: linear>=2: applied 1 time"),
        ('"==1"', '"<1"', "not met: layer_norm<1: applied 1 time"),
        ("nodes = 5", "nodes = 3", "not met: nodes<=3: 4"),
        ("megabytes = 1,", "megabytes = 0.0001,", "not met: megabytes<=0.0001"),
        ("error = 1.0", "error = 0.0", "not met: error<=0: output y uses"),
    ],
)
def test_what_is_required_and_not_there_is_exit_4(
    repository: Path, onnxfuse_command: Command, old: str, new: str, told: str
) -> None:
    """Each requirement and budget by itself; nothing is written, no lock either."""
    assert old in CONFIG
    (repository / "onnxfuse.toml").write_text(CONFIG.replace(old, new))
    result = onnxfuse_command("ci", "--update")
    assert result.code == 4
    assert told in result.out
    assert "onnxfuse.lock not written: every model has to pass first" in result.out
    assert not (repository / "out.onnx").exists()
    assert not (repository / "onnxfuse.lock").exists()


def test_a_wrong_number_is_exit_1(repository: Path, onnxfuse_command: Command) -> None:
    """A rule that computes something else is caught by verify; the output is not written."""
    (repository / "mine").mkdir()
    rule = 'summary = "x."\n[[rewrite]]\nfrom = "(x) => (y) { y = Relu (x) }"\nto = "(x) => (y) { y = Tanh (x) }"\n'
    (repository / "mine" / "wrong.toml").write_text(rule)
    assert onnxfuse_command("ci", "--update").code == 0
    (repository / "out.onnx").unlink()
    (repository / "onnxfuse.toml").write_text(f'rules = ["mine"]\n{CONFIG}')
    result = onnxfuse_command("ci")
    assert result.code == 1
    assert "small: verify: not the same: y out of budget" in result.out
    assert "changed since onnxfuse.lock" in result.out
    assert "accept it" not in result.out  # --update would refuse
    assert not (repository / "out.onnx").exists()


def test_one_bad_model_does_not_hide_the_others(repository: Path, onnxfuse_command: Command) -> None:
    """Exit 3 with the file's name; the other model is written."""
    (repository / "onnxfuse.toml").write_text(f'{CONFIG}\n[[model]]\npath = "missing.onnx"\nverify = false\n')
    result = onnxfuse_command("ci")
    assert result.code == 3
    assert "missing.onnx: no such file" in result.out
    assert "ok" in next(line for line in result.out.splitlines() if line.startswith("small"))
    assert (repository / "out.onnx").exists()
    assert onnxfuse_command("ci", "--model", "small").code == 0


def test_min_speedup_is_timed_unless_told_not_to(repository: Path, onnxfuse_command: Command) -> None:
    """A thousandfold speed-up is not there; --no-bench does not look."""
    (repository / "onnxfuse.toml").write_text(f"{CONFIG}bench = {{ min_speedup = 1000 }}\n")
    result = onnxfuse_command("ci")
    assert result.code == 4
    assert "not met: min_speedup 1000: " in result.out
    assert onnxfuse_command("ci", "--no-bench").code == 0


CRLF = '[[model]]\r\npath = "a.onnx"  # nodes = 1, provider = "cpu"\r\nname = """nodes = 3\r\n"""\r\n'
"""As an editor on Windows writes it; words of keys stand in a comment and in a string."""


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("", "onnxfuse.toml: lists no models"),
        ("[[model]\n", "onnxfuse.toml:1:8: Expected"),
        (f"{CRLF}[model.budget]\r\nnodes = -1\r\n", "onnxfuse.toml:6:9: nodes is -1"),
        (f'{CRLF}\r\n[[model]]\r\npath = "b.onnx"\r\nprovider = "gpu"', "onnxfuse.toml:8:12: provider is 'gpu'"),
        ("[[model]]\n", "onnxfuse.toml:1:1: [[model]] needs the key path"),
        (
            '[[model]]\npath = "a.onnx"\nrequire = { liner = 1 }\n',
            "onnxfuse.toml:3:21: require: 'liner' is not a rule",
        ),
        (
            '[[model]]\npath = "a.onnx"\nrequire = { linear = "=>2" }\n',
            "onnxfuse.toml:3:22: require: linear is '=>2', expected a number or a string",
        ),
        (f'[[model]]\npath = "a.onnx"\nrequire = {{ linear = "=={"9" * 5000}" }}\n', "expected a number or a string"),
        (
            '[[model]]\npath = "a.onnx"\nshape = { N = 1 }\n',
            "onnxfuse.toml:3:1: 'shape' is not a key of [[model]]. Did",
        ),
        ('[[model]]\npath = "a.onnx"\nshapes = { N = "x" }\n', "shapes: N is 'x', expected an integer"),
        ('[[model]]\npath = "a.onnx"\nshapes = { N = [] }\n', "shapes: N is [], expected an integer"),
        ('[[model]]\npath = "a.onnx"\nprovider = "gpu"\n', "provider is 'gpu', expected one of auto, cpu, cuda"),
        (
            '[[model]]\npath = "a.onnx"\nbudget = { nodes = -1 }\n',
            "onnxfuse.toml:3:20: nodes is -1, expected an integer from 0",
        ),
        ('[[model]]\npath = "a.onnx"\nbudget = { nodes = nan }\n', "nodes is nan, expected an integer"),
        ('[[model]]\npath = "a.onnx"\nbudget = { megabytes = inf }\n', "megabytes is inf, expected a number"),
        (f'[[model]]\npath = "a.onnx"\nbudget = {{ error = {"9" * 400} }}\n', "..., expected a number of at least 0"),
        ('[[model]]\npath = "a.onnx"\nverify = { seeds = inf }\n', "seeds is inf, expected an integer"),
        ('[[model]]\npath = "a.onnx"\nverify = { seeds = 99999999 }\n', "an integer from 1 to 10000"),
        ('[[model]]\npath = "a.onnx"\nskip = [["gemm"]]\n', "skip holds ['gemm'], expected a string"),
        ('[[model]]\npath = "a.onnx"\nrules = [1]\n', "rules holds 1, expected a string"),
        ("model = [1]\n", "model holds 1, expected a table"),
        ('[[model]]\npath = "a\\u0000"\n', "path is 'a\\x00', which holds a NUL character"),
        ('[[model]]\npath = "a.onnx"\noutput = "\\u0000"\n', "output is '\\x00', which holds a NUL character"),
        ('[[model]]\npath = "a.onnx"\nbudget = 3\n', "budget is 3, expected a table"),
        ('[[model]]\npath = "in.onnx"\nkeep_fp32 = ["Relu"]\n', "onnxfuse.toml:1:1: keep_fp32 goes with precision"),
        ('[[model]]\npath = "in.onnx"\ntolerance = 0.1\n', "onnxfuse.toml:1:1: tolerance goes with precision"),
        ('[[model]]\npath = "a.onnx"\n[[model]]\npath = "b/a.onnx"\n', "onnxfuse.toml:3:1: two models are called 'a'"),
        (
            'rules = ["nowhere"]\n[[model]]\npath = "a.onnx"\n',
            "onnxfuse.toml:1:9: model 'a': nowhere: no such folder of rules",
        ),
        ('[[model]]\npath = "a.onnx"\nrules = ["nowhere"]\n', "onnxfuse.toml:3:9: model 'a': nowhere: no such"),
    ],
)
def test_a_wrong_config_is_exit_2(folder: Path, onnxfuse_command: Command, config: str, told: str) -> None:
    """File, line, fact and expectation, before any model is read."""
    (folder / "onnxfuse.toml").write_text(config)
    result = onnxfuse_command("ci")
    assert (result.code, told in result.err) == (2, True), result.err
    assert len(result.err) < 500


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["elsewhere.toml"], "elsewhere.toml: no such file"),
        (["--update", "--locked"], "--update writes the whole lock file"),
        (["--locked"], "onnxfuse.lock: no such file, and --locked needs it"),
        (["--model", "big"], "has no model 'big'"),
    ],
)
def test_a_wrong_call_is_exit_2(repository: Path, onnxfuse_command: Command, arguments: list[str], told: str) -> None:
    """One message; nothing is written."""
    result = onnxfuse_command("ci", *arguments)
    assert (result.code, told in result.err) == (2, True), result.err
    assert not (repository / "out.onnx").exists()


ENTRY = '{"schema": 3, "rules": {}, "models": {"a": {"applied": {}, "exported": {}, "operators": {}, %s}}}'


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "[" * 100_000, '{"schema": 9}', '{"schema": 3, "rules": {}, "models": {"a": {}}}',
        '{"schema": 3, "rules": {"linear": 3}, "models": {}}', '{"schema": 3, "rules": [], "models": {}}',
        ENTRY % '"tolerances": {"y": "small"}', ENTRY % '"provider": 3', ENTRY % '"places": {"linear": "Add"}',
        ENTRY % '"applied": {"linear": true}', ENTRY % '"speed": 3', ENTRY % ('"tolerances": {"y": %s}' % ("9" * 400)),
    ],
)  # fmt: skip
def test_a_damaged_lock_is_exit_2(repository: Path, onnxfuse_command: Command, text: str) -> None:
    """It names the file and how to get it back: a new one would accept what regressed, and --update says so."""
    (repository / "onnxfuse.lock").write_text(text)
    result = onnxfuse_command("ci")
    assert result.code == 2
    assert "onnxfuse.lock" in result.err
    newer = "is of version 9" in result.err
    assert ("upgrade this one" if newer else "Restore it: git checkout -- onnxfuse.lock") in result.err
    result = onnxfuse_command("ci", "--update")
    assert (result.code, "onnxfuse.lock: is " in result.out) == (0, True)
    assert "so nothing was compared with it" in " ".join(result.out.split())
    assert "so nothing was compared" not in onnxfuse_command("ci", "--update").out


def test_a_pattern_holds_for_each_of_its_models(repository: Path, onnxfuse_command: Command) -> None:
    """Each is a model of its own, named by its path below the pattern; `output` is a folder, whose files are none."""
    (repository / "models" / "large").mkdir(parents=True)
    for name in ("models/a.onnx", "models/large/b.onnx"):
        (repository / name).write_bytes((repository / "in.onnx").read_bytes())
    table = '[[model]]\npath = "models/**/*.onnx"\noutput = "models/fused"\nverify = false\n'
    (repository / "onnxfuse.toml").write_text(table)
    assert onnxfuse_command("ci", "--update").code == 0
    assert sorted(json.loads((repository / "onnxfuse.lock").read_text())["models"]) == ["a", "large/b"]
    assert (repository / "models" / "fused" / "large" / "b.onnx").is_file()
    again = onnxfuse_command("ci", "--locked")
    assert again.out.startswith("ok: 2 of 2 models meet")
    assert "onnxfuse.toml:2:8: path is 'none/*.onnx', which matches no file" in told(
        repository, onnxfuse_command, table.replace("models/**", "none")
    )
    assert "name is for one model" in told(repository, onnxfuse_command, table + 'name = "x"\n')


def told(repository: Path, onnxfuse_command: Command, config: str) -> str:
    """Return what `ci` says of a configuration that it refuses."""
    (repository / "onnxfuse.toml").write_text(config)
    result = onnxfuse_command("ci")
    assert result.code == 2
    return result.err


@pytest.mark.parametrize(
    ("table", "fact"),
    [
        ('path = "*.onnx"\noutput = "."\n', "every file that it matches is in the folder output, '.'"),
        ('path = "in.onnx"\noutput = "in.onnx"\n', "output is 'in.onnx', which is the model itself"),
        (
            'path = "in.onnx"\n[[model]]\npath = "in.onnx"\n',
            'Give one of them another name: name = "other-in"',
        ),
    ],
)
def test_paths_that_cannot_work_say_why(repository: Path, onnxfuse_command: Command, table: str, fact: str) -> None:
    """And what would."""
    assert fact in told(repository, onnxfuse_command, f"[[model]]\n{table}")


def test_a_renamed_file_keeps_its_place_in_the_lock(repository: Path, onnxfuse_command: Command) -> None:
    """If its entry says so; the error of the missing file has how."""
    (repository / "onnxfuse.toml").write_text('[[model]]\npath = "in.onnx"\nverify = false\n')
    assert onnxfuse_command("ci", "--update").code == 0
    (repository / "in.onnx").rename(repository / "new.onnx")
    result = onnxfuse_command("ci")
    shown = " ".join(result.out.split())
    assert (result.code, 'if the file was renamed, change path, and add name = "in"' in shown) == (3, True), shown
    (repository / "onnxfuse.toml").write_text('[[model]]\npath = "new.onnx"\nname = "in"\nverify = false\n')
    assert onnxfuse_command("ci", "--locked").code == 0


def test_a_missing_device_names_the_key_of_the_file(
    repository: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ci has no option --provider."""

    def refuse(*_: Any, **__: Any) -> None:
        raise DeviceError("no CUDA", "Install it, or stay on the CPU: --provider cpu.")

    monkeypatch.setattr(ci, "verify", refuse)
    result = onnxfuse_command("ci")
    assert result.code == 5
    assert 'stay on the CPU: provider = "cpu" in onnxfuse.toml.' in " ".join(result.out.split())


def test_a_mistake_in_the_file_is_shown_at_its_line(
    repository: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In code scanning and in annotations, as a failed model is."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (repository / "onnxfuse.toml").write_text(CONFIG.replace("shapes", "shape"))
    result = onnxfuse_command("ci", "--sarif", "r.sarif")
    assert "::error file=onnxfuse.toml,line=5,title=onnxfuse ci%3A error::onnxfuse.toml:5:1: 'shape' is" in result.err
    (found,) = json.loads((repository / "r.sarif").read_text())["runs"][0]["results"]
    place = found["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "onnxfuse.toml"}, "region": {"startLine": 5}}


def test_the_tables_may_stand_in_pyproject(repository: Path, onnxfuse_command: Command) -> None:
    """Below [tool.onnxfuse]; the lock is onnxfuse.lock, lines are those of the file, and onnxfuse.toml goes first."""
    (repository / "onnxfuse.toml").unlink()
    project = '[project]\nname = "x"\n\n[[tool.onnxfuse.model]]\npath = "in.onnx"\nverify = false\n'
    (repository / "pyproject.toml").write_text(project)
    result = onnxfuse_command("ci", "--update")
    assert result.out.startswith("ok: 1 of 1 model meets pyproject.toml")
    assert (repository / "onnxfuse.lock").is_file()
    (repository / "pyproject.toml").write_text(project + 'shape = "x"\n')
    assert "pyproject.toml:7:1: 'shape' is not a key of [[model]]" in onnxfuse_command("ci").err
    (repository / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert "onnxfuse.toml: no such file" in onnxfuse_command("ci").err
    assert "has no table [tool.onnxfuse]" in onnxfuse_command("ci", "pyproject.toml").err


def test_code_scanning_and_a_badge_get_their_files(repository: Path, onnxfuse_command: Command) -> None:
    """SARIF has a result at the model's line for each failure, the badge the verdict; without failures both say so."""
    assert onnxfuse_command("ci", "--sarif", "a.sarif", "--badge", "a.svg").code == 0
    assert json.loads((repository / "a.sarif").read_text())["runs"][0]["results"] == []
    assert ElementTree.parse(repository / "a.svg").getroot().get("aria-label") == "onnxfuse: 1 of 1 model passes"
    (repository / "onnxfuse.toml").write_text("\n\n" + CONFIG.replace("nodes = 5", "nodes = 1"))
    assert onnxfuse_command("ci", "--sarif", "b.sarif", "--badge", "b.svg").code == 4
    (run,) = json.loads((repository / "b.sarif").read_text())["runs"]
    (result,) = run["results"]
    assert result["message"]["text"] == "small: nodes<=1: 4 nodes"
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "onnxfuse.toml"}, "region": {"startLine": 3}}
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [result["ruleId"]] == ["nodes"]
    label = ElementTree.parse(repository / "b.svg").getroot().get("aria-label")
    assert label == "onnxfuse: 0 of 1 model passes"
    (repository / "onnxfuse.toml").write_text("[[model]\n")
    assert onnxfuse_command("ci", "--sarif", "c.sarif", "--badge", "c.svg").code == 2
    assert "onnxfuse: error" in (repository / "c.svg").read_text()
    assert json.loads((repository / "c.sarif").read_text())["runs"][0]["results"][0]["ruleId"] == "error"


@pytest.mark.parametrize(
    ("value", "word"),
    [("float16", "float16"), ("in.onnx", "in.onnx"), ("==5 ", "==5"), ("bfloat16  # why", "bfloat16")],
)
def test_text_without_quotes_is_named(folder: Path, onnxfuse_command: Command, value: str, word: str) -> None:
    """With what to write; a value that is no text is not."""
    (folder / "onnxfuse.toml").write_text(f'[[model]]\npath = "in.onnx"\nprecision = {value}\n')
    assert f'onnxfuse.toml:3:13: Invalid value: {word} needs quotes: "{word}"' in onnxfuse_command("ci").err
    (folder / "onnxfuse.toml").write_text('[[model]]\npath = "in.onnx"\nprecision = }\n')
    assert "needs quotes" not in onnxfuse_command("ci").err


def test_a_file_after_json_is_no_configuration(repository: Path, onnxfuse_command: Command) -> None:
    """The hint has the call that writes it, whichever command takes the name for something else."""
    for call in (["ci"], ["verify", "in.onnx", "in.onnx"]):
        done = onnxfuse_command(*call, "--json", "facts.json")
        hint = json.loads(done.out)["hint"]
        assert done.code == 2
        assert (
            hint == f"--json takes no file, it prints to standard output: onnxfuse {' '.join(call)} --json > facts.json"
        )
