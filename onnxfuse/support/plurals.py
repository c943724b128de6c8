"""Counts as English text: "1 node", "2 nodes", and the matching verb form."""

from collections.abc import Sequence, Sized

_ES = ("s", "x", "ch", "sh")


def plural(count: int | Sized, noun: str) -> str:
    """Return a number with its noun, given in the singular: `1 node`, `2 nodes`, `0 near misses`."""
    quantity = count if isinstance(count, int) else len(count)
    return f"{quantity} {noun if quantity == 1 else _plural(noun)}"


def agreeing(count: int | Sized, one: str, more: str, *, of: int | Sized = 2) -> str:
    """Return the verb form for a number: `is` for one, `are` for none or several; with `0 of 1 node`, `is`."""
    return one if 1 in (n if isinstance(n, int) else len(n) for n in (count, of)) else more


def fused_ops_text(count: int, distinct: int) -> str:
    """Return the fused ops of a model, each node counted, and the number of distinct ones if some are equal:
    `47 fused ops (11 distinct)`. Equal ones share their body and their kernels."""
    return plural(count, "fused op") + f" ({distinct} distinct)" * (distinct < count)


def a_noun(noun: str) -> str:
    """Return a noun with its article: `an Add`, `a Slice`."""
    return f"{'an' if noun[:1] in 'AEIOU' else 'a'} {noun}"


LISTED = 6
"""Maximum names in one sentence."""


def listed(names: Sequence[str]) -> str:
    """Return names joined by commas, abbreviated if many: `a, b, c and 7 more`."""
    remaining = len(names) - LISTED
    return ", ".join(names[:LISTED]) + f" and {remaining} more" * (remaining > 0)


def _plural(noun: str) -> str:
    if noun.endswith("axis"):
        return f"{noun[:-2]}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}{'es' if noun.endswith(_ES) else 's'}"
