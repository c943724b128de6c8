"""Images resized linearly that the tests share, on the host and on the GPU."""

from dataclasses import dataclass

import numpy as np

from bench.cases import ops
from onnxfuse.model.fused import FusedOp


@dataclass(frozen=True)
class Resize:
    """An image resized, with a bias and an activation."""

    dtype: int
    centre: str
    scales: tuple[float, float]
    size: tuple[int, int]
    channels: int
    images: int = 2
    first: bool = False
    """Whether the image has its channels first."""

    def op(self) -> FusedOp:
        """Return the fused op."""
        to, back = "Transpose <perm = [0,3,1,2]> (x)", "Transpose <perm = [0,2,3,1]> (r)"
        text = (
            f"(x, b) => (y) {{ s = Constant <value = float[4] {{1,1,{self.scales[0]},{self.scales[1]}}}> () "
            f"{'' if self.first else f'i = {to}'} "
            f'r = Resize <mode = "linear", coordinate_transformation_mode = "{self.centre}"> '
            f"({'x' if self.first else 'i'}, , s) "
            f"{'' if self.first else f't = {back}'} a = Add({'r' if self.first else 't'}, b) y = Relu(a) }}"
        )
        return ops.op(text, (self.dtype,) * 2, (self.dtype,), "depthwise")

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the op's inputs."""
        if self.first:
            return (self.images, self.channels, *self.size), (self.channels, 1, 1)
        return (self.images, *self.size, self.channels), (self.channels,)

    def inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Return random inputs."""
        return [ops.random(rng, self.dtype, s) for s in self.shapes()]
