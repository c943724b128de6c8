"""Outputs that are sequences, maps and optionals are compared: every tensor in them, and how much there is."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.cli.main import main
from onnxfuse.verification import verify
from onnxfuse.verification.localize.bisect import bisect, faults
from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.tensors import element, tensors_of

CPU = ["CPUExecutionProvider"]

Change = Callable[[str], str]

HEAD = '<ir_version: 9, opset_import: ["" : {opset}, "ai.onnx.ml" : 3]> g ({type}[N, 6] x) => ({out} y) '
HEAD += "<{type} k = {{2}}, int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}> {{ m = Mul(x, k) {nodes} }}"

FORMS: dict[str, tuple[int, str, str, str]] = {
    "pieces": (11, "float", "seq(float[N, 1])", "y = SplitToSequence <axis = 1> (m, one)"),
    "pieces of half types": (13, "float16", "seq(float16[N, 1])", "y = SplitToSequence <axis = 1> (m, one)"),
    "pieces of doubles": (13, "double", "seq(double[N, 1])", "y = SplitToSequence <axis = 1> (m, one)"),
    "as many as rows": (17, "float", "seq(float[6])", "y = SplitToSequence <axis = 0, keepdims = 0> (m)"),
    "of other ranks": (17, "float", "seq(float)", "a = ReduceSum <keepdims = 0> (m) y = SequenceConstruct(m, a)"),
    "in an optional": (18, "float", "optional(seq(float[N, 2]))",
                       "s = SplitToSequence <axis = 1> (m, two) y = Optional(s)"),
    "an optional": (18, "float", "optional(float[N, 6])", "y = Optional(m)"),
    "maps by text": (15, "float", "seq(map(string, float))",
                     'y = ai.onnx.ml.ZipMap <classlabels_strings = ["a", "b", "c", "d", "e", "a cat"]> (m)'),
    "maps by number": (15, "float", "seq(map(int64, float))",
                       "y = ai.onnx.ml.ZipMap <classlabels_int64s = [7, 1, 2, 3, 4, 5]> (m)"),
}  # fmt: skip
"""Opset, type of x, type of y, nodes from m."""


def made(name: str, change: Change = lambda text: text) -> onnx.ModelProto:
    """Return the model of a form, its text changed."""
    opset, type_, out, nodes = FORMS[name]
    text = HEAD.format(opset=opset, type=type_, out=out, nodes=nodes)
    # Of half types ONNX's text has the bits.
    return onnx.parser.parse_model(change(text.replace("float16 k = {2}", "float16 k = {16384}")))


def scaled(text: str) -> str:
    """Return the text of a model that is wrong by one percent."""
    return text.replace("k = {2}", "k = {2.02}").replace("k = {16384}", "k = {16394}")


def wrong(report: VerifyReport) -> set[str]:
    """Return the tensors that are wrong."""
    return {r.output for r in report.rows if r.verdict == "mismatch"}


@pytest.mark.parametrize("name", FORMS)
def test_each_tensor_is_compared(name: str) -> None:
    """The same is the same; one percent in the values is a mismatch, at a tensor of the output."""
    assert verify(made(name), made(name), providers=CPU).ok
    report = verify(made(name), made(name, scaled), providers=CPU)
    assert (report.verdict, {r.owner for r in report.rows}) == ("mismatch", {"y"})
    assert all(n == "y" or n.startswith("y[") for n in wrong(report))
    assert not any(n.endswith((".length", ".keys", ".present")) for n in wrong(report))


@pytest.mark.parametrize("name", ["pieces", "maps by text", "an optional"])
def test_a_wrong_entry_of_one_is_named(name: str) -> None:
    """The entry that is wrong is named as a user would write it, the others are right."""
    factors = "n = Mul(x, k) c = Constant <value = float[6] {1, 1, 1, 1, 1, 1.01}> () m = Mul(n, c)"
    report = verify(made(name), made(name, lambda text: text.replace("m = Mul(x, k)", factors)), providers=CPU)
    rows = [r for r in report.rows if r.verdict == "mismatch"]
    named = {"pieces": r"y\[5\]\[\d+, 0\]", "maps by text": r'y\[\d+\]\["a cat"\]', "an optional": r"y\[\d+, 5\]"}
    assert rows
    assert all(re.fullmatch(named[name], r.element) for r in rows)


def opened(nodes: str, out: str = "seq(float[A, B])", opset: int = 17) -> onnx.ModelProto:
    """Return a model with other nodes."""
    return onnx.parser.parse_model(HEAD.format(opset=opset, type="float", out=out, nodes=nodes))


COUNTS = {
    "shorter": ("s = SplitToSequence <axis = 1> (m, one) y = SequenceErase(s, zero)", "y.length"),
    "longer": ("s = SplitToSequence <axis = 1> (m, one) y = SequenceInsert(s, m)", "y.length"),
    "none": ("y = SequenceEmpty()", "y.length"),
    "transposed pieces": ("s = Transpose(m) y = SplitToSequence <axis = 0> (s, one)", "y[0]"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_another_length_or_shape_is_a_mismatch(name: str) -> None:
    """How many there are is compared, and of each the shape."""
    nodes, where = COUNTS[name]
    report = verify(opened("y = SplitToSequence <axis = 1> (m, one)"), opened(nodes), providers=CPU)
    assert report.verdict == "mismatch"
    assert where in wrong(report)
    assert verify(opened(nodes), opened(nodes), providers=CPU).ok


def test_other_keys_are_a_mismatch() -> None:
    """A class that is called otherwise is another result."""
    report = verify(made("maps by text"), made("maps by text", lambda t: t.replace('"b"', '"bb"')), providers=CPU)
    assert {n for n in wrong(report) if n.endswith(".keys")}


def test_a_value_that_is_there_in_one_alone_is_a_mismatch() -> None:
    """An optional that is empty is compared with one that is not."""
    there = opened("y = Optional(m)", "optional(float[N, 6])", 18)
    none = opened("y = Optional <type = float[N, 6]> ()", "optional(float[N, 6])", 18)
    for one, other in ((there, none), (none, there)):
        assert wrong(verify(one, other, providers=CPU)) == {"y.present"}
    assert verify(none, none, providers=CPU).ok


NONE = "optional(float[N, 6])"

ABSENT = f"o = Optional <type = {NONE[9:-1]}> ()"

BRANCHES = f"""big = ReduceMax <keepdims = 0> (x) c = Greater(big, big)
  y = If (c) <then_branch = a () => ({NONE} p) {{ p = Identity(o) }}, else_branch = b () => ({NONE} q) {{ ELSE }}>"""

ITERATED = f"""{ABSENT} t = Constant <value = bool {{1}}> ()
  y = Loop (two, t, o) <body = b (int64 i, bool ci, {NONE} si) => (bool co, {NONE} so) {{ co = Identity(ci) STEP }}>"""

HOLDING_NOTHING = {
    "passed on": (NONE, f"{ABSENT} y = Identity(o)"),
    "in both branches": (NONE, f"{ABSENT} {BRANCHES.replace('ELSE', ABSENT.replace('o =', 'q ='))}"),
    "from iteration to iteration": (NONE, ITERATED.replace("STEP", "so = Identity(si)")),
    "a sequence": ("seq(float)", "o = SequenceEmpty() y = Identity(o)"),
    "a sequence in an optional": ("optional(seq(float))", "o = SequenceEmpty() p = Identity(o) y = Optional(p)"),
}
"""Type and nodes of outputs that hold nothing, whatever the inputs are."""


@pytest.mark.parametrize("name", HOLDING_NOTHING)
def test_what_never_holds_anything_is_the_same_where_both_hold_nothing(name: str) -> None:
    """However the optional without a value, or the sequence without an entry, comes to the output."""
    out, nodes = HOLDING_NOTHING[name]
    assert verify(opened(nodes, out, 18), opened(nodes, out, 18), providers=CPU).ok


@pytest.mark.parametrize(
    "nodes",
    [
        f"{ABSENT} {BRANCHES.replace('ELSE', 'q = Optional(m)')}".replace("Greater(big, big)", "Equal(big, big)"),
        ITERATED.replace("STEP", "so = Optional(m)").replace("(two, t, o)", "(zero, t, o)"),
    ],
    ids=["in one branch", "at first"],
)
def test_what_may_hold_something_is_undecided_where_no_case_gives_it(nodes: str) -> None:
    """A branch that is never taken, a loop that never runs."""
    model = opened(nodes, NONE, 18)
    assert (verify(model, model, providers=CPU, seconds=20).verdict) == "undecided"


def test_a_sequence_without_an_entry_is_undecided() -> None:
    """Where no case gives an entry nothing was compared, and where inputs can give one they are sought."""
    text = (
        "big = ReduceMax <keepdims = 0> (x) c = Greater(big, LIMIT) y = If (c) <"
        "then_branch = a () => (seq(float[A, B]) p) { p = SplitToSequence <axis = 1> (m, one) }, "
        "else_branch = b () => (seq(float[A, B]) q) { q = SequenceEmpty() }>"
    )
    limit = "huge = Constant <value = float {HUGE}> () "
    never = opened(limit.replace("HUGE", "inf") + text.replace("LIMIT", "huge"))
    report = verify(never, never, providers=CPU, seconds=20)
    assert (report.verdict, report.ok) == ("undecided", False)
    assert "nothing of y.length was compared" in report.summary
    some = opened(limit.replace("HUGE", "300.0") + text.replace("LIMIT", "huge"))
    assert verify(some, some, providers=CPU, seconds=20).ok


def test_tolerances_are_those_of_the_output() -> None:
    """`rtol` of `y` holds for each tensor in it, and for no length."""
    one, other = made("pieces"), made("pieces", scaled)
    assert verify(one, other, providers=CPU, rtol={"y": 0.02}).ok
    assert not verify(one, other, providers=CPU, rtol={"y": 0.001}).ok
    shorter = opened(COUNTS["shorter"][0])
    assert "y.length" in wrong(verify(one, shorter, providers=CPU, rtol=0.9, atol=1e9))


def test_reports_hold_each_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The screen shows the worst tensors, JSON, JUnit and the page all of them."""
    onnx.save(made("as many as rows"), tmp_path / "a.onnx")
    onnx.save(made("as many as rows", scaled), tmp_path / "b.onnx")
    files = ("--junit", tmp_path / "j.xml", "--report", tmp_path / "p.html", "--markdown", tmp_path / "m.md")
    call = ("verify", tmp_path / "a.onnx", tmp_path / "b.onnx", "--provider", "cpu")
    with pytest.raises(SystemExit, match="1"):
        main([*map(str, call)])
    assert len([line for line in capsys.readouterr().out.splitlines() if line.endswith("mismatch")]) == 4
    with pytest.raises(SystemExit, match="1"):
        main([*map(str, (*call, "--json", *files))])
    facts = json.loads(capsys.readouterr().out)
    assert {"y.length", "y[0]", "y[7]"} <= {r["output"] for r in facts["outputs"]}
    assert {r["part_of"] for r in facts["rows"]} == {"y"}
    for file in ("j.xml", "p.html", "m.md"):
        assert "y[7]" in (tmp_path / file).read_text().replace("\\", "")


