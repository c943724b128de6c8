"""`--json`, `--report`, `--junit`, `--markdown` and GitHub's annotations, through the real command."""

import json
import re
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import onnx
import pytest

import onnxfuse
from onnxfuse.cli.base.console import SCHEMA
from onnxfuse.passes import pipeline
from onnxfuse.support.errors import ModelError
from tests.cli.conftest import MODEL, Command
from tests.fuzz import kills

FORM = json.loads((resources.files("onnxfuse.reporting") / "schema.json").read_text())
CALLS = {
    "optimize": ["optimize", "in.onnx", "out.onnx"],
    "optimize, not met": ["optimize", "in.onnx", "out.onnx", "--require", "softmax"],
    "optimize, dumped": ["optimize", "in.onnx", "out.onnx", "--dump", "d"],
    "optimize, several": ["optimize", "in.onnx", "fused.onnx", "-o", "d"],
    "optimize, frozen": ["optimize", "in.onnx", "out.onnx", "--shape", "N=4"],
    "compile": ["compile", "fused.onnx", "--arch", "sm_80", "--shape", "N=4"],
    "compile, no such dimension": ["compile", "fused.onnx", "--shape", "M=4"],
    "export-library": ["export-library", "fused.onnx", "m", "--arch", "sm_80", "--shape", "N=4", "--no-ptx"],
    "optimize, compiled": ["optimize", "in.onnx", "out.onnx", "--compile", "--arch", "sm_80", "--shape", "N=4"],
    "verify": ["verify", "in.onnx", "fused.onnx", "--provider", "cpu"],
    "verify, mismatch": ["verify", "in.onnx", "other.onnx", "--provider", "cpu"],
    "bench": ["bench", "in.onnx", "fused.onnx", "--provider", "cpu", "--runs", "2", "--rounds", "1"],
    "profile": ["profile", "in.onnx", "fused.onnx", "--provider", "cpu", "--runs", "1"],
    "profile, counted": ["profile", "in.onnx", "--alone", "--no-time"],
    "profile, missing file": ["profile", "nowhere.onnx"],
    "explain": ["explain", "in.onnx"],
    "inspect": ["inspect", "fused.onnx"],
    "explain, one node": ["explain", "in.onnx", "--at", "norm"],
    "rules": ["rules"],
    "rules, predicates": ["rules", "--predicates"],
    "ci": ["ci"],
    "ci, missing model": ["ci", "bad.toml"],
    "doctor": ["doctor", "--provider", "cpu"],
    "missing file": ["verify", "in.onnx", "nowhere.onnx"],
    "usage": ["optimize", "in.onnx"],
}


@pytest.fixture
def models(folder: Path, onnxfuse_command: Command) -> Path:
    """The model, its fused form, one that computes something else, and two contracts."""
    onnxfuse_command("optimize", "in.onnx", "fused.onnx")
    onnx.save(onnx.parser.parse_model(MODEL.replace("Relu (h)", "Tanh (h)")), folder / "other.onnx")
    (folder / "onnxfuse.toml").write_text('[[model]]\npath = "in.onnx"\nprovider = "cpu"\n')
    (folder / "bad.toml").write_text('[[model]]\npath = "nowhere.onnx"\n')
    return folder


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("call", CALLS)
def test_json_has_the_documented_form(onnxfuse_command: Command, call: str) -> None:
    """onnxfuse/reporting/schema.json holds for what every command prints, errors included; nothing else is printed."""
    facts = json.loads(onnxfuse_command(*CALLS[call], "--json").out)
    assert facts["schema"] == SCHEMA == FORM["properties"]["schema"]["const"]
    assert facts["command"] == CALLS[call][0]
    jsonschema.Draft202012Validator(FORM).validate(facts)


