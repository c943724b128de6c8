"""Reference operators whose products are of what they have computed themselves, with factors as hardware reads them."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun

Array = npt.NDArray[np.generic]


class Multiplying(OpRun):
    """Base of such an operator."""

    @staticmethod
    def factor(x: Any) -> Any:
        """Return a factor of a product as hardware reads it."""
        return x


def rounding(operators: Iterable[type[Multiplying]], factor: Callable[[Any], Any]) -> tuple[type[Multiplying], ...]:
    """Return operators whose factors are rounded by `factor`."""
    return tuple(type(one.__name__, (one,), {"factor": staticmethod(factor)}) for one in operators)
