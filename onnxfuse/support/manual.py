"""The pages of the documentation that come with the package: by name, and by the words in them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
RULE_LANGUAGE = "rule-language"
INDEX = "topics"
"""The page of words and where they lead: what it says of a word comes first."""


@dataclass(frozen=True)
class Found:
    """A line of a page that has all requested words."""

    page: str
    heading: str
    """The nearest heading above it, without its marks."""
    line: str


@cache
def pages() -> Mapping[str, Path]:
    """Return the files of the pages by name: inside the package, or next to it in a source tree."""
    folder = next(p for p in (PACKAGE / "pages", PACKAGE.parent / "docs") if p.is_dir())
    rules = next(p for p in (PACKAGE / "rules" / "shipped", PACKAGE.parent / "rules") if p.is_dir())
    named = {path.stem.lower().replace("_", "-"): path for path in sorted(folder.glob("*.md"))}
    return {**named, RULE_LANGUAGE: rules / "README.md"}


def title(page: str) -> str:
    """Return the heading of a page."""
    return next(line for line in text(page).splitlines() if line.startswith("# ")).removeprefix("# ")


def text(page: str) -> str:
    """Return the Markdown of a page."""
    return pages()[page].read_text(encoding="utf-8")


def search(words: Sequence[str]) -> list[Found]:
    """Return the lines that have all words, whatever their case and hyphens.

    First come entries of the index, those with the words in their first cell before others, then headings.
    """
    patterns = [_pattern(word) for word in words]
    found = [one for page in pages() for one in _lines(page) if all(p.search(one.line) for p in patterns)]

    def rank(one: Found) -> tuple[bool, bool]:
        if one.page == INDEX:
            return False, not all(p.search(one.line.partition("|")[0]) for p in patterns)
        return True, one.heading != one.line

    return sorted(found, key=rank)


def unknown(words: Sequence[str]) -> list[str]:
    """Return the words that no line has."""
    lines = [one.line for page in pages() for one in _lines(page)]
    return [word for word in words if not any(_pattern(word).search(line) for line in lines)]


def vocabulary() -> set[str]:
    """Return every word of the pages, in lower case."""
    return {word.lower() for page in pages() for one in _lines(page) for word in re.findall(r"[A-Za-z]{3,}", one.line)}


def _pattern(word: str) -> re.Pattern[str]:
    """Return what finds a word at its beginning: warmup finds warm-up, and the reverse."""
    return re.compile(r"\b" + "-?".join(map(re.escape, word.replace("-", "") or word)), re.IGNORECASE)


def _lines(page: str) -> Iterator[Found]:
    heading = ""
    for line in re.sub(r"^```.*?^```$", "", text(page), flags=re.MULTILINE | re.DOTALL).splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        plain = re.sub(r"\]\([^)]*\)", "]", line).lstrip("#").strip(" |")
        if plain:
            yield Found(page, heading, plain)
