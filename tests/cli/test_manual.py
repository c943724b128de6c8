"""`onnxfuse docs`: the pages that come with the package, and the words in them."""

import json
import re

import pytest

from onnxfuse.support import manual
from tests.cli.conftest import Command


def test_the_pages_are_listed_and_shown(onnxfuse_command: Command) -> None:
    """By the names of their files, in small letters with hyphens; a page is shown as it is written."""
    listed = onnxfuse_command("docs").out
    assert re.search(r"^explain +Why was it not fused\?$", listed, re.MULTILINE)
    assert onnxfuse_command("docs", "rule-language").out.startswith("# ")
    assert onnxfuse_command("docs", "your_fusion.md").out == onnxfuse_command("docs", "your", "fusion").out
    facts = json.loads(onnxfuse_command("docs", "security", "--json").out)
    assert facts["text"] == manual.text("security")


@pytest.mark.parametrize(
    "words",
    [
        "external data", "dynamic axes", "mixed precision", "TensorRT", "CUDA graph", "NHWC", "QDQ", "KV cache",
        "batch size", "opset", "Triton", "embedding",
    ],
)  # fmt: skip
def test_words_that_people_search_for_lead_to_a_page(onnxfuse_command: Command, words: str) -> None:
    """The first line found says what it is here, with a link that the page has."""
    result = onnxfuse_command("docs", *words.split(), "--json")
    first = json.loads(result.out)["found"][0]
    assert first["page"] == manual.INDEX
    assert words.lower() in first["line"].lower().partition("|")[0]


def test_words_of_no_page_are_exit_2(onnxfuse_command: Command) -> None:
    """With what lists the pages."""
    result = onnxfuse_command("docs", "zyzzyva")
    assert result.code == 2
    assert "no page has the words 'zyzzyva'" in result.err
    assert "onnxfuse docs lists the pages" in result.err


def test_hints_name_pages_that_there_are() -> None:
    """What a message calls `onnxfuse docs PAGE` is one of them, so that it can be read without the repository."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in manual.PACKAGE.rglob("*.py"))
    named = set(re.findall(r"onnxfuse docs ([a-z][a-z-]+)\b", sources)) - {"lists", "external"}
    assert {"security", manual.RULE_LANGUAGE} <= named <= set(manual.pages())
