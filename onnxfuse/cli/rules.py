"""`onnxfuse rules`: the rules there are; one rule explained, with what it makes of its own examples."""

from pathlib import Path

import click
import onnx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onnxfuse.cli.console import output, print_json
from onnxfuse.cli.optimize import find, rule_names
from onnxfuse.model.errors import ModelError, RuleError
from onnxfuse.model.fused import fused_ops
from onnxfuse.model.text import parse_model
from onnxfuse.model.validate import validate
from onnxfuse.rewrite import pipeline
from onnxfuse.rewrite.language import predicate, rule_file


@click.command("rules")
@click.argument("name", required=False, shell_complete=rule_names)
@click.option("--rules", "folders", metavar="DIR", multiple=True, type=click.Path(path_type=Path), help="More rules.")
@click.option("--predicates", is_flag=True, help="List the words that `where` understands.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(name: str | None, folders: tuple[Path, ...], predicates: bool, as_json: bool) -> int:
    """List the fusion rules, or explain the rule NAME with models before and after it."""
    console = output()
    if predicates:
        words = [word.text for word in (*predicate.TESTS.values(), *predicate.TERMS.values())]
        if as_json:
            print_json("rules", {"ok": True, "predicates": words})
        else:
            console.print("\n".join(words), markup=False, soft_wrap=True)
        return 0
    rules = rule_file.select(folders)
    if name is not None:
        rules = (find(rules, name),)
    if as_json:
        facts = [{"name": r.name, "summary": r.summary, "kind": _kind(r), "file": str(r.path)} for r in rules]
        print_json("rules", {"ok": True, "rules": facts, "built_in": _built_in() if name is None else []})
    elif name is None:
        table = Table("rule", "kind", "what it does", box=None, pad_edge=False, header_style="bold")
        for one in rules:
            table.add_row(one.name, _kind(one), escape(one.summary))
        for step in _built_in():
            table.add_row(step["name"], f"built in, {step['phase']}", escape(step["summary"]))
        console.print(table)
        console.print("one of them in full: onnxfuse rules NAME", style="dim")
    else:
        _explain(console, rules[0])
    return 0


def _built_in() -> list[dict[str, str]]:
    """Return what optimizing does beside the rules, in the order of the pipeline."""
    return [{"name": s.name, "phase": s.phase, "summary": s.summary} for s in pipeline.STEPS]


def _kind(one: rule_file.Rule) -> str:
    if one.fuse is not None:
        return f"fuse, {one.fuse.template}"
    return "rewrite" if one.layout is None else "layout"


def _explain(console: Console, one: rule_file.Rule) -> None:
    console.print(f"[bold]{one.name}[/] ({_kind(one)}): {escape(one.summary)}")
    console.print(f"{one.path}\n", style="dim", soft_wrap=True)
    for example in one.examples:
        model = _example(one, example.text)
        console.print("[bold]before[/]")
        console.print(_nodes(model), markup=False)
        report = pipeline.run(model, [one])
        if example.refusal:
            console.print("[bold]stays as it is[/]")
            for near in report.near:
                console.print(f"  {near.refusal.node}: {near.refusal.reason}", markup=False)
        else:
            console.print("[bold]after[/]")
            console.print(_nodes(model), markup=False)
            for op in fused_ops(model).values():
                console.print(f"  [dim]where[/] {op.name} [dim]is[/]")
                console.print("\n".join(f"    {_line(n)}" for n in op.body.node), markup=False)
        console.print()


def _example(one: rule_file.Rule, text: str) -> onnx.ModelProto:
    try:
        model = parse_model(text)
        validate(model)
    except ModelError as error:
        raise RuleError(f"{one.path}: [[example]]: {error}", "See rules/README.md.") from None
    return model


def _nodes(model: onnx.ModelProto) -> str:
    return "\n".join(f"  {_line(n)}" for n in model.graph.node)


def _line(node: onnx.NodeProto) -> str:
    """Return a node as one line of ONNX text, without its provenance."""
    shown = onnx.NodeProto(op_type=node.op_type, input=node.input, output=node.output, attribute=node.attribute)
    return onnx.printer.to_text(shown).strip()
