"""`onnxfuse docs`: the list of pages, one of them, and the lines that have words."""

import json

from onnxfuse.support import manual
from tests.cli.conftest import Command


def test_without_words_the_pages_are_listed(onnxfuse_command: Command) -> None:
    """Each with its title, and what to do next."""
    shown = onnxfuse_command("docs").out
    for name in manual.pages():
        assert any(line.startswith(name) and manual.title(name) in line for line in shown.splitlines()), name
    assert json.loads(onnxfuse_command("docs", "--json").out)["pages"].keys() == set(manual.pages())


def test_a_page_is_shown_however_its_name_is_written(onnxfuse_command: Command) -> None:
    """With or without .md, in words or joined, in any case; its brackets are text."""
    name = next(page for page in manual.pages() if "-" in page)
    whole = manual.text(name).rstrip("\n")
    for words in ([name], [f"{name}.md"], [name.upper().replace("-", "_")], name.split("-")):
        result = onnxfuse_command("docs", *words)
        assert result.code == 0
        assert result.out.split() == whole.split(), words
    assert json.loads(onnxfuse_command("docs", name, "--json").out)["text"] == manual.text(name)


def test_other_words_are_looked_for(onnxfuse_command: Command) -> None:
    """A line for each place, with its page and its heading; the number of those that are not shown."""
    found = json.loads(onnxfuse_command("docs", "launch", "kernel", "--json").out)["found"]
    assert found
    assert all("kernel" in one["line"].lower() or "launch" in one["line"].lower() for one in found)
    shown = onnxfuse_command("docs", "kernel").out
    assert "more words find fewer" in shown
    assert "the whole page: onnxfuse docs PAGE" in shown


def test_hyphens_and_case_make_no_difference(onnxfuse_command: Command) -> None:
    """The page of topics leads to the same line."""
    found = [json.loads(onnxfuse_command("docs", word, "--json").out)["found"][0] for word in ("warmup", "Warm-up")]
    assert found[0] == found[1]
    assert found[0]["page"] == "topics"


def test_a_word_with_a_slip_has_the_word_that_was_meant(onnxfuse_command: Command) -> None:
    result = onnxfuse_command("docs", "qunatized")
    assert result.code == 2
    assert "no page has the words 'qunatized'. Did you mean quantized?" in result.err


def test_what_people_look_for_has_a_line_of_topics(onnxfuse_command: Command) -> None:
    """In their words."""
    for words in (["LLM"], ["whisper"], ["T5"], ["multi-gpu"], ["thread", "safe"], ["choosing", "GPU"]):
        assert json.loads(onnxfuse_command("docs", *words, "--json").out)["found"][0]["page"] == "topics", words


def test_words_that_no_page_has_are_an_error(onnxfuse_command: Command) -> None:
    """With the command that lists the pages."""
    result = onnxfuse_command("docs", "xylophone", "quartz")
    assert result.code == 2
    assert "no page has the words 'xylophone quartz'" in result.err
    assert "onnxfuse docs lists the pages" in result.err
