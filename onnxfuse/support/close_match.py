"""Spelling suggestions: the closest known word to a misspelled one."""

import difflib
from collections.abc import Collection

ALIKE = 0.6
"""Minimum similarity ratio of a suggestion: at one half `einsum` would be suggested for `nosuch`."""


def did_you_mean(word: str, words: Collection[str]) -> str:
    """Return " Did you mean X?" for the known word closest to `word`, or "" if none is close."""
    matches = difflib.get_close_matches(word, sorted(words), n=1, cutoff=ALIKE)
    return f" Did you mean {matches[0]}?" if matches else ""