def test_the_form_refuses_what_lacks_a_fact() -> None:
    """The schema is one that can fail."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(FORM).validate({"schema": 1, "command": "optimize", "ok": True})


@pytest.mark.parametrize(
    ("call", "tests", "failures"),
    [("optimize", 1, 0), ("optimize, not met", 2, 1), ("verify", 2, 0), ("verify, mismatch", 1, 1), ("bench", 1, 0),
     ("profile", 1, 0), ("profile, missing file", 1, 1), ("ci", 5, 0), ("ci, missing model", 2, 1),
     ("missing file", 1, 1)],
)  # fmt: skip
def test_junit_counts_each_promise(
    models: Path, onnxfuse_command: Command, call: str, tests: int, failures: int
) -> None:
    """A case per check, also a skipped one; a failure for each that did not hold, or if the command could not run."""
    onnxfuse_command(*CALLS[call], "--junit", "junit.xml")
    root = ElementTree.parse(models / "junit.xml").getroot()
    assert (root.tag, root.get("tests"), root.get("failures")) == ("testsuites", str(tests), str(failures))
    assert len(root.findall(".//testcase")) == tests
    assert len(root.findall(".//failure")) == failures


@pytest.mark.parametrize("call", ["optimize", "verify", "verify, mismatch", "bench", "profile", "ci", "missing file"])
def test_markdown_is_added_to_the_file(models: Path, onnxfuse_command: Command, call: str) -> None:
    """Several commands share a step summary; the verdict is its own heading."""
    (models / "summary.md").write_text("# before\n")
    code = onnxfuse_command(*CALLS[call], "--markdown", "summary.md").code
    text = (models / "summary.md").read_text()
    assert text.startswith("# before\n## ")
    assert ("✅" in text, "❌" in text) == (code == 0, code != 0)
    assert len(text) < 2**20


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("optimize, not met", "::error title=onnxfuse optimize%3A require softmax>=1::softmax>=1: applied 0 times"),
        ("verify, mismatch", "::error title=onnxfuse verify%3A output y::"),
        (
            "ci, missing model",
            "::error file=bad.toml,line=1,title=onnxfuse nowhere%3A model::nowhere.onnx: no such",
        ),
        ("missing file", "::error title=onnxfuse verify%3A error::nowhere.onnx: no such file"),
    ],
)
@pytest.mark.usefixtures("models")
def test_annotations_only_on_githubs_machines(
    onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch, call: str, told: str
) -> None:
    """On standard error, so that --json stays JSON; nowhere else."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert "::error" not in onnxfuse_command(*CALLS[call]).err
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = onnxfuse_command(*CALLS[call], "--json")
    assert told in result.err
    assert json.loads(result.out)["ok"] is False


@pytest.mark.parametrize(
    "call", ["optimize", "verify", "verify, mismatch", "bench", "profile", "profile, counted", "ci"]
)
def test_the_report_is_one_page_with_everything(models: Path, onnxfuse_command: Command, call: str) -> None:
    """Verdict, graphs, environment; no address of another file in it."""
    code = onnxfuse_command(*CALLS[call], "--report", "report.html").code
    text = (models / "report.html").read_text()
    assert text.startswith("<!doctype html>")
    assert f"<title>onnxfuse {CALLS[call][0]}: {'failed' if code else 'ok'}</title>" in text
    for words in ("LayerNormalization", "Environment", "onnxruntime-gpu"):
        assert words in text
    for link in ("src=", "@import", "url(", "<link", 'href="http'):
        assert link not in text


def test_the_graph_of_a_report_has_what_nodes_cost(models: Path, onnxfuse_command: Command) -> None:
    """Bytes by estimate in every report, times in that of a profile that ran."""
    for call, key in (("optimize", '"reads":'), ("profile", '"us":'), ("profile, counted", '"launches":')):
        onnxfuse_command(*CALLS[call], "--report", "report.html")
        assert key in (models / "report.html").read_text()


def test_the_report_of_a_profile_has_bytes_times_and_both_graphs(models: Path, onnxfuse_command: Command) -> None:
    """The rows that the command prints, whether it was given the fused model or made it; counted alone, no times."""
    wide = ("--shape", "N=64", "--report", "report.html", "--markdown", "summary.md")
    for call in (CALLS["profile"], ["profile", "in.onnx", "--provider", "cpu", "--runs", "1"]):
        assert onnxfuse_command(*call, *wide).code == 0
        text = (models / "report.html").read_text()
        assert "device memory per run at N=64: 9.81 kB" in text
        assert [h for h in re.findall("<h2>(.*?)</h2>", text) if h != "Verdict"] == [
            "Graph", "Rules applied", "Device memory", "Times", "Environment",
        ]  # fmt: skip
        assert 'data-side="after"' in text
    summary = (models / "summary.md").read_text()
    assert summary.count("### Device memory") == summary.count("### Times before") == 2
    assert "| 2 | MatMul |  | 0.003 | 0.003 | 0.00 |" in summary
    onnxfuse_command(*CALLS["profile, counted"], "--report", "report.html")
    assert "<h2>Times" not in (models / "report.html").read_text()


