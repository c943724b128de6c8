"""`onnxfuse rules`: list the rules, explain one with its examples, test them, or create one."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rich.markup import escape

from onnxfuse.authoring import rules as library
from onnxfuse.authoring.screen import tests
from onnxfuse.cli.base.console import print_result, working
from onnxfuse.options.commands import RulesCommand
from onnxfuse.support.errors import MISMATCH, UsageError
from onnxfuse.support.plurals import plural
from onnxfuse.support.screen import Blocks, Line, Rows, advice, plain_table

if TYPE_CHECKING:
    from onnxfuse.authoring.rule_from_model import RuleSkeleton
    from onnxfuse.rules.language.rule_file import Rule


def command(**given: Unpack[RulesCommand]) -> int:
    """Run the command and print its result."""
    name, at, folders = given["name"], tuple(given["at"]), tuple(map(Path, given["rules"]))
    model = None if given["model"] is None else Path(given["model"])
    new, test, as_json = given["new"], given["test"], given["as_json"]
    if new != (model is not None) or new != bool(at) or (new and (name is None or test or len(folders) > 1)):
        raise UsageError(
            "--new takes NAME, --from, --at and at most one --rules",
            "onnxfuse rules NAME --new --from IN.onnx --at NODE --rules DIR",
        )
    if model is not None and name is not None:
        folder = folders[0] if folders else Path()
        return _new(name, model, at, folder, rewrite=given["rewrite"], as_json=as_json)
    if test:
        return _test(name, folders, as_json=as_json)
    facts: dict[str, Any]
    if given["predicates"]:
        facts = {"predicates": library.predicates()}
        screen: Blocks = map(Line, map(escape, facts["predicates"]))
    else:
        rules = library.rules(folders, name)
        built_in = library.built_in() if name is None else ()
        facts = {"rules": [library.facts(rule) for rule in rules], "built_in": [asdict(step) for step in built_in]}
        screen = _listed(rules, built_in) if name is None else _explained(rules[0])
    print_result("rules", {"ok": True, **facts}, screen, as_json=as_json)
    return 0


def _listed(rules: Sequence["Rule"], built_in: Sequence[library.BuiltIn]) -> Blocks:
    table = plain_table("rule", "kind", "what it does")
    for one in rules:
        pack = f", of {escape(one.pack)}" if one.pack else ""
        optional = ", optional" if one.optional else ""
        table.add_row(one.name, f"{library.kind(one)}{optional}{pack}", escape(one.summary))
    for step in built_in:
        table.add_row(step.name, f"built in, {step.phase}", escape(step.summary))
    yield Rows(table)
    yield Line(
        "order: rules of --rules, then of packs; by priority, template, length of the pattern "
        "(onnxfuse docs rule-language)\n"
        "to explain one: onnxfuse rules NAME",
        "dim",
        fold=True,
    )


def _new(name: str, model: Path, at: tuple[str, ...], folder: Path, *, rewrite: bool, as_json: bool) -> int:
    """Create a rule file and print the next steps."""
    from onnxfuse.authoring.rule_from_model import write_skeleton  # runs the examples

    with working("load"):
        skeleton = write_skeleton(name, model, at, folder, rewrite=rewrite)
    print_result("rules", {"ok": True, "new": skeleton.as_dict(name)}, _written(name, model, skeleton), as_json=as_json)
    return 0


def _written(name: str, model: Path, skeleton: "RuleSkeleton") -> Blocks:
    description = (
        "a rewrite: write the replacement into `to`"
        if skeleton.kind == "rewrite"
        else f"one kernel, template {skeleton.kind}"
    )
    yield Line(f"[bold green]written:[/] {escape(str(skeleton.path))}: {escape(', '.join(skeleton.nodes))}")
    if skeleton.products:
        behind = escape(", ".join(skeleton.products))
        yield Line(f"starts after {behind}: a product by a weight has its own kernel")
    if skeleton.beyond_limit:
        several = f"--at '{_common_pattern(skeleton.nodes)}'" if _common_pattern(skeleton.nodes) else "several --at"
        yield Line(
            f"[yellow]stopped at {plural(skeleton.nodes, 'node')};[/] left out: "
            f"{escape(', '.join(skeleton.beyond_limit))} and their producers; "
            f"to extract the whole block, name it: {escape(several)}"
        )
    yield Line(f"{description}; with an example extracted from {escape(str(model))}")
    if skeleton.kind != "rewrite":
        yield advice("to replace these nodes by others instead: --rewrite")
    yield Line(f"next: onnxfuse rules {name} --test --rules {escape(str(skeleton.path.parent))}", style="dim")


def _common_pattern(nodes: Sequence[str]) -> str:
    """Return a pattern for the common name prefix of nodes, "Op name": `layer.0/*`; "" if there is none."""
    letters = zip(*(one.partition(" ")[2] for one in nodes), strict=False)
    match = re.match(r".*[/.]", "".join(at[0] for at in takewhile(lambda at: len(set(at)) == 1, letters)))
    return f"{match[0]}*" if match else ""


def _test(name: str | None, folders: tuple[Path, ...], *, as_json: bool) -> int:
    """Test rules on their examples and print the results."""
    from onnxfuse.authoring.testing import run_examples  # runs models

    with working("read rules") as progress:
        results = run_examples(library.custom_rules(folders, name), folders, progress)
    ok = all(one.ok for one in results)
    command_line = ["onnxfuse rules", *([name] if name else []), "--test", *(f"--rules {f}" for f in folders)]
    facts = {"ok": ok, "tested": [one.as_dict() for one in results]}
    print_result("rules", facts, tests(results, " ".join(command_line)), as_json=as_json)
    return 0 if ok else MISMATCH


def _explained(one: "Rule") -> Blocks:
    yield Line(f"[bold]{one.name}[/] ({library.kind(one)}): {escape(one.summary)}", fold=True)
    if one.optional:
        yield Line(f"optional: --also {one.name}, {escape(one.optional)}")
    yield Line(f"{one.path}\n", style="dim")
    for example in library.examples(one):
        yield Line("[bold]before[/]", fold=True)
        yield _lines(example.before, "  ")
        if example.after is None:
            yield Line("[bold]stays as it is[/]", fold=True)
            for refusal in example.refusals:
                yield Line(f"  {escape(refusal)}", fold=True)
        else:
            yield Line("[bold]after[/]" if not example.fault else f"[bold red]{escape(example.fault)}[/]", fold=True)
            yield _lines(example.after, "  ")
            for op, body in example.bodies.items():
                yield Line(f"  [dim]where[/] {op} [dim]is[/]", fold=True)
                yield _lines(body, "    ")
        yield Line()


def _lines(lines: Sequence[str], indent: str) -> Line:
    return Line("\n".join(f"{indent}{escape(line)}" for line in lines), fold=True)
