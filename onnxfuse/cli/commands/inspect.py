"""`onnxfuse inspect`: describe a model on one screen."""

import os
from dataclasses import replace
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from onnxfuse.api.explain.inspecting import ModelInspection, inspect
from onnxfuse.cli.base.console import output, print_json
from onnxfuse.cli.base.parameters import JSON_OPTION, STREAM, ModelFile, came_through_stdin
from onnxfuse.cli.screens.pack_coverage import megabytes
from onnxfuse.support.plurals import plural

OPERATORS = 12
"""Number of operators listed by name; the others are counted."""


@click.command("inspect")
@click.argument("model", metavar="MODEL.onnx", type=ModelFile(weights=False))
@JSON_OPTION
def command(model: Path, as_json: bool) -> int:
    """Describe MODEL.onnx: sizes, inputs, outputs, dynamic dimensions, weights, operators, and fused ops.

    Nothing is run, and no external weights are read.
    """
    found = inspect(model)
    if came_through_stdin(model):
        missing = tuple(os.path.relpath(file, model.parent) for file in found.missing)
        found = replace(found, name=STREAM, missing=missing)
    if as_json:
        print_json("inspect", found.as_dict())
    else:
        _print(found)
    return 0


def _print(found: ModelInspection) -> None:
    console, nodes = output(), sum(found.operators.values())
    fused = sum(one.nodes for one in found.fused)
    beside = f", {megabytes(found.external_bytes)} of them in files beside it" if found.external_bytes else ""
    console.print(
        f"[bold]{escape(found.name)}:[/] {plural(nodes, 'node')}, {fused} of them fused, "
        f"{megabytes(found.bytes)}{beside}",
        soft_wrap=True,
    )
    for file in found.missing:
        console.print(f"[yellow]missing:[/] {escape(file)}, which its weights are in", soft_wrap=True)
    opsets = ", ".join(f"{domain or 'opset'} {version}" for domain, version in found.opsets.items())
    maker = f"; made by {found.producer}" if found.producer else ""
    console.print(escape(f"IR {found.ir_version}; {opsets}{maker}"), soft_wrap=True)
    for what, values in (("input", found.inputs), ("output", found.outputs)):
        for value in values:
            console.print(escape(f"{what} {value}"), soft_wrap=True)
    console.print(f"dynamic dimensions: {escape(', '.join(found.dimensions) or 'none')}", soft_wrap=True)
    for one in found.weights:
        console.print(
            f"weights {one.type}: {plural(one.count, 'tensor')}, "
            f"{plural(one.elements, 'element')}, {megabytes(one.bytes)}"
        )
    if found.precision:
        console.print(f"converted, {escape(found.precision)}", soft_wrap=True)
    if found.strict_fp32:
        console.print("strict float32: no product is rounded to TF32")
    plain = {op: n for op, n in found.operators.items() if not op.startswith("onnxfuse:")}
    shown = [f"{n} {op}" for op, n in list(plain.items())[:OPERATORS]]
    rest = len(plain) - len(shown)
    others = f", and {plural(rest, 'other')}" if rest else ""
    console.print(f"operators: {escape(', '.join(shown) or 'none')}{others}", soft_wrap=True)
    if found.fused:
        table = Table("fused", "rule", "op", "made of", box=None, pad_edge=False, header_style="bold")
        table.columns[0].justify = "right"
        for fused_op in found.fused:
            made_of = " + ".join(fused_op.made_of)
            table.add_row(str(fused_op.nodes), fused_op.rule, escape(fused_op.op), escape(made_of))
        console.print(table)
