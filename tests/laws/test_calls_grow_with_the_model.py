"""What the work on a model costs grows with the model, counted in calls: no clock, no machine."""

import cProfile
import pstats
from collections import Counter
from pathlib import Path

import models
import onnxfuse
from onnxfuse.api.optimize.optimizing import optimize

FOUR, BOUND = 4, 9
"""Where each layer asks for what is of all layers, a function of four times the layers is called 16 times as often. One
that begins at the second layer is called (8 - 1) / (2 - 1) times as often."""

MANY = 1000
"""Calls from which a function counts."""


def calls(layers: int) -> Counter[str]:
    """Return how often each function of ours is called to optimize a transformer of so many layers."""
    model = models.build("gpt2", opset=16, layers=layers, hidden=32, heads=2, vocabulary=50, positions=64)
    profile = cProfile.Profile()
    profile.runcall(optimize, model)
    ours, found = str(Path(onnxfuse.__file__).parent), Counter[str]()
    for (file, line, name), (_, count, *_rest) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]  # it has them
        if file.startswith(ours):
            found[f"{file}:{line} {name}"] = count
    return found


def test_four_times_the_layers_are_four_times_the_calls() -> None:
    """No function asks more of each layer for there being others: of 340 and of 1,280 nodes."""
    few, many = calls(2), calls(2 * FOUR)
    assert max(many.values()) > 10 * MANY
    assert not {at: (few[at], n) for at, n in many.items() if n > MANY and n > few[at] * BOUND}