@pytest.mark.parametrize("option", ["--report", "--junit", "--markdown"])
@pytest.mark.parametrize("call", ["optimize", "verify", "bench", "profile", "ci"])
def test_a_report_that_cannot_be_written_is_exit_2(
    models: Path, onnxfuse_command: Command, call: str, option: str
) -> None:
    """Told before the work starts; no model is written either."""
    for target, told in (("nowhere/file", "the folder nowhere does not exist"), (".", "is a directory")):
        result = onnxfuse_command(*CALLS[call], option, target)
        assert result.code == 2
        assert told in result.err
    assert not (models / "out.onnx").exists()


def test_options_that_exclude_each_other_are_told_in_the_reports(folder: Path, onnxfuse_command: Command) -> None:
    """A pipeline looks there for what went wrong, whoever noticed it."""
    wrong = ("optimize", "in.onnx", "out.onnx", "--undo", "--guard", "--junit", "r.xml")
    assert onnxfuse_command(*wrong).code == 2
    assert "--undo cannot be combined with any of --only" in (folder / "r.xml").read_text()


# ---- outputs are there as a whole, and in their place


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("option", ["--report", "--junit", "--markdown"])
def test_no_output_is_left_where_a_report_cannot_be_written(
    folder: Path, onnxfuse_command: Command, option: str
) -> None:
    """After 3 an old output is as it was, and a new one is not there."""
    call = ("optimize", "in.onnx", "out.onnx", option, "/dev/full")
    assert onnxfuse_command(*call).code == 3
    assert [p.name for p in folder.iterdir()] == ["in.onnx"]
    (folder / "out.onnx").write_bytes(b"the old one")
    assert onnxfuse_command(*call).code == 3
    assert (folder / "out.onnx").read_bytes() == b"the old one"
    (folder / "onnxfuse.toml").write_text('[[model]]\npath = "in.onnx"\noutput = "ci.onnx"\nverify = false\n')
    assert onnxfuse_command("ci", "--update", option, "/dev/full").code == 3
    assert sorted(p.name for p in folder.iterdir()) == ["in.onnx", "onnxfuse.toml", "out.onnx"]


REPORTS = ("--report", "r.html", "--junit", "r.xml", "--markdown", "r.md")


@pytest.mark.parametrize("last", [4, 2, 0])
@pytest.mark.parametrize(
    "call",
    [
        ("optimize", "in.onnx", "out.onnx", "--dump", "deep/dump", "--arch", "sm_90a"),
        ("profile", "in.onnx", "--provider", "cpu", "--trace", "trace.json"),
        ("verify", "in.onnx", "in.onnx", "--provider", "cpu"),
        ("ci", "--update"),
    ],
)
def test_nothing_takes_its_place_before_everything_can(
    folder: Path, onnxfuse_command: Command, call: tuple[str, ...], last: int
) -> None:
    """Whichever report cannot be written: no page, dump, trace or lock is left; the others tell that, or stay."""
    (folder / "onnxfuse.toml").write_text('[[model]]\npath = "in.onnx"\noutput = "ci.onnx"\nverify = false\n')
    for old in ("r.md", "r.xml"):
        (folder / old).write_text("old\n")
    before = sorted(p.name for p in folder.iterdir())
    reports = list(REPORTS)
    reports[last + 1] = "/dev/full"
    assert onnxfuse_command(*call, *reports).code == 3
    assert sorted(p.name for p in folder.iterdir()) == before
    for text in ((folder / "r.md").read_text().removeprefix("old\n"), (folder / "r.xml").read_text()):
        assert text in ("", "old\n") or "/dev/full: cannot be written" in text
    assert onnxfuse_command(*call, *REPORTS).code == 0
    assert (folder / "r.md").read_text().startswith("old\n")
    assert (folder / "r.xml").read_text() != "old\n"
    assert (folder / "deep" / "dump" / "index.json").exists() == (call[0] == "optimize")


