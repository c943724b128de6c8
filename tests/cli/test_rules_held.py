"""`onnxfuse rules --test`: a rule that breaks a promise of its file is exit 1, with what differs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse.api.run import running
from onnxfuse.authoring import testing
from onnxfuse.options.groups import CPU, CUDA
from onnxfuse.verification import VerifyReport
from tests.cli.conftest import Command

FROM = '''[[rewrite]]
from = """(x) => (y) {
  three = Constant <value = float {3.0}> () a = Add (x, three)
  low = Constant <value = float {0.0}> () high = Constant <value = float {6.0}> () c = Clip (a, low, high)
  m = Mul (x, c) six = Constant <value = float {6.0}> () y = Div (m, six)
}"""
'''
MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y)
<float k = {3}, float zero = {0}, float six = {%d}> {
  a = Add (k, x) c = Clip (a, zero, six) m = Mul (c, x) y = Div (m, six) }"""

WITHOUT = MODEL.replace("<float k", "<float[4] w, float k").replace("(c, x)", "(c, w)")
"""A weight is declared, and has no numbers."""


def rule(to: str = "y = HardSwish (x)", *examples: str) -> str:
    """Return a rule file that writes `to` in the place of HardSwish spelled out."""
    return "\n".join(['summary = "HardSwish."', FROM, f'to = "(x) => (y) {{ {to} }}"', *examples])


def example(says: str, top: int = 6, model: str = MODEL) -> str:
    """Return an example of the rule, at whose end stands what it promises."""
    return f"[[example]]\nmodel = '''{model % top if '%d' in model else model}'''\n{says}"


RIGHT = example('after = ["HardSwish"]')

WRONG = {
    "numbers": (
        rule("y = HardSigmoid (x)", example('after = ["HardSigmoid"]')),
        ["wrong values in float32, as plain nodes: not the same", "y = Div (m, six)", "y = HardSigmoid (x)"],
    ),
    "after": (
        rule("y = HardSwish (x)", example('after = ["Relu"]')),
        ["the result is not what `after` says", "- Relu", "+ HardSwish"],
    ),
    "why not": (
        rule("y = HardSwish (x)", example('after = ["HardSwish"]', 5)),
        ["- HardSwish", "why: mine at Div y: stopped at c: has the constant 5, the rule wants 6"],
    ),
    "nowhere": (
        rule("y = HardSwish (x)", example('after = ["HardSwish"]', model=MODEL.replace("Div (m", "Sub (m"))),
        ["+ Sub", "why: no rule matched any node"],
    ),
    "applies": (
        rule("y = HardSwish (x)", RIGHT, example('refusal = "graph output"')),
        ["example 2", "the rule applies, though `refusal` says 'graph output'", "+ y = HardSwish (x)"],
    ),
    "another reason": (
        rule("y = HardSwish (x)", RIGHT, example('refusal = "graph output"', 5)),
        ["it is refused for another reason", "- graph output", "+ c: has the constant 5, the rule wants 6"],
    ),
    "no model": (
        rule("y = HardSwish (x)", example('after = ["Relu"]', model="g (float[4] x) => (float[4] y { y = Relu (x) }")),
        ["[[example]]", "mine.toml"],
    ),
    "no values": (
        rule("y = HardSwish (x)", example('after = ["HardSwish"]', model=WITHOUT)),
        ["'w' has no values, and nothing computes it", "make it an input of the example"],
    ),
    "another shape": (
        rule("y = ReduceMax (x)", example('after = ["ReduceMax"]')),
        ["the rule 'mine' changes the type of 'y' (Div y): float[N,4] would become float[1,1]"],
    ),
    "no example": (rule(), ["has no [[example]] that applies"]),
}  # fmt: skip


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the rule goes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine" / "mine.toml"


