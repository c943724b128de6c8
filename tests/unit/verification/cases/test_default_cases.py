"""The cases by which a precision is chosen and fusions are guarded: real inputs, or made-up ones that it takes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, TensorProto

from onnxfuse.support.errors import UsageError
from onnxfuse.verification.cases.default_cases import as_half, default_cases, float32_case
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import KINDS, Case
from tests.support.verification.small_models import text_model

CPU = ["CPUExecutionProvider"]
WIDE = text_model("g (float[batch, 4] x, int64[batch] n) => (float[batch, 4] y) { y = Identity (x) }")


def names(found: list[Case]) -> set[str]:
    """Return the kinds of the cases."""
    return {case.name for case in found}


def test_real_inputs_are_the_cases() -> None:
    """As they are, and no others."""
    given: dict[str, npt.NDArray[Any]] = {"x": np.full((2, 4), 7, np.float32), "n": np.zeros(2, np.int64)}
    (case,) = default_cases(WIDE, [given], CPU, "--guard")
    assert not case.generated
    assert {name: x.tolist() for name, x in case.make().items()} == {n: x.tolist() for n, x in given.items()}


def test_each_kind_is_made_up_at_one_size() -> None:
    """By one seed, the same one each time."""
    found = default_cases(WIDE, None, CPU, "--guard")
    assert names(found) == {*KINDS}
    assert {(case.seed, case.shapes["x"]) for case in found} == {(0, (1, 4))}
    again = default_cases(WIDE, None, CPU, "--guard")
    assert all(np.array_equal(a.make()["x"], b.make()["x"]) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize(("how", "half"), [({}, False), ({"half": True}, True)])
def test_with_half_floats_are_numbers_of_float16(how: dict[str, bool], half: bool) -> None:
    """They are float32 all the same, and integers stay what they are."""
    found = [case.make() for case in default_cases(WIDE, None, CPU, "--guard", **how)]
    assert {(feed["x"].dtype.name, feed["n"].dtype.name) for feed in found} == {("float32", "int64")}
    exact = all(np.array_equal(feed["x"].astype(np.float16).astype(np.float32), feed["x"]) for feed in found)
    assert exact == half


def test_specs_as_half_differ_in_float32_alone() -> None:
    """A case that is not to be in float16 is itself."""
    before = input_specs(WIDE)
    assert [(s.name, s.dtype) for s in as_half(before)] == [("x", TensorProto.FLOAT16), ("n", TensorProto.INT64)]
    case = Case("normal", 0, {}, dict)
    assert float32_case(case, half=False) is case


def test_a_size_that_the_model_takes_is_searched() -> None:
    """Where it takes none of the first ones."""
    window = text_model(
        "g (float[batch, 1, samples] x) => (float[batch, 4, k] y) { y = Conv <strides = [160]> (x, w) }",
        w=np.ones((4, 1, 400), np.float32),
    )
    found = default_cases(window, None, CPU, "--guard")
    assert names(found) == {*KINDS}
    assert {(case.seed, case.shapes["x"]) for case in found} == {(0, (1, 1, 400))}


def reshaping(rows: int) -> ModelProto:
    """Return a model of sequences that takes no empty one."""
    text = f"g (seq(float[{rows}, 4]) s, int64 i) => (float[a, b] y) {{ y = SequenceAt (s, i) }}"
    return text_model(text)


def test_a_sequence_without_an_entry_is_left_where_the_model_takes_none() -> None:
    """And is a case where it does."""
    refused, taken = reshaping(3), text_model("g (seq(float[3, 4]) s) => (int64 n) { n = SequenceLength (s) }")
    assert "empty" not in names(default_cases(refused, None, CPU, "--guard"))
    assert "empty" in names(default_cases(taken, None, CPU, "--guard"))


@pytest.mark.parametrize(("option", "hint"), [("--guard", "--guard-inputs"), ("--precision", "--inputs")])
def test_a_model_that_runs_on_none_is_told(option: str, hint: str) -> None:
    """With why, and where to give real ones."""
    never = text_model(
        "g (float[batch, 4] x) => (float[a, b] y) { y = Reshape (x, to) }", to=np.array([7, 5, 11], np.int64)
    )
    with pytest.raises(
        UsageError, match=rf"^{option}: the original runs on none of the generated inputs: .*Reshape"
    ) as e:
        default_cases(never, None, CPU, option)
    assert f"with {hint}." in e.value.hint