WINDOWS = {
    "at": ("float[N, 1]", "y = SequenceAt(s, zero)", "y = SequenceAt(s, one)"),
    "concatenated": ("float[A, B]", "y = ConcatFromSequence <axis = 1> (s)",
                     "q = ConcatFromSequence <axis = 1> (s) y = Neg(q)"),
    "erased": ("seq(float[N, 1])", "y = SequenceErase(s, zero)", "y = SequenceErase(s, one)"),
    "an optional": ("bool", "o = Optional(x) y = OptionalHasElement(o)",
                    "o = Optional(x) q = OptionalHasElement(o) y = Not(q)"),
    "an optional sequence": ("seq(float[N, 1])", "o = Optional(s) y = OptionalGetElement(o)",
                             "o = Optional(s) q = OptionalGetElement(o) y = SequenceErase(q, zero)"),
    "an absent one": ("bool", "o = Optional <type = float[N, 6]> () y = OptionalHasElement(o)",
                      "o = Optional <type = float[N, 6]> () q = OptionalHasElement(o) y = Not(q)"),
    "an empty sequence": ("seq(float[N, 6])", "e = SequenceEmpty() y = SequenceInsert(e, x)",
                          "e = SequenceEmpty() q = Neg(x) y = SequenceInsert(e, q)"),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_a_place_that_reads_a_sequence_is_guarded(name: str, tmp_path: Path) -> None:
    """What `--guard` and `--bisect` look at may read sequences and optionals: it is given what the original makes."""
    out, right, other = WINDOWS[name]
    before = "s = SplitToSequence <axis = 1> (m, one) "
    original, fused = opened(before + right, out, 18), opened(before + other, out, 18)
    inputs = {"x": np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)}
    unseen: dict[Any, str] = {}
    found = [fault for fault, _ in faults(original, fused, inputs, CPU, unexamined=unseen)]
    assert (len([f for f in found if f is not None]), unseen) == (1, {})
    assert found[0] is not None
    assert found[0].window.outputs == ("y",)
    assert bisect(original, fused, inputs, CPU, folder=tmp_path / "report").fault
    assert sessions.run(sessions.ort_session(tmp_path / "report" / "original.onnx", CPU), found[0].feeds).keys() == {
        "y"
    }


