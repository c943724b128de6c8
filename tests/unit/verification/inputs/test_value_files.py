"""Inputs that are sequences, optionals and maps are made up, fed to both models, compared, read from files, saved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.cli.main import main
from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.verification import verify
from onnxfuse.verification.inputs.input_files import case_of, load_cases, save_cases
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import Case, cases
from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.tensors import input_types, tensors_of, values_of

CPU = ["CPUExecutionProvider"]
HEAD = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3]> '


def model(text: str, *, unranked: str = "") -> ModelProto:
    """Return the model of a text; the tensors in the input `unranked`, and all outputs, declare no shape then."""
    made = onnx.parser.parse_model(HEAD + text)
    for value in made.graph.input if unranked else ():
        if value.name == unranked:
            inner = value.type.sequence_type if value.type.HasField("sequence_type") else value.type.optional_type
            inner.elem_type.tensor_type.ClearField("shape")
    for value in made.graph.output if unranked else ():
        value.type.tensor_type.ClearField("shape")
    return made


def of_map(keys: int, numbers: int, op: str, **attributes: Any) -> ModelProto:
    """Return a model whose input is a map; ONNX's text has no such type."""
    type_ = helper.make_map_type_proto(keys, helper.make_tensor_type_proto(numbers, ()))
    nodes = [
        helper.make_node(op, ["m"], ["c"], domain="ai.onnx.ml", **attributes),
        helper.make_node("Relu", ["c"], ["a"], "relu"), helper.make_node("Exp", ["a"], ["y"]),
    ]  # fmt: skip
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [helper.make_value_info("m", type_)], [y])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


AT = "g (seq(float[?, 4]) s, int64 i) => (float[?, 4] y) { c = SequenceAt(s, i) a = Relu(c) y = Exp(a) }"
EITHER = """g (optional(float[N, 3]) o, float[N, 3] x) => (float[N, 3] y) {
    p = OptionalHasElement(o)
    y = If (p) <then_branch = t () => (float[N, 3] r) { e = OptionalGetElement(o) q = Add(e, x) r = Relu(q) },
                else_branch = f () => (float[N, 3] r) { q = Neg(x) r = Relu(q) }>
}"""
FORMS: dict[str, Callable[[], ModelProto]] = {
    "an entry": lambda: model(AT),
    "entries of half types": lambda: model(AT.replace("float[", "float16[")),
    "all entries": lambda: model(
        "g (seq(float[N, 4]) s) => (float[M, 4] y) { c = ConcatFromSequence <axis = 0> (s) a = Relu(c) y = Exp(a) }"
    ),
    "ids": lambda: model(
        "g (seq(int64[n]) s, int64 i) => (float[n, 2] y) <float[3, 2] w = {1, -2, 3, -4, 5, -6}> "
        "{ c = SequenceAt(s, i) g = Gather(w, c) a = Relu(g) y = Exp(a) }"
    ),
    "one more": lambda: model(
        "g (seq(float[n, 4]) s, float[n, 4] x, int64 i) => (seq(float[n, 4]) y, int64 l) "
        "{ q = Relu(x) r = Exp(q) y = SequenceInsert(s, r, i) l = SequenceLength(y) }"
    ),
    "each": lambda: model(
        "g (seq(float[n, 4]) s) => (seq(float[n, 4]) y) "
        "{ y = SequenceMap <body = b (float[n, 4] e) => (float[n, 4] r) { q = Relu(e) r = Exp(q) }> (s) }"
    ),
    "of no declared rank": lambda: model(
        "g (seq(float) s, int64 i) => (float y) "
        "{ c = SequenceAt(s, i) t = Transpose <perm = [2, 0, 1]> (c) a = Relu(t) y = Exp(a) }", unranked="s"
    ),
    "of no declared rank, of one size": lambda: model(
        "g (seq(float) s, int64 i) => (float y) <float[4, 2] w = {1, -2, 3, -4, 5, -6, 7, -8}> "
        "{ c = SequenceAt(s, i) g = MatMul(c, w) a = Relu(g) y = Exp(a) }", unranked="s"
    ),
    "an optional": lambda: model(EITHER),
    "an optional that has to be there": lambda: model(
        "g (optional(float) o, float[3] x) => (float[3] y) { e = OptionalGetElement(o) m = Mul(x, e) a = Relu(m) "
        "y = Exp(a) }"
    ),
    "an optional of no declared rank": lambda: model(
        "g (optional(float) o) => (float y) { e = OptionalGetElement(o) t = Transpose <perm = [2, 0, 1]> (e) "
        "a = Relu(t) y = Exp(a) }", unranked="o"
    ),
    "an optional sequence": lambda: model(
        "g (optional(seq(float[N, 3])) o, float[3] x) => (float[3] y, bool p) "
        "{ p = OptionalHasElement(o) a = Relu(x) y = Exp(a) }"
    ),
    "a map by number": lambda: of_map(
        TensorProto.INT64, TensorProto.FLOAT, "CastMap", cast_to="TO_FLOAT", map_form="SPARSE", max_map=6
    ),
    "a map by text": lambda: of_map(
        TensorProto.STRING, TensorProto.FLOAT, "DictVectorizer", string_vocabulary=["a", "b", "c"]
    ),
}  # fmt: skip
"""Models with a Relu and an Exp that fuse."""


