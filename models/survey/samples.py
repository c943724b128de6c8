"""Exports without their weights, small enough to keep: what the drawn numbers were is drawn again, by a seed.

An export of the survey has random weights; all that is worth keeping is the graph, the types, the small constants, and
of each weight its mean and deviation. `python -m models.survey.samples FILE.onnx ... --out FOLDER` writes them.
"""

import lzma
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from models.weights import seeded
from onnxfuse.graph.graph import bodies

FOLDER = Path(__file__).parents[2] / "tests" / "survey" / "samples"
SUFFIX = ".onnx.xz"

FEW = 64
"""Elements of a constant that is kept as it is."""

HUGE = 1e4
"""What no weight is: values that hide others in a mask."""

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
STRAY = ("metadata_props", "doc_string")
"""Where the exporter's own notes stand: stack traces, scopes."""


def packed(model: ModelProto) -> bytes:
    """Return the model without its weights, compressed."""
    made = ModelProto()
    made.CopyFrom(model)
    for graph in _graphs(made.graph):
        for node in graph.node:
            for field in STRAY:
                node.ClearField(field)
        del graph.value_info[:]
    for tensor in _tensors(made.graph):
        if tensor.data_type in FLOATS and np.prod(tensor.dims) > FEW:
            values = numpy_helper.to_array(tensor).astype(np.float64)
            spread, mean = float(values.std()), float(values.mean())
            if spread and np.abs(values).max() < HUGE:  # a table of zeros, or a mask with -inf, is no weight
                kept = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
                kept.doc_string = f"{mean:.6g} {spread:.6g}"
                tensor.CopyFrom(kept)
    return lzma.compress(made.SerializeToString(deterministic=True), preset=9 | lzma.PRESET_EXTREME)


def unpacked(data: bytes) -> ModelProto:
    """Return the model with weights drawn anew: the same ones in every call."""
    model = onnx.load_from_string(lzma.decompress(data))
    draw = seeded(0)
    for number, tensor in enumerate(_tensors(model.graph)):
        if tensor.doc_string:
            mean, spread = map(float, tensor.doc_string.split())
            values = draw(tensor.name or str(number), tuple(tensor.dims), spread, mean)
            kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            tensor.CopyFrom(numpy_helper.from_array(values.astype(kind), tensor.name))
    return model


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from _graphs(body)


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield every constant, in initializers and in nodes."""
    for one in _graphs(graph):
        yield from one.initializer
        for node in one.node:
            yield from (a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--out", "folder", default=FOLDER, type=click.Path(file_okay=False, path_type=Path))
def main(files: tuple[Path, ...], folder: Path) -> None:
    """Keep FILES without their weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        data = packed(onnx.load(file))
        (folder / f"{file.stem}{SUFFIX}").write_bytes(data)
        click.echo(f"{file.stem}: {len(data)} bytes")


if __name__ == "__main__":
    main()
