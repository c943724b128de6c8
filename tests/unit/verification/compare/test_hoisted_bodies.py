"""What bodies compute is computed by the main graph, too: a branch as if taken, of a loop the first iteration."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto

from onnxfuse.verification.compare.hoisted_bodies import computing, hoist_bodies

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
IF = f"""{HEAD} g (float[2] x, bool c) => (float[2] y) {{
  a = Neg (x)
  [n] y = If (c) <
    then_branch = t () => (float[2] p) <float[1] w = {{3}}> {{ b = Mul (a, w)  p = Abs (b) }},
    else_branch = e () => (float[2] q) {{ b = Exp (x)  q = Neg (b) }}> }}"""
LOOP = f"""{HEAD} g (float[2] x, int64 k, bool c) => (float[2] y) {{
  [n] y = Loop (k, c, x) <body = b (int64 i, bool go, float[2] s) => (bool on, float[2] out) {{
    on = Identity (go)  f = Cast <to = 1> (i)  t = Add (s, f)  out = Exp (t) }}> }}"""
SCAN = f"""{HEAD} g (float[2] x, float[3,2] rows) => (float[2] y, float[3,2] ys) {{
  [n] y, ys = Scan <num_scan_inputs = 1, scan_input_directions = [BACKWARD], body = b (float[2] s, float[2] r)
    => (float[2] out, float[2] o) {{ out = Add (s, r)  o = Neg (out) }}> (x, rows) }}"""
NESTED = f"""{HEAD} g (float[2] x, bool c) => (float[2] y) {{
  [n] y = If (c) <
    then_branch = t () => (float[2] p) {{ a = Exp (x)  [m] p = If (c) <
      then_branch = u () => (float[2] r) {{ r = Neg (a) }},
      else_branch = v () => (float[2] s) {{ s = Abs (a) }}> }},
    else_branch = e () => (float[2] q) {{ q = Neg (x) }}> }}"""
X = np.array([1.0, -2.0], np.float32)
ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def value(text: str, name: str, **inputs: np.ndarray) -> np.ndarray:
    """Return what ONNX Runtime computes for a hoisted value."""
    model = onnx.parser.parse_model(text)
    before = model.SerializeToString()
    hoisted = ModelProto.FromString(before)
    made = hoist_bodies(hoisted)
    assert name in made
    with computing(model, [name], hoisted) as inner:
        within = ModelProto.FromString(inner.SerializeToString())
    assert model.SerializeToString() == before
    session = onnxruntime.InferenceSession(within.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    return np.asarray(session.run([name], {n: x for n, x in inputs.items() if n in wanted})[0])


@pytest.mark.parametrize("taken", [True, False])
def test_both_branches_are_computed_whichever_is_taken(taken: bool) -> None:
    """With the weights of the branch, and what it reads of the graph; equal names get apart."""
    inputs = {"x": X, "c": np.array(taken)}
    np.testing.assert_allclose(value(IF, "b in n", **inputs), -3 * X)
    np.testing.assert_allclose(value(IF, "b in n'", **inputs), np.exp(X), rtol=1e-6)
    np.testing.assert_allclose(value(IF, "p in n", **inputs), np.abs(3 * X))


@pytest.mark.parametrize("turns", [0, 5])
def test_of_a_loop_it_is_the_first_iteration(turns: int) -> None:
    """Whose number is 0, whose state is the first one, and whose condition holds."""
    inputs = {"x": X, "k": np.array(turns), "c": np.array(True)}
    np.testing.assert_allclose(value(LOOP, "t in n", **inputs), X)
    assert value(LOOP, "on in n", **inputs)
    np.testing.assert_allclose(value(LOOP, "out in n", **inputs), np.exp(X), rtol=1e-6)


@pytest.mark.parametrize(("direction", "row"), [(0, 0), (1, 2)])
def test_of_a_scan_it_is_the_entry_that_comes_first(direction: int, row: int) -> None:
    """The last one where it goes backward."""
    text = SCAN.replace("BACKWARD", f"{direction}")
    np.testing.assert_allclose(value(text, "out in n", x=X, rows=ROWS), X + ROWS[row])
    np.testing.assert_allclose(value(text, "o in n", x=X, rows=ROWS), -X - ROWS[row])


def test_bodies_in_bodies_are_computed_too() -> None:
    """They read what the outer one computes."""
    inputs = {"x": X, "c": np.array(True)}
    made = hoist_bodies(onnx.parser.parse_model(NESTED))
    (inner,) = [name for name in made if name.startswith("s in")]
    np.testing.assert_allclose(value(NESTED, inner, **inputs), np.exp(X), rtol=1e-6)


def test_a_body_whose_inputs_are_not_known_is_left() -> None:
    """A Scan of opset 8 has a batch, and lengths; from 9 on it has neither."""
    for opset in (8, 9):
        model = onnx.parser.parse_model(SCAN.replace("BACKWARD", "0"))
        model.opset_import[0].version = opset
        assert bool(hoist_bodies(model)) == (opset == 9)
