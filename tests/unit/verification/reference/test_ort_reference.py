"""Each operator of the truth is held against ONNX Runtime: a wrong one is replaced, an unchecked one is told."""

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference.op_run import OpRun

from onnxfuse.verification import verify
from onnxfuse.verification.reference import control_flow, float64_reference, ort_reference
from onnxfuse.verification.reference.ort_reference import OrtReference
from onnxfuse.verification.reference.windows import Conv
from tests.support.verification.small_models import text_model

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("wrong", ["ones", "a little", "another shape"])
def test_a_reference_that_is_wrong_does_not_excuse_a_wrong_model(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an operator of the truth is not ONNX Runtime's, that one takes its place, and the report says so."""
    rng = np.random.default_rng(0)
    right = Conv._run

    def broken(self: Any, x: np.ndarray, w: np.ndarray, b: Any = None, **attributes: Any) -> tuple[np.ndarray]:
        y = right(self, x, w, b, **attributes)[0]
        return ({"ones": np.ones_like(y), "a little": y * 1.001, "another shape": y[..., 1:]}[wrong],)

    monkeypatch.setattr(Conv, "_run", broken)
    monkeypatch.setattr(ort_reference, "TRUSTED", set())
    graph = "g (float[n, 2, 8, 8] x) => (float[n, 2, 6, 6] y) "
    weights: dict[str, Any] = {
        "w": rng.standard_normal((2, 2, 3, 3)).astype("f"),
        "v": rng.standard_normal((2, 2, 3, 3)).astype("f"),
    }
    plain = text_model(graph + "{ y = Conv(x, w) }", **weights)
    report = verify(plain, plain, providers=["CPUExecutionProvider"])
    assert (report.ok, report.truth) == (True, "float64")
    assert "onnx's reference of Conv is not trusted at node 'y'" in report.truth_why
    assert "ONNX Runtime's own operator in float32" in report.truth_why
    assert not verify(plain, text_model(graph + "{ y = Conv(x, v) }", **weights), providers=["CPUExecutionProvider"]).ok


def test_sums_of_integers_are_exact_whatever_onnx_runtime_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its CPU kernel saturates pairs of products where a processor has no VNNI: the reference is not replaced by it."""
    monkeypatch.setattr(ort_reference, "TRUSTED", set())
    w = np.full((64, 16), -128, np.int8)
    text = "g (uint8[n, 64] x) => (int32[n, 16] y) { y = MatMulInteger(x, w) }"
    made = float64_reference.reference_for(text_model(text, opset=17, w=w), "float64", [])
    got = made.evaluate({"x": np.full((3, 64), 255, np.uint8)})["y"]
    assert (got == 255 * -128 * 64).all()
    assert made.why == ""


def test_a_truth_that_nobody_can_vouch_for_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original is far from it, and one of its operators cannot be run by itself: undecided, and which is told."""
    right = control_flow.Loop._run

    def broken(self: Any, *inputs: Any, **more: Any) -> Any:
        return tuple(x * 1.05 for x in right(self, *inputs, **more))

    text = """g (float[n, 8] x) => (float[n, 8] y) <int64 times = {{3}}, bool go = {{1}}, float k = {{{}}}> {{
        s = Loop (times, go, x) <body = b (int64 i, bool c, float[n, 8] a) => (bool d, float[n, 8] z)
          {{ d = Identity(c)  z = Mul(a, k) }}>
        y = Tanh(s) }}"""
    plain = text_model(text.format(1.5))
    assert not verify(plain, text_model(text.format(1.5 * 1.001)), providers=["CPUExecutionProvider"]).ok
    monkeypatch.setattr(control_flow.Loop, "_run", broken)
    report = verify(plain, text_model(text.format(1.5 * 1.001)), providers=["CPUExecutionProvider"])
    assert not report.ok
    assert {r.verdict for r in report.rows} <= {"undecided", "mismatch"}
    assert (
        "further from it than it rounds, and ONNX Runtime could not be asked about Loop (node 's'" in report.truth_why
    )
    assert verify(plain, plain, providers=["CPUExecutionProvider"]).ok


def judged(op: type[OpRun], inputs: list[np.ndarray], again: bool = False, **attributes: Any) -> OrtReference:
    """Return what became of the check of one operator, whose outputs stay those of the reference."""
    made = OrtReference()
    made.again = again
    node = operator(op, len(inputs), **attributes)
    ours = node.run(*inputs)
    made.trusted(node, None, inputs, ours)
    return made


def operator(op: type[OpRun], count: int, **attributes: Any) -> Any:
    """Return an operator of the reference, of one output."""
    proto = helper.make_node(op.__name__, [f"x{n}" for n in range(count)], ["y"], name="here", **attributes)
    return op(
        proto,
        {
            "log": lambda *_: None,
            "opsets": {"": 17},
            "verbose": 0,
            "new_ops": None,
            "evaluator_cls": None,
            "existing_functions": {},
        },
    )


IMAGE, FILTER = RNG.standard_normal((1, 2, 6, 6)), RNG.standard_normal((3, 2, 3, 3))


def test_an_operator_is_checked_once_in_each_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes, types and ranks make a form; sizes do not. `again` checks what was trusted, too."""
    monkeypatch.setattr(ort_reference, "TRUSTED", set())
    opened = list[str]()
    own = ort_reference._open_node

    def counted(node: Any, *more: Any) -> Any:
        opened.append(node.onnx_node.op_type)
        return own(node, *more)

    monkeypatch.setattr(ort_reference, "_open_node", counted)
    strided: dict[str, Any] = {"strides": [2, 2]}
    for image, attributes in ((IMAGE, {}), (IMAGE[..., :5], {}), (IMAGE, strided), (IMAGE, {})):
        assert judged(Conv, [image, FILTER], **attributes).text == ""
    assert len(opened) == 2
    judged(Conv, [IMAGE, FILTER], again=True)
    assert len(opened) == 3


def test_a_rejected_operator_gives_onnx_runtimes_numbers_and_says_in_which_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From there on, without a second check; the truth has the digits of that type alone."""
    monkeypatch.setattr(ort_reference, "TRUSTED", set())
    right = Conv._run
    monkeypatch.setattr(Conv, "_run", lambda self, x, w, b=None, **more: (right(self, x, w, b, **more)[0] * 1.01,))
    made, node = OrtReference(), operator(Conv, 2)
    for _ in range(2):
        (y,) = made.trusted(node, None, [IMAGE, FILTER], node.run(IMAGE, FILTER))
        np.testing.assert_allclose(y, right(node, IMAGE, FILTER)[0], rtol=1e-5, atol=1e-5)
        assert y.dtype == np.float64
    (doubt,) = made.doubts.values()
    assert (doubt.op, doubt.node, doubt.dtype, made.itemsize) == ("Conv", "here", "float32", 4)
    assert "it differs from ONNX Runtime's by" in made.text


def test_a_difference_that_one_ulp_of_the_inputs_makes_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quotient near its pole: neither is wrong there. The same difference where inputs do not matter is a fault."""
    assert ort_reference._explained(np.array([1.0, 2.0]), np.array([1.0, 2.5]), np.array([1.0, 2.4]))
    assert not ort_reference._explained(np.array([1.0, 2.0]), np.array([1.0, 2.5]), np.array([1.0, 2.5]))
    assert ort_reference._explained(np.array([1, 2]), np.array([1, 3]), np.array([2, 3]))
    assert not ort_reference._explained(np.array([1, 2]), np.array([1, 3]), np.array([1, 3]))
    assert ort_reference._explained(np.array([1]), np.array([1, 3]), np.array([1])), (
        "its size depends on the last digit"
    )


@pytest.mark.parametrize(
    ("a", "b", "agree"),
    [
        ([1.0, 2.0], [1.0, 2.0001], True),
        ([1.0, 2.0], [1.0, 2.001], False),
        ([1.0, np.nan], [1.0, np.nan], True),
        ([1.0, np.nan], [1.0, 2.0], False),
        ([1.0], [1.0, 1.0], False),
        ([1], [1], True),
        ([1], [2], False),
        ([1e300], [np.inf], True),
    ],
)
def test_outputs_agree_up_to_rounding(a: list[float], b: list[float], agree: bool) -> None:
    """In the numbers, in where there are none, and in shape; what is beyond a narrower type is no difference."""
    assert ort_reference._agree(np.array(a), np.array(b)) is agree


def test_an_operator_that_cannot_be_asked_about_is_noted() -> None:
    """One of text, and one that nothing opens: by its name, and only told where an output is far off."""
    made = OrtReference()
    node = operator(Conv, 2)
    words = np.array(["a"], object)
    assert made.trusted(node, None, [words, words], (words,)) == (words,)
    assert made.unchecked == {"Conv": "here"}
    assert made.text == ""
    made.unsure = True
    assert "ONNX Runtime could not be asked about Conv (node 'here')" in made.text
    assert made.itemsize == 8
