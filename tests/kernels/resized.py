"""Images resized linearly that the tests share, on the host and on the GPU."""

from dataclasses import dataclass

import numpy as np

from onnxfuse.model.fused import FusedOp
from tests.kernels import ops


@dataclass(frozen=True)
class Resize:
    """A channels-last image resized, with a bias and an activation."""

    dtype: int
    centre: str
    scales: tuple[float, float]
    size: tuple[int, int]
    channels: int
    images: int = 2

    def op(self) -> FusedOp:
        """Return the fused op."""
        text = (
            "(x, b) => (y) { i = Transpose <perm = [0,3,1,2]> (x) "
            f"s = Constant <value = float[4] {{1,1,{self.scales[0]},{self.scales[1]}}}> () "
            f'r = Resize <mode = "linear", coordinate_transformation_mode = "{self.centre}"> (i, , s) '
            "t = Transpose <perm = [0,2,3,1]> (r) a = Add(t, b) y = Relu(a) }"
        )
        return ops.op(text, (self.dtype,) * 2, (self.dtype,), "depthwise")

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the op's inputs."""
        return (self.images, *self.size, self.channels), (self.channels,)

    def inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Return random inputs."""
        return [ops.random(rng, self.dtype, s) for s in self.shapes()]
