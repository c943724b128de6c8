"""Every page of the site: where it comes from, where it stands, and its links turned to the site's own."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from onnxfuse.rules.language import rule_file
from onnxfuse.support.errors import UsageError
from tools.site import command_line, python_reference, rule_page

ROOT = Path(__file__).parents[2]

Menu = list[tuple[str, "str | Menu"]]
"""Titles, each with a page or a menu of its own."""

SEARCHED_FIRST = "---\nsearch:\n  boost: 10000\n---\n\n"
"""For the page of search terms: each of its words leads to it before pages that only contain them more often. With 20
another page came before it for 8 of the 12 words of `tests/project/test_manual.py`, seen in a browser, 2026-11."""
WRITTEN = {
    "index.md": "README.md",
    "install.md": "docs/INSTALL.md",
    "tutorial.md": "docs/TUTORIAL.md",
    "your_fusion.md": "docs/YOUR_FUSION.md",
    "guides/how_it_works.md": "docs/ONE_MODEL.md",
    "guides/verify.md": "docs/VERIFY.md",
    "guides/explain.md": "docs/EXPLAIN.md",
    "guides/measuring.md": "docs/MEASURING.md",
    "guides/first_run.md": "docs/FIRST_RUN.md",
    "guides/quantized.md": "docs/QUANTIZED.md",
    "guides/pipeline.md": "docs/PIPELINE.md",
    "guides/from_trtexec.md": "docs/FROM_TRTEXEC.md",
    "guides/torch_compile.md": "docs/TORCH_COMPILE.md",
    "guides/models_from.md": "docs/MODELS_FROM.md",
    "guides/serving.md": "docs/SERVING.md",
    "guides/example_pipeline.md": "examples/README.md",
    "guides/example_cpp.md": "examples/cpp/README.md",
    "guides/example_docker.md": "examples/docker/README.md",
    "guides/example_ray.md": "examples/ray/README.md",
    "rules/index.md": "docs/RULES.md",
    "rules/language.md": "rules/README.md",
    "reference/commands.md": "docs/COMMANDS.md",
    "reference/python.md": "docs/PYTHON.md",
    "reference/kernel_pack.md": "docs/KERNEL_PACK.md",
    "reference/topics.md": "docs/TOPICS.md",
    "reference/glossary.md": "docs/GLOSSARY.md",
    "performance/models.md": "docs/SPEED.md",
    "performance/kernels.md": "models/PERFORMANCE.md",
    "performance/survey.md": "models/SURVEY.md",
    "performance/attention.md": "models/ATTENTION.md",
    "project/how_it_works.md": "docs/HOW_IT_WORKS.md",
    "project/adding.md": "docs/dev/ADDING.md",
    "project/integers.md": "docs/dev/INTEGERS.md",
    "project/costs.md": "docs/dev/COSTS.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/decisions.md": "docs/dev/DECISIONS.md",
    "project/models.md": "models/README.md",
    "project/security.md": "docs/SECURITY.md",
    "project/changelog.md": "CHANGELOG.md",
}
"""Pages that people write, by the place on the site; they read well in the repository, too."""

GROUPS = {
    "attention": "Attention",
    "conv": "Convolutions",
    "exporters": "What single exporters write",
    "gemm": "Matrix products",
    "pointwise": "Elementwise work and data movement",
    "reduction": "Norms and reductions",
    "recurrent": "Recurrent nets",
}
"""The folders of `rules`, as the menu calls them."""


def menu() -> Menu:
    """Return the menu."""
    return [
        ("onnxfuse", "index.md"), ("Install", "install.md"),
        ("Tutorial", [("A verified speed-up", "tutorial.md"), ("A fusion of your own", "your_fusion.md")]),
        ("Guides", [
            ("How it works", "guides/how_it_works.md"), ("How verify judges", "guides/verify.md"),
            ("Why was it not fused?", "guides/explain.md"),
            ("Measuring", "guides/measuring.md"), ("The first run, and new shapes", "guides/first_run.md"),
            ("Quantized models", "guides/quantized.md"), ("In a pipeline", "guides/pipeline.md"),
            ("Where models come from", "guides/models_from.md"),
            ("From trtexec", "guides/from_trtexec.md"), ("Beside torch.compile", "guides/torch_compile.md"),
            ("Serving without Python", "guides/serving.md"),
            ("Examples", [
                ("A pipeline", "guides/example_pipeline.md"), ("C++", "guides/example_cpp.md"),
                ("Docker and Triton", "guides/example_docker.md"), ("Ray Serve", "guides/example_ray.md"),
            ]),
        ]),
        ("Rules", [("What fuses", "rules/index.md"), ("The rule language", "rules/language.md"), *_groups()]),
        ("Reference", [
            ("Commands", [("At a glance", "reference/commands.md"), *_commands()]),
            ("Python", [("At a glance", "reference/python.md"), *_python()]),
            ("Find a topic", "reference/topics.md"), ("Kernel packs", "reference/kernel_pack.md"),
            ("Glossary", "reference/glossary.md"),
        ]),
        ("Performance", [
            ("Models", "performance/models.md"), ("Kernels", "performance/kernels.md"),
            ("Survey of exports", "performance/survey.md"), ("Attention", "performance/attention.md"),
        ]),
        ("The project", [
            ("Through the code", "project/how_it_works.md"), ("Adding to it", "project/adding.md"),
            ("Integers", "project/integers.md"), ("Costs", "project/costs.md"),
            ("Decisions", "project/decisions.md"), ("Contributing", "project/contributing.md"),
            ("Sample models", "project/models.md"), ("Security", "project/security.md"),
            ("Changes", "project/changelog.md"),
        ]),
    ]  # fmt: skip


def _groups() -> Menu:
    files = rule_file.shipped_files()
    return [
        (title, [(name, place_of_rule(name)) for name, file in files.items() if file.parent.name == folder])
        for folder, title in GROUPS.items()
    ]


def _commands() -> Menu:
    return [(name, f"reference/commands/{name}.md") for name in command_line.names()]


def _python() -> Menu:
    return [(title, f"reference/python/{path}.md") for path, title in python_reference.TITLES.items()]


def place_of_rule(name: str) -> str:
    """Return where the page of a rule stands."""
    return f"rules/{name}.md"


def pages() -> dict[str, str]:
    """Return the Markdown of every page, by its place."""
    places = {source: place for place, source in WRITTEN.items()}
    rules = rule_page.rules()
    places |= {f"rules/{r.path.relative_to(rule_file.shipped_folder())}": place_of_rule(r.name) for r in rules}
    found: dict[str, str] = {}
    linked: set[str] = set()
    for place, source in WRITTEN.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = DRAWING.sub(lambda mark: rule_page.drawn(mark[1]), text)
        text = CHART.sub(lambda mark: _inline(mark[1]), text)
        first = SEARCHED_FIRST if source == "docs/TOPICS.md" else ""
        found[place] = first + turned(text, source, place, places, linked)
    for one in rules:
        found[place_of_rule(one.name)] = rule_page.page(one)
    for name in command_line.names():
        found[f"reference/commands/{name}.md"] = command_line.page(name)
    for path, text in python_reference.pages().items():
        found[f"reference/python/{path}.md"] = text
    found |= {f"source/{path}.md": _source(path) for path in sorted(linked)}
    return found


DRAWING = re.compile(r"^<!-- drawing: (\w+) -->$", re.MULTILINE)
"""Where the site shows a rule at work; elsewhere the comment shows nothing."""
CHART = re.compile(r"^!\[[^\]]*\]\((\S+\.svg)\)$", re.MULTILINE)
"""A chart of the repository, which the site has in the page itself, in the colors that the reader chose."""
CODE = re.compile(r"^(?P<indent> *)```.*?^(?P=indent)```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def turned(text: str, source: str, place: str, places: dict[str, str], linked: set[str]) -> str:
    """Return a page's text with its links as the site has them; files that are no pages are added to `linked`.

    Raises UsageError for one that is not there.
    """

    def link(found: re.Match[str]) -> str:
        target, mark, heading = found[1].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if path not in places:
            if not (ROOT / path).is_file():
                raise UsageError(f"{source}: {target} is not there", "A link leads to a file of this repository.")
            linked.add(path)
        there = os.path.relpath(places.get(path, f"source/{path}.md"), os.path.dirname(place) or ".")
        return f"]({there}{mark}{heading})"

    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [LINK.sub(link, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(link, text[end:])])


def _inline(path: str) -> str:
    return f'<div class="scroll">{(ROOT / path).read_text(encoding="utf-8").strip()}</div>'


def _source(path: str) -> str:
    """Return the page of a file that another one points to: the file itself."""
    text = (ROOT / path).read_text(encoding="utf-8")
    fence = "`" * max(4, *(len(run) + 1 for run in re.findall(r"`+", text)), 4)
    return f"# {path}\n\n{fence}{Path(path).suffix.lstrip('.') or 'text'}\n{text.rstrip()}\n{fence}\n"


def entries(inner: Menu) -> Iterable[str]:
    """Yield the places of all pages of a menu."""
    for _, entry in inner:
        if isinstance(entry, str):
            yield entry
        else:
            yield from entries(entry)