def test_a_rule_that_keeps_its_promises_is_ok(mine: Path, onnxfuse_command: Command) -> None:
    """The verdict, the number of inputs, the types in which it applies: at least two, on several inputs each."""
    mine.write_text(rule("y = HardSwish (x)", RIGHT, example('refusal = "has the constant 5"', 5)))
    done = onnxfuse_command("rules", "--test", "--rules", "mine")
    assert done.code == 0, done.out
    assert done.out.startswith("ok: 1 rule, 2 examples; numbers compared on 12 inputs, as plain nodes; no GPU here")
    assert "float32, float16" in done.out
    facts = json.loads(onnxfuse_command("rules", "mine", "--test", "--rules", "mine", "--json").out)
    (one,) = facts["tested"]
    assert (one["rule"], one["ok"], one["types"], one["cases"]) == ("mine", True, ["float32", "float16"], 12)


@pytest.mark.parametrize("name", WRONG)
def test_a_broken_promise_is_exit_1_with_what_differs(name: str, mine: Path, onnxfuse_command: Command) -> None:
    """Which example of which file, the fact, and a difference in operators or in graph text."""
    text, told = WRONG[name]
    mine.write_text(text)
    done = onnxfuse_command("rules", "--test", "--rules", "mine")
    assert done.code == 1, (done.out, done.err)
    assert done.out.startswith("failed: 1 of 1 rule")
    for words in told:
        assert words in done.out, done.out


def test_types_that_a_rule_is_not_for_are_told(mine: Path, onnxfuse_command: Command) -> None:
    """It was run in float32 alone, and why not in float16."""
    text = rule("y = HardSwish (x)", RIGHT).replace('to = "', 'where = ["dtype(x) in (float32)"]\nto = "')
    mine.write_text(text)
    done = onnxfuse_command("rules", "--test", "--rules", "mine")
    assert done.code == 0, done.out
    assert "float32, not float16" in done.out
    assert "example 1 in float16 stays as it is: mine at Div y: stopped at y: dtype(x) is float16" in done.out
    (one,) = json.loads(onnxfuse_command("rules", "--test", "--rules", "mine", "--json").out)["tested"]
    assert [(w["example"], w["type"]) for w in one["without"]] == [(1, "float16")]


def test_an_example_that_applies_against_its_file_is_not_shown_as_refused(
    mine: Path, onnxfuse_command: Command
) -> None:
    """`rules NAME` shows what the rule makes of it, and that this is not what the file says."""
    text, _ = WRONG["applies"]
    mine.write_text(text)
    done = onnxfuse_command("rules", "mine", "--rules", "mine")
    assert "stays as it is" not in done.out
    assert "applies, though its file says that it is refused" in done.out


def test_an_example_that_does_not_parse_is_told_by_file(mine: Path, onnxfuse_command: Command) -> None:
    """No traceback: exit 2, the file, what the parser says."""
    text, _ = WRONG["no model"]
    mine.write_text(text)
    done = onnxfuse_command("rules", "mine", "--rules", "mine")
    assert done.code == 2
    assert "mine.toml: [[example]]:" in done.err


@pytest.mark.parametrize("name", ["softmax", "bias_sink", "pool_first", "concat", "lone_movement"])
def test_shipped_rules_keep_their_promises(name: str, onnxfuse_command: Command) -> None:
    """Some of each kind; tests/unit/rules/test_shipped.py holds all of them to their examples."""
    done = onnxfuse_command("rules", name, "--test")
    assert done.code == 0, done.out


def test_what_onnx_runtime_itself_computes_otherwise_on_a_gpu_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs there is held to the example's run on the CPU, and where that differs to its run on the GPU."""
    given = onnx.parser.parse_model(MODEL % 6)
    right = running.verify(given, given, providers=CPU)
    asked = []

    def verify(*_: object, providers: list[str], fused_providers: list[str], **__: Any) -> VerifyReport:
        asked.append((providers[0], fused_providers[0]))
        return replace(right, problems=() if providers[0] in agree else ("y: nan",))

    monkeypatch.setattr(running, "verify", verify)
    for agree in (["CPUExecutionProvider"], ["CUDAExecutionProvider"], []):
        assert testing._compared(given, given, CUDA, ()).ok == bool(agree)
    cpu, cuda = ("CPUExecutionProvider",) * 2, ("CUDAExecutionProvider",) * 2
    mixed = (cpu[0], cuda[0])
    assert asked == [mixed, mixed, cuda, mixed, cuda]
    assert not testing._compared(given, given, CPU, ()).ok
    assert asked[5:] == [cpu]
