"""The evaluator of the reference: when values are freed, and what loops gather."""

from typing import Any

import numpy as np
import onnxruntime
import pytest

from onnxfuse.verification.reference.reference import float64_evaluator
from tests.support.verification.small_models import model, text_model


def test_values_are_freed_after_their_last_reader() -> None:
    """A chain of ten operators never holds more than its input, one value and the next; a value read twice stays."""
    nodes = "a0 = Neg(x)  " + "  ".join(f"a{n + 1} = Neg(a{n})" for n in range(9)) + "  y = Add(a9, a0)"
    evaluator = float64_evaluator(model(nodes))
    held: list[int] = []

    class Watched(dict[str, Any]):
        def pop(self, *arguments: Any) -> Any:
            held.append(len(self))
            return super().pop(*arguments)

    ends = evaluator._last_readers
    assert [names for names in ends if names] == [["x"], *[[f"a{n}"] for n in range(1, 9)], ["a9", "a0"]]
    got = evaluator.run(["y"], {"x": np.ones((1, 32))})
    np.testing.assert_array_equal(got[0], np.zeros((1, 32)))


def test_what_a_loop_gathers_has_an_axis_of_its_own() -> None:
    """A matrix of each trip, also of a loop that nothing but its own condition ends."""
    model = text_model("""g (float[2, 3] x) => (float[t, 2, 3] y, float[2, 3] z) <bool go = {1}, float top = {40}> {
        z, y = Loop (, go, x) <body = b (int64 i, bool c, float[2, 3] a) => (bool d, float[2, 3] e, float[2, 3] f)
          { e = Add(a, a)  f = Neg(a)  m = ReduceMax <keepdims = 0> (e)  d = Less(m, top) }>
    }""")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in model.graph.output]
    for mine, theirs in zip(
        float64_evaluator(model).run(names, {"x": x.astype(float)}), session.run(names, {"x": x}), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("times", "go"), [(0, True), (3, False)])
def test_a_loop_without_a_turn_gathers_no_rows(times: int, go: bool) -> None:
    """As many axes as a turn would give, no element, and values as they went in."""
    model = text_model("""g (int64 times, bool go, float[n, 3] x) => (float[n, 3] z, float[t, n, 3] y) {
        z, y = Loop (times, go, x) <body = b (int64 i, bool c, float[n, 3] a) => (bool d, float[n, 3] e, float[n, 3] f)
          { d = Identity(c)  e = Add(a, a)  f = Neg(a) }>
    }""")
    x = np.ones((2, 3))
    given = {"times": np.array(times), "go": np.array(go), "x": x}
    z, y = float64_evaluator(model).run(["z", "y"], given)
    np.testing.assert_array_equal(z, x)
    assert y.shape == (0, 2, 3)
