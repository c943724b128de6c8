"""RNN, GRU and LSTM in float64: onnx's implementations ignore sequence lengths, activations, clip and more."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse import ops
from onnxfuse.verification.reference.operators import ReferenceOperator

Array = npt.NDArray[Any]
Activation = Callable[[Array], Array]
Step = Callable[[Array, list[Array]], list[Array]]
"""Computes the next states from one position and the states; the first state is the output."""

ACTIVATIONS: dict[str, tuple[float, float, Callable[[Array, float, float], Any]]] = {
    "relu": (0, 0, lambda x, a, b: np.maximum(x, 0)),
    "tanh": (0, 0, lambda x, a, b: np.tanh(x)),
    "sigmoid": (0, 0, lambda x, a, b: 1 / (1 + np.exp(-x))),
    "affine": (1, 0, lambda x, a, b: a * x + b),
    "leakyrelu": (0.01, 0, lambda x, a, b: np.where(x < 0, a * x, x)),
    "thresholdedrelu": (1, 0, lambda x, a, b: np.where(x > a, x, 0)),
    "scaledtanh": (1, 1, lambda x, a, b: a * np.tanh(b * x)),
    "hardsigmoid": (0.2, 0.5, lambda x, a, b: np.clip(a * x + b, 0, 1)),
    "elu": (1, 0, lambda x, a, b: np.where(x < 0, a * np.expm1(x), x)),
    "softsign": (0, 0, lambda x, a, b: x / (1 + np.abs(x))),
    "softplus": (0, 0, lambda x, a, b: np.logaddexp(0, x)),
}
"""By name: default alpha and beta, and the function of x, alpha and beta."""


class _Recurrent(ReferenceOperator):
    """Common base: directions, lengths, layouts."""

    operator: ops.Operator

    def _run(
        self,
        x: Array,
        w: Array,
        r: Array,
        bias: Array | None = None,
        lengths: Array | None = None,
        h: Array | None = None,
        c: Array | None = None,
        peepholes: Array | None = None,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        clip: float | None = None,
        direction: str = "forward",
        hidden_size: int | None = None,
        input_forget: int = 0,
        layout: int = 0,
        linear_before_reset: int = 0,
        output_sequence: int = 0,
    ) -> tuple[Array, ...]:
        cell = self.operator.cell
        assert cell is not None
        x = x.swapaxes(0, 1) if layout else x
        steps, batch, _ = x.shape
        directions, size = r.shape[0], r.shape[2]
        bias = np.zeros((directions, 2 * cell.gates * size)) if bias is None else bias
        peepholes = np.zeros((directions, 3 * size)) if peepholes is None else peepholes
        ends = np.full(batch, steps) if lengths is None else lengths
        states = [s.swapaxes(0, 1) if layout and s is not None else s for s in (h, c)[: cell.states]]
        named = list(activations) if self.says("activations") and activations else list(cell.activations) * directions
        chosen = _activations(named, list(activation_alpha or ()), list(activation_beta or ()))
        every, last = np.zeros((steps, directions, batch, size), x.dtype), []
        for index in range(directions):
            reverse = direction == "reverse" or index == 1
            first = index * len(cell.activations)
            step = self.step(
                (w[index], r[index], bias[index], peepholes[index]), chosen[first : first + len(cell.activations)],
                (lambda z: z) if clip is None else (lambda z: np.clip(z, -clip, clip)),
                bool(input_forget), bool(linear_before_reset),
            )  # fmt: skip
            now = [np.zeros((batch, size), x.dtype) if s is None else s[index] for s in states]
            for t in range(steps):
                # Each sequence is reversed by itself: padding after its end remains there.
                at = np.where(t < ends, ends - 1 - t, t) if reverse else np.full(batch, t)
                following = step(x[at, np.arange(batch)], now)
                alive = (t < ends)[:, None]
                now = [np.where(alive, a, b) for a, b in zip(following, now, strict=True)]
                every[at, index, np.arange(batch)] = np.where(alive, now[0], 0)
            last.append(now)
        finals = [np.stack([now[n] for now in last]) for n in range(len(states))]
        if layout:
            every, finals = every.transpose(2, 0, 1, 3), [s.swapaxes(0, 1) for s in finals]
        return (every, *finals)[: len(self.onnx_node.output)]

    def step(
        self, weights: tuple[Array, ...], f: list[Activation], clip: Activation, coupled: bool, linear: bool
    ) -> Step:
        """Return the step function of a direction."""
        raise NotImplementedError


class RNN(_Recurrent):
    """f(x W + h R + b)."""

    operator = ops.RNN

    def step(
        self, weights: tuple[Array, ...], f: list[Activation], clip: Activation, coupled: bool, linear: bool
    ) -> Step:
        """Return the step function of a direction."""
        w, r, bias, _ = weights
        first, second = np.split(bias, 2)
        return lambda x, states: [f[0](clip(x @ w.T + states[0] @ r.T + first + second))]


class GRU(_Recurrent):
    """Gates z and r, and the candidate state; reset applied before or after the product."""

    operator = ops.GRU

    def step(
        self, weights: tuple[Array, ...], f: list[Activation], clip: Activation, coupled: bool, linear: bool
    ) -> Step:
        """Return the step function of a direction."""
        (wz, wr, wh), (rz, rr, rh) = (np.split(weights[n], 3) for n in (0, 1))
        bz, br, bh, cz, cr, ch = np.split(weights[2], 6)

        def one(x: Array, states: list[Array]) -> list[Array]:
            h = states[0]
            z, reset = f[0](clip(x @ wz.T + h @ rz.T + bz + cz)), f[0](clip(x @ wr.T + h @ rr.T + br + cr))
            recurrent = reset * (h @ rh.T + ch) if linear else (reset * h) @ rh.T + ch
            return [(1 - z) * f[1](clip(x @ wh.T + recurrent + bh)) + z * h]

        return one


class LSTM(_Recurrent):
    """Gates i, o, f and the cell, with peepholes."""

    operator = ops.LSTM

    def step(
        self, weights: tuple[Array, ...], f: list[Activation], clip: Activation, coupled: bool, linear: bool
    ) -> Step:
        """Return the step function of a direction."""
        w, r, bias, peepholes = weights
        first, second = np.split(bias, 2)
        pi, po, pf = np.split(peepholes, 3)

        def one(x: Array, states: list[Array]) -> list[Array]:
            h, c = states
            i, o, forget, cell = np.split(x @ w.T + h @ r.T + first + second, 4, axis=-1)
            i = f[0](clip(i + pi * c))
            forget = 1 - i if coupled else f[0](clip(forget + pf * c))
            c = forget * c + i * f[1](clip(cell))
            return [f[0](clip(o + po * c)) * f[2](c), c]

        return one


OPERATORS = (RNN, GRU, LSTM)


def _activations(names: Sequence[str], alphas: list[float], betas: list[float]) -> list[Activation]:
    """Return the activations in order; each that has an alpha or a beta takes the next given one."""
    activations: list[Activation] = []
    for name in names:
        alpha, beta, function = ACTIVATIONS[name.lower()]
        alpha = alphas.pop(0) if alphas and alpha else alpha
        beta = betas.pop(0) if betas and name.lower() in ("affine", "scaledtanh", "hardsigmoid") else beta
        activations.append(partial(_activated, function, alpha, beta))
    return activations


def _activated(function: Callable[[Array, float, float], Any], alpha: float, beta: float, x: Array) -> Array:
    return np.asarray(function(x, alpha, beta))
