"""`optimize --precision` as a user meets it: the same bytes, what the file says, what other commands make of it."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import onnxfuse
from models import traps
from onnxfuse.api.optimize.optimizing import optimize
from onnxfuse.api.request.options import Guarding, Options
from onnxfuse.files import io
from onnxfuse.model import precision_record
from onnxfuse.model.precision_record import PrecisionRecord
from onnxfuse.precision import ROUNDS, Lowering, convert
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types
from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.verification.compare.case_comparison import FUSED_FAILS
from tests.cli.conftest import Command, folder, onnxfuse_command  # noqa: F401 - fixtures
from tests.support.precision import model_of, normalized

CPU = ["CPUExecutionProvider"]

BIG = """g (float[2,8] x) => (float[2,8] y) <float big = {100000}> {
    [up] a = Mul(x, big) [root] b = Abs(a) [down] c = Div(b, big) [out] y = Sqrt(c)
}"""


@pytest.fixture
def big(folder: Path) -> Path:  # noqa: F811 - a fixture
    """A folder with big.onnx, whose values leave float16."""
    onnx.save(model_of(BIG), folder / "big.onnx")
    return folder


def test_two_runs_give_the_same_bytes(big: Path, onnxfuse_command: Command) -> None:  # noqa: F811 - a fixture
    """And the file says what stays and why; a second conversion changes nothing."""
    result = onnxfuse_command("optimize", "big.onnx", "one.onnx", "--precision", "float16")
    assert result.code == 0
    assert "Mul up stays float32: reaches" in result.out
    assert onnxfuse_command("optimize", "big.onnx", "two.onnx", "--precision", "float16").code == 0
    assert (big / "one.onnx").read_bytes() == (big / "two.onnx").read_bytes()
    assert onnxfuse_command("optimize", "one.onnx", "three.onnx", "--precision", "float16").code == 0
    assert (big / "one.onnx").read_bytes() == (big / "three.onnx").read_bytes()
    said = precision_record.read(onnx.load(big / "one.onnx"))
    assert said is not None
    assert [k.node for k in said.kept] == ["up", "root", "down"]
    assert (said.precision, said.truth, said.nodes) == ("float16", "float64", 4)
    assert "generated inputs (normal, small, wide, edge)" in said.inputs


def test_explain_and_verify_tell_what_the_file_says(big: Path, onnxfuse_command: Command) -> None:  # noqa: F811 - a fixture
    """`verify` judges by the contract, and exits 1 where it is missed; --bisect names the node."""
    onnxfuse_command("optimize", "big.onnx", "one.onnx", "--precision", "float16")
    assert "Mul up stays float32" in onnxfuse_command("explain", "one.onnx").out
    result = onnxfuse_command("verify", "big.onnx", "one.onnx")
    assert result.code == 0, result.out
    assert "within the contract for lower precision" in result.out
    printed = " ".join(result.out.split())
    assert "(normal, small, wide, edge), each value rounded to its type after its node; 3 of 4 float nodes" in printed
    assert "the table has the error as it ran here, where fused ops and ONNX Runtime round fewer values" in printed
    facts = json.loads(onnxfuse_command("verify", "big.onnx", "one.onnx", "--json").out)
    (row,) = facts["outputs"]
    assert row["judged_by"] == "contract"
    assert row["contract"]["allowed"] == pytest.approx(20 * 2.0**-11)
    assert row["scale"] > 1.0
    assert facts["precision"]["kept"][0]["node"] == "up"

    plain = onnxfuse.unfuse(onnx.load(big / "one.onnx"))
    for node in plain.graph.node:
        if node.op_type == "Sqrt":
            node.op_type = "Softplus"  # another function, in the type of the file
    onnx.save(plain, big / "wrong.onnx")
    result = onnxfuse_command("verify", "big.onnx", "wrong.onnx", "--bisect", "report")
    assert result.code == 1
    assert "relative RMS error" in result.out
    assert "Softplus (out)" in result.out


def test_what_does_not_hold_is_refused_with_its_output(big: Path, onnxfuse_command: Command) -> None:  # noqa: F811 - a fixture
    """Nothing is written then."""
    text = "g (float[2,8] x) => (float[2,8] y) { y = Exp(x) }"
    onnx.save(model_of(text), big / "one.onnx")
    result = onnxfuse_command(
        "optimize", "one.onnx", "out.onnx", "--precision", "float16", "--io-precision", "float16", "--tolerance", "1e-9"
    )
    assert result.code == 0  # the one node stays; inputs and outputs are not what is judged
    np.savez(big / "far.npz", x=np.full((2, 8), np.inf, np.float32))
    result = onnxfuse_command("optimize", "big.onnx", "out2.onnx", "--precision", "int8")
    assert result.code == 2


def test_where_nothing_could_be_converted_that_is_said(big: Path, onnxfuse_command: Command) -> None:  # noqa: F811 - a fixture
    """A bound below one rounding leaves all of it in float32; the verdict says so, and what would help."""
    onnx.save(model_of("g (float[2,8] x) => (float[2,8] y) { a = Exp(x) y = Sin(a) }"), big / "two.onnx")
    asked = ("--precision", "float16", "--tolerance", "1e-9")
    result = onnxfuse_command("optimize", "two.onnx", "out.onnx", *asked)
    assert "precision: float16: no node was converted: all 2 have to stay float32" in result.out
    assert "less than one rounding of the type, 0.00049: allow more with --tolerance" in result.out
    assert "the time ran out" not in result.out
    with pytest.warns(UserWarning, match=r"no node was converted.*less than one rounding"):
        onnxfuse.optimize(big / "two.onnx", precision="float16", tolerance=1e-9)
    result = onnxfuse_command("optimize", "two.onnx", "out.onnx", *asked, "--time", "1e-9")
    assert result.code == 2  # measuring itself did not end
    with pytest.raises(UsageError, match=r"^`precision`: the time for it is used up"):
        onnxfuse.optimize(big / "two.onnx", precision="float16", seconds=1e-9)
    assert "--time" in result.err


ROUNDINGS = "g (float[2,8] x) => (float[2,8] y) {{ x0 = Neg(x) {} y = Sin(x30) }}".format(
    "".join(f"a{n} = Tanh(x{n}) x{n + 1} = Add(x, a{n}) " for n in range(30))
)


@pytest.mark.parametrize("times", [1, 2, 99])
def test_what_is_made_of_the_converted_model_holds_the_contract_too(times: int) -> None:
    """It rounds otherwise: where it does not hold, a choice with less room is made, and none is never silent."""
    model, calls = normalized(model_of(ROUNDINGS)), list[int]()

    def finished(made: onnx.ModelProto) -> onnx.ModelProto:
        calls.append(sum(v.dtype == TensorProto.FLOAT16 for v in value_types(infer(made).graph).values()))
        if len(calls) > times:
            return made
        spoilt = onnx.ModelProto()
        spoilt.CopyFrom(made)
        spoilt.graph.initializer.append(numpy_helper.from_array(np.array(1.02, np.float32), "spoil"))
        for node in (n for n in spoilt.graph.node if "y" in n.output):
            node.output[list(node.output).index("y")] = "right"
        spoilt.graph.node.append(onnx.helper.make_node("Mul", ["right", "spoil"], ["y"]))
        return spoilt

    asked = Lowering("float16")
    if times > ROUNDS:
        with pytest.raises(ModelError, match="does not meet the contract"):
            convert(model, asked, finished=finished)
        assert len(calls) == ROUNDS
        return
    made = convert(model, asked, finished=finished)
    assert len(calls) == times + 1
    assert calls == sorted(calls, reverse=True)
    assert made.error <= made.tolerance


@pytest.mark.parametrize("word", ["root", "a", "Abs", "r?ot"])
def test_a_node_that_is_named_stays_float32(big: Path, onnxfuse_command: Command, word: str) -> None:  # noqa: F811 - a fixture
    """By its name, a value that it gives, its operator, or a pattern; the file and what is printed say why."""
    model = model_of("g (float[2,8] x) => (float[2,8] y) { [up] b = Sin(x) [root] a = Abs(b) [out] y = Cos(a) }")
    onnx.save(model, big / "in.onnx")
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--precision", "float16", "--keep-fp32", word)
    assert f"Abs root stays float32: --keep-fp32 {word} says so" in result.out
    said = precision_record.read(onnx.load(big / "out.onnx"))
    assert said is not None
    assert [k.node for k in said.kept] == ["root"]


def test_a_name_to_keep_that_nothing_has_is_exit_2(big: Path, onnxfuse_command: Command) -> None:  # noqa: F811 - a fixture
    """With the nearest one; and it goes with --precision alone."""
    result = onnxfuse_command("optimize", "big.onnx", "out.onnx", "--precision", "float16", "--keep-fp32", "rot")
    assert result.code == 2
    assert "Did you mean root?" in result.err
    assert not (big / "out.onnx").exists()
    with pytest.warns(UserWarning, match="4 of 4 float nodes kept|no node was converted"):
        onnxfuse.optimize(big / "big.onnx", precision="float16", keep_fp32=["*"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tolerance", "0.1"], "goes with --precision"),
        (["--keep-fp32", "root"], "goes with --precision"),
        (["--inputs", "x.npz"], "goes with --precision or --guard"),
        (["--undo", "--precision", "float16"], "--undo cannot be combined with any of"),
    ],
)
def test_a_wrong_call_is_exit_2(big: Path, onnxfuse_command: Command, arguments: list[str], told: str) -> None:  # noqa: F811 - a fixture
    """With a sentence."""
    result = onnxfuse_command("optimize", "big.onnx", "out.onnx", *arguments)
    assert result.code == 2
    assert told in result.err


def test_real_inputs_decide(big: Path, onnxfuse_command: Command) -> None:  # noqa: F811 - a fixture
    """Values that stay small on the inputs that are given need no float32."""
    np.savez(big / "small.npz", x=np.linspace(0.001, 0.01, 16, dtype=np.float32).reshape(2, 8))
    result = onnxfuse_command("optimize", "big.onnx", "o.onnx", "--precision", "float16", "--inputs", "small.npz")
    assert result.code == 0
    said = precision_record.read(onnx.load(big / "o.onnx"))
    assert said is not None
    assert "given inputs (small.npz)" in said.inputs
    assert "next: onnxfuse verify big.onnx o.onnx --inputs small.npz\n" in result.out
    assert all("reaches" not in k.reason for k in said.kept)


def test_mixed_takes_bfloat16_where_the_range_is_left() -> None:
    """And float32 where that loses too much; bfloat16 alone converts all."""
    trap = traps.TRAPS[0]
    model, feeds = traps.planted(trap), tuple(traps.feeds(trap, 1))
    mixed = optimize(model, Options(precision=Lowering("mixed", feeds)))
    assert mixed.lowered is not None
    assert {k.type for k in mixed.lowered.kept} == {"bfloat16"}
    assert onnxfuse.verify(model, mixed.model, inputs=list(feeds), providers=CPU, isolate=False).ok
    brief = optimize(model, Options(precision=Lowering("bfloat16", feeds)))
    assert brief.lowered is not None
    assert not brief.lowered.kept
    report = onnxfuse.verify(model, brief.model, inputs=list(feeds), providers=CPU, isolate=False)
    assert report.ok
    assert report.half


def test_each_of_several_models_tells_how_it_was_converted(big: Path, onnxfuse_command: Command) -> None:  # noqa: F811 - a fixture
    """And what else is to be known of it."""
    text = '<ir_version: 3, opset_import: ["" : 6]> g (float[4,8] x) => (float[4,8] y) { y = Tanh (x) }'
    onnx.save(onnx.parser.parse_model(text), big / "old.onnx")
    out = onnxfuse_command("optimize", "big.onnx", "old.onnx", "-o", "made", "--precision", "float16").out
    assert "big.onnx: precision: float16: relative RMS error" in out
    assert "3 of 4 float nodes kept" in out
    assert "old.onnx: note: opset 6 is older" in onnxfuse_command("optimize", "old.onnx", "-o", "made").out


def test_guard_looks_at_fusions_of_the_converted_model() -> None:
    """Both at once: what was converted is the original of the guard."""
    made = optimize(model_of(BIG), Options(precision=Lowering("float16"), guard=Guarding()))
    assert made.guarded is not None
    assert not made.guarded.undone
    assert made.lowered is not None


def test_python_takes_the_same_options() -> None:
    """`onnxfuse.optimize(..., precision=)` warns of what stays."""
    with pytest.warns(UserWarning, match="3 of 4 float nodes kept"):
        made = onnxfuse.optimize(model_of(BIG), precision="float16", io_precision="float16")
    assert made.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    with pytest.raises(UsageError, match="expected one of float16, bfloat16, mixed"):
        onnxfuse.optimize(model_of(BIG), precision="half")  # type: ignore[arg-type]  # the mistake
    random = model_of("g (float[4] x) => (float[4] y) { r = RandomNormalLike(x) y = Add(x, r) }")
    with pytest.raises(UsageError, match="draws random numbers"):
        onnxfuse.optimize(random, precision="float16")


def test_external_data_is_converted(tmp_path: Path) -> None:
    """Weights of a file beside the model come out at half their size."""
    rng = np.random.default_rng(0)
    model = model_of("g (float[2,256] x) => (float[2,256] y) <float[1] w = {0}> { y = Mul(x, w) }")
    weight = (rng.standard_normal((256, 256)) / 16).astype(np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    model.graph.node[0].op_type = "MatMul"
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    made = onnxfuse.optimize(tmp_path / "m.onnx", precision="float16")
    assert io.size(made) < 0.6 * weight.nbytes
    assert onnxfuse.verify(tmp_path / "m.onnx", made, providers=CPU, isolate=False).ok


def test_ci_holds_what_stays(big: Path, onnxfuse_command: Command) -> None:  # noqa: F811 - a fixture
    """`precision` in onnxfuse.toml; the lock remembers the kept nodes, and one more is a loss."""
    config = '[[model]]\npath = "big.onnx"\nprecision = "float16"\nprovider = "cpu"\n'
    (big / "onnxfuse.toml").write_text(config)
    result = onnxfuse_command("ci", "--update")
    assert result.code == 0, result.out
    lock = json.loads((big / "onnxfuse.lock").read_text())["models"]["big"]
    assert lock["precision"] == "float16"
    assert list(lock["kept"]) == ["Abs root", "Div down", "Mul up"]
    (big / "onnxfuse.lock").write_text((big / "onnxfuse.lock").read_text().replace('"Abs root"', '"Abs other"'))
    result = onnxfuse_command("ci")
    assert result.code == 4
    assert "big: regressed: precision of Abs root: float16 -> float32" in result.out
    (big / "onnxfuse.toml").write_text(config.replace("float16", "half"))
    assert "precision is 'half', expected one of float16, bfloat16, mixed" in onnxfuse_command("ci").err


def test_functions_are_converted_where_they_are_called() -> None:
    """They are inlined first: one that two places call may stay float32 in one of them."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17, "local" : 1]>
        g (float[2,8] x) => (float[2,8] y) { a = local.twice(x) y = local.twice(a) }
        <domain: "local", opset_import: ["" : 17]>
        twice (x) => (y) { c = Constant<value_float = 3000.0>() m = Mul(x, c) n = Abs(m) y = Sqrt(n) }""")
    made = optimize(model, Options(precision=Lowering("float16", ({"x": np.full((2, 8), 0.5, np.float32)},))))
    assert made.lowered is not None
    assert [(k.op, k.reason.split(";")[0].split(",")[0]) for k in made.lowered.kept] == [
        ("Mul", "reaches 1.16e+05"), ("Abs", "reads 'm__2'"), ("Sqrt", "reads 'n__2'"),
    ]  # fmt: skip


def test_what_is_too_big_for_float64_is_measured_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a model beyond protobuf's limit goes to ONNX Runtime through a file."""
    import onnxfuse.precision as whole

    monkeypatch.setattr(whole, "FLOAT64_PARAMETERS", 0)
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", 100)
    made = optimize(model_of(BIG), Options(precision=Lowering("float16")))
    assert made.lowered is not None
    assert made.lowered.truth == "float32"
    assert [k.node for k in made.lowered.kept] == ["up", "root", "down"]


def test_a_converted_file_that_fails_is_told_as_that() -> None:
    """And not as a fault of ours: the original runs where it does not."""
    plain = model_of("g (float[n,8] x) => (float[n,8] y) { y = Abs(x) }")
    wrong = model_of("g (float[n,8] x) => (float[n,8] y) <int64[2] two = {2, 8}> { r = Reshape(x, two) y = Abs(r) }")
    precision_record.write(wrong, PrecisionRecord("float16", 0.01, "", "", 1))
    report = onnxfuse.verify(plain, wrong, providers=CPU, isolate=False, shapes={"n": (2, 3)})
    assert not report.ok
    assert {case.shapes["x"][0]: case.note for case in report.cases} == {2: "", 3: FUSED_FAILS}
    assert all(p.startswith("the fused model fails where the original runs (x=3x8): ") for p in report.problems)
