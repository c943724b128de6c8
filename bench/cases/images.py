"""Depthwise convolutions that the tests share, on the host and on the GPU: bodies, layouts and sizes."""

from dataclasses import dataclass

import numpy as np

from bench.cases import ops
from onnxfuse.model.fused import FusedOp

PLAIN = "y = Identity(c)"
SILU = "a = Add(c, b) s = Sigmoid(a) y = Mul(a, s)"
RELU = "a = Add(c, b) y = Relu(a)"
RESIDUAL = "a = Add(c, b) g = Mul(a, k) y = Add(r, g)"
SEVERAL = "y = Add(c, b) z = Cast <to = 1> (y)"
OPERANDS = {PLAIN: "", SILU: "b", RELU: "b", RESIDUAL: "bkr", SEVERAL: "b"}


@dataclass(frozen=True)
class Case:
    """A depthwise convolution with what stands after it."""

    text: str
    dtype: int
    channels_last: bool
    images: int
    channels: int
    size: tuple[int, ...]
    """Rows and columns, or columns alone."""
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    auto_pad: str = "NOTSET"
    packed: bool = True
    """Channels last: whether the weights lie like the images, too."""
    mean: int | None = None
    """Channels last: whether the mean of y over its places is an output, too, and whether it keeps their axes."""

    def attributes(self) -> str:
        """Return the Conv's attributes as text."""
        lists = {"strides": self.strides, "dilations": self.dilations, "pads": self.pads, "kernel_shape": self.kernel}
        found = [f"{k} = [{', '.join(map(str, v))}]" for k, v in lists.items() if v]
        found += [f'auto_pad = "{self.auto_pad}"'] if self.auto_pad != "NOTSET" else []
        return f"<{', '.join([f'group = {self.channels}', *found])}>"

    def op(self) -> FusedOp:
        """Return the fused op."""
        operands = OPERANDS[self.text]
        conv = f"c = Conv {self.attributes()} (x, w)"
        if self.channels_last:
            to, weights, back = {2: ("0,3,1,2", "2,3,0,1", "0,2,3,1"), 1: ("0,2,1", "1,2,0", "0,2,1")}[len(self.size)]
            turned = f"v = Transpose <perm = [{weights}]> (w) " if self.packed else ""
            conv = (
                f"i = Transpose <perm = [{to}]> (x) {turned}"
                f"d = Conv {self.attributes()} (i, {'v' if self.packed else 'w'}) c = Transpose <perm = [{back}]> (d)"
            )
        results, after = ("y", "z") if self.text == SEVERAL else ("y",), ""
        types = (self.dtype, ops.FLOAT)[: len(results)]
        if self.mean is not None:
            after = f"axes = Constant <value_ints = [1,2]> () m = ReduceMean <keepdims = {self.mean}> (y, axes)"
            results, types = (*results, "m"), (*types, self.dtype)
        text = f"({', '.join(['x', 'w', *operands])}) => ({', '.join(results)}) {{ {conv} {self.text} {after} }}"
        return ops.op(text, (self.dtype,) * (2 + len(operands)), types, "depthwise")

    def output(self) -> tuple[int, ...]:
        """Return rows and columns of the output, by onnx's own words for it."""
        found = []
        for d, (n, k) in enumerate(zip(self.size, self.kernel, strict=True)):
            stride, dilation = (v[d] if v else 1 for v in (self.strides, self.dilations))
            rank = len(self.size)
            padding = self.pads[d] + self.pads[d + rank] if self.pads else 0
            same = self.auto_pad.startswith("SAME")
            found.append(-(-n // stride) if same else (n + padding - (k - 1) * dilation - 1) // stride + 1)
        return tuple(found)

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the op's inputs."""
        spread = (1,) * len(self.size)
        w = (self.channels, 1, *self.kernel)
        if self.channels_last:
            x, w = (self.images, *self.size, self.channels), (*self.kernel, self.channels, 1) if self.packed else w
            mine = {
                "b": (self.channels,), "k": (self.images, *spread, self.channels),
                "r": (self.images, *self.output(), self.channels),
            }  # fmt: skip
        else:
            x = (self.images, self.channels, *self.size)
            mine = {
                "b": (self.channels, *spread), "k": (self.images, self.channels, *spread),
                "r": (self.images, self.channels, *self.output()),
            }  # fmt: skip
        return [x, w, *(mine[o] for o in OPERANDS[self.text])]

    def inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Return random inputs, the weights so small that sums stay of order one."""
        fused = self.op()
        found = [ops.random(rng, t, s) for t, s in zip(fused.inputs, self.shapes(), strict=True)]
        scale = max(int(np.prod(self.kernel)), 1) ** -0.5
        found[1] = (found[1].astype(np.float32) * scale).astype(found[1].dtype)
        return found
