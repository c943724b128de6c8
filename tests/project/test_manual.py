"""The documentation site: every rule, command and public name has its place, and says what there is to say of it."""

import re
from itertools import pairwise
from pathlib import Path

import click
import pytest

import onnxfuse
from onnxfuse.cli.main import group
from onnxfuse.options import COMMANDS
from onnxfuse.rules.language import rule_file
from onnxfuse.support.errors import UsageError
from tools.site import pages, rule_page

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    """The Markdown of all pages."""
    return pages.pages()


def test_every_page_is_in_the_menu_once(site: dict[str, str]) -> None:
    """And no entry of the menu is without a page; sources that pages point to are reached from these alone."""
    listed = list(pages.entries(pages.menu()))
    assert sorted(listed) == sorted(place for place in site if not place.startswith("source/"))


SEARCHED = ("external data", "dynamic axes", "mixed precision", "TensorRT", "CUDA graph", "NHWC", "QDQ", "KV cache",
            "batch size", "opset", "Triton", "embedding")  # fmt: skip
"""What people look for by other words than ours."""


def test_a_search_leads_to_the_page_of_topics(site: dict[str, str]) -> None:
    """It has each of the words, and the search of the site puts it before pages that only contain them more often."""
    topics = site["reference/topics.md"]
    assert topics.startswith("---\nsearch:\n  boost: 10000\n---\n")
    rows = [line.split("|")[1] for line in topics.splitlines() if line.startswith("| ")]
    assert all(any(word.lower() in row.lower() for row in rows) for word in SEARCHED)


def test_every_link_of_a_page_leads_to_a_page(site: dict[str, str]) -> None:
    """Of those that are written and of those that are made; headings are `make site`'s to find."""
    for place, text in site.items():
        for target in pages.LINK.findall(pages.CODE.sub("", text)):
            if not re.match(r"[a-z]+:", target) and not target.startswith("#"):
                path = (ROOT / place).parent / target.partition("#")[0]
                assert str(path.resolve().relative_to(ROOT)) in site, f"{place}: {target}"


def test_a_link_to_a_file_that_there_is_not_is_told() -> None:
    """With the page that has it; one to a file that is no page leads to the file's text."""
    linked: set[str] = set()
    places = {"docs/SPEED.md": "performance/models.md"}
    text = pages.turned("[a](SPEED.md#b) `[c](D.md)` [e](../setup.py)", "docs/X.md", "guides/x.md", places, linked)
    assert text == "[a](../performance/models.md#b) `[c](D.md)` [e](../source/setup.py.md)"
    assert linked == {"setup.py"}
    indented = "1. one\n\n    ```markdown\n    [c](D.md)\n    ```\n"
    assert pages.turned(indented, "docs/X.md", "guides/x.md", places, linked) == indented
    with pytest.raises(UsageError, match=re.escape("docs/X.md: GONE.md is not there")):
        pages.turned("[a](GONE.md)", "docs/X.md", "guides/x.md", places, linked)


@pytest.mark.parametrize("one", rule_page.rules(), ids=lambda r: r.name)
def test_the_page_of_a_rule_has_all_that_its_file_says(one: rule_file.Rule, site: dict[str, str]) -> None:
    """Its summary, a drawing before and after of what applies, each refusal with its reason, the file."""
    text = site[pages.place_of_rule(one.name)]
    assert one.summary in text
    assert one.path.read_text(encoding="utf-8").strip().splitlines()[-1] in text
    applied = [e for e in one.examples if not e.refusal]
    drawn = text.count("<svg") + 2 * text.count("too large to be drawn")
    assert drawn == 2 * len(applied)
    for example in one.examples:
        assert example.refusal.replace('"', "'") in text
    if str(one.path.relative_to(ROOT)) in rule_page.commits():  # a rule that is not committed has no history
        assert "## History" in text


def test_every_rule_is_among_what_fuses() -> None:
    """With a link to its file, which is its page on the site."""
    text = (ROOT / "docs" / "RULES.md").read_text(encoding="utf-8")
    for name, file in rule_file.shipped_files().items():
        assert f"[{name}](../rules/{file.relative_to(rule_file.shipped_folder())})" in text, name


def test_a_drawing_shows_what_became_one_kernel(site: dict[str, str]) -> None:
    """Before it the nodes that go, after it the kernel, and what stays in neither colour."""
    (softmax,) = (r for r in rule_page.rules() if r.name == "softmax")
    before, after = re.findall(r"<svg.*?</svg>", site["rules/softmax.md"])[:2]
    assert re.findall(r'class="changed"><title>[^<]*</title><rect[^>]*/><text[^>]*>(\w+)', before) == [
        "Div", "Add", "Softmax",
    ]  # fmt: skip
    assert re.findall(r'class="kernel"><title>[^<]*</title><rect[^>]*/><text[^>]*>([^<]+)', after) == [
        "Div + Add + Softmax"
    ]
    assert softmax.examples[0].after == ("{Div Add Softmax}",)


def test_the_front_page_has_a_drawing(site: dict[str, str]) -> None:
    """Of a rule, with a link to it, and the chart; in the repository one place shows nothing, the other an image."""
    assert site["index.md"].count("<svg") == 3
    assert site["index.md"].count('<svg class="speedup"') == 1
    assert "[softmax](rules/softmax.md)" in site["index.md"]
    assert "<svg" not in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_in_the_reference(name: str, site: dict[str, str]) -> None:
    """As the command itself has them."""
    text = site[f"reference/commands/{name}.md"]
    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert COMMANDS[name] in text
    for option in (p for p in command.params if isinstance(p, click.Option) and not p.hidden):
        assert re.search(rf"\| .*`.*{re.escape(option.opts[0])}\b.* \|", text), option.opts[0]


def test_every_public_name_is_in_the_reference(site: dict[str, str]) -> None:
    """With its signature, and what it returns with its fields."""
    text = "".join(t for place, t in site.items() if place.startswith("reference/python/"))
    for name in onnxfuse.__all__:
        assert re.search(rf"^## {name}\b", text, re.MULTILINE), name
    assert "## Options" in site["reference/python/options.md"]
    assert "onnxfuse.unfuse(model: Model, *, follow_links: bool = False) -> onnx.ModelProto" in text
    assert "\n- `tolerance`: With `precision`: allowed relative RMS error of outputs;" in text
    for field in ("`speedup`", "`as_dict()`", "`guarded`", "`strict_fp32`"):
        assert field in text


def test_without_a_clone_there_is_no_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In an unpacked source archive there is no git, or another repository's around it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    rule_page.commits.cache_clear()
    (gemm,) = (r for r in rule_page.rules() if r.name == "gemm")
    text = rule_page.page(gemm)
    rule_page.commits.cache_clear()
    assert "## History" not in text


@pytest.mark.parametrize("source", pages.WRITTEN.values())
def test_a_list_begins_after_an_empty_line_and_a_list_in_it_four_in(source: str) -> None:
    """Hosts of repositories take less; the site's Markdown makes a paragraph of it."""
    lines = re.sub(r"^```.*?^```$", "", (ROOT / source).read_text(encoding="utf-8"), flags=re.M | re.S).splitlines()
    inside = False
    for before, line in pairwise(["", *lines]):
        begins = re.match(r"([-*]|\d+\.) ", line) is not None
        assert not begins or inside or not before.strip(), line
        assert not re.match(r" {1,3}([-*]|\d+\.) ", line), line
        inside = bool(line.strip()) and (inside or begins)