def exit_code(words: list[str]) -> int:
    """Return the exit code of the command."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def names(report: VerifyReport) -> dict[str, int]:
    """Return how often each kind of case was run."""
    found: dict[str, int] = {}
    for case in report.cases:
        found[case.name] = found.get(case.name, 0) + (not case.note)
    return found


def without_relu(made: ModelProto) -> ModelProto:
    """Return the model with Relu replaced, in bodies too: wrong for negative values."""
    return ModelProto.FromString(made.SerializeToString().replace(b"\x04Relu", b"\x04Tanh"))


@pytest.mark.parametrize("form", FORMS)
def test_they_are_made_up_and_compared(form: str) -> None:
    """A right model is the same, a wrong one is not, in every form; every case of values runs."""
    made = FORMS[form]()
    right = verify(made, onnxfuse.optimize(made), providers=CPU)
    assert right.ok
    assert all(names(right)[kind] for kind in ("normal", "wide", "small", "edge"))
    wrong = verify(made, without_relu(made), providers=CPU, seconds=20)
    assert any(r.verdict == "mismatch" for r in wrong.outputs)


def test_lengths_vary_and_an_empty_one_runs_where_the_original_does() -> None:
    """Of no, one and several entries; where the original refuses an empty sequence the report says so."""
    report = verify(*[FORMS["one more"]()] * 2, providers=CPU)
    assert {0, 1, 3, 8} <= {*report.sizes["s.length"]}
    assert names(report)["empty"] == 1
    refused = verify(*[FORMS["an entry"]()] * 2, providers=CPU)
    assert names(refused)["empty"] == 0
    assert [c.note.startswith("the original refuses it") for c in refused.cases if c.name == "empty"] == [True]


def test_sizes_are_not_searched_because_empty_ones_are_refused() -> None:
    """Of two sequences three cases are empty, as many as there are sets of sizes."""
    two = model(
        "g (seq(float[N, 4]) s, seq(float[N, 4]) q, int64 i) => (float[N, 4] y) "
        "{ a = SequenceAt(s, i) b = SequenceAt(q, i) c = Add(a, b) y = Relu(c) }"
    )
    report = verify(two, two, providers=CPU)
    assert (report.ok, [c.name for c in report.cases].count("empty"), dict(report.searched)) == (True, 3, {})


def test_entries_have_several_shapes_and_every_index() -> None:
    """An axis without a name is of another size in each entry; an index is any within the length of the case."""
    specs = input_specs(model(AT))
    plan = cases(specs, range(9))
    uneven = next(c for c in plan if c.name == "uneven").make()
    assert [uneven[f"s[{n}]"].shape for n in range(3)] == [(7, 4), (6, 4), (5, 4)]
    chosen = {(c.shapes["s"][0], int(c.make()["i"])) for c in plan if c.name != "empty"}
    assert all(index < length for length, index in chosen)
    assert {index for length, index in chosen if length == 3} == {0, 1, 2}
    assert "uneven" not in {c.name for c in cases(input_specs(FORMS["each"]()), [0])}  # n is one number everywhere


def test_a_fault_that_one_length_shows_is_found() -> None:
    """The second entry instead of the last one, the same value if there are two."""
    text = "g (seq(float[N, 4]) s) => (float[N, 4] y) <int64 i = {-1}> { c = SequenceAt(s, i) y = Relu(c) }"
    other = text.replace("{-1}> {", "{-1}> { l = SequenceLength(s)").replace("SequenceAt(s, i)", "SequenceAt(s, j)")
    other = other.replace("c = ", "two = Constant <value_int = 2> () n = Min(l, two) j = Add(n, i) c = ")
    report = verify(model(text), model(other), providers=CPU)
    assert [r.verdict for r in report.outputs] == ["mismatch"]


def test_an_optional_is_there_and_absent() -> None:
    """A fault in either branch is found; the case of an absent one is one of its own."""
    made = model(EITHER)
    report = verify(made, made, providers=CPU)
    assert names(report)["absent"] == 1
    for right, wrong in (("Neg(x)", "Abs(x)"), ("Add(e, x)", "Sub(e, x)")):
        found = verify(made, model(EITHER.replace(right, wrong)), providers=CPU)
        assert [r.verdict for r in found.outputs] == ["mismatch"]


def test_keys_are_those_that_readers_know_and_others() -> None:
    """Of several one is unknown; no key occurs twice."""
    for form, known in (("a map by text", {"a", "b", "c"}), ("a map by number", {*range(6)})):
        for case in cases(input_specs(FORMS[form]()), range(3)):
            keys = case.make()["m.keys"].tolist()
            assert len({*keys}) == len(keys) == case.make()["m"].size
            assert len({*keys} - known) == max(len(keys) - len(known), int(len(keys) > 1))


WITHOUT: dict[str, tuple[Callable[[], ModelProto], type[Exception], str]] = {
    "text by number": (
        lambda: of_map(TensorProto.INT64, TensorProto.STRING, "CastMap", cast_to="TO_FLOAT"),
        UsageError, r"'m' is of type map\(int64,tensor\(string\)\): which ONNX Runtime's Python interface cannot feed"),
    "numbers of another type": (
        lambda: of_map(TensorProto.STRING, TensorProto.DOUBLE, "DictVectorizer", string_vocabulary=["a"]),
        UsageError, r"of type map\(string,tensor\(double\)\)"),
    "texts": (lambda: model("g (seq(string[n]) s) => (int64 y) { y = SequenceLength(s) }"),
              UsageError, "of type STRING: no values can be generated"),
    "with bfloat16": (
        lambda: model("g (seq(float[4]) s) => (bfloat16[4] y) <int64 i = {0}> "
                      "{ c = SequenceAt(s, i) y = Cast <to = 16> (c) }"),
        ModelError, r"'s' is of type seq\(tensor\(float\)\), and 'y' of type tensor\(bfloat16\)"),
    "a name of a part": (
        lambda: model("g (seq(float[4]) s, int64 s_length) => (int64 y) { y = SequenceLength(s) }"),
        UsageError, "has the name of a part of input 's'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT)
def test_what_cannot_be_fed_is_said(name: str) -> None:
    """ONNX Runtime's Python interface has no feeds of some types; the message says which."""
    make, error, text = WITHOUT[name]
    made = make()
    for value in made.graph.input:
        value.name = value.name.replace("_", ".")
    with pytest.raises(error, match=text) as caught:
        verify(made, made, providers=CPU)
    assert "Declare its shape" not in str(getattr(caught.value, "hint", ""))


