"""The recipes of docs/dev/ADDING.md: their text and their blocks."""

import re
import textwrap
from pathlib import Path

from tests.support.package_copy import ROOT

PAGE = ROOT / "docs" / "dev" / "ADDING.md"


def section(title: str) -> str:
    """Return the text of a recipe."""
    found = re.search(rf"^## {title}\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def blocks(title: str, language: str) -> list[str]:
    """Return the blocks of a language in a recipe, in their order."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", section(title), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(text) for _, text in found]


def edit(path: Path, before: str, after: str) -> None:
    """Replace a text that the file has once."""
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, (path, before)
    path.write_text(text.replace(before, after), encoding="utf-8")
