"""`onnxfuse verify`: one screen, facts as JSON, and an exit code that tells what happened."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse.cli.main import main
from onnxfuse.verification.run import sessions
from tests.cli.conftest import Command

RIGHT = "y = Relu(x)"
WRONG = "y = Identity(x)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, the same again, and another one."""
    monkeypatch.chdir(tmp_path)
    for name, body in (("in", RIGHT), ("same", RIGHT), ("other", WRONG)):
        made = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 20]> g (float[n, 8] x) => (float[n, 8] y) {{ {body} }}'
        )
        onnx.save(made, tmp_path / f"{name}.onnx")
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_verdict_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0 and one screen: verdict, table, where it ran and what truth was."""
    assert _run("in.onnx", "same.onnx") == 0
    out = capsys.readouterr().out
    assert out.startswith("ok same within the error budget: 1 output, 8 cases\n")
    assert len(out.splitlines()) <= 10
    assert "float64" in out
    assert "on CPU" in out


@pytest.mark.usefixtures("folder")
def test_a_strict_file_is_verified_without_tf32(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the command says so, as it does where --no-tf32 asks for it; --tf32 goes first. The CPU is CUDA here."""
    monkeypatch.setattr(sessions, "CUDA", "CPUExecutionProvider")
    monkeypatch.setattr(sessions, "chosen_providers", list)
    monkeypatch.setattr(sessions, "with_options", lambda providers, cuda: list(providers))
    with pytest.raises(SystemExit):
        main(["optimize", "in.onnx", "strict.onnx", "--strict-fp32"])
    told = "no float32 product is rounded to TF32 (use_tf32 0): "
    for fused, option, why in (
        ("strict.onnx", (), "the fused file was made with --strict-fp32"),
        ("same.onnx", ("--no-tf32",), "asked for"),
        ("same.onnx", (), None),
        ("strict.onnx", ("--tf32",), None),
    ):
        capsys.readouterr()
        assert _run("in.onnx", fused, "--provider", "cpu", *option) == 0
        out = capsys.readouterr().out
        assert (told + why in out) if why else (told not in out)


