"""Spelling suggestions: the closest known word to a misspelled one."""

import difflib
from collections.abc import Collection

ALIKE = 0.6
"""Share of their letters that two words have in common, in order, from where on one may be meant by the other: at a
half `einsum` would be told for `nosuch`."""


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return " Did you mean X?" for the known word nearest to `word`, or "" where none is near."""
    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=ALIKE)
    return f" Did you mean {near[0]}?" if near else ""
