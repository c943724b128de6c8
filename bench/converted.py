"""Float32 files of sample models, converted to lower precision and fused, beside ONNX Runtime and the native twin."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy.typing as npt

import models
import onnxfuse
from bench import rivals
from onnxfuse.api.optimize.optimizing import Optimized, optimize
from onnxfuse.files import io
from onnxfuse.graph.normalize import normalize
from onnxfuse.measure.timing.binding import (
    ON_GPU,
    DeviceBinding,
    opened,
    ort_values,
    outputs_of,
    warmed,
)
from onnxfuse.measure.timing.contenders import Contender, convolves, refusals
from onnxfuse.measure.timing.settings import CUDA_GRAPH, DEFAULT, RefusedRun, cuda_settings
from onnxfuse.measure.timing.stopwatch import timed
from onnxfuse.precision import Lowering, convert

SIZES: Mapping[str, Mapping[str, Any]] = {
    "resnet50": {"batch": 32}, "efficientnet_b0": {"batch": 32}, "convnext_tiny": {"batch": 32},
    "bert_base": {"batch": 32, "sequence": 128}, "vit_b_16": {"batch": 32}, "gpt2": {"batch": 8, "sequence": 512},
    "minilm": {"batch": 32, "sequence": 128},
}  # fmt: skip
"""The sizes that are timed."""

SMALL = {"batch": 1, "sequence": 32}
"""The sizes that are measured in float64: the truth of a run of the sizes above takes minutes."""

PLAIN, THEIRS, NATIVE, OURS = (f"{n}.onnx" for n in ("plain", "theirs", "native", "ours"))
TOLD = "told.json"
"""A `Prepared`, written when all else is there."""


@dataclass(frozen=True)
class Prepared:
    """The files of a model that are raced, in a folder."""

    seconds: float
    """That the conversion took."""
    summary: str
    kept: int
    nodes: int
    """Of the model, and how many of them are kept in float32."""


def prepared(name: str, precision: str, folder: Path) -> Prepared:
    """Write the files of a model that `raced` takes, and return what was done."""
    folder.mkdir(exist_ok=True)
    sizes = SIZES[name]
    io.save(models.build(name, **sizes), folder / PLAIN)
    rivals.optimized(folder / PLAIN, name, folder / THEIRS)
    io.save(onnxfuse.optimize(models.build(name, dtype="float16", **sizes)), folder / NATIVE)
    began = time.perf_counter()
    made = _converted(name, precision)
    seconds = time.perf_counter() - began
    io.save(made.model, folder / OURS)
    assert made.lowered is not None
    told = Prepared(seconds, made.lowered.summary, len(made.lowered.kept), made.lowered.nodes)
    (folder / TOLD).write_text(json.dumps(asdict(told)))
    return told


def raced(name: str, folder: Path) -> tuple[tuple[str, float], float, float]:
    """Return ONNX Runtime's fastest setting on the float32 file, and the medians of native and converted, in us."""
    convolutions = convolves(io.load(folder / PLAIN, weights=False))
    originals = [
        Contender("original", folder / file, replace(setting, name=f"{what}: {setting.name}"))
        for what, file in (("plain", PLAIN), ("transformers.optimizer", THEIRS)) if (folder / file).exists()
        for setting in cuda_settings(convolutions=convolutions)
    ]  # fmt: skip
    fused = [Contender("fused", folder / file, replace(CUDA_GRAPH, name=file)) for file in (NATIVE, OURS)]
    entries = [(one, "float16" if one.setting.name == NATIVE else "float32") for one in (*originals, *fused)]
    medians = _medians(entries, lambda dtype: models.example_inputs(name, dtype=dtype, **SIZES[name]))
    native, ours = medians.pop(NATIVE), medians.pop(OURS)
    return min(medians.items(), key=lambda pair: pair[1]), native, ours


def _converted(name: str, precision: str) -> Optimized:
    """Return the float32 file of the sizes that are timed, converted by what was measured at small ones, and fused."""
    small: dict[str, Any] = {k: v for k, v in SMALL.items() if k in SIZES[name]}
    feeds = tuple(models.example_inputs(name, seed=n, **small) for n in range(2))
    model = models.build(name)
    normalize(model)
    convert(model, Lowering(precision, feeds))
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in SIZES[name]:
                dim.dim_value = SIZES[name][dim.dim_param]
    return optimize(model)


def _medians(
    entries: Sequence[tuple[Contender, str]], feeds: Callable[[str], Mapping[str, npt.NDArray[Any]]]
) -> dict[str, float]:
    """Return the median microseconds, by setting, of the contenders that run, each on inputs of its element type."""
    arrays = {dtype: feeds(dtype) for dtype in {dtype for _, dtype in entries}}
    values = {dtype: ort_values(one) for dtype, one in arrays.items()}
    ready: dict[str, DeviceBinding] = {}
    refused: list[RefusedRun] = []
    for one, dtype in entries:
        with refusals(one, refused):
            plain = opened(one.model, DEFAULT, ON_GPU, fused=one.name == "fused")
            outputs = outputs_of(plain, values[dtype], one.setting.name)
            del plain
            session = opened(one.model, one.setting, ON_GPU, fused=one.name == "fused")
            ready[one.setting.name] = warmed(session, values[dtype], outputs)
    for why in refused:
        click.echo(f"{why.setting}: refused: {why.reason[:160]}")
    times = timed([bound.run for bound in ready.values()])
    return {name: timing.p50 for name, timing in zip(ready, times, strict=True)}
