"""Where the numbers come from: drawn from a seed, or read from a trained checkpoint."""

import zlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Weights(Protocol):
    """Gives the values of one parameter, in torch's names and shapes."""

    def __call__(self, name: str, shape: tuple[int, ...], std: float, mean: float) -> NDArray[np.float32]: ...


def seeded(seed: int) -> Weights:
    """Return weights that are normal with the asked mean and deviation, the same in every run.

    Each parameter has a stream of its own, so a model with fewer layers has the same weights in those that it keeps.
    """

    def draw(name: str, shape: tuple[int, ...], std: float, mean: float) -> NDArray[np.float32]:
        values = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape, np.float32)
        values *= np.float32(std)
        values += np.float32(mean)
        return values

    return draw
