"""Convolutions of the direct template that the tests share, on the host and on the GPU: layouts, groups and sizes."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from bench.cases import ops
from bench.cases.images import OPERANDS, PLAIN, RESIDUAL, SEVERAL, SILU
from onnxfuse.model.fused import FusedOp

TEXTS = [PLAIN, SILU, RESIDUAL, SEVERAL]


@dataclass(frozen=True)
class Case:
    """A convolution with what stands after it; results have their channels last."""

    text: str
    dtype: int
    images_last: bool
    """Whether images have theirs last, too."""
    images: int
    channels: int
    """Of a group."""
    filters: int
    """Of a group."""
    size: tuple[int, int]
    kernel: tuple[int, int]
    groups: int = 1
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    auto_pad: str = "NOTSET"
    packed: bool = True
    beside: tuple[int, ...] = ()
    """Channels of images last whose channels follow those of x, of which `channels` are theirs, too."""

    def op(self) -> FusedOp:
        """Return the fused op."""
        operands = OPERANDS[self.text]
        facts = f"group = {self.groups}, strides = {list(self.strides)}, dilations = {list(self.dilations)}"
        facts += f", pads = {list(self.pads)}" if self.auto_pad == "NOTSET" else f', auto_pad = "{self.auto_pad}"'
        first = "i = Transpose <perm = [0,3,1,2]> (x)"
        turns = first if self.images_last else first.replace("(x)", "(l)").join(
            ["l = Transpose <perm = [0,2,3,1]> (x) ", ""]
        )  # fmt: skip
        others = [f"x{n}" for n, _ in enumerate(self.beside)]
        if others:
            turns = f"j = Concat <axis = 3> (x, {', '.join(others)}) {turns.replace('(x)', '(j)')}"
        turns += " v = Transpose <perm = [0,3,1,2]> (w)" if self.packed else ""
        conv = f"{turns} d = Conv <{facts}> (i, {'v' if self.packed else 'w'}) c = Transpose <perm = [0,2,3,1]> (d)"
        results = ("y", "z") if self.text == SEVERAL else ("y",)
        text = f"({', '.join(['x', 'w', *operands, *others])}) => ({', '.join(results)}) {{ {conv} {self.text} }}"
        types = (self.dtype, ops.FLOAT)[: len(results)]
        return ops.op(text, (self.dtype,) * (2 + len(operands) + len(others)), types, "direct")

    def output(self) -> tuple[int, int]:
        """Return rows and columns of the output, by onnx's own words for it."""
        found = []
        for d, (n, k) in enumerate(zip(self.size, self.kernel, strict=True)):
            padding = self.pads[d] + self.pads[d + 2] - (k - 1) * self.dilations[d] - 1
            same = self.auto_pad.startswith("SAME")
            found.append(-(-n // self.strides[d]) if same else (n + padding) // self.strides[d] + 1)
        return found[0], found[1]

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the op's inputs."""
        channels, filters = self.groups * self.channels, self.groups * self.filters
        own = channels - sum(self.beside)
        x = (self.images, *self.size, own) if self.images_last else (self.images, own, *self.size)
        w = (filters, *self.kernel, self.channels) if self.packed else (filters, self.channels, *self.kernel)
        mine = {
            "b": (filters,), "k": (self.images, 1, 1, filters), "r": (self.images, *self.output(), filters),
        }  # fmt: skip
        others = [(self.images, *self.size, n) for n in self.beside]
        return [x, w, *(mine[o] for o in OPERANDS[self.text]), *others]

    def inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Return random inputs: sums of order one, and of float32 the bits alone that the tensor cores read."""
        fused = self.op()
        found = [ops.random(rng, t, s) for t, s in zip(fused.inputs, self.shapes(), strict=True)]
        scale = max(self.channels * int(np.prod(self.kernel)), 1) ** -0.5
        found[1] = (found[1].astype(np.float32) * scale).astype(found[1].dtype)
        if self.dtype == ops.FLOAT:
            for i in (0, 1, *range(len(found) - len(self.beside), len(found))):
                found[i] = (found[i].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        return found

    @property
    def cuts(self) -> int:
        """Return how often the tensor cores cut a sum off."""
        return self.channels * int(np.prod(self.kernel)) // 8 if self.dtype == ops.FLOAT else 0


@st.composite
def cases(draw: st.DrawFn, largest: int) -> Case:
    """Draw a convolution over images of at most this size."""
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    images_last = draw(st.booleans())
    dtype = draw(st.sampled_from([ops.HALF, ops.BRAIN, ops.FLOAT]))
    kernel = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    dilations = draw(pair)
    if not images_last and dtype != ops.FLOAT:
        dilations = (dilations[0], 1)
    pads = draw(st.tuples(*[st.integers(0, 4)] * 4))
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER"]))
    pads = pads if auto == "NOTSET" else (0, 0, 0, 0)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    least = [max(r - pads[d] - pads[d + 2], 1) for d, r in enumerate(reach)]
    rows, columns = (draw(st.integers(n, max(largest, n))) for n in least)
    groups = draw(st.sampled_from([1, 1, 2, 3, 5])) if images_last else 1
    return Case(
        draw(st.sampled_from(TEXTS)), dtype, images_last, draw(st.integers(1, 2)), draw(st.integers(1, 12)),
        draw(st.one_of(st.integers(1, 40), st.sampled_from([8, 16, 32, 64]))), (rows, columns), kernel, groups,
        draw(pair), dilations, pads, auto, draw(st.booleans()),
    )  # fmt: skip
