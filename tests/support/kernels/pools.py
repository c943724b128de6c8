"""Poolings of images that the tests share, on the host and on the GPU: bodies, windows and sizes."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from bench.cases import ops
from onnxfuse.model.fused import FusedOp

ALONE = "y = Identity(p)"
BIAS_RELU = "a = Add(p, b) y = Relu(a)"
GATED = "g = Mul(p, k) y = Add(r, g)"
OPERANDS = {ALONE: "", BIAS_RELU: "b", GATED: "kr"}


@dataclass(frozen=True)
class Pool:
    """A pooling with what stands after it."""

    kind: str
    text: str
    dtype: int
    images: int
    channels: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    ceil: bool = False
    padded: bool = False
    """Whether a mean counts padding."""
    first: bool = False
    """Whether the images have their channels first."""

    def attributes(self) -> str:
        """Return the node's attributes as text."""
        lists = {"kernel_shape": self.kernel, "strides": self.strides, "pads": self.pads}
        if self.kind == "MaxPool":
            lists["dilations"] = self.dilations
        found = [f"{k} = [{', '.join(map(str, v))}]" for k, v in lists.items()]
        found += ["count_include_pad = 1"] if self.padded else []
        return f"<{', '.join([*found, f'ceil_mode = {int(self.ceil)}'])}>"

    def op(self) -> FusedOp:
        """Return the fused op."""
        operands = OPERANDS[self.text]
        pool = (
            f"p = {self.kind} {self.attributes()} (x)"
            if self.first
            else f"i = Transpose <perm = [0,3,1,2]> (x) d = {self.kind} {self.attributes()} (i) "
            "p = Transpose <perm = [0,2,3,1]> (d)"
        )
        text = f"({', '.join(['x', *operands])}) => (y) {{ {pool} {self.text} }}"
        return ops.op(text, (self.dtype,) * (1 + len(operands)), (self.dtype,), "depthwise")

    def output(self) -> tuple[int, int]:
        """Return rows and columns of the output, by onnx's own words for it."""
        return self._along(0), self._along(1)

    def _along(self, d: int) -> int:
        rest = self.size[d] + self.pads[d] + self.pads[d + 2] - (self.kernel[d] - 1) * self.dilations[d] - 1
        windows = rest // self.strides[d] + 1
        if self.ceil and rest % self.strides[d] and windows * self.strides[d] < self.size[d] + self.pads[d]:
            windows += 1
        return windows

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the op's inputs."""
        mine = {"b": (self.channels, 1, 1) if self.first else (self.channels,), "k": self.image(1, 1)}
        mine["r"] = self.image(*self.output())
        return [self.image(*self.size), *(mine[o] for o in OPERANDS[self.text])]

    def image(self, rows: int, columns: int) -> tuple[int, ...]:
        """Return the shape of images of this size."""
        if self.first:
            return self.images, self.channels, rows, columns
        return self.images, rows, columns, self.channels

    def inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Return random inputs."""
        return [ops.random(rng, t, s) for t, s in zip(self.op().inputs, self.shapes(), strict=True)]


@st.composite
def pools(draw: st.DrawFn, largest: int) -> Pool:
    """Draw a pooling over images of at most this size: every window sees some of the image."""
    kind = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    kernel = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    dilations = (draw(st.integers(1, 2)), draw(st.integers(1, 2))) if kind == "MaxPool" else (1, 1)
    pads = tuple(draw(st.integers(0, k - 1)) for k in (*kernel, *kernel))
    least = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = tuple(draw(st.integers(n, max(largest, n))) for n in least)
    ceil = draw(st.booleans())
    return Pool(
        kind, draw(st.sampled_from(list(OPERANDS))), draw(st.sampled_from([ops.HALF, ops.BRAIN, ops.FLOAT])),
        draw(st.integers(1, 3)), draw(st.integers(1, 40)), (size[0], size[1]), kernel,
        (draw(st.integers(1, 3)), draw(st.integers(1, 3))), dilations, (pads[0], pads[1], pads[2], pads[3]), ceil,
        kind == "AveragePool" and not ceil and draw(st.booleans()), draw(st.booleans()),
    )  # fmt: skip
