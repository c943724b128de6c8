"""Attention as the kernel tests need it: an op of any layout, its inputs, the truth, and what the plain nodes give."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import parser

from bench.cases import ops
from bench.cases.ops import FLOAT, HALF
from onnxfuse.model.fused import FusedOp
from onnxfuse.verification.reference.reference import to_tf32

Shape = tuple[int, ...]
Rounding = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Case:
    """Batch, heads, queries, keys and the size of a head; a bias by its shape; which operands lie heads first."""

    batch: int
    heads: int
    queries: int
    keys: int
    size: int = 64
    dtype: int = HALF
    bias: Shape | None = None
    causal: bool = False
    scale: float = 0.0
    """0 = 1 / sqrt(size)."""
    heads_first: str = ""
    """Of `q`, `k`, `v` and `y`; what is in `apart` lies [batch, sequence, heads, size]."""
    apart: str = ""
    safe: bool = False
    """Zeros where everything is masked."""
    target: Shape | None = None
    """The shape that the result takes, as a Reshape says it."""
    group: int = 1
    """Heads of queries that read one head of keys and values."""
    past: int | None = None
    """Keys of a cache, an input of its own, which comes out with all of them; None for none."""
    also: Shape | None = None
    """The shape of a second bias."""

    @property
    def factor(self) -> float:
        return self.scale or 1 / math.sqrt(self.size)

    def shapes(self) -> tuple[Shape, ...]:
        """Return the shapes of queries, keys, values and the biases."""
        few, past = self.heads // self.group, self.keys if self.past is None else self.past
        of_keys = [(name, n, few) for name in "kv" for n in (past, self.keys - past)[: 1 if self.past is None else 2]]
        found = [
            (self.batch, heads, n, self.size)
            if name in self.heads_first
            else (self.batch, n, heads, self.size)
            if name in self.apart
            else (self.batch, n, heads * self.size)
            for name, n, heads in (("q", self.queries, self.heads), *of_keys)
        ]  # fmt: skip
        return (*found, *(b for b in (self.bias, self.also) if b is not None))

    def op(self) -> FusedOp:
        """Return the op; its body is not asked, since the kernel reads the library's form."""
        flat = "flat = Constant <value = int64[3] {0, 0, -1}> ()"
        names, results, whole_of = "q, k, v", "y", dict(zip("qkv", "qkv", strict=True))
        steps = list[str]()
        if self.past is not None:
            names, results = "q, k, k_new, v, v_new", "k_all, v_all, y"
            whole_of |= {"k": "k_all", "v": "v_all"}
            steps += [f"{n}_all = Concat <axis = {self.axis_of(n)}> ({n}, {n}_new)" for n in "kv"]
        turned = {
            n: f"{n}t = Transpose <perm = [0,2,1,3]> ({m}) {n}f = Reshape ({n}t, flat)" for n, m in whole_of.items()
        }
        steps += [turned[n] for n in "qkv" if n in self.heads_first]
        steps += [f"{n}f = Reshape ({whole_of[n]}, flat)" for n in self.apart]
        given = [f"{n}f" if n in self.heads_first + self.apart else whole_of[n] for n in "qkv"]
        if self.group > 1:
            steps += [
                f"to5 = Constant <value_ints = [0, 0, {self.heads // self.group}, 1, {self.size}]> ()"
                f" times = Constant <value_ints = [1, 1, 1, {self.group}, 1]> ()"
            ]
            steps += [
                f"{n}5 = Reshape ({source}, to5) {n}r = Expand ({n}5, times) {n}m = Reshape ({n}r, flat)"
                for n, source in zip("kv", given[1:], strict=True)
            ]
            given[1:] = ["km", "vm"]
        extra = ", b" if self.bias is not None else ""
        whole = "one = Constant <value = int64[1] {1}> () whole = Expand (b, one)" if extra else ""
        if self.also is not None:
            extra, whole = ", b, b2", f"sum = Add (b, b2) {whole.replace('(b,', '(sum,')}"
        if self.bias is not None and len(self.bias) == 5:
            whole = "one = Constant <value = int64[1] {1}> () again = Expand (b, one) whole = Reshape (again, one)"
        end = "y = Identity (r)"
        if "y" in self.heads_first:
            four = f"four = Constant <value = int64[4] {{0, 0, {self.heads}, {self.size}}}> ()"
            end = f"{four} r4 = Reshape (r, four) y = Transpose <perm = [0,2,1,3]> (r4)"
        if self.target is not None:
            four = (
                f"front = Constant <value = int64[3] {{0, 0, -1}}> () size = Constant <value_ints = [{self.size}]> ()"
            )
            to = f"to = Constant <value_ints = {list(self.target)}> ()"
            end = f"{four} {to} four = Concat <axis = 0> (front, size) r4 = Reshape (r, four) y = Reshape (r4, to)"
        result = "r"
        if self.safe:
            result, end = (
                "f",
                """ones = Constant <value = int64[4] {1, 1, 1, 1}> () bias4 = Expand (b, ones)
              probe = Softmax <axis = -1> (bias4) first = Constant <value = int64[1] {0}> ()
              column = Gather <axis = 3> (probe, first) gone = IsNaN (column)
              lost = Transpose <perm = [0,2,1,3]> (gone) nothing = Constant <value = float {0.0}> ()
              fill = Cast <to = TYPE> (nothing)""".replace("TYPE", str(self.dtype))
                + f" last = Constant <value = int64[1] {{{self.size}}}> ()"
                + """
              to3 = Constant <value = int64[3] {0, 0, -1}> () to4 = Concat <axis = 0> (to3, last)
              found = Reshape (f, to4) left = Where (lost, fill, found) r = Reshape (left, to3) """
                + end,
            )
        head = '<domain: "onnxfuse", opset_import: ["" : 17, "com.microsoft" : 1]>'
        form = parser.parse_function(
            f"{head} library ({names}{extra}) => ({results}) {{ {flat} {' '.join(steps)} {whole}"
            f" {result} = com.microsoft.MultiHeadAttention <num_heads = {self.heads}, scale = {float(self.scale)},"
            f" unidirectional = {int(self.causal)}> ({', '.join(given)}{', , , whole' if extra else ''}) {end} }}"
        )
        same = " ".join(f"{y} = Identity (q)" for y in results.split(", "))
        body = parser.parse_function(f"{head} tested ({names}{extra}) => ({results}) {{ {same} }}")
        types = (self.dtype,) * len(self.shapes())
        return FusedOp("tested", "test", "attention", types, (self.dtype,) * len(body.output), body, form)

    def axis_of(self, name: str) -> int:
        """Return the axis of the sequence of queries, keys or values."""
        return 2 if name in self.heads_first else 1

    def whole(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Return queries, keys, values and the bias, the new ones behind those of the caches."""
        if self.past is None:
            return inputs
        q, k, k_new, v, v_new, *rest = inputs
        both = [np.concatenate(x, self.axis_of(n)) for n, x in (("k", (k, k_new)), ("v", (v, v_new)))]
        return [q, *both, *rest]

    def inputs(self, random: np.random.Generator) -> list[np.ndarray]:
        return [random.normal(size=s).astype(ops.NUMPY[self.dtype]) for s in self.shapes()]

    def truth(self, inputs: list[np.ndarray]) -> np.ndarray:
        """Return the result in float64."""
        return self._attend(inputs, lambda x: x)

    def unfused(self, inputs: list[np.ndarray]) -> np.ndarray:
        """Return what the plain nodes give, each rounded to the element type; factors of float32 to TF32 besides."""
        factor = to_tf32 if self.dtype == FLOAT else lambda x: x
        with np.errstate(over="ignore", invalid="ignore"):
            return self._attend(inputs, lambda x: x.astype(ops.NUMPY[self.dtype]).astype(np.float64), factor)

    def _attend(self, inputs: list[np.ndarray], rounded: Rounding, factor: Rounding = lambda x: x) -> np.ndarray:
        wide = [x.astype(np.float64) for x in self.whole(inputs)]
        few = self.heads // self.group
        q, k, v = (
            x if name in self.heads_first else x.reshape(*x.shape[:2], heads, self.size).swapaxes(1, 2)
            for name, x, heads in zip("qkv", wide[:3], (self.heads, few, few), strict=True)
        )
        k, v = (x.repeat(self.group, 1) for x in (k, v))
        scores = rounded(rounded(factor(q) @ factor(k).swapaxes(-1, -2)) * self.factor)
        if self.also is not None:
            scores = rounded(scores + wide[4])
        if self.bias is not None:
            bias = wide[3] if len(self.bias) < 5 else np.tile(wide[3][0], (self.batch // self.bias[1], 1, 1, 1))
            scores = rounded(scores + bias)
        if self.causal:
            scores = np.where(np.tri(self.queries, self.keys, dtype=bool), scores, -np.inf)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
            shares = weights / weights.sum(-1, keepdims=True)
            y = rounded(factor(rounded(np.nan_to_num(shares) if self.safe else shares)) @ factor(v))
        flat = y if "y" in self.heads_first else y.swapaxes(1, 2).reshape(self.batch, self.queries, -1)
        return np.asarray(
            flat
            if self.target is None
            else flat.reshape([flat.shape[i] if n == 0 else n for i, n in enumerate(self.target)])
        )


def within_budget(case: Case, inputs: list[np.ndarray], got: np.ndarray) -> None:
    """Assert at most twice the error of the plain nodes, or the result's rounding: root mean square and largest."""
    exact, plain = case.truth(inputs), case.unfused(inputs)
    assert got.shape == exact.shape
    np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), np.isnan(exact))
    seen = ~np.isnan(exact)
    if not seen.any():
        return
    errors = [np.abs(x.astype(np.float64) - exact)[seen] for x in (got, plain)]
    step = ops.ROUNDING[HALF if case.dtype == FLOAT else case.dtype]  # TF32 has as many digits as float16
    for measure in (lambda e: np.sqrt(np.mean(e**2)), np.max):
        ours, theirs = map(measure, errors)
        # Weights and result are each rounded once; the plain nodes may be lucky where there is next to nothing to sum.
        assert ours <= max(2 * theirs, 2 * step * measure(np.abs(exact[seen])))