@pytest.mark.usefixtures("folder")
def test_a_mismatch_says_where_and_what_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1; the worst element with the three values, the case that shows it, the next step."""
    assert _run("in.onnx", "other.onnx") == 1
    out = capsys.readouterr().out
    assert out.startswith("MISMATCH not the same: y out of budget\n")
    assert "y: error" in out
    assert "original" in out
    assert "seed 0: x=" in out
    assert "-> " in out
    assert len(out.splitlines()) <= 15


@pytest.mark.usefixtures("folder")
def test_json_holds_every_fact(capsys: pytest.CaptureFixture[str]) -> None:
    """The schema that scripts rely on; valid JSON even where a number is infinite."""
    assert _run("in.onnx", "other.onnx", "--json") == 1
    facts = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert set(facts) == {
        "schema", "command", "ok", "summary", "parts", "provider", "fused_provider", "truth", "tf32", "half", "wide",
        "without_tf32", "problems", "outputs", "rows", "cases", "undecided", "unverified", "kernels", "searched",
        "never_ran", "limits", "verdict", "blunt", "original_broken", "sizes", "not_run", "crash",
        "ran_as", "nan_weights", "bisection", "precision", "seconds",
    }  # fmt: skip
    assert facts["ok"] is False
    assert facts["truth"] == {"kind": "float64", "how": "onnx's reference operators", "why": ""}
    (row,) = facts["outputs"]
    assert row["verdict"] == "mismatch"
    assert row["max_rel"] == "inf"
    assert set(row) == {
        "output", "dtype", "case", "verdict", "fault", "judged_by", "elements", "compared", "max_abs", "max_rel",
        "cosine", "rtol", "atol", "scale", "own", "own_typical", "error", "step", "typical", "where", "fused",
        "original", "truth", "budget", "typical_budget", "tolerance", "contract", "difference", "identical", "unsure",
        "eps", "own_off", "follows", "part_of", "element", "grid", "apart", "reach", "ties",
        "worst_case", "also",
    }  # fmt: skip
    assert set(row["difference"]) == {
        "elements", "finite", "max_abs", "max_abs_at", "mean_abs", "max_rel", "max_rel_at", "mean_rel", "quantiles",
        "cosine", "snr", "rtol", "atol", "ulps", "nan", "inf", "agreement",
    }  # fmt: skip
    assert (facts["schema"], facts["command"]) == (1, "verify")
    assert (facts["bisection"], row["judged_by"], row["tolerance"]) == (None, "budget", None)
    assert len(facts["rows"]) == len(facts["cases"]) == 7
    assert set(facts["cases"][0]) == {"name", "seed", "shapes", "seconds", "note"}
    assert row["case"] in range(7)


@pytest.mark.usefixtures("folder")
def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is enough."""
    assert _run("in.onnx", "same.onnx", "-q") == 0
    assert _run("in.onnx", "other.onnx", "-q") == 1
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("folder")
def test_shapes_seeds_and_real_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    """Options reach the cases."""
    assert _run("in.onnx", "same.onnx", "--shape", "n=2,5", "--seed", "3", "--seeds", "2", "--json") == 0
    cases = _facts(capsys)["cases"]
    assert {tuple(c["shapes"]["x"]) for c in cases} == {(2, 8), (5, 8)}
    assert {c["seed"] for c in cases} == {3, 4}
    assert _run("in.onnx", "same.onnx", "--shape", "x=4x8", "--json") == 0
    assert {tuple(c["shapes"]["x"]) for c in _facts(capsys)["cases"]} == {(4, 8)}
    np.savez("real.npz", x=np.full((2, 8), -1, np.float32))
    assert _run("in.onnx", "same.onnx", "--inputs", "real.npz", "--json") == 0
    assert [c["name"] for c in _facts(capsys)["cases"]] == ["real.npz"]
    assert _run("in.onnx", "other.onnx", "--inputs", "real.npz", "-q") == 1
    assert _run("in.onnx", "same.onnx", "--truth", "float32", "--json") == 0
    assert _facts(capsys)["truth"]["kind"] == "float32"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "n"], "neither DIMENSION=1,7 nor DIMENSION=1..32 nor INPUT=1x3x224x224"),
        (["--shape", "n=one"], "neither DIMENSION=1,7 nor DIMENSION=1..32 nor INPUT=1x3x224x224"),
        (["--shape", "n=²"], "neither DIMENSION=1,7 nor DIMENSION=1..32 nor INPUT=1x3x224x224"),
        (["--shape", f"n={'9' * 5000}"], "neither DIMENSION=1,7 nor DIMENSION=1..32 nor INPUT=1x3x224x224"),
        (["--shape", "m=1"], "shape m: no input or dimension has that name"),
        (["--shape", "x=1x9"], "axis 1 must be 8"),
        (["--inputs", "none.npz"], "none.npz: no such file or folder"),
        (["--seeds", "0"], "0 is not in the range"),
        (["--provider", "tpu"], "'tpu' is not one of"),
        (["--providers", "cpu,tpu"], "'cpu,tpu' is not one of"),
        (["--rtol", "x"], "'x' is neither a number nor OUTPUT=NUMBER nor TYPE=NUMBER"),
        (["--atol", "-1"], "a tolerance is a finite number from 0"),
        (["--atol", "z=1"], "no output or element type has that name"),
        (["--nan", "maybe"], "'maybe' is not one of"),
        (["--top-k", "0"], "0 is not in the range"),
        (["--rules", "mine"], "mine: "),
        (["--save-inputs", "x.npz"], "a .npz holds one set of inputs, there are 6"),
        (["--inputs", "in.onnx"], "in.onnx: is no file of NumPy's"),
        (["--shapes", "n=2", "--inputs", "real.npz"], "shapes are those of the real inputs"),
        (["--truth", "exact"], "'exact' is not one of"),
        (["--seeds", "few"], "is not a valid integer"),
    ],
)
def test_wrong_usage_is_told_in_one_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, the word that is wrong, no traceback."""
    assert _run("in.onnx", "same.onnx", *arguments) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert message in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("folder")
def test_tolerances_take_the_place_of_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    """For all outputs, for one, for a type; what is judged by what is told; the exit code follows."""
    assert _run("in.onnx", "other.onnx", "--atol", "1e9", "--rtol", "1", "--json") == 0
    facts = _facts(capsys)
    assert facts["summary"].startswith("same within the tolerance")
    assert facts["outputs"][0]["judged_by"] == "tolerance"
    assert facts["outputs"][0]["tolerance"]["atol"] == 1e9
    assert _run("in.onnx", "other.onnx", "--atol", "y=1e9", "-q") == 0
    assert _run("in.onnx", "other.onnx", "--atol", "float32=1e9", "-q") == 0
    assert _run("in.onnx", "other.onnx", "--atol", "float16=1e9", "-q") == 1
    assert _run("in.onnx", "same.onnx", "--rtol", "0") == 0
    assert _run("in.onnx", "other.onnx", "--atol", "1e9", "--atol", "y=1e-3") == 1
    out = capsys.readouterr().out
    assert "elements beyond rtol 0 atol 0.001" in out
    assert "signal to noise" in out


@pytest.mark.usefixtures("folder")
def test_saved_inputs_are_those_that_were_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Every case goes to a folder, and comes back with the same result."""
    assert _run("in.onnx", "other.onnx", "--save-inputs", "saved", "--json") == 1
    first = _facts(capsys)
    assert _run("in.onnx", "other.onnx", "--inputs", "saved", "--json") == 1
    custom_ops_arguments = _facts(capsys)
    assert [c["name"] for c in custom_ops_arguments["cases"]] == [
        f"test_data_set_{n}" for n in range(len(first["cases"]))
    ]
    assert [c["shapes"] for c in custom_ops_arguments["cases"]] == [c["shapes"] for c in first["cases"]]
    assert [r["max_abs"] for r in custom_ops_arguments["rows"]] == [r["max_abs"] for r in first["rows"]]