def test_names_of_tensors() -> None:
    """Every tensor has a name of its own, also where an output has that name already."""
    values = {"s": [np.zeros(2), {"b": 1.0, "a": 2.0}], "s.length": np.ones(1), "o": None}
    found = tensors_of(values, ["o"])
    assert {*found} == {"s.length'", "s[0]", "s[1].keys", "s[1]", "s.length", "o.present"}
    assert found["s[1].keys"].tolist() == ["a", "b"]
    assert found["s[1]"].tolist() == [2.0, 1.0]
    assert [element("y", (0, 3)), element("y", ()), element("m", (1,), ["a", 'b"'])] == ["y[0, 3]", "y", 'm["b\\""]']


def test_a_sequence_of_texts() -> None:
    """Texts are compared one by one."""
    nodes = [helper.make_node("SplitToSequence", ["w"], ["y"], axis=0)]
    words = numpy_helper.from_array(np.array(["a", "b"], object), "w")

    def of(tensor: TensorProto) -> onnx.ModelProto:
        type_ = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.STRING, None))
        relu, x, z = (
            helper.make_node("Relu", ["x"], ["z"]),
            *(helper.make_tensor_value_info(n, TensorProto.FLOAT, (4,)) for n in "xz"),
        )
        graph = helper.make_graph([*nodes, relu], "g", [x], [helper.make_value_info("y", type_), z], [tensor])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    assert verify(of(words), of(words), providers=CPU).ok
    other = numpy_helper.from_array(np.array(["a", "c"], object), "w")
    assert wrong(verify(of(words), of(other), providers=CPU)) == {"y[1]"}
