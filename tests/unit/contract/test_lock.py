"""The lock file: what is recorded of a model, which differences are regressions, and what is refused as no lock."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.contract.lock import (
    Change,
    Lock,
    ModelLock,
    beyond_tolerance,
    compare,
    lock_model,
    read_lock,
    rule_hashes,
    write_lock,
)
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.match.report import Applied, OptimizeReport
from onnxfuse.support.errors import UsageError

INTERFACE = {"input x": "float32[N,4]", "output y": "float32[N]"}
CHECKS = {"verify": True, "shapes.N": [16], "require.softmax": ">=2"}
MODEL = ModelLock(
    applied={"softmax": 2},
    exported={"Add": 3, "Softmax": 2},
    operators={"onnxfuse:softmax": 2, "Add": 1},
    provider="CPUExecutionProvider",
    tolerances={"y": 1e-5},
    interface=INTERFACE,
    options={"skip": ["conv"]},
    checks=CHECKS,
    opsets={"ai.onnx": 17},
)
LOCK = Lock({"softmax": "a" * 64}, {"bert": MODEL})


def changes(**facts: Any) -> dict[str, Change]:
    """Return the differences of a model that has other facts, by what they are of."""
    return {c.what: c for c in compare(LOCK, replace(LOCK, models={"bert": replace(MODEL, **facts)}))}


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    """To the last fact, and in the same bytes each time, whatever order the facts came in."""
    path = tmp_path / "onnxfuse.lock"
    whole = replace(
        LOCK,
        packs={"mine": "1.0"},
        models={
            "z": MODEL,
            "a": replace(MODEL, precision="float16", kept={"Add n": "sensitive"}, places={"r": {"Add n": 3}}),
        },
    )
    write_lock(whole, path)
    assert read_lock(path) == whole
    first = path.read_bytes()
    write_lock(replace(whole, models=dict(reversed(list(whole.models.items())))), path)
    assert path.read_bytes() == first
    assert read_lock(tmp_path / "none.lock") is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.update(schema=1), "is of version 1, this onnxfuse reads version 3"),
        (lambda d: d.update(schema=99), "is of version 99, this onnxfuse reads version 3"),
        (lambda d: d["models"]["bert"].pop("checks"), "checks"),
        (lambda d: d["models"]["bert"].pop("interface"), "interface"),
        (lambda d: d["models"]["bert"].pop("tolerances"), "tolerances"),
        (lambda d: d.pop("schema"), "is not a lock file"),
        (lambda d: d.update(rules=[]), "is not a lock file"),
        (lambda d: d["models"]["bert"].update(applied={"softmax": -1}), "softmax"),
        (lambda d: d["models"]["bert"].update(applied={"softmax": 2.5}), "softmax"),
        (lambda d: d["models"]["bert"].update(tolerances={"y": "much"}), "y"),
        (lambda d: d["models"]["bert"].update(places={"r": "Add"}), "places"),
        (lambda d: d["models"]["bert"].update(unknown=1), "unknown"),
        (lambda d: d["models"]["bert"].pop("operators"), "operators"),
    ],
)
def test_what_is_no_lock_is_refused_with_its_place(tmp_path: Path, change: Any, told: str) -> None:
    """Before anything is compared with it, and with how to get back one that says what was locked."""
    path = tmp_path / "onnxfuse.lock"
    write_lock(LOCK, path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=told) as raised:
        read_lock(path)
    assert str(path) in str(raised.value)
    version = document.get("schema")
    step = {
        1: "Run ci with the onnxfuse that wrote it first: a new lock",
        99: "A newer onnxfuse wrote it: upgrade this one.",
    }
    assert raised.value.hint.startswith(step.get(version, f"Restore it: git checkout -- {path}; "))
    path.write_text("{")
    with pytest.raises(UsageError, match="is not a lock file"):
        read_lock(path)


@pytest.mark.parametrize(
    ("facts", "what", "regressed", "text"),
    [
        ({"applied": {"softmax": 1}}, "applications of softmax", True, "2 -> 1"),
        ({"applied": {"softmax": 3}}, "applications of softmax", False, "2 -> 3"),
        ({"applied": {}}, "applications of softmax", True, "2 -> 0"),
        ({"applied": {"softmax": 2, "gemm": 1}}, "applications of gemm", False, "0 -> 1"),
        ({"operators": {"onnxfuse:softmax": 2, "Add": 2}}, "nodes of the optimized model", True, "3 -> 4"),
        ({"operators": {"onnxfuse:softmax": 2}}, "nodes of the optimized model", False, "3 -> 2"),
        ({"operators": {"onnxfuse:softmax": 2, "Mul": 1}}, "remaining operators", False, "Add 1 -> 0, Mul 0 -> 1"),
        ({"exported": {"Add": 4, "Softmax": 2}}, "exported operators", False, "Add 3 -> 4"),
        ({"precision": "float16"}, "precision", False, "as exported -> float16"),
        ({"options": {}}, "option skip", False, '["conv"] -> default'),
        ({"options": {"skip": ["conv"], "ranges": "r.json"}}, "option ranges", False, 'default -> "r.json"'),
        ({"options": {"rules": ["mine"], "skip": ["conv"]}}, "option rules", False, 'default -> ["mine"]'),
        ({"checks": CHECKS | {"verify": False}}, "verify", False, "true -> false"),
        ({"checks": CHECKS | {"shapes.N": [32]}}, "shapes.N", False, "[16] -> [32]"),
        ({"checks": {"verify": True, "shapes.N": [16]}}, "require.softmax", False, '">=2" -> none'),
        ({"opsets": {"ai.onnx": 15}}, "opset of ai.onnx", False, "17 -> 15"),
        ({"interface": INTERFACE | {"output z": "int64[N]"}}, "output z", False, "none -> int64[N]"),
        ({"interface": {"input x": "float32[N,4]"}}, "output y", True, "float32[N] -> none"),
        ({"interface": INTERFACE | {"input x": "float32[8,4]"}}, "input x", True, "float32[N,4] -> float32[8,4]"),
    ],
)
def test_a_difference_is_a_regression_if_somebody_loses_by_it(
    facts: dict[str, Any], what: str, regressed: bool, text: str
) -> None:
    """A fusion less, a node more, a caller that fails; all else is told and passes."""
    found = changes(**facts)[what]
    assert (found.regressed, str(found)) == (regressed, f"{what}: {text}")
    assert found.of_model == f"bert: {what}: {text}"


def test_more_nodes_say_which() -> None:
    """An operator that remains is the cause; with as many nodes in all there is none."""
    more = changes(operators={"onnxfuse:softmax": 1, "Add": 1, "Mul": 2, "Exp": 1})["nodes of the optimized model"]
    assert more.why == ("more remain: 1 Exp, 2 Mul",)
    assert "nodes of the optimized model" not in changes(operators={"onnxfuse:softmax": 2, "Mul": 1})


def test_lower_precision_that_is_lost_or_grows_less_is_a_regression() -> None:
    """The whole model back in float32, or one node more that stays there: with its reason."""
    half = replace(MODEL, precision="float16", kept={"Add a": "sensitive"})
    lost = compare(Lock({}, {"m": half}), Lock({}, {"m": MODEL}))
    assert [(c.what, c.regressed) for c in lost] == [("precision", True)]
    wider = replace(half, kept={"Add a": "sensitive", "Exp e": "overflows"})
    (more,) = compare(Lock({}, {"m": half}), Lock({}, {"m": wider}))
    assert (more.what, more.now, more.regressed, more.why) == ("precision of Exp e", "float32", True, ("overflows",))
    assert compare(Lock({}, {"m": wider}), Lock({}, {"m": half})) == ()


def test_rules_and_models_that_came_or_went_are_told_first() -> None:
    """By the first digits of their hashes; what is no longer checked is no regression."""
    new = Lock({"softmax": "b" * 64, "mine": "c" * 64}, {"vit": MODEL}, {"pack": "2.0"})
    told = [(c.model, c.what, c.was, c.now) for c in compare(LOCK, new)]
    assert told == [
        ("", "rule mine", "none", "c" * 12),
        ("", "rule softmax", "a" * 12, "b" * 12),
        ("", "rule pack pack", "none", "2.0"),
        ("bert", "model", "locked", "no longer checked"),
        ("vit", "model", "not locked", "new"),
    ]
    assert not any(c.regressed for c in compare(LOCK, new))


def test_an_entry_has_no_hashes_of_ops_and_twice_the_difference_that_was_seen() -> None:
    """Or what verify allows, if that is more; of an output without a finite bound it says nothing."""
    report = OptimizeReport(applied=[Applied("softmax", "onnxfuse:softmax", ("Softmax s", "Add a"))])
    report.after.update({"onnxfuse:softmax_0123456789": 1, "onnxfuse:softmax_abcdefabcd": 2, "Add_0123456789": 1})
    rows = [("y", 1e-5, 3e-5), ("z", 4e-5, 3e-5), ("w", float("inf"), 1.0)]
    verified = {
        "provider": "CPUExecutionProvider",
        "outputs": [{"output": n, "max_abs": a, "budget": b, "verdict": "ok", "error": a} for n, a, b in rows],
    }
    options = {"rules": (Path("at/rules"), Path("/shared")), "skip": ("conv",), "only": ()}
    made = lock_model(report, verified, options=options, checks={"shapes.N": (1, 8)}, folder=Path("at"))
    assert made.operators == {"Add_0123456789": 1, "onnxfuse:softmax": 3}
    assert made.tolerances == {"y": 3e-5, "z": 8e-5}
    assert made.options == {"rules": ["rules", "/shared"], "skip": ["conv"]}
    assert made.checks == {"shapes.N": [1, 8]}
    assert made.places == {"softmax": {"Softmax s": 2}}
    assert lock_model(report, None).tolerances == {}
    assert lock_model(report, None).precision == ""


def test_a_larger_difference_is_a_regression_on_the_provider_of_the_lock_alone() -> None:
    """One that verify allows says so; equality is no regression."""
    row = {"output": "y", "max_abs": 2e-5, "error": 1e-6, "budget": 3e-6, "verdict": "ok"}
    verified = {"provider": "CPUExecutionProvider", "outputs": [row, {**row, "output": "unknown"}]}
    (change,) = beyond_tolerance(MODEL, MODEL, verified, "bert")
    assert (change.what, change.was, change.now) == ("difference of output y", "at most 1e-05", "2e-05")
    assert change.regressed
    assert "verify allows it" in change.why[0]
    assert beyond_tolerance(MODEL, MODEL, {**verified, "provider": "CUDAExecutionProvider"}, "bert") == ()
    assert beyond_tolerance(MODEL, MODEL, {**verified, "outputs": [{**row, "max_abs": 1e-5}]}, "bert") == ()
    wrong = {**row, "max_abs": "nan", "verdict": "mismatch"}
    nan = beyond_tolerance(MODEL, MODEL, {**verified, "outputs": [wrong]}, "bert")
    assert nan[0].regressed
    assert nan[0].why == ()


def test_a_rule_has_another_hash_when_its_file_changes(tmp_path: Path) -> None:
    """And only then: where it is has no part in it."""
    for folder, extra in (("a", ""), ("b", ""), ("c", "\n# a word more\n")):
        (tmp_path / folder).mkdir()
        source = next(r.path for r in rule_file.shipped() if r.name == "softmax")
        (tmp_path / folder / "softmax.toml").write_text(source.read_text() + extra)
    same, also, other = (rule_hashes(rule_file.load(tmp_path / folder))["softmax"] for folder in "abc")
    assert same == also != other