@pytest.mark.parametrize("form", ["an entry", "one more", "an optional", "an optional sequence", "a map by number"])
def test_guard_precision_and_bisect_take_them(form: str, tmp_path: Path) -> None:
    """Windows get the original's values; a converted model is measured on them; a fault is located."""
    made = FORMS[form]()
    onnx.save(made, tmp_path / "m.onnx")
    assert exit_code(["optimize", str(tmp_path / "m.onnx"), str(tmp_path / "g.onnx"), "--guard"]) == 0
    assert exit_code(["optimize", str(tmp_path / "m.onnx"), str(tmp_path / "p.onnx"), "--precision", "float16"]) == 0
    assert verify(made, tmp_path / "p.onnx", providers=CPU).ok
    onnx.save(without_relu(made), tmp_path / "w.onnx")
    words = ["--provider", "cpu", "--bisect", str(tmp_path / "report"), "--json"]
    assert exit_code(["verify", str(tmp_path / "m.onnx"), str(tmp_path / "w.onnx"), *words]) == 1
    again = ["--provider", "cpu", "--inputs", str(tmp_path / "report" / "test_data_set_0")]
    parts = [str(tmp_path / "report" / f"{n}.onnx") for n in ("original", "model")]
    assert exit_code(["verify", *parts, *again]) == 1