def test_a_dump_that_fails_leaves_the_folder_as_it_was(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was there is there, and empty."""

    def fail(*_: object) -> None:
        raise ModelError("the disk is full")

    monkeypatch.setattr("onnxfuse.api.optimize.dumping.dump", fail)
    (folder / "there").mkdir()
    for place in ("there", "a/b"):
        assert onnxfuse_command("optimize", "in.onnx", "out.onnx", "--dump", place, "--arch", "sm_90a").code == 3
    assert sorted(p.name for p in folder.rglob("*")) == ["in.onnx", "there"]


def test_a_name_that_is_too_long_is_told_before_the_work(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made for it."""
    monkeypatch.setattr(pipeline, "run", lambda *_, **__: pytest.fail("it was made"))
    for call, code in (((), 3), (("out.onnx", "--report"), 2)):
        done = onnxfuse_command("optimize", "in.onnx", *call, "x" * 256)
        assert (done.code, "File name too long" in done.err) == (code, True), done.err


@pytest.mark.parametrize("option", ["--report", "--junit", "--markdown"])
def test_a_report_takes_no_other_files_place(folder: Path, onnxfuse_command: Command, option: str) -> None:
    """Neither that of a model, by any of its names, nor that of another output; devices take any number."""
    (folder / "link.onnx").symlink_to("in.onnx")
    (folder / "hard.onnx").hardlink_to(folder / "in.onnx")
    before = (folder / "in.onnx").read_bytes()
    for target in ("in.onnx", "./in.onnx", "link.onnx", "hard.onnx", "out.onnx"):
        done = onnxfuse_command("optimize", "in.onnx", "out.onnx", option, target)
        assert done.code == 2
        assert f"{option} {Path(target)}: is named twice, and would be overwritten" in done.err
        assert (folder / "in.onnx").read_bytes() == before
        assert not (folder / "out.onnx").exists()
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx", "--report", "r", "--junit", "r").code == 2
    assert onnxfuse_command("optimize", "in.onnx", "/dev/null", option, "/dev/null").code == 0


def test_an_output_of_ci_takes_no_other_files_place(folder: Path, onnxfuse_command: Command) -> None:
    """It would be the model itself, the configuration, its lock, or another model's output."""
    before = (folder / "in.onnx").read_bytes()
    one = '[[model]]\nname = "{}"\npath = "in.onnx"\noutput = "{}"\nverify = false\n'
    for text in (
        one.format("a", "in.onnx"), one.format("a", "onnxfuse.toml"), one.format("a", "onnxfuse.lock"),
        one.format("a", "o.onnx") + one.format("b", "./o.onnx"),
    ):  # fmt: skip
        (folder / "onnxfuse.toml").write_text(text)
        done = onnxfuse_command("ci")
        assert done.code == 2
        taken = "the model itself" if '"in.onnx"\nverify' in text else "already the path of another file"
        assert f"which is {taken}" in done.err
        assert (folder / "in.onnx").read_bytes() == before
        assert (folder / "onnxfuse.toml").read_text() == text


def test_the_outputs_of_ci_stay_in_its_folder(folder: Path, onnxfuse_command: Command) -> None:
    """Neither `..` nor a link leads out."""
    (folder / "inner").mkdir()
    (folder / "inner" / "link").symlink_to("..")
    for output in ("../out.onnx", "link/out.onnx", "/tmp/out.onnx"):
        text = f'[[model]]\npath = "../in.onnx"\noutput = "{output}"\nverify = false\n'
        (folder / "inner" / "onnxfuse.toml").write_text(text)
        done = onnxfuse_command("ci", "inner/onnxfuse.toml")
        assert done.code == 2
        assert "which is outside" in done.err
    assert not (folder / "out.onnx").exists()


def test_a_dump_stays_in_its_folder(folder: Path, onnxfuse_command: Command) -> None:
    """Rule and op are names from the file: they make no path."""
    odd = onnxfuse.optimize(folder / "in.onnx")
    for function in odd.functions:
        for fact in function.metadata_props:
            if fact.key == "onnxfuse.rule":
                fact.value = "../../../../evil/" + "x" * 300
    for node in odd.graph.node:
        node.name = "../../" + node.name
    onnx.save(odd, folder / "odd.onnx")
    before = {p.name for p in folder.iterdir()}
    assert onnxfuse_command("optimize", "odd.onnx", "out.onnx", "--dump", "a/b/dump").code == 0
    assert {p.name for p in folder.iterdir()} - before == {"a", "out.onnx"}
    assert [p.name for p in (folder / "a").iterdir()] == ["b"]
    assert [p.name for p in (folder / "a" / "b").iterdir()] == ["dump"]
    assert len(list((folder / "a" / "b" / "dump" / "ops").iterdir())) == len(odd.functions)


def test_a_cache_of_a_model_hub_is_read_when_asked(folder: Path, onnxfuse_command: Command) -> None:
    """--follow-links, for every command; it holds for one call."""
    onnx.save(kills.model(1), folder / "hub.onnx", save_as_external_data=True, location="hub.data", size_threshold=0)
    (folder / "inner").mkdir()
    (folder / "hub.onnx").rename(folder / "inner" / "hub.onnx")
    (folder / "inner" / "hub.data").symlink_to("../hub.data")
    for call in (("optimize", "inner/hub.onnx", "out.onnx"), ("explain", "inner/hub.onnx")):
        refused = onnxfuse_command(*call)
        assert refused.code == 3
        assert "--follow-links" in refused.err
        assert onnxfuse_command(*call, "--follow-links").code == 0