def test_class_scores_nan_and_top_k(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Agreement is told where it is asked for; NaN fails where that is asked for."""
    assert _run("in.onnx", "same.onnx", "--top-k", "1", "--top-k", "3") == 0
    assert "y agrees with the original: top-1 100.00%, top-3 100.00%" in capsys.readouterr().out
    text = '<ir_version: 8, opset_import: ["": 20]> g (float[n, 8] x) => (float[n, 8] y) { y = Sqrt (x) }'
    onnx.save(onnx.parser.parse_model(text), folder / "root.onnx")
    assert _run("root.onnx", "root.onnx", "-q") == 0
    assert _run("root.onnx", "root.onnx", "--nan", "fail") == 1
    assert "nan in the fused output, and --nan fail was asked for" in capsys.readouterr().out
    assert _run("root.onnx", "root.onnx", "--nan", "fail", "--rtol", "1", "-q") == 1


@pytest.mark.usefixtures("folder")
def test_bisect_names_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    """On one screen; nothing is looked for, and nothing written, where nothing is wrong."""
    assert _run("in.onnx", "same.onnx", "--bisect", "report") == 0
    assert not Path("report").exists()
    assert _run("in.onnx", "other.onnx", "--bisect", "report") == 1
    out = capsys.readouterr().out
    assert "bisect: Identity (y), which no rule wrote: error" in out
    assert "in the original: Relu y" in out
    assert "onnxfuse verify report/original.onnx report/model.onnx --inputs report/test_data_set_0" in out
    assert {p.name for p in Path("report").iterdir()} == {"original.onnx", "model.onnx", "test_data_set_0"}
    Path("file").write_text("")
    assert _run("in.onnx", "other.onnx", "--bisect", "file/report") == 3


def test_files_that_are_no_models(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3 for a missing, empty, truncated or foreign file, whichever of the two it is."""
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "text.onnx").write_text("hello")
    (folder / "cut.onnx").write_bytes((folder / "in.onnx").read_bytes()[:-20])
    for name in ("missing.onnx", "empty.onnx", "text.onnx", "cut.onnx", str(folder)):
        for pair in ((name, "same.onnx"), ("in.onnx", name)):
            assert _run(*pair) == 3
            captured = capsys.readouterr()
            assert name in captured.err.replace("\n", "")
            assert captured.out == ""


@pytest.mark.usefixtures("folder")
def test_no_cuda_where_it_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 5 and the way out; never a silent run on the CPU."""
    from onnxfuse import runtime

    if runtime.cuda_unusable() is None:
        pytest.skip("CUDA works here")
    assert _run("in.onnx", "same.onnx", "--provider", "cuda") == 5
    assert "CUDA" in capsys.readouterr().err


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["verify", *arguments])
    return int(left.value.code or 0)


def _facts(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("where", ["both", "cpu,cuda", "cuda,cpu", "cuda"])
def test_no_cuda_for_one_of_the_two(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 5 as well where only one of the two models was to run there; machine-readable where that is asked for."""
    from onnxfuse import runtime

    if runtime.cuda_unusable() is None:
        pytest.skip("CUDA works here")
    assert _run("in.onnx", "same.onnx", "--providers", where, "--json") == 5
    facts = _facts(capsys)
    assert (facts["ok"], facts["exit_code"]) == (False, 5)


@pytest.mark.usefixtures("folder")
def test_what_is_left_out_for_its_time_is_told(onnxfuse_command: Command) -> None:
    """With the verdict on the rest, and where that is bad with how to have more."""
    fast = ("--provider", "cpu", "--time", "0.001")
    left = "5 cases left out: the time of 0.001 s is used up (--time)"
    done = onnxfuse_command("verify", "in.onnx", "same.onnx", *fast)
    assert done.code == 0
    assert left in done.out.splitlines()
    done = onnxfuse_command("verify", "in.onnx", "other.onnx", *fast)
    assert done.code == 1
    assert "cases were skipped for lack of time: --time 0.002 allows more" in done.out
