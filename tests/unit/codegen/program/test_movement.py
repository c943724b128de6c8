"""Functions over movements dispatch by class, which no type checker holds complete: each knows every class."""

from typing import Any, get_args

import pytest

from onnxfuse.codegen.program import movement_maps
from onnxfuse.codegen.program.movement import LookedUp, Movement
from onnxfuse.cuda.templates.general import movement_cpp


@pytest.mark.parametrize("movement", get_args(Movement))
@pytest.mark.parametrize("function", [movement_maps.pieces, movement_cpp._statements])
def test_every_movement_has_an_entry(function: Any, movement: type[Any]) -> None:
    """Index maps of rows looked up are refused before: their indices are data."""
    assert (movement in function.registry) is not (function is movement_maps.pieces and movement is LookedUp)
