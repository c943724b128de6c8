"""Lower precision from float32 files: how fast, how near, and what other converters make of the same traps.

    python -m bench.precision speed resnet50 bert_base   # on a GPU; converts side by side, races one by one
    python -m bench.precision prepare FOLDER             # converts alone, for `speed --files FOLDER`
    python -m bench.precision sentences                  # MiniLM on real sentences; anywhere
    python -m bench.precision traps                      # ours and two others beside it; anywhere

`speed` races, in turns, in one process: ONNX Runtime on the float32 file at each of its settings, and what
`onnxruntime.transformers.optimizer` makes of it; the native float16 file, fused; the float32 file, converted and fused.
"""

from __future__ import annotations

import contextlib
import io as stdio
import json
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import onnx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import models
import onnxfuse
from bench.converted import SIZES, TOLD, Prepared, prepared, raced
from models import minilm, traps
from onnxfuse.api.optimize.optimizing import optimize
from onnxfuse.api.request.options import Options
from onnxfuse.precision import Lowering
from onnxfuse.support.errors import OnnxfuseError
from onnxfuse.verification.reference.reference import float64_evaluator
from onnxfuse.verification.run import sessions
from onnxfuse.verification.tolerance.lower_precision import relative_rms

Arrays = dict[str, npt.NDArray[Any]]


@click.group()
def main() -> None:
    """Lower precision from float32 files."""


# ---- speed


@main.command()
@click.argument("names", nargs=-1)
@click.option("--precision", default="float16", show_default=True)
@click.option("--files", type=click.Path(path_type=Path), help="Take the files of `prepare` that are there.")
def speed(names: Sequence[str], precision: str, files: Path | None) -> None:
    """Time models, all of the table without names."""
    table = Table("model", "ORT float32, us", "native float16", "converted", "to native", "over ORT", "kept", box=None)
    gains = []
    with tempfile.TemporaryDirectory() as own:
        folder = files or Path(own)
        for name, made in _all_prepared(list(names or SIZES), precision, folder):
            click.echo(f"{name}: converted in {made.seconds:.0f} s; {made.summary}")
            best, native, ours = raced(name, folder / name)
            click.echo(f"{name}: {best[0]} {best[1]:.0f} us, native float16 {native:.0f}, converted {ours:.0f}")
            gains.append(best[1] / ours)
            table.add_row(
                name, f"{best[1]:.0f} ({best[0]})", f"{native:.0f}", f"{ours:.0f}", f"{ours / native - 1:+.1%}",
                f"{gains[-1]:.2f}x", f"{made.kept} of {made.nodes}",
            )  # fmt: skip
    Console(width=160).print(table)
    click.echo(f"geometric mean over ONNX Runtime's best on the float32 file: {_geometric(gains):.2f}x")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1)
@click.option("--precision", default="float16", show_default=True)
def prepare(folder: Path, names: Sequence[str], precision: str) -> None:
    """Write the files that `speed` races to FOLDER; no GPU is needed."""
    for name, made in _all_prepared(list(names or SIZES), precision, folder):
        click.echo(f"{name}: converted in {made.seconds:.0f} s; {made.summary}")


def _all_prepared(names: Sequence[str], precision: str, folder: Path) -> Iterator[tuple[str, Prepared]]:
    """Yield the files of each model in turn; those that are not there yet are made side by side."""
    folder.mkdir(exist_ok=True)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        made = {n: pool.submit(prepared, n, precision, folder / n) for n in names if not (folder / n / TOLD).exists()}
        for name in names:
            if name in made:
                made[name].result()
            yield name, Prepared(**json.loads((folder / name / TOLD).read_text()))


def _geometric(numbers: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, numbers)) / len(numbers)) if numbers else math.nan


# ---- real sentences


@main.command()
@click.option("--precision", default="float16", show_default=True)
def sentences(precision: str) -> None:
    """Print the smallest cosine of MiniLM's embeddings of real sentences to float64."""
    feeds = minilm.encode(minilm.sentences())
    original = models.build("minilm")
    made = optimize(original, Options(precision=Lowering(precision, (feeds,))))
    (true,) = float64_evaluator(original).run(["sentence_embedding"], feeds)
    session = onnxfuse.session(made.model)
    (got,) = session.run(None, feeds)
    cosines = (got.astype(np.float64) * true).sum(axis=1) / np.linalg.norm(got, axis=1) / np.linalg.norm(true, axis=1)
    where = session.get_providers()[0].removesuffix("ExecutionProvider")
    click.echo(f"{len(true)} sentences, {precision}, {where}: smallest cosine to float64 {cosines.min():.7f}")
    assert made.lowered is not None
    click.echo(made.lowered.summary)


