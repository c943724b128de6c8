"""Time torch.compile on a subject, in a process of its own: `python -m models.survey.compiling NAME WAY FILE`.

FILE is the export that was timed: the inputs are its own, at the same sizes. Prints a line of JSON, the median
microseconds in each layout, or what torch said.
"""

# mypy: disallow-untyped-calls=False
# (torch says little of its types)

import copy
import json
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from models.survey import DYNAMO, WAYS, Way, inputs
from models.survey.cards import clock
from models.survey.catalogue import make
from models.survey.racing import ROUNDS, RUNS
from models.torch_compiled import by_layout
from onnxfuse.files import io
from onnxfuse.measure.timing.stopwatch import timed, warm


def compiled(
    name: str, way: Way, side: int, feeds: Mapping[str, np.ndarray], device: str = "cuda", **options: Any
) -> dict[str, float]:
    """Return the median microseconds of a run under torch.compile, by layout; raises what torch raises.

    Attention is torch's own (SDPA), where the source knows it. `options` go to torch.compile, by default CUDA graphs.
    """
    torch.backends.cuda.matmul.allow_tf32 = True  # as ONNX Runtime by default, and as cuDNN's convolutions in torch
    torch.manual_seed(0)
    made = make(name, replace(way, exporter=DYNAMO), side)
    element = getattr(torch, way.dtype)
    module = made.module.to(element).eval().to(device)
    given = [_tensor(feeds[n]) if n in feeds else x for n, x in made.inputs.items()]
    given = [x.to(device, element if x.is_floating_point() else None) for x in given]
    with torch.inference_mode():
        images = any(x.ndim == 4 for x in given)
        calls = by_layout(lambda: copy.deepcopy(module), given, device, images=images, **options)
        warm(calls.values())
        with clock():
            times = timed(list(calls.values()), ROUNDS, RUNS)
    return {layout: round(t.p50, 1) for layout, t in zip(calls, times, strict=True)}


def _tensor(values: np.ndarray) -> torch.Tensor:
    """Return an array as torch has it; bfloat16, which numpy does not know, by its bits."""
    if values.dtype.name == "bfloat16":
        return torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(values))


@click.command()
@click.argument("name")
@click.argument("way", type=int)
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--side", default=128)
@click.option("--sizes", default="{}", help="The sizes of the open dimensions, as JSON.")
def main(name: str, way: int, file: Path, side: int, sizes: str) -> None:
    """Time way number WAY of the subject NAME, whose export is FILE."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what torch prints is not ours
    feeds = inputs.feeds(io.load(file), 0, **json.loads(sizes))
    try:
        found: dict[str, Any] = {"compiled_us": compiled(name, WAYS[way], side, feeds)}
    except Exception as error:  # whatever torch says of the model: its time is missing, and the row says why
        found = {"not_compiled": f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]}
    print(json.dumps(found), file=lines, flush=True)
    os._exit(0)  # no tear-down of a library spoils it


if __name__ == "__main__":
    main()