def test_a_window_without_inputs_is_reproduced_from_its_folder(tmp_path: Path) -> None:
    """It has no input_0.pb, and the folder that says so is read."""
    text = "g (float[2] x) => (float[2] y, bool p) "
    text += "{ o = Optional <type = float[2]> () p = OptionalHasElement(o) y = Relu(x) }"
    made, other = model(text), model(text.replace("p = OptionalHasElement(o)", "q = OptionalHasElement(o) p = Not(q)"))
    for name, one in (("m", made), ("w", other)):
        onnx.save(one, tmp_path / f"{name}.onnx")
    files = [str(tmp_path / f"{n}.onnx") for n in "mw"]
    assert exit_code(["verify", *files, "--provider", "cpu", "--bisect", str(tmp_path / "report")]) == 1
    folder = tmp_path / "report" / "test_data_set_0"
    assert sorted(f.name for f in folder.iterdir()) == ["output_0.pb"]
    parts = [str(tmp_path / "report" / f"{n}.onnx") for n in ("original", "model")]
    assert exit_code(["verify", *parts, "--provider", "cpu", "--inputs", str(folder)]) == 1


# ---- files

GIVEN: dict[str, tuple[str, dict[str, Any]]] = {
    "a sequence": ("an entry", {"s": [np.ones((2, 4), "f"), np.zeros((5, 4), "f")], "i": np.array(1)}),
    "an empty one": ("one more", {"s": [], "x": np.ones((2, 4), "f"), "i": np.array(0)}),
    "an optional": ("an optional", {"o": np.ones((2, 3), "f"), "x": np.ones((2, 3), "f")}),
    "nothing": ("an optional", {"o": None, "x": np.ones((2, 3), "f")}),
    "an optional sequence": ("an optional sequence", {"o": [np.ones((2, 3), "f")], "x": np.ones(3, "f")}),
    "no sequence": ("an optional sequence", {"o": None, "x": np.ones(3, "f")}),
    "a map by number": ("a map by number", {"m": {4: 1.5, 2: -2.0}}),
    "a map by text": ("a map by text", {"m": {"b": 1.5, "x": -2.0}}),
}


def same(case: Case, made: ModelProto, values: dict[str, Any]) -> bool:
    """Return whether a case feeds these values."""
    found = values_of(case.make(), input_types(made.graph))
    flat = [tensors_of(one, [n for n, x in values.items() if x is None]) for one in (found, values)]
    return flat[0].keys() == flat[1].keys() and all(np.array_equal(flat[0][n], flat[1][n]) for n in flat[0])