# ---- traps


@main.command("traps")
def show_traps() -> None:
    """Print what becomes of each trap: ours, onnxconverter-common's two ways, onnxruntime.transformers.float16."""
    table = Table("trap", "onnxfuse", "kept", *OTHERS, box=None)
    for trap in traps.TRAPS:
        model, feeds = traps.planted(trap), traps.feeds(trap, 1)
        names = [o.name for o in model.graph.output]
        true = [dict(zip(names, float64_evaluator(model).run(names, _wide(f)), strict=True)) for f in feeds]
        made = optimize(model, Options(precision=Lowering("float16", tuple(feeds))))
        assert made.lowered is not None
        kept = f"{len(made.lowered.kept)} of {made.lowered.nodes}"
        ours = _outcome(lambda made: made, made.model, feeds, true)
        others = [_outcome(partial(_by, c, feeds), _copy(model), feeds, true) for c in OTHERS.values()]
        table.add_row(escape(trap.name), ours, kept, *others)
    Console(width=180).print(table)
    click.echo("the largest relative RMS error of an output to float64, on the CPU; the contract allows 0.0098")


def _outcome(
    convert: Callable[[onnx.ModelProto], onnx.ModelProto],
    model: onnx.ModelProto,
    feeds: Sequence[Mapping[str, Any]],
    true: Sequence[Mapping[str, Any]],
) -> str:
    """Return the error of what a converter makes, each half value rounded behind its node; or how it fails."""
    try:
        # One of them tells what it tries, the other one what it truncates.
        with contextlib.redirect_stdout(stdio.StringIO()), warnings.catch_warnings(action="ignore"):
            made = convert(model)
        run = _runner(made)
        worst = 0.0
        for feed, truth in zip(feeds, true, strict=True):
            got = run(dict(feed))
            worst = max(worst, *(relative_rms(got[n], np.asarray(truth[n]))[0] for n in truth))
    except FAILURES as error:
        return f"fails: {type(error).__name__}"
    return "NaN or infinite" if math.isinf(worst) else f"{worst:.2g}"


def _runner(model: onnx.ModelProto) -> Callable[[Arrays], Mapping[str, Any]]:
    """Return what runs a model as ONNX defines its types: each value is rounded behind its node."""
    from onnxfuse.verification.reference.float64_reference import as_half

    sessions.ort_session(model, [sessions.CPU])  # What does not open is no model.
    return as_half(onnxfuse.unfuse(model))


def _by(
    convert: Callable[[onnx.ModelProto, Sequence[Mapping[str, Any]]], onnx.ModelProto],
    feeds: Sequence[Mapping[str, Any]],
    model: onnx.ModelProto,
) -> onnx.ModelProto:
    return convert(model, feeds)


def _common(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]]) -> onnx.ModelProto:
    from onnxconverter_common import float16

    made: onnx.ModelProto = float16.convert_float_to_float16(model, keep_io_types=True)
    return made


def _common_automatic(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]]) -> onnx.ModelProto:
    from onnxconverter_common import auto_mixed_precision

    made: onnx.ModelProto = auto_mixed_precision.auto_convert_mixed_precision(
        model, dict(feeds[0]), rtol=0.01, atol=0.001, keep_io_types=True
    )
    return made


def _transformers(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]]) -> onnx.ModelProto:
    from onnxruntime.transformers import float16

    made: onnx.ModelProto = float16.convert_float_to_float16(model, keep_io_types=True)
    return made


OTHERS: dict[str, Callable[[onnx.ModelProto, Sequence[Mapping[str, Any]]], onnx.ModelProto]] = {
    "onnxconverter-common": _common,
    "its auto_mixed_precision": _common_automatic,
    "onnxruntime.transformers.float16": _transformers,
}
"""Other converters; onnxconverter-common is on PyPI, the other one comes with ONNX Runtime."""

FAILURES: tuple[type[Exception], ...] = (
    OnnxfuseError, ImportError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, IndexError,
    *sessions.ORT_ERRORS,
)  # fmt: skip
"""What they raise, and ONNX Runtime of what they made."""


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def _wide(feed: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    return {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in feed.items()}


if __name__ == "__main__":
    main()
