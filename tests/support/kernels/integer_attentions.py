"""Attention of 8-bit integers, as static quantization writes it, with what it should give."""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from bench.cases import ops
from onnxfuse.model.fused import FusedOp

FLOAT, HALF, INT8, UINT8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8
SQ, SK, SV, SM, SD, SP, SO = 0.0322, 0.0333, 0.0312, 0.55, 0.0386, 1 / 255, 0.0168
"""Scales: of queries, keys, values, their products, these divided, probabilities, and the result."""
SMASK = 5 / 127
ZERO: dict[int, tuple[int, int, int]] = {INT8: (-10, 4, 0), UINT8: (120, 0, 128)}
"""Zero points of queries, keys and values by type."""


@dataclass(frozen=True)
class Case:
    """Queries, keys and values [batch, sequence, heads * size] of a type, and a result of another one."""

    batch: int
    queries: int
    keys: int
    heads: int = 2
    size: int = 16
    dtype: int = INT8
    result: int = INT8
    mask: tuple[int, ...] | None = None
    """Its shape; None if there is none."""
    mask_type: int = FLOAT
    steps: bool = True
    """Whether the file quantizes each node between the products, or their factors alone."""
    half: bool = False
    """Whether the numbers between are float16."""

    def op(self) -> FusedOp:
        """Return the fused op."""
        types = (self.dtype,) * 3 + (() if self.mask is None else (self.mask_type,))
        return ops.op(self.text(), types, (self.result,), "attention")

    def text(self) -> str:
        """Return its body."""
        kind, to = ("int8" if t == INT8 else "uint8" for t in (self.dtype, self.result))
        zeros = dict(zip("qkv", ZERO[self.dtype], strict=True))
        scales = {"q": SQ, "k": SK, "v": SV, "m": SM, "d": SD, "p": SP, "o": SO, "b": SMASK}
        real = "float" if not self.half else "float16"
        numbers = {f"s{name}": scale for name, scale in scales.items()} | {"root": float(np.sqrt(self.size))}
        constants = [f"{name} = Constant <value = {real} {{{self._literal(n)}}}> ()" for name, n in numbers.items()]
        constants += [f"z{name} = Constant <value = {kind} {{{zero}}}> ()" for name, zero in zeros.items()]
        constants += [
            "zm = Constant <value = int8 {3}> () zb = Constant <value = int8 {127}> ()",
            f"zo = Constant <value = {to} {{1}}> () zp = Constant <value = uint8 {{0}}> ()",
            f"by_heads = Constant <value = int64[4] {{0,0,{self.heads},{self.size}}}> ()",
            "merged = Constant <value = int64[3] {0,0,-1}> ()",
        ]
        return f"""({"q, k, v" if self.mask is None else "q, k, v, mask"}) => (y) {{ {" ".join(constants)}
          q4 = Reshape (q, by_heads) qt = Transpose <perm = [0,2,1,3]> (q4) qf = DequantizeLinear (qt, sq, zq)
          k4 = Reshape (k, by_heads) kt = Transpose <perm = [0,2,3,1]> (k4) kf = DequantizeLinear (kt, sk, zk)
          v4 = Reshape (v, by_heads) vt = Transpose <perm = [0,2,1,3]> (v4) vf = DequantizeLinear (vt, sv, zv)
          m = MatMul (qf, kf) {self._steps("m", "m8", "sm")} d = Div (m8, root) {self._steps("d", "d8", "sd")}
          {self._masked()} p = Softmax <axis = -1> (a8)
          pq = QuantizeLinear (p, sp, zp) pf = DequantizeLinear (pq, sp, zp) o = MatMul (pf, vf)
          o8 = QuantizeLinear (o, so, zo) ot = Transpose <perm = [0,2,1,3]> (o8) y = Reshape (ot, merged) }}"""

    def _literal(self, number: float) -> str:
        """Return a number as text, of float16 as its bits."""
        return str(np.float16(number).view(np.uint16) if self.half else np.float32(number))

    def _number(self, scale: float) -> float:
        return float(np.float16(scale) if self.half else np.float32(scale))

    def _real(self, x: np.ndarray) -> np.ndarray:
        """Return numbers as the nodes between the products round them."""
        return x.astype(np.float16).astype(np.float64) if self.half else x

    def _steps(self, before: str, after: str, scale: str) -> str:
        if not self.steps:
            return f"{after} = Identity ({before})"
        return f"{after}q = QuantizeLinear ({before}, {scale}, zm) {after} = DequantizeLinear ({after}q, {scale}, zm)"

    def _masked(self) -> str:
        if self.mask is None:
            return "a8 = Identity (d8)"
        added = "bf = DequantizeLinear (mask, sb, zb)" if self.mask_type == INT8 else "bf = Identity (mask)"
        return f"{added} a = Add (d8, bf) {self._steps('a', 'a8', 'sd')}"

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the inputs."""
        of = [(self.batch, n, self.heads * self.size) for n in (self.queries, self.keys, self.keys)]
        return tuple(of) if self.mask is None else (*of, self.mask)

    def inputs(self) -> list[np.ndarray]:
        """Return inputs that use all numbers of the type."""
        random = np.random.default_rng(self.keys)
        limits = np.iinfo(ops.NUMPY[self.dtype])
        shapes = self.shapes()
        of = [random.integers(limits.min, limits.max + 1, s).astype(ops.NUMPY[self.dtype]) for s in shapes[:3]]
        if self.mask is None:
            return of
        hidden = random.random(self.mask) < 0.3
        numbers = (-1, 127) if self.mask_type == INT8 else (-5.0, 0.0)
        return [*of, np.where(hidden, numbers[0], numbers[1]).astype(ops.NUMPY[self.mask_type])]

    def wanted(self, inputs: list[np.ndarray]) -> np.ndarray:
        """Return what exact sums give, in float64."""
        q, k, v = (self._by_heads(a) - zero for a, zero in zip(inputs, ZERO[self.dtype], strict=False))
        score = self._real((q @ k.swapaxes(-1, -2)) * self._number(SQ) * self._number(SK))
        score = self._real(self._rounded(score, SM) / self._number(np.sqrt(self.size)))
        score = self._rounded(score, SD)
        if self.mask is not None:
            mask = inputs[3].astype(np.float64)
            mask = self._real((mask - 127) * self._number(SMASK)) if self.mask_type == INT8 else mask
            score = self._rounded(self._real(score + mask), SD)
        power = np.exp(score - score.max(-1, keepdims=True, initial=-np.inf))
        shares = np.clip(np.rint(power / power.sum(-1, keepdims=True) / self._number(SP)), 0, 255)
        limits = np.iinfo(ops.NUMPY[self.result])
        sums = self._real((shares @ v) * self._number(SP) * self._number(SV))
        result = np.rint(sums / self._number(SO)) + 1
        merged = result.transpose(0, 2, 1, 3).reshape(inputs[0].shape)
        return np.asarray(np.clip(merged, limits.min, limits.max))

    def _by_heads(self, x: np.ndarray) -> np.ndarray:
        heads: np.ndarray = x.astype(np.int64).reshape(*x.shape[:2], self.heads, self.size).transpose(0, 2, 1, 3)
        return heads

    def _rounded(self, x: np.ndarray, scale: float) -> np.ndarray:
        s = self._number(scale)
        return self._real((np.clip(np.rint(x / s) + 3, -128, 127) - 3) * s) if self.steps else x


CASES = {
    "plain": Case(2, 33, 40),
    "one key": Case(1, 5, 1),
    "uint8": Case(1, 20, 21, dtype=UINT8, result=UINT8),
    "a mask by key": Case(2, 9, 40, mask=(2, 1, 1, 40)),
    "a mask of 8 bits": Case(2, 9, 40, mask=(2, 1, 1, 40), mask_type=INT8),
    "a mask by query": Case(1, 9, 24, mask=(1, 2, 9, 24)),
    "a mask by query of 8 bits": Case(1, 9, 23, mask=(9, 23), mask_type=INT8),
    "factors alone": Case(1, 20, 40, mask=(1, 1, 1, 40), steps=False),
    "float16": Case(1, 20, 40, mask=(1, 1, 1, 40), mask_type=HALF, half=True),
    "wide heads": Case(1, 17, 33, 1, 128),
    "heads of 80": Case(1, 17, 33, 2, 80),
    "several steps": Case(1, 20, 300, mask=(300,)),
}
