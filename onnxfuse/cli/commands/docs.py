"""`onnxfuse docs`: list the pages of the documentation, show one, or find words in them."""

from typing import Any, Unpack

from rich.markup import escape

from onnxfuse.cli.base.console import print_result
from onnxfuse.options.commands import DocsCommand
from onnxfuse.support import manual
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import UsageError
from onnxfuse.support.screen import LIMIT, Blocks, Line, Rows, advice, plain_table


def command(**given: Unpack[DocsCommand]) -> int:
    """Run the command and print its result."""
    words = given["words"]
    page = "-".join(words).lower().removesuffix(".md").replace("_", "-")
    facts: dict[str, Any]
    screen: Blocks
    if not words:
        facts = {"pages": {name: manual.title(name) for name in manual.pages()}}
        screen = _list(facts["pages"])
    elif page in manual.pages():
        facts = {"page": page, "text": manual.text(page)}
        screen = (Line(escape(facts["text"].rstrip("\n"))),)
    else:
        found = manual.search(words)
        if not found:
            known = manual.vocabulary()
            alike = "".join(did_you_mean(word.lower(), known) for word in manual.unknown(words))
            raise UsageError(f"no page has the words '{' '.join(words)}'.{alike}", "onnxfuse docs lists the pages.")
        facts = {"found": [vars(one) for one in found]}
        screen = _found(found)
    print_result("docs", {"ok": True, **facts}, screen, as_json=given["as_json"])
    return 0


def _list(titles: dict[str, str]) -> Blocks:
    """Yield the pages with their titles."""
    table = plain_table("page", "title")
    for name, title in titles.items():
        table.add_row(escape(name), escape(title))
    yield Rows(table)
    yield advice("one page: onnxfuse docs PAGE; a word in all of them: onnxfuse docs WORD")


def _found(found: list[manual.Found]) -> Blocks:
    """Yield where the words stand."""
    table = plain_table("page", "heading", "line")
    for one in found[:LIMIT]:
        table.add_row(escape(one.page), escape(one.heading), escape(one.line))
    yield Rows(table)
    if len(found) > LIMIT:
        yield Line(f"... and {len(found) - LIMIT} more lines; more words find fewer", "dim")
    yield advice("the whole page: onnxfuse docs PAGE")
