"""Rule packs: rules of installed packages, found by their entry points, with their versions."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from onnxfuse.contract import lock as lock_file
from onnxfuse.contract.lock import Lock
from onnxfuse.rules.language import order, pack, rule_file
from onnxfuse.support.errors import ModelError, RuleError
from tests.cli.conftest import Command
from tests.cli.conftest import onnxfuse_command as onnxfuse_command

MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x, float[N,4] z) => (float[N,4] y) {
  [r] r = Relu (x) [t] t = Tanh (r) [s] s = Softsign (t) [a] y = Add (s, z) }"""

RULE = """summary = "x."
[[rewrite]]
from = "(x) => (y) { y = Relu (x) }"
to = "(x) => (y) { zero = Constant <value = float {0.0}> () y = Max (x, zero) }"
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """What installs a package with rules, as pip leaves it; a model in.onnx is in the folder at hand."""
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL), "in.onnx")

    def installed(name: str = "acme-rules", version: str = "1.2", rule: str = "acme_relu", module: str = "") -> Path:
        site = tmp_path / f"site-{name}"
        folder = site / name.replace("-", "_")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("")
        (folder / f"{rule}.toml").write_text(RULE)
        for old in site.glob("*.dist-info"):
            old.rename(tmp_path / f"gone-{old.name}")
        facts = site / f"{folder.name}-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (facts / "entry_points.txt").write_text(f"[onnxfuse.rules]\n{name} = {module or folder.name}\n")
        monkeypatch.syspath_prepend(site)
        return folder

    return installed


def test_a_pack_applies_is_listed_and_is_recorded(install: Install, onnxfuse_command: Command) -> None:
    """In the list with its version, in the file that it changed, and not in one that it did not."""
    install()
    (line,) = [one for one in onnxfuse_command("rules").out.splitlines() if one.startswith("acme_relu")]
    assert "of acme-rules 1.2" in line
    facts = json.loads(onnxfuse_command("rules", "acme_relu", "--json").out)["rules"]
    assert [f["pack"] for f in facts] == ["acme-rules 1.2"]
    done = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--require", "acme_relu")
    assert done.code == 0, done.err
    made = onnx.load("out.onnx")
    assert pack.recorded(made) == {"acme-rules": "1.2"}
    assert onnxfuse_command("optimize", "in.onnx", "without.onnx", "--skip", "acme_relu").code == 0
    assert pack.recorded(onnx.load("without.onnx")) == {}
    assert onnxfuse_command("optimize", "out.onnx", "twice.onnx").code == 0
    assert Path("twice.onnx").read_bytes() == Path("out.onnx").read_bytes()
    made.metadata_props.add(key=pack.METADATA, value="{}")
    made.metadata_props[0].value = "[1]"
    with pytest.raises(ModelError, match="not as onnxfuse writes it"):
        pack.recorded(made)


def test_the_lock_has_the_version_and_tells_another(install: Install, onnxfuse_command: Command) -> None:
    """A rule that changed, or a pack that did, is a difference to the lock."""
    install()
    Path("onnxfuse.toml").write_text('[[model]]\npath = "in.onnx"\noutput = "out.onnx"\nverify = {seeds = 1}\n')
    done = onnxfuse_command("ci", "--update", "--no-bench")
    assert done.code == 0, (done.out, done.err)
    lock = json.loads(Path("onnxfuse.lock").read_text())
    assert lock["packs"] == {"acme-rules": "1.2"}
    assert "acme_relu" in lock["rules"]
    read = lock_file.read_lock(Path("onnxfuse.lock"))
    assert read is not None
    later = Lock(read.rules, read.models, {"acme-rules": "1.3"})
    assert [str(c) for c in lock_file.compare(read, later)] == ["rule pack acme-rules: 1.2 -> 1.3"]
    install(version="1.3")
    assert "rule pack acme-rules: 1.2 -> 1.3" in onnxfuse_command("ci", "--no-bench").out


def test_packs_go_after_ones_own_and_before_shipped_rules(install: Install, tmp_path: Path) -> None:
    """A rule of one's own with the name of a pack's takes its place."""
    install()
    own = tmp_path / "mine"
    own.mkdir()
    (own / "zz.toml").write_text(RULE)
    names = [r.name for r in order.rewriting(pack.select([own])) if r.rewrites]
    assert names[:2] == ["zz", "acme_relu"]
    (own / "zz.toml").rename(own / "acme_relu.toml")
    (one,) = [r for r in pack.select([own]) if r.name == "acme_relu"]
    assert (one.pack, one.path.parent) == ("", own)


def test_names_that_clash_are_told_with_both(install: Install, onnxfuse_command: Command) -> None:
    """Two packs with one rule; a pack with a shipped rule's name."""
    folder = install()
    install("other-rules", "0.1")
    with pytest.raises(RuleError, match=r"a rule 'acme_relu', and so has acme-rules 1\.2"):
        pack.rules()
    for one in folder.glob("*.toml"):
        one.rename(folder / "softmax.toml")
    done = onnxfuse_command("optimize", "in.onnx", "out.onnx")
    assert done.code == 2
    assert "the rule pack of acme-rules 1.2 has a rule 'softmax', and so has onnxfuse" in done.err


@pytest.mark.parametrize("module", ["acme_nowhere", "acme_rules.nowhere", "no.such.thing"])
def test_a_pack_without_its_package_is_named(module: str, install: Install, onnxfuse_command: Command) -> None:
    """Exit 2: which pack of which package, what there is not, what to do."""
    install(module=module)
    done = onnxfuse_command("rules")
    assert done.code == 2
    assert f"the rule pack 'acme-rules' of acme-rules 1.2: there is no package '{module}'" in done.err
    assert "uninstall acme-rules" in done.err


def test_without_packs_rules_are_those_that_come_with_onnxfuse() -> None:
    """Nothing is looked for but entry points."""
    assert pack.select() == rule_file.select()
