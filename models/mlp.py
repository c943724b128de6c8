"""The smallest network of the set: a scalar function learned by two hidden layers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models import layers
from models.network import Network


@dataclass(frozen=True)
class Mlp:
    """MLP 1-1024-1024-1: three Gemms with a Relu after the first two."""

    hidden: int = 1024
    """Width of both hidden layers."""

    def write(self, net: Network) -> None:
        """Write x [batch, 1] -> y [batch, 1]."""
        x = net.input("x", net.dtype, (net.form.batch, 1))
        h = net.Relu(layers.dense(net.at("0"), x, 1, self.hidden))
        h = net.Relu(layers.dense(net.at("2"), h, self.hidden, self.hidden, gain=2))
        net.output("y", layers.dense(net.at("4"), h, self.hidden, 1, gain=2), (net.form.batch, 1))

    def example(
        self, rng: np.random.Generator, batch: int, sequence: int, dtype: str
    ) -> dict[str, NDArray[np.generic]]:
        """Return points on both sides of zero."""
        return {"x": rng.uniform(-3, 3, size=(batch, 1)).astype(dtype)}
