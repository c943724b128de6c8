"""The script that runs the library's forms on a GPU: what it can be held to without one."""

import subprocess
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

import onnxfuse
from tests.gpu import library_forms
from tests.gpu.library_forms import (
    FORMS,
    QUICK_LENGTHS,
    QUICK_SIZES,
    between_casts,
    cases_of,
    inputs_of,
    model_of,
    through_library,
    tried,
)
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda


def test_bfloat16_goes_in_and_out_as_float32() -> None:
    """Rounded on the way in; an input that is another type stays, also one that two nodes read."""
    text = """<ir_version: 10, opset_import: ["" : 18]>
      g (bfloat16[2,3] x, bool[3,2] keep) => (bfloat16[3,4] y, bool[3,2] z) {
        t = Transpose (x)  u = Transpose (x)  y = Concat <axis = 1> (t, u)  z = Not (keep)
      }"""
    given = {"x": np.asarray([[1.001, -2, 3], [4, 1e-3, 1e30]], np.float32), "keep": np.eye(3, 2) > 0}
    model = between_casts(onnx.parser.parse_model(text))
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    y, z = session.run(None, given)
    rounded = given["x"].T.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(y, np.concatenate([rounded, rounded], 1))
    np.testing.assert_array_equal(z, np.logical_not(given["keep"]))
    assert y.dtype == np.float32


def in_bfloat16(x: np.ndarray) -> np.ndarray:
    """Return float64 rounded to bfloat16."""
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def few_wide_heads(feeds: dict[str, np.ndarray], weigh: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return attention with two heads of 3136: by a kernel that keeps scaled scores, by plain nodes, exactly."""
    q, k, v = (feeds[name].astype(np.float64) for name in "qkv")
    scores = q.reshape(2, 7, 2, 3136).transpose(0, 2, 1, 3) @ k.transpose(0, 1, 3, 2)

    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    scaled = in_bfloat16(scores) * float(ml_dtypes.bfloat16(0.37))
    got = in_bfloat16(weigh(softmax(scaled)) @ v)
    plain = in_bfloat16(in_bfloat16(softmax(in_bfloat16(scaled))) @ v)
    return got, plain, softmax(scores * 0.37) @ v


def test_one_lucky_draw_of_the_plain_nodes_is_no_fault() -> None:
    """A rounding that the plain nodes undo by chance in one row says nothing; weights cut to eighths are a fault."""
    (case,) = (c for c in cases_of("few heads|bfloat16", quick=True) if "2x3136 of 7 by 7" in c.name)
    model = model_of(case, case.element)
    got, plain, truth = few_wide_heads(inputs_of(case, model), in_bfloat16)
    wrong = library_forms.fault(got, plain, truth, library_forms.ROUNDING["bfloat16"])
    assert "largest error 0.0778, allowed 0.043" in wrong
    assert library_forms.judged(case, model, lambda feeds: few_wide_heads(feeds, in_bfloat16)) == ""
    in_eighths = library_forms.judged(case, model, lambda feeds: few_wide_heads(feeds, lambda p: np.round(p * 8) / 8))
    assert "error" in in_eighths


@pytest.mark.parametrize("element", ["float16", "float"])
def test_other_types_go_as_they_are(element: str) -> None:
    """A case in them is the very model that users have."""
    model = library_forms.attention("op mask", element, 64, 2)
    assert between_casts(model) == model


def each_form_in_bfloat16() -> dict[str, list[Any]]:
    stand_in_kernels.install()
    found = {}
    for name in FORMS:
        case = next(c for c in cases_of(f"{name}|bfloat16", quick=True) if c.build[2][0] == c.sizes["L"] == 64)
        plain = model_of(case, case.element)
        session = onnxfuse.session(between_casts(through_library(plain)), ["CUDAExecutionProvider"])
        feeds = {k: v.astype(np.float32) if v.dtype != bool else v for k, v in inputs_of(case, plain).items()}
        (output,) = session.run(None, feeds)
        found[name] = [[p.runs_as for p in session.fused if p.rule == "attention"], output.dtype.name]
    return found


def test_each_form_in_bfloat16_is_the_librarys_between_the_casts(on_fake_cuda: FakeCuda) -> None:
    """Causal, too: the -60000 that hides its later keys is -59904 there."""
    found = on_fake_cuda(each_form_in_bfloat16)
    assert found == {name: [["onnxruntime"], "float32"] for name in FORMS}


GROUP = "plain|bfloat16"
CASES = len(QUICK_SIZES) * len(QUICK_LENGTHS)


def test_after_an_error_the_next_process_goes_on_behind_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crash is one failure, an error is one, and the time's end is none."""
    told = [
        (["begin 0 a", "through", "ran onnxruntime", "begin 1 b", "fail b (onnxruntime): CUDA failure 700"], 0),
        (["begin 2 c"], -11),
        (["begin 3 d", "through", "ran onnxruntime", "begin 4 e"], None),
    ]
    skipped = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        skipped.append(int(command[command.index("--skip") + 1]))
        lines, code = told[len(skipped) - 1]
        if code is None:
            raise subprocess.TimeoutExpired(command, 1, "\n".join(lines).encode())
        return subprocess.CompletedProcess(command, code, "\n".join(lines), "Segmentation fault")

    monkeypatch.setattr(subprocess, "run", run)
    counts = tried(GROUP, quick=True, until=float("inf"))
    assert skipped == [0, 2, 3]
    assert counts == {"onnxruntime": 2, "failed": 2, "left": CASES - 4}
    assert capsys.readouterr().out.splitlines() == [
        "fail b (onnxruntime): CUDA failure 700",
        "crash in the library's form, begin 2 c: exit -11: Segmentation fault",
        f"left {GROUP}: all from case 4 on",
    ]


def test_the_count_is_told_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is left is no failure."""
    monkeypatch.setattr("sys.argv", ["library_forms.py", "--quick", "--seconds", "0", "--only", GROUP])
    assert library_forms.main() == 0
    assert capsys.readouterr().out.splitlines() == [
        f"left {GROUP}: all from case 0 on",
        f"0 cases: none ran; 0 failed; {CASES} left after 0 seconds",
    ]
