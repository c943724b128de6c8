"""Export a torch model as a way asks: a way says what it leaves at the exporter's default."""

# mypy: disallow-untyped-calls=False
# (torch says little of its types)

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import torch

from models.survey import AS_EXPORTED, DYNAMO, INSIDE, OPTIMUM, REFUSALS, Axes, Way
from models.survey.catalogue import make

OUTSIDE = 1024
"""Bytes from which on optimum, and tracing of more than 2 GB, put a tensor into another file."""


def export(name: str, way: Way, side: int, path: Path) -> bool:
    """Write one export to `path` and return whether its dimensions had to be fixed; raises what the exporter raises."""
    torch.manual_seed(0)
    made = make(name, way, side)
    element = getattr(torch, way.dtype)
    module = copy.deepcopy(made.module).to(element).eval()
    inputs = {n: x.to(element) if x.is_floating_point() else x for n, x in made.inputs.items()}
    with torch.no_grad():
        count = len(module(*inputs.values()))
    axes = way.opened(made.axes)
    fixed = way.dynamic and not any(axes.values())
    if any(axes.values()):
        try:
            _write(module, inputs, axes, count, way, path)
        except REFUSALS:
            if way.exporter != DYNAMO:
                raise
            fixed = True
    if fixed or not way.dynamic:
        _write(module, inputs, {}, count, way, path)
    _move_weights(path, way.weights)
    return fixed


def _write(module: Any, inputs: Mapping[str, Any], axes: Axes, count: int, way: Way, path: Path) -> None:
    asked: dict[str, Any] = {}
    if way.opset is not None:
        asked["opset_version"] = way.opset
    if way.weights != AS_EXPORTED:
        asked["external_data"] = False
    if not way.bare:
        asked |= {"input_names": list(inputs), "output_names": [f"y{n}" for n in range(count)]}
    if axes and way.exporter == DYNAMO:
        asked["dynamic_shapes"] = (tuple(dict(axes.get(n, {})) for n in inputs),)
    elif axes:
        asked["dynamic_axes"] = {n: dict(a) for n, a in axes.items() if a}
    torch.onnx.export(module, tuple(inputs.values()), str(path), dynamo=way.exporter == DYNAMO, **asked)


def _move_weights(path: Path, to: str) -> None:
    """Move the weights of an export to where other tools put them."""
    if to in (AS_EXPORTED, INSIDE):
        return
    onnx.save(
        onnx.load(path), path, save_as_external_data=True, size_threshold=OUTSIDE, convert_attribute=to == OPTIMUM,
        all_tensors_to_one_file=to == OPTIMUM, location=f"{path.name}_data" if to == OPTIMUM else None,
    )  # fmt: skip
