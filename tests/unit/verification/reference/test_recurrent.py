"""Recurrent layers of the reference: the equations of onnx, a position at a time, in every form."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

from onnxfuse.verification.reference.recurrent import ACTIVATIONS, OPERATORS

RNG = np.random.default_rng(0)
STEPS, BATCH, SIZE, HIDDEN = 5, 2, 3, 4
LAYERS = {op.__name__: op for op in OPERATORS}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def weights(op: str, directions: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return W, R and B."""
    rng = np.random.default_rng(0)
    rows = GATES[op] * HIDDEN
    return (
        rng.standard_normal((directions, rows, SIZE)), rng.standard_normal((directions, rows, HIDDEN)),
        rng.standard_normal((directions, 2 * rows)),
    )  # fmt: skip


X = RNG.standard_normal((STEPS, BATCH, SIZE))


def run(op: str, *inputs: np.ndarray | None, **attributes: Any) -> tuple[np.ndarray, ...]:
    """Return the outputs of a layer: all positions, the last states."""
    outputs = ["y", "h", "c"][: 3 if op == "LSTM" else 2]
    names = [f"x{n}" if x is not None else "" for n, x in enumerate(inputs)]
    node = helper.make_node(op, names, outputs, hidden_size=HIDDEN, **attributes)
    layer: Any = LAYERS[op](
        node,
        {
            "log": lambda *_: None,
            "opsets": {"": 22},
            "verbose": 0,
            "new_ops": None,
            "evaluator_cls": None,
            "existing_functions": {},
        },
    )
    found: tuple[np.ndarray, ...] = layer.run(*inputs)
    return found


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^-x)."""
    return np.asarray(1 / (1 + np.exp(-x)))


def by_hand(op: str, x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray, linear: bool = False) -> np.ndarray:
    """Return all positions of one sequence [steps, size], written out from onnx's equations."""
    h, c, found = np.zeros(HIDDEN), np.zeros(HIDDEN), []
    wb, rb = np.split(b, 2)
    for at in x:
        a, k = w @ at + wb, r @ h + rb
        if op == "RNN":
            h = np.tanh(a + k)
        elif op == "GRU":
            (az, ar, ah), (kz, kr, kh) = np.split(a, 3), np.split(k, 3)
            z, reset = sigmoid(az + kz), sigmoid(ar + kr)
            last = reset * kh if linear else r[2 * HIDDEN :] @ (reset * h) + rb[2 * HIDDEN :]
            h = (1 - z) * np.tanh(ah + last) + z * h
        else:
            i, o, f, g = np.split(a + k, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        found.append(h)
    return np.array(found)


@pytest.mark.parametrize(("op", "linear"), [("RNN", False), ("GRU", False), ("GRU", True), ("LSTM", False)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_a_layer_is_its_equations(op: str, linear: bool, direction: str) -> None:
    """In both directions; the last state is that of the last position in each one's order."""
    directions = 2 if direction == "bidirectional" else 1
    w, r, b = weights(op, directions)
    more = {"linear_before_reset": 1} if linear else {}
    y, last, *_ = run(op, X, w, r, b, direction=direction, **more)
    assert y.shape == (STEPS, directions, BATCH, HIDDEN)
    for d in range(directions):
        turned = direction == "reverse" or d == 1
        for n in range(BATCH):
            sequence = X[::-1, n] if turned else X[:, n]
            expected = by_hand(op, sequence, w[d], r[d], b[d], linear)
            np.testing.assert_allclose(y[:, d, n], expected[::-1] if turned else expected, rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(last[d, n], expected[-1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("op", sorted(LAYERS))
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_a_shorter_sequence_is_one_of_that_length(op: str, direction: str) -> None:
    """Zeros after its end, the state at its end, and reversed within itself."""
    w, r, b = weights(op)
    y, last, *_ = run(op, X, w, r, b, np.array([2, STEPS], np.int32), direction=direction)
    short, short_last, *_ = run(op, X[:2], w, r, b, direction=direction)
    whole, whole_last, *_ = run(op, X, w, r, b, direction=direction)
    np.testing.assert_allclose(y[:2, 0, 0], short[:, 0, 0], rtol=1e-12)
    assert not y[2:, 0, 0].any()
    np.testing.assert_allclose(last[0, 0], short_last[0, 0], rtol=1e-12)
    np.testing.assert_allclose(y[:, 0, 1], whole[:, 0, 1], rtol=1e-12)
    np.testing.assert_allclose(last[0, 1], whole_last[0, 1], rtol=1e-12)


@pytest.mark.parametrize("op", sorted(LAYERS))
def test_states_go_on_from_where_they_were(op: str) -> None:
    """Two halves with the states between them are the whole."""
    w, r, b = weights(op)
    whole = run(op, X, w, r, b)
    first = run(op, X[:3], w, r, b)
    rest = run(op, X[3:], w, r, b, None, *first[1:])
    np.testing.assert_allclose(np.concatenate([first[0], rest[0]]), whole[0], rtol=1e-12)
    for a, b_ in zip(rest[1:], whole[1:], strict=True):
        np.testing.assert_allclose(a, b_, rtol=1e-12)


@pytest.mark.parametrize("op", sorted(LAYERS))
def test_the_batch_may_come_first(op: str) -> None:
    """`layout` turns the input, the states and all outputs."""
    rng = np.random.default_rng(0)
    w, r, b = weights(op)
    state = rng.standard_normal((1, BATCH, HIDDEN))
    states = [state] * (2 if op == "LSTM" else 1)
    plain = run(op, X, w, r, b, None, *states)
    turned = run(op, X.swapaxes(0, 1), w, r, b, None, *(s.swapaxes(0, 1) for s in states), layout=1)
    np.testing.assert_allclose(turned[0].transpose(1, 2, 0, 3), plain[0], rtol=1e-12)
    np.testing.assert_allclose(turned[1].swapaxes(0, 1), plain[1], rtol=1e-12)


def test_sums_are_clipped_before_their_activation() -> None:
    """A limit that none reaches changes nothing, and a small one what each gate may be."""
    w, r, b = weights("RNN")
    np.testing.assert_array_equal(run("RNN", X, w, r, b, clip=1e6)[0], run("RNN", X, w, r, b)[0])
    clipped = run("RNN", X, 100 * w, r, b, clip=0.5)[0]
    assert np.abs(clipped).max() == pytest.approx(np.tanh(0.5))


def test_gates_of_an_lstm_see_its_cell_and_may_be_coupled() -> None:
    """Peepholes, in the order i, o, f; the forget gate that is coupled is what the input gate leaves."""
    rng = np.random.default_rng(0)
    w, r, b = weights("LSTM")
    zero = np.zeros((1, 3 * HIDDEN))
    none = run("LSTM", X, w, r, b)
    np.testing.assert_array_equal(run("LSTM", X, w, r, b, None, None, None, zero)[0], none[0])
    for gate in range(3):
        peep = zero.copy()
        peep[0, gate * HIDDEN : (gate + 1) * HIDDEN] = 2.0
        cell = rng.standard_normal((1, BATCH, HIDDEN))
        y, _, c = run("LSTM", X[:1], w, r, b, None, np.zeros_like(cell), cell, peep)
        wb, rb = np.split(b[0], 2)
        i, o, f, g = np.split(X[0] @ w[0].T + wb + rb, 4, axis=-1)
        i, f = sigmoid(i + 2 * cell[0] * (gate == 0)), sigmoid(f + 2 * cell[0] * (gate == 2))
        expected = f * cell[0] + i * np.tanh(g)
        np.testing.assert_allclose(c[0], expected, rtol=1e-12)
        np.testing.assert_allclose(y[0, 0], sigmoid(o + 2 * expected * (gate == 1)) * np.tanh(expected), rtol=1e-12)
    ones = np.ones((1, BATCH, HIDDEN))
    coupled = run("LSTM", X[:1], w, r, b, None, 0 * ones, ones, input_forget=1)[2][0]
    i = sigmoid(np.split(X[0] @ w[0].T + b[0, : 4 * HIDDEN] + b[0, 4 * HIDDEN :], 4, axis=-1)[0])
    g = np.tanh(np.split(X[0] @ w[0].T + b[0, : 4 * HIDDEN] + b[0, 4 * HIDDEN :], 4, axis=-1)[3])
    np.testing.assert_allclose(coupled, (1 - i) + i * g, rtol=1e-12)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_an_activation_takes_its_own_numbers(name: str) -> None:
    """In the order of the activations that have any, whatever the case of their names; defaults elsewhere."""
    alpha, beta, function = ACTIVATIONS[name]
    w, r, b = weights("RNN")
    r = np.zeros_like(r)
    given: dict[str, Any] = {"activations": [name.upper()]}
    if alpha:
        given["activation_alpha"] = [alpha := 0.75]
    if beta or name == "affine":
        given["activation_beta"] = [beta := 0.375]
    sums = X @ w[0].T + b[0, :HIDDEN] + b[0, HIDDEN:]
    np.testing.assert_allclose(run("RNN", X, w, r, b, **given)[0][:, 0], function(sums, alpha, beta), rtol=1e-12)
    plain = function(sums, *ACTIVATIONS[name][:2])
    np.testing.assert_allclose(run("RNN", X, w, r, b, activations=[name])[0][:, 0], plain, rtol=1e-12)
