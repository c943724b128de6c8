"""`onnxfuse rules`: list the rules, explain one with its examples, test them, or create one."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from rich.console import Console
from rich.markup import escape

from onnxfuse.api.rules import rules as library
from onnxfuse.cli.base.console import output, plain_table, print_json, working
from onnxfuse.cli.screens import rule_tests
from onnxfuse.options.commands import RulesCommand
from onnxfuse.support.errors import MISMATCH, UsageError
from onnxfuse.support.plurals import plural

if TYPE_CHECKING:
    from onnxfuse.rules.language.rule_file import Rule


def command(**given: Unpack[RulesCommand]) -> int:
    """Run the command and print its result."""
    name, at, folders = given["name"], tuple(given["at"]), tuple(map(Path, given["rules"]))
    model = None if given["model"] is None else Path(given["model"])
    new, test, as_json = given["new"], given["test"], given["as_json"]
    if new != (model is not None) or new != bool(at) or (new and (name is None or test or len(folders) > 1)):
        raise UsageError(
            "--new goes with a name, --from and --at, and with one --rules at most",
            "onnxfuse rules NAME --new --from IN.onnx --at NODE --rules DIR",
        )
    console = output()
    if model is not None and name is not None:
        return _new(name, model, at, folders[0] if folders else Path(), as_json=as_json)
    if test:
        return _test(name, folders, as_json=as_json)
    if given["predicates"]:
        words = library.predicates()
        if as_json:
            print_json("rules", {"ok": True, "predicates": words})
        else:
            console.print("\n".join(words), markup=False, soft_wrap=True)
        return 0
    rules = library.rules(folders, name)
    if as_json:
        facts = [
            {"name": r.name, "summary": r.summary, "kind": library.kind(r), "file": str(r.path), "pack": r.pack,
             "optional": r.optional}
            for r in rules
        ]  # fmt: skip
        built_in = [asdict(step) for step in library.built_in()] if name is None else []
        print_json("rules", {"ok": True, "rules": facts, "built_in": built_in})
    elif name is None:
        table = plain_table("rule", "kind", "what it does")
        for one in rules:
            pack = f", of {escape(one.pack)}" if one.pack else ""
            optional = ", optional" if one.optional else ""
            table.add_row(one.name, f"{library.kind(one)}{optional}{pack}", escape(one.summary))
        for step in library.built_in():
            table.add_row(step.name, f"built in, {step.phase}", escape(step.summary))
        console.print(table)
        console.print(
            "order: rules of --rules, then of packs; by priority, template, length of the pattern (rules/README.md)\n"
            "to explain one: onnxfuse rules NAME",
            style="dim",
        )
    else:
        _explain(console, rules[0])
    return 0


def _new(name: str, model: Path, at: tuple[str, ...], folder: Path, *, as_json: bool) -> int:
    """Create a rule file and print the next steps."""
    from onnxfuse.api.rules.rule_from_model import write_skeleton  # runs the examples

    with working("load"):
        skeleton = write_skeleton(name, model, at, folder)
    if as_json:
        facts = {"rule": name, "file": str(skeleton.path), "kind": skeleton.kind, "nodes": list(skeleton.nodes)}
        facts |= {"products": list(skeleton.products), "cut": list(skeleton.beyond_limit)}
        print_json("rules", {"ok": True, "new": facts})
        return 0
    console = output()
    description = (
        "a rewrite: write the replacement into `to`"
        if skeleton.kind == "rewrite"
        else f"one kernel, template {skeleton.kind}"
    )
    console.print(
        f"[bold green]written:[/] {escape(str(skeleton.path))}: {escape(', '.join(skeleton.nodes))}", soft_wrap=True
    )
    if skeleton.products:
        behind = escape(", ".join(skeleton.products))
        console.print(f"starts after {behind}: a product by a weight has its own kernel", soft_wrap=True)
    if skeleton.beyond_limit:
        several = f"--at '{_common_pattern(skeleton.nodes)}'" if _common_pattern(skeleton.nodes) else "several --at"
        console.print(
            f"[yellow]cut at {plural(skeleton.nodes, 'node')};[/] left out: "
            f"{escape(', '.join(skeleton.beyond_limit))} and their producers; "
            f"to extract the whole block, name it: {escape(several)}",
            soft_wrap=True,
        )
    console.print(f"{description}; with an example of what applies, cut from {escape(str(model))}", soft_wrap=True)
    console.print(f"next: onnxfuse rules {name} --test --rules {escape(str(folder))}", style="dim", soft_wrap=True)
    return 0


def _common_pattern(nodes: Sequence[str]) -> str:
    """Return a pattern for the common name prefix of nodes, "Op name": `layer.0/*`; "" if there is none."""
    letters = zip(*(one.partition(" ")[2] for one in nodes), strict=False)
    match = re.match(r".*[/.]", "".join(at[0] for at in takewhile(lambda at: len(set(at)) == 1, letters)))
    return f"{match[0]}*" if match else ""


def _test(name: str | None, folders: tuple[Path, ...], *, as_json: bool) -> int:
    """Test rules on their examples and print the results."""
    from onnxfuse.api.rules.testing import run_examples  # runs models

    with working("read rules") as progress:
        results = run_examples(library.custom_rules(folders, name), folders, progress)
    if as_json:
        print_json("rules", {"ok": all(one.ok for one in results), "tested": [one.as_dict() for one in results]})
    else:
        command_line = ["onnxfuse rules", *([name] if name else []), "--test", *(f"--rules {f}" for f in folders)]
        rule_tests.show(results, output(), " ".join(command_line))
    return 0 if all(one.ok for one in results) else MISMATCH


def _explain(console: Console, one: "Rule") -> None:
    console.print(f"[bold]{one.name}[/] ({library.kind(one)}): {escape(one.summary)}")
    if one.optional:
        console.print(f"optional: --also {one.name} {escape(one.optional)}", soft_wrap=True)
    console.print(f"{one.path}\n", style="dim", soft_wrap=True)
    for example in library.examples(one):
        console.print("[bold]before[/]")
        _print_lines(console, example.before, "  ")
        if example.after is None:
            console.print("[bold]stays as it is[/]")
            for refusal in example.refusals:
                console.print(f"  {refusal}", markup=False)
        else:
            console.print("[bold]after[/]" if not example.fault else f"[bold red]{escape(example.fault)}[/]")
            _print_lines(console, example.after, "  ")
            for op, body in example.bodies.items():
                console.print(f"  [dim]where[/] {op} [dim]is[/]")
                _print_lines(console, body, "    ")
        console.print()


def _print_lines(console: Console, lines: Sequence[str], indent: str) -> None:
    console.print("\n".join(f"{indent}{line}" for line in lines), markup=False)
