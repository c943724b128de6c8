"""Which of two rules that want the same nodes goes first; and that `explain` says so."""

import json
import time
from pathlib import Path

import onnx
import pytest

from onnxfuse.rules.language import order, rule_file
from tests.cli.conftest import Command
from tests.cli.conftest import onnxfuse_command as onnxfuse_command

MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x, float[N,4] z) => (float[N,4] y) {
  [r] r = Relu (x) [t] t = Tanh (r) [s] s = Softsign (t) [a] y = Add (s, z) }"""


def rewrite(source: str, target: str, priority: int = 0) -> str:
    """Return a rule file with one rewrite of a value."""
    body = f'from = "(x) => (y) {{ {source} }}"\nto = "(x) => (y) {{ {target} }}"'
    return f'summary = "x."\npriority = {priority}\n[[rewrite]]\n{body}\n'


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for rules, beside the model in.onnx."""
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL), "in.onnx")
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def _applied(run: Command, *options: str) -> dict[str, int]:
    done = run("optimize", "in.onnx", "out.onnx", "--rules", "mine", "--json", *options)
    assert done.code == 0, done.err
    counts: dict[str, int] = json.loads(done.out)["rules"]
    return counts


@pytest.mark.parametrize(("first", "second"), [("a", "z"), ("z", "a")])
def test_priority_decides_and_no_name_of_a_file(first: str, second: str, mine: Path, onnxfuse_command: Command) -> None:
    """The same two rules under two names each: what is made is the same."""
    (mine / f"{first}.toml").write_text(rewrite("y = Tanh (x)", "y = Sigmoid (x)", 1))
    (mine / f"{second}.toml").write_text(rewrite("y = Tanh (x)", "y = Erf (x)"))
    assert set(_applied(onnxfuse_command)) >= {first}
    assert second not in _applied(onnxfuse_command)
    (mine / f"{first}.toml").write_text(rewrite("y = Tanh (x)", "y = Sigmoid (x)", -1))
    assert second in _applied(onnxfuse_command)


@pytest.mark.parametrize("names", [("a", "z"), ("z", "a")])
def test_the_longer_pattern_goes_first(names: tuple[str, str], mine: Path, onnxfuse_command: Command) -> None:
    """Of rules alike in priority."""
    longer, shorter = names
    (mine / f"{longer}.toml").write_text(rewrite("r = Relu (x) y = Tanh (r)", "y = Sigmoid (x)"))
    (mine / f"{shorter}.toml").write_text(rewrite("y = Tanh (x)", "y = Erf (x)"))
    assert longer in _applied(onnxfuse_command)
    assert shorter not in _applied(onnxfuse_command)


def test_rules_of_ones_own_go_before_shipped_ones(mine: Path, onnxfuse_command: Command) -> None:
    """Also where the shipped one's template goes before; one with a shipped name keeps that one's place."""
    (mine / "zz.toml").write_text('summary = "x."\n[fuse]\nanchor = "pointwise"\ntemplate = "pointwise"\nleast = 2\n')
    assert _applied(onnxfuse_command) == {"zz": 1}
    rules = rule_file.select([mine])
    assert order.fusing(rules)[0][0].name == "zz"
    (mine / "zz.toml").rename(mine / "pointwise.toml")
    names = [one.name for one, _ in order.fusing(rule_file.select([mine]))]
    assert (
        names
        == [one.name for one, _ in order.fusing(rule_file.shipped())][: names.index("pointwise")]
        + names[names.index("pointwise") :]
    )
    assert names[0] != "pointwise"


def test_the_order_of_shipped_rules_is_that_of_no_listing() -> None:
    """Given backwards they go as ever."""
    rules = rule_file.shipped()
    rewriting = [one for one in rules if one.rewrites]
    assert order.rewriting(rewriting[::-1]) == order.rewriting(rewriting)
    assert order.fusing(rules[::-1]) == order.fusing(rules)


def test_explain_says_which_rule_was_first_and_what_to_do(mine: Path, onnxfuse_command: Command) -> None:
    """Of a rule that matches alone and among the others does not: who took the nodes, why, and the next step."""
    (mine / "a.toml").write_text(rewrite("y = Tanh (x)", "y = Erf (x)"))
    (mine / "b.toml").write_text(rewrite("y = Tanh (x)", "y = Sigmoid (x)", 2))
    anchor = "[fuse]\ntemplate = 'pointwise'\n[[fuse.anchor]]\npattern = '(x) => (y) { r = Relu (x) y = Tanh (r) }'\n"
    (mine / "c.toml").write_text(f'summary = "x."\n{anchor}')
    told = json.loads(onnxfuse_command("explain", "in.onnx", "--rules", "mine", "--json").out)["outdone"]
    assert [(o["rule"], o["by"], o["nodes"][:2]) for o in told] == [
        ("a", "b", ["Tanh t"]),
        ("c", "b", ["Relu r", "Tanh t"]),
    ]
    assert told[0]["why"] == ("b was first: its priority is 2, that of a 0; priority = 3 in a.toml lets a go first")
    assert told[1]["why"] == "b was first: rewrites go before fusions; --skip b leaves it out"
    out = onnxfuse_command("explain", "in.onnx", "--rules", "mine", "--at", "t").out
    assert "b was first" in out
    assert "lost" not in onnxfuse_command("explain", "in.onnx", "--rules", "mine", "--at", "a").out.splitlines()[0]


def test_a_rewrite_that_feeds_itself_is_stopped_in_a_second(mine: Path, onnxfuse_command: Command) -> None:
    """With its name, before the graph is large; exit 2."""
    (mine / "twice.toml").write_text(rewrite("y = Relu (x)", "a = Relu (x) y = Relu (a)"))
    begun = time.process_time()
    done = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--rules", "mine")
    assert time.process_time() - begun < 2
    assert done.code == 2
    assert "the rule 'twice' feeds itself" in done.err


@pytest.mark.parametrize(
    ("target", "becomes"),
    [
        ("y = Not (x)", "bool[N,4]"),
        ("y = ReduceMax (x)", "float[1,1]"),
        ("y = Shape (x)", "int64[2]"),
        ("c = Constant <value_ints = [0,2,2]> () y = Reshape (x, c)", "float[N,2,2]"),
    ],
)
def test_a_rewrite_that_writes_something_else_is_named(
    target: str, becomes: str, mine: Path, onnxfuse_command: Command
) -> None:
    """Another type, extent or rank than was there: the file, the value, both types; exit 2."""
    (mine / "wrong.toml").write_text(rewrite("y = Tanh (x)", target))
    for command in (["optimize", "in.onnx", "out.onnx"], ["explain", "in.onnx"]):
        done = onnxfuse_command(*command, "--rules", "mine")
        assert done.code == 2
        assert "mine/wrong.toml: the rule 'wrong' changes the type of 't' (Tanh t)" in done.err
        assert f"float[N,4] would become {becomes}" in done.err
