"""Describe a model without running or changing it: sizes, operators, dimensions, element types, fused ops."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, ValueInfoProto
from rich.markup import escape

from onnxfuse import ops
from onnxfuse.files import external, io
from onnxfuse.files.model_source import Model, path_or_proto
from onnxfuse.model import precision_record
from onnxfuse.model.fused import DOMAIN, fused_ops
from onnxfuse.model.tf32 import is_strict_fp32
from onnxfuse.model.validate import tensors
from onnxfuse.passes import pipeline
from onnxfuse.support.plurals import fused_ops_text, plural
from onnxfuse.support.screen import Blocks, Line, Rows, Screen, plain_table
from onnxfuse.support.units import megabytes

OPERATORS = 12
"""Number of operators listed by name; the others are counted."""


@dataclass(frozen=True)
class Value:
    """An input or an output."""

    name: str
    type: str
    """Element type, such as float16."""
    shape: tuple[int | str, ...] | None
    """An integer, a name, or `?` for each dimension; None if the model does not declare it."""

    def __str__(self) -> str:
        shape = "of any shape" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"{self.name}: {self.type} {shape}"


@dataclass(frozen=True)
class Weights:
    """The weights of one element type."""

    type: str
    count: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Fused:
    """A distinct fused op."""

    op: str
    rule: str
    nodes: int
    """Number of nodes that are this op."""
    made_of: tuple[str, ...]
    """Operators of the nodes that one of them replaced."""


@dataclass(frozen=True, repr=False)
class ModelInspection(Screen):
    """The description of a model."""

    name: str
    bytes: int
    """Size of the model including weights."""
    external_bytes: int
    """Size of the weights in external data files."""
    missing: tuple[str, ...]
    """Missing external data files."""
    ir_version: int
    opsets: dict[str, int]
    """By domain; the empty one is the standard ONNX domain."""
    producer: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    dimensions: tuple[str, ...]
    """Dynamic dimensions of the inputs; INPUT[AXIS] for an unnamed one."""
    weights: tuple[Weights, ...]
    operators: dict[str, int]
    """Node count per operator, including bodies of If, Loop and Scan; most frequent first."""
    fused: tuple[Fused, ...]
    precision: str
    """How the model was converted to lower precision; empty if it was not."""
    strict_fp32: bool
    """Whether the model forbids rounding float32 products to TF32."""

    def screen(self) -> Blocks:
        """Return the description on one screen."""
        nodes = sum(self.operators.values())
        fused = sum(one.nodes for one in self.fused)
        external = f", {megabytes(self.external_bytes)} of them in files beside it" if self.external_bytes else ""
        yield Line(
            f"[bold]{escape(self.name)}:[/] {plural(nodes, 'node')}, including "
            f"{fused_ops_text(fused, len(self.fused))}; "
            f"{megabytes(self.bytes)}{external}"
        )
        for file in self.missing:
            yield Line(f"[yellow]missing:[/] {escape(file)}, which holds its weights")
        opsets = ", ".join(f"{domain or 'opset'} {version}" for domain, version in self.opsets.items())
        maker = f"; made by {self.producer}" if self.producer else ""
        yield Line(escape(f"IR {self.ir_version}; {opsets}{maker}"))
        for direction, values in (("input", self.inputs), ("output", self.outputs)):
            for value in values:
                yield Line(escape(f"{direction} {value}"))
        yield Line(f"dynamic dimensions: {escape(', '.join(self.dimensions) or 'none')}")
        for one in self.weights:
            yield Line(
                f"weights {one.type}: {plural(one.count, 'tensor')}, "
                f"{plural(one.elements, 'element')}, {megabytes(one.bytes)}",
                fold=True,
            )
        if self.precision:
            yield Line(f"converted, {escape(self.precision)}")
        if self.strict_fp32:
            yield Line("strict float32: no product is rounded to TF32", fold=True)
        plain = {op: n for op, n in self.operators.items() if not op.startswith("onnxfuse:")}
        listed = [f"{n} {op}" for op, n in list(plain.items())[:OPERATORS]]
        rest = len(plain) - len(listed)
        others = f", and {plural(rest, 'other')}" if rest else ""
        yield Line(f"operators: {escape(', '.join(listed) or 'none')}{others}")
        if self.fused:
            table = plain_table("fused", "rule", "op", "made of", right=("fused",))
            for fused_op in self.fused:
                made_of = " + ".join(fused_op.made_of)
                table.add_row(str(fused_op.nodes), fused_op.rule, escape(fused_op.op), escape(made_of))
            yield Rows(table)

    def as_dict(self) -> dict[str, Any]:
        """Return every fact as plain data for JSON."""
        return {"ok": True, **asdict(self)}


def inspect(model: Model, name: str = "") -> ModelInspection:
    """Describe `model`; of a file only the graph is read. Raises ModelError."""
    source = path_or_proto(model)
    light = source if isinstance(source, onnx.ModelProto) else io.outline(source, small=False)
    file_name = "" if isinstance(source, onnx.ModelProto) else Path(source).name
    weights = list(tensors(light))
    external_weights = [t for t in weights if external.is_external(t) and external.location(t) != file_name]
    external_size = sum(external.bytes_of(t) for t in weights if external.is_external(t))
    initialized = {t.name for t in light.graph.initializer}
    inputs = tuple(_value(v) for v in light.graph.input if v.name not in initialized)
    counts = pipeline.count_ops(light)
    converted = precision_record.read(light)
    return ModelInspection(
        name=name or ("" if isinstance(source, onnx.ModelProto) else str(source)),
        bytes=light.ByteSize() + external_size,
        external_bytes=sum(external.bytes_of(t) for t in external_weights),
        missing=() if isinstance(source, onnx.ModelProto) else tuple(map(str, external.missing(light, Path(source)))),
        ir_version=light.ir_version,
        opsets={o.domain: o.version for o in light.opset_import},
        producer=" ".join(filter(None, (light.producer_name, light.producer_version))),
        inputs=inputs,
        outputs=tuple(_value(v) for v in light.graph.output),
        dimensions=tuple(dict.fromkeys(
            f"{v.name}[{axis}]" if size == "?" else str(size)
            for v in inputs for axis, size in enumerate(v.shape or ()) if not isinstance(size, int)
        )),
        weights=_weights(light.graph.initializer),
        operators=dict(counts.most_common()),
        fused=tuple(
            Fused(op.name, op.rule, counts[f"{DOMAIN}:{op.name}"], _made_of(op.body.node))
            for op in fused_ops(light).values()
        ),
        precision="" if converted is None else converted.summary,
        strict_fp32=is_strict_fp32(light),
    )  # fmt: skip


def _type_name(element_type: int) -> str:
    return "float32" if element_type == TensorProto.FLOAT else str(TensorProto.DataType.Name(element_type)).lower()


def _value(value: ValueInfoProto) -> Value:
    which = value.type.WhichOneof("value") or "unknown"
    if which != "tensor_type":
        return Value(value.name, which.removesuffix("_type"), None)
    tensor = value.type.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
    return Value(value.name, _type_name(tensor.elem_type), shape)


def _weights(weights: Sequence[TensorProto]) -> tuple[Weights, ...]:
    """Return the weights by element type, largest first."""
    count, elements, size = Counter[int](), Counter[int](), Counter[int]()
    for tensor in weights:
        count[tensor.data_type] += 1
        elements[tensor.data_type] += external.elements_of(tensor)
        size[tensor.data_type] += external.bytes_of(tensor)
    return tuple(Weights(_type_name(t), count[t], elements[t], size[t]) for t, _ in size.most_common())


def _made_of(body: Sequence[onnx.NodeProto]) -> tuple[str, ...]:
    return tuple(n.op_type for n in body if n.op_type != ops.Constant)
