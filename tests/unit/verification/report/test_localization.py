"""A bisection's finding in one line: a crash with the op at which it happens, a fault with the rule that made it."""

from dataclasses import replace

import pytest

from onnxfuse.verification.report.localization import CrashSite, Localization, Suspect

FUSED = Suspect("n1", "A_1", "gemm", ("Gemm a", "Relu b"), "y")
PLAIN = Suspect("n2", "Relu", "", ("Relu n2",), "z")
CRASH = CrashSite("fused", "ends with SIGSEGV", "random, seed 0", "run", FUSED)
FOUND = Localization(FUSED, (), "alone", "off by 2", ("x",), "y", (FUSED,), ("Gemm a",), 3)


@pytest.mark.parametrize(
    ("site", "text"),
    [
        (CRASH, "the fused model ends with SIGSEGV on random, seed 0, in fused op A_1 (n1) of rule gemm, made of "
                "Gemm a, Relu b"),
        (replace(CRASH, model="truth", node=PLAIN, case=""), "ONNX Runtime ends with SIGSEGV, in Relu (n2)"),
        (replace(CRASH, model="original", setting="TF32", node=PLAIN, case=""),
         "the original model at TF32 ends with SIGSEGV, in Relu (n2)"),
        (replace(CRASH, node=None),
         "the fused model ends with SIGSEGV on random, seed 0, at the step 'run'; it did not happen again, so no op "
         "can be named"),
        (replace(CRASH, model="", node=None, step="", case="", setting="TF32"),
         "ONNX Runtime at TF32 ends with SIGSEGV; it did not happen again at the default setting, so no op can be "
         "named"),
    ],
)  # fmt: skip
def test_a_crash_names_what_is_known(site: CrashSite, text: str) -> None:
    """Model, setting, inputs, step and op: each only where it is there."""
    assert site.text == text
    assert site.as_dict()["text"] == text
    assert site.as_dict()["step"] == site.step


@pytest.mark.parametrize(
    ("found", "text", "rules"),
    [
        (FOUND, "fused op A_1 (n1) of rule gemm: off by 2", ("gemm",)),
        (replace(FOUND, guilty=None, rules=("a", "b")), "rule a with b, at 'y': off by 2", ("a", "b")),
        (replace(FOUND, guilty=PLAIN, rules=("a",)), "rule a, at 'y': off by 2", ("a",)),
        (replace(FOUND, guilty=PLAIN), "Relu (n2), which no rule wrote: off by 2", ()),
        (replace(FOUND, guilty=None), "the part before 'y', which no rule wrote: off by 2", ()),
        (replace(FOUND, fault=""), "no single part leaves the budget (3 checked): the error adds up over them", ()),
    ],
)
def test_a_fault_names_the_rule(found: Localization, text: str, rules: tuple[str, ...]) -> None:
    """That of the one fused op, else those that made it together, else the part."""
    assert (found.text, found.named_rules) == (text, rules)
    assert found.as_dict()["text"] == text
    assert found.as_dict()["checked"] == 3
