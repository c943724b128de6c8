"""Attention of new tokens behind KV caches, with lengths for each row: for the tests of its kernels."""

from dataclasses import dataclass

import numpy as np

from bench.cases import ops
from bench.cases.ops import FLOAT, HALF, INT32
from onnxfuse.model.fused import FusedOp


@dataclass(frozen=True)
class Case:
    """A GroupQueryAttention; rows of `before` tokens get `queries` more, of which the last `padding` are none."""

    before: tuple[int, ...] = (5,)
    queries: int = 1
    capacity: int = 16
    """Rows of the caches that are read."""
    heads: int = 4
    of_keys: int = 2
    size: int = 32
    dtype: int = HALF
    packed: bool = False
    half: int = 0
    """Columns of the rotary tables; 0: nothing rotates."""
    interleaved: bool = False
    window: int = 0
    softcap: float = 0.0
    sink: bool = False
    smooth: bool = False
    norm: bool = False
    padding: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        return max(self.before) + self.queries

    def op(self) -> FusedOp:
        """Return the op whose body is the node."""
        names = ["query", *([] if self.packed else ["key", "value"]), "past_key", "past_value", "lengths", "total"]
        read = ["query", *(["", ""] if self.packed else ["key", "value"]), "past_key", "past_value", "lengths", "total"]
        more = [
            *(["cos", "sin"] if self.half else ["", ""]), "", "", "sink" if self.sink else "", "", "",
            *(["q_norm", "k_norm"] if self.norm else []),
        ]  # fmt: skip
        while more and not more[-1]:
            more.pop()
        names += [n for n in more if n]
        attributes = f"num_heads = {self.heads}, kv_num_heads = {self.of_keys}"
        attributes += f", do_rotary = 1, rotary_interleaved = {int(self.interleaved)}" if self.half else ""
        attributes += f", local_window_size = {self.window}" if self.window else ""
        attributes += f", softcap = {self.softcap}" if self.softcap else ""
        attributes += ", smooth_softmax = 1" if self.smooth else ""
        text = f"y, pk, pv = com.microsoft.GroupQueryAttention <{attributes}> ({', '.join([*read, *more])})"
        types = tuple(INT32 if n in ("lengths", "total") else self.dtype for n in names)
        body = f"({', '.join(names)}) => (y, pk, pv) {{ {text} }}"
        return ops.op(body, types, (self.dtype,) * 3, "cached_attention")

    def inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Return random inputs; what the caches hold behind the tokens is not finite, since nobody may read it."""
        to, batch, count = ops.NUMPY[self.dtype], len(self.before), self.queries

        def drawn(*shape: int) -> np.ndarray:
            return np.asarray(rng.standard_normal(shape)).astype(to)

        columns = [n * self.size for n in (self.heads, self.of_keys, self.of_keys)]
        fresh = [drawn(batch, count, sum(columns))] if self.packed else [drawn(batch, count, n) for n in columns]
        caches = [drawn(batch, self.of_keys, self.capacity, self.size) for _ in range(2)]
        for cache in caches:
            for row, before in enumerate(self.before):
                cache[row, :, before:] = np.nan
        angles = np.arange(max(self.total, self.capacity))[:, None] * 0.7 ** np.arange(self.half)
        tables = [f(angles).astype(to) for f in (np.cos, np.sin)] if self.half else []
        padding = self.padding or (0,) * batch
        lengths = np.asarray([n + count - 1 - p for n, p in zip(self.before, padding, strict=True)], np.int32)
        return [
            *fresh, *caches, lengths, np.asarray(self.total, np.int32), *tables,
            *([drawn(self.heads)] if self.sink else []), *([drawn(self.size) for _ in range(2)] if self.norm else []),
        ]  # fmt: skip

    def shapes(self, inputs: list[np.ndarray]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes as a planner sees them: that of the total, a number on the CPU, is its value."""
        return tuple(x.shape or (int(x),) for x in inputs)

    @property
    def caches(self) -> dict[int, int]:
        """The caches' indices among the outputs, and among the inputs."""
        first = 1 if self.packed else 3
        return {1: first, 2: first + 1}


def finite(inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return inputs whose unused rows of the caches are zeros."""
    return [x if x.dtype.kind == "i" else np.nan_to_num(x.astype(np.float64), nan=0.0).astype(x.dtype) for x in inputs]


def within_budget(case: Case, inputs: list[np.ndarray], got: list[np.ndarray]) -> None:
    """Assert at most twice the error of the plain computation.

    Of float32 what rounding to TF32 may do: two factors that change by 2^-11 each shift a score, by which a weight
    changes; weights and values are rounded, too.
    """
    op, known = case.op(), finite(inputs)
    if case.dtype != FLOAT:
        ops.within_budget(op, known, got)
        return
    exact = ops.truth(op, known)
    names = dict(zip(op.body.input, known, strict=True))
    x = names["query"].reshape(*names["query"].shape[:2], -1, case.size)
    q, k, v = x, exact[1], exact[2]
    score = np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max() * case.size**-0.5
    allowed = float(np.abs(v).max() * (2 * score * 2.0**-10 + 2.0**-10))
    assert np.abs(got[0] - exact[0]).max() <= allowed
    for cache, true in zip(got[1:], exact[1:], strict=True):
        np.testing.assert_allclose(cache, true, rtol=1e-6, atol=1e-6)