@pytest.mark.parametrize("name", GIVEN)
def test_given_ones_come_back_from_every_form(name: str, tmp_path: Path) -> None:
    """From Python, ONNX's test data, NumPy's archive and JSON; verify runs them."""
    form, values = GIVEN[name]
    made = FORMS[form]()
    specs = input_specs(made)
    case = case_of("x", values, specs)
    save_cases(tmp_path / "sets", [case], specs)
    save_cases(tmp_path / "x.npz", [case], specs)
    plain = {n: _plain(x) for n, x in values.items()}
    (tmp_path / "x.json").write_text(json.dumps(plain))
    for source in (values, tmp_path / "sets", tmp_path / "x.npz", tmp_path / "x.json"):
        (read,) = [case_of("x", source, specs)] if isinstance(source, dict) else load_cases(source, specs)
        if source != tmp_path / "x.json" or name != "an empty one":
            assert same(read, made, values), source
        assert verify(made, onnxfuse.optimize(made), inputs=source, providers=CPU).outputs


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [x.tolist() for x in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_made_up_ones_are_saved(tmp_path: Path) -> None:
    """What --save-inputs writes reads back, every kind of case of every form."""
    for number, make in enumerate(FORMS.values()):
        made = make()
        specs = input_specs(made)
        plan = cases(specs, [0])
        save_cases(tmp_path / str(number), plan, specs)
        for one, read in zip(plan, load_cases(tmp_path / str(number), specs), strict=True):
            assert same(read, made, values_of(one.make(), input_types(made.graph)))


def test_files_of_the_test_data_of_onnx(tmp_path: Path) -> None:
    """SequenceProto and OptionalProto, as onnx's own node tests store them; an optional may be a plain tensor, too."""
    made, x = model(EITHER), np.ones((2, 3), "f")
    specs = input_specs(made)
    (tmp_path / "input_1.pb").write_bytes(numpy_helper.from_array(x, "x").SerializeToString())
    for proto in (
        numpy_helper.from_optional(x, "o"),
        numpy_helper.from_array(x, "o"),
        numpy_helper.from_optional(None, "o"),
    ):
        (tmp_path / "input_0.pb").write_bytes(proto.SerializeToString())
        (case,) = load_cases(tmp_path, specs)
        there = not isinstance(proto, onnx.OptionalProto) or proto.elem_type != onnx.OptionalProto.UNDEFINED
        assert bool(case.make()["o.present"]) is there


WRONG: dict[str, tuple[str, bytes, str]] = {
    "a tensor for a sequence": ("an entry", numpy_helper.from_array(np.ones((2, 4), "f"), "s").SerializeToString(),
                                "does not hold a sequence"),
    "no message": ("an entry", b"\xff\xff", "does not hold a sequence"),
    "entries of another type": ("an entry", numpy_helper.from_list([np.ones((2, 4))], "s").SerializeToString(),
                                r"'s\[0\]' is float64, the model wants float32"),
    "entries of another rank": ("an entry", numpy_helper.from_list([np.ones(4, "f")], "s").SerializeToString(),
                                r"'s\[0\]' has shape 4, the model wants \?x4|wants s"),
    "another name": ("an entry", numpy_helper.from_list([np.ones((2, 4), "f")], "t").SerializeToString(), "holds 't'"),
    "no map": ("a map by text", numpy_helper.from_array(np.ones(2, "f"), "m").SerializeToString(),
               "does not hold a map"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_file_of_another_kind_is_refused(name: str, tmp_path: Path) -> None:
    """The message names the file and what it should hold."""
    form, data, text = WRONG[name]
    (tmp_path / "input_0.pb").write_bytes(data)
    if form == "an entry":
        (tmp_path / "input_1.pb").write_bytes(numpy_helper.from_array(np.array(0), "i").SerializeToString())
    with pytest.raises(UsageError, match=text):
        load_cases(tmp_path, input_specs(FORMS[form]()))


@pytest.mark.parametrize(
    ("text", "said"), [('{"m": {"one": 1}}', "'m' has a key that is no integer"), ('{"m": {}}', "no key")]
)
def test_maps_that_do_not_suit_the_model(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        load_cases(tmp_path / "in.json", input_specs(of_map(TensorProto.INT64, TensorProto.FLOAT, "CastMap")))


def test_entries_with_data_in_other_files_are_guarded(tmp_path: Path) -> None:
    """The path of an entry's data may not leave the folder of its file."""
    sequence = numpy_helper.from_list([np.ones((2, 4), "f")], "s")
    helper_tensor = sequence.tensor_values[0]
    helper_tensor.ClearField("raw_data")
    helper_tensor.data_location = TensorProto.EXTERNAL
    helper_tensor.external_data.add(key="location", value="../elsewhere")
    (tmp_path / "sets").mkdir()
    (tmp_path / "elsewhere").write_bytes(b"\0" * 32)
    (tmp_path / "sets" / "input_0.pb").write_bytes(sequence.SerializeToString())
    (tmp_path / "sets" / "input_1.pb").write_bytes(numpy_helper.from_array(np.array(0), "i").SerializeToString())
    with pytest.raises(UsageError, match=r"input_0\.pb"):
        load_cases(tmp_path / "sets", input_specs(model(AT)))


@pytest.mark.parametrize(("inputs", "text"), [
    ({"s": np.ones((2, 4), "f"), "i": np.array(0)}, ""),
    ({"s": (np.ones((2, 4), "f"),), "i": np.array(0)}, "'s' is a tuple, the model wants a list"),
    ({"s": [[1.0]], "i": np.array(0)}, r"'s\[0\]' is a list, the model wants a ndarray"),
    ({"s": None, "i": np.array(0)}, "'s' is a NoneType, the model wants a list"),
])  # fmt: skip
def test_arrays_of_another_kind_are_refused(inputs: dict[str, Any], text: str) -> None:
    """A stack of entries is a sequence, too; anything else is named."""
    specs = input_specs(model("g (seq(float[4]) s, int64 i) => (float[4] y) { c = SequenceAt(s, i) y = Relu(c) }"))
    if not text:
        assert case_of("x", inputs, specs).make()["s[1]"].shape == (4,)
        return
    with pytest.raises(UsageError, match=text):
        case_of("x", inputs, specs)


@pytest.mark.parametrize("command", ["bench", "profile"])
def test_what_binds_inputs_says_that_it_takes_tensors(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sequence or a map has no place on a device."""
    for form in ("an entry", "a map by text"):
        onnx.save(FORMS[form](), tmp_path / "m.onnx")
        assert exit_code([command, str(tmp_path / "m.onnx"), "--provider", "cpu"]) == 2
        assert "which must be tensors" in capsys.readouterr().err


def test_no_types_are_missed_of_a_sequence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`explain` does not ask for the element type of an input that is no tensor."""
    onnx.save(model(AT), tmp_path / "m.onnx")
    assert exit_code(["explain", str(tmp_path / "m.onnx")]) == 0
    assert "is not known" not in capsys.readouterr().out


def test_the_reference_inserts_behind_the_last_entry() -> None:
    """onnx's own is at fault there, and where the sequence has no entry."""
    made = model("g (seq(float[2]) s, float[2] x, int64 i) => (seq(float[2]) y) { y = SequenceInsert(s, x, i) }")
    entries, x = [np.zeros(2, "f"), np.ones(2, "f")], np.full(2, 2, "f")
    for index, count in ((2, 2), (-1, 2), (-2, 2), (0, 0), (1, 1)):
        given: dict[str, Any] = {"s": entries[:count], "x": x, "i": np.array(index)}
        report = verify(made, made, inputs=given, providers=CPU)
        assert (report.ok, report.truth) == (True, "float64")
        assert all(r.measure.error == 0 for r in report.rows)
        assert sessions.tensors(sessions.ort_session(made, CPU), case_of("x", given, input_specs(made)).make())
