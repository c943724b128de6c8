"""Export what is asked for, in a process of its own: `echo plain:tcn 0 | python -m models.survey.exporting FOLDER`.

Each line that it reads is a subject's name and the position of a way in `WAYS`. It answers with a line of JSON: where
the file is, or what the exporter said.
"""

# mypy: disallow-untyped-calls=False
# (torch says little of its types)

import copy
import json
import logging
import os
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch

from models.survey import WAYS, Made, Way
from models.survey.catalogue import make
from models.survey.modules import REFUSALS

LONGEST = 2_000_000_000
"""Bytes of weights that fit into one file."""


@dataclass(frozen=True)
class Exported:
    """What became of one way."""

    file: str
    """Empty where there is none."""
    error: str
    seconds: float
    static: bool
    """The exporter could not keep the dimensions open, and the sizes of the example are fixed."""


def export(made: Made, way: Way, path: Path) -> bool:
    """Write one export to `path` and return whether its dimensions had to be fixed; raises what the exporter raises."""
    element = getattr(torch, way.dtype)
    module = copy.deepcopy(made.module).to(element).eval()
    inputs = {n: x.to(element) if x.is_floating_point() else x for n, x in made.inputs.items()}
    with torch.no_grad():
        count = len(module(*inputs.values()))
    axes = way.opened(made.axes)
    if any(axes.values()):
        try:
            _write(module, inputs, axes, count, way, path)
            return False
        except (*REFUSALS, torch.onnx.errors.OnnxExporterError):
            if not way.dynamo:
                raise
    _write(module, inputs, {}, count, way, path)
    return way.dynamic


def _write(module: Any, inputs: dict[str, Any], axes: Any, count: int, way: Way, path: Path) -> None:
    shapes = tuple(dict(axes.get(n, {})) for n in inputs) if axes else None
    torch.onnx.export(
        module, tuple(inputs.values()), str(path), dynamo=way.dynamo, external_data=False, opset_version=way.opset,
        input_names=list(inputs), output_names=[f"y{n}" for n in range(count)],
        dynamic_axes={n: dict(a) for n, a in axes.items() if a} if axes and not way.dynamo else None,
        dynamic_shapes=(shapes,) if shapes and way.dynamo else None, verbose=False,
    )  # fmt: skip


def exported(name: str, number: int, folder: Path, side: int) -> Exported:
    """Return what became of way `number` of the subject."""
    began, way = time.perf_counter(), WAYS[number]
    path = folder / f"{name} {way}.onnx".translate(str.maketrans(" :/", "---"))
    static, error = False, ""
    try:
        torch.manual_seed(0)
        static = export(make(name, way, side), way, path)
    except (*REFUSALS, torch.onnx.errors.OnnxExporterError) as refused:
        path.unlink(missing_ok=True)
        error = f"{type(refused).__name__}: {' '.join(str(refused).split())}"[:300]
    return Exported("" if error else str(path), error, round(time.perf_counter() - began, 1), static)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--side", default=128)
def main(folder: Path, side: int) -> None:
    """Export into FOLDER."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what exporters print is not ours
    for asked in sys.stdin:
        name, number = asked.split()
        print(json.dumps(asdict(exported(name, int(number), folder, side))), file=lines, flush=True)


if __name__ == "__main__":
    main()
