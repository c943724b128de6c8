"""`onnxfuse inspect`: describe a model on one screen."""

import os
from dataclasses import replace
from typing import Unpack

from rich.markup import escape

from onnxfuse.api.explain.inspecting import ModelInspection, inspect
from onnxfuse.cli.base.console import output, plain_table, print_json
from onnxfuse.cli.base.parameters import STREAM, came_through_stdin
from onnxfuse.cli.screens.pack_coverage import megabytes
from onnxfuse.options.commands import InspectCommand
from onnxfuse.support.plurals import plural

OPERATORS = 12
"""Number of operators listed by name; the others are counted."""


def command(**given: Unpack[InspectCommand]) -> int:
    """Run the command and print its result."""
    model = given["model"]
    inspection = inspect(model)
    if came_through_stdin(model):
        missing = tuple(os.path.relpath(file, model.parent) for file in inspection.missing)
        inspection = replace(inspection, name=STREAM, missing=missing)
    if given["as_json"]:
        print_json("inspect", inspection.as_dict())
    else:
        _print(inspection)
    return 0


def _print(inspection: ModelInspection) -> None:
    console, nodes = output(), sum(inspection.operators.values())
    fused = sum(one.nodes for one in inspection.fused)
    external = (
        f", {megabytes(inspection.external_bytes)} of them in files beside it" if inspection.external_bytes else ""
    )
    console.print(
        f"[bold]{escape(inspection.name)}:[/] {plural(nodes, 'node')}, {fused} of them fused, "
        f"{megabytes(inspection.bytes)}{external}",
        soft_wrap=True,
    )
    for file in inspection.missing:
        console.print(f"[yellow]missing:[/] {escape(file)}, which holds its weights", soft_wrap=True)
    opsets = ", ".join(f"{domain or 'opset'} {version}" for domain, version in inspection.opsets.items())
    maker = f"; made by {inspection.producer}" if inspection.producer else ""
    console.print(escape(f"IR {inspection.ir_version}; {opsets}{maker}"), soft_wrap=True)
    for direction, values in (("input", inspection.inputs), ("output", inspection.outputs)):
        for value in values:
            console.print(escape(f"{direction} {value}"), soft_wrap=True)
    console.print(f"dynamic dimensions: {escape(', '.join(inspection.dimensions) or 'none')}", soft_wrap=True)
    for one in inspection.weights:
        console.print(
            f"weights {one.type}: {plural(one.count, 'tensor')}, "
            f"{plural(one.elements, 'element')}, {megabytes(one.bytes)}"
        )
    if inspection.precision:
        console.print(f"converted, {escape(inspection.precision)}", soft_wrap=True)
    if inspection.strict_fp32:
        console.print("strict float32: no product is rounded to TF32")
    plain = {op: n for op, n in inspection.operators.items() if not op.startswith("onnxfuse:")}
    listed = [f"{n} {op}" for op, n in list(plain.items())[:OPERATORS]]
    rest = len(plain) - len(listed)
    others = f", and {plural(rest, 'other')}" if rest else ""
    console.print(f"operators: {escape(', '.join(listed) or 'none')}{others}", soft_wrap=True)
    if inspection.fused:
        table = plain_table("fused", "rule", "op", "made of", right=("fused",))
        for fused_op in inspection.fused:
            made_of = " + ".join(fused_op.made_of)
            table.add_row(str(fused_op.nodes), fused_op.rule, escape(fused_op.op), escape(made_of))
        console.print(table)
