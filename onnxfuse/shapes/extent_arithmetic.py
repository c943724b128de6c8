"""Arithmetic on extents, integer or symbolic: broadcasting, division, and names of results."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from onnxfuse.shapes.types import INVENTED, Dim, factors, is_unknown, whole

Shape = tuple[Dim, ...] | None


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the broadcast shape by numpy's rules, None for an extent that they do not determine."""
    known = [s for s in shapes if s is not None]
    if len(known) != len(shapes) or not known:
        return None
    rank = max(len(s) for s in known)
    columns = zip(*((1,) * (rank - len(s)) + s for s in known), strict=True)
    return tuple(_common(column) for column in columns)


def _common(column: Sequence[Dim]) -> Dim:
    """Return the broadcast extent by numpy's rules.

    min(a, b) broadcast with a is a: 1 is repeated, and any other mismatch does not run.
    """
    wide = {d for d in column if d != 1}
    wide -= {d for d in wide for other in wide if isinstance(d, str) and _is_cut(d, other)}
    number = next((d for d in wide if isinstance(d, int)), None)
    if number is not None:
        return number
    return 1 if not wide else next(iter(wide)) if len(wide) == 1 else None


def smaller(extent: Dim, named: Dim) -> Dim:
    """Return the minimum of two extents, as a name if one is symbolic; None if one is unknown.

    >>> smaller(512, "sequence")
    'min(512,sequence)'
    """
    if isinstance(extent, int) and isinstance(named, int):
        return min(extent, named) if named >= 0 else None
    if extent is None or not isinstance(named, str):
        return None
    if is_unknown(extent) or is_unknown(named) or "*" in f"{extent}{named}":
        return None
    return named if extent == named else f"min({extent},{named})"


def _is_cut(dim: str, named: Dim) -> bool:
    """Return whether `dim` names the minimum of some extent and this one."""
    return dim.startswith("min(") and dim.endswith(f",{named})")


def shifted(extent: Dim, more: int) -> Dim:
    """Return extent + more, simplified with a constant term in the name; None if unknown.

    >>> shifted("H", -2), shifted("(H-2)", 2), shifted("((H-2)//2)", 1), shifted(5, 1)
    ('(H-2)', 'H', '((H-2)//2+1)', 6)
    """
    if isinstance(extent, int):
        return extent + more
    if not more or extent is None:
        return extent
    if is_unknown(extent):
        return None
    inner = bare(extent)
    taken = _ENDS_IN_A_NUMBER.fullmatch(inner) if inner != extent else None
    if taken is not None:
        inner, more = taken[1], more + int(taken[2])
    if not more:
        return inner if _is_one(inner) else f"({inner})"
    return f"({inner}{more:+d})"


_ENDS_IN_A_NUMBER = re.compile(r"(.*[\w)])([+-]\d+)")
_SUM = re.compile(r"(?:(\d{1,18}) *\+ *)?([A-Za-z_]\w*)(?(1)| *([+-]) *(\d{1,18}))")


def floored(extent: Dim, parts: int) -> Dim:
    """Return extent // parts.

    >>> floored("H", 2), floored("(H-2)", 2), floored("4*H", 2), floored(7, 2), floored("H", 1)
    ('(H//2)', '((H-2)//2)', '2*H', 3, 'H')
    """
    if isinstance(extent, int):
        return extent // parts
    if parts == 1 or extent is None:
        return extent
    if is_unknown(extent):
        return None
    return exact(extent, parts) or f"({_one(extent)}//{parts})"


def ceiling(extent: Dim, parts: int) -> Dim:
    """Return extent / parts, rounded up.

    >>> ceiling("W", 2), ceiling(7, 2)
    ('ceil(W/2)', 4)
    """
    if isinstance(extent, int):
        return -(-extent // parts)
    if parts == 1 or extent is None:
        return extent
    return None if is_unknown(extent) else f"ceil({_one(extent)}/{parts})"


def _one(name: str) -> str:
    """Return a name in parentheses unless it can be divided without."""
    return name if _is_one(name) else f"({name})"


def _is_one(name: str) -> bool:
    return name.isidentifier() or bare(name) != name


def quotient(source: Shape, divisor: Sequence[Dim]) -> Dim:
    """Return the extent that a -1 in a Reshape target stands for, None if the division is not exact.

    quotient(("b", "s", 64), ("b", "s", 16)) = 4
    """
    above, below = (product(source) if source is not None else None), product(divisor)
    if above is None or below is None or below[0] == 0 or above[0] % below[0] or below[1] - above[1]:
        return None
    number, names = above[0] // below[0], sorted((above[1] - below[1]).elements())
    if not names:
        return number
    # The coefficient first, as torch writes it; an invented name before it: the product is then as unknown as that.
    if len(names) + (number != 1) > 1:
        names = [n if factors(f"{n}*n") == [n, "n"] else f"({n})" for n in names]
    parts = names if number == 1 else [str(number), *names]
    return "*".join(sorted(parts, key=lambda f: not f.startswith(INVENTED)))


def reduced(name: str) -> str:
    """Return the simplified name of an extent: a quotient with its divisor cancelled, a sum as `shifted` writes it.

    Torch's exporter names extents by the expressions that the program computed them by.

    >>> reduced("((sequence*batch)//batch)"), reduced("((s**2)//s)"), reduced("((s + 1)//s)"), reduced("past + 1")
    ('sequence', 's', '((s + 1)//s)', '(past+1)')
    """
    added_to = _SUM.fullmatch(bare(name))
    if added_to is not None:
        before, first, sign, number = added_to.groups()
        return str(shifted(first, int(before or f"{sign}{number}")))
    above, slashes, below = (part.strip() for part in bare(name).partition("//"))
    if not slashes or any(part.count("(") != part.count(")") for part in (above, below)) or "//" in below:
        return name
    if bare(below) == below and "*" in below.replace("**", "^"):  # a // b * c is a product
        return name
    left = quotient(_powers(above), _powers(below))
    return name if left is None else str(left)


def bare(name: str) -> str:
    """Return an expression without enclosing parentheses."""
    while name.startswith("(") and name.endswith(")"):
        depth, last = 0, len(name) - 1
        for place, letter in enumerate(name):
            depth += (letter == "(") - (letter == ")")
            if depth == 0 and place < last:
                return name
        name = name[1:-1].strip()
    return name


def _powers(product: str) -> tuple[Dim, ...]:
    """Return the factors of a product, with powers expanded."""
    found: list[Dim] = []
    for factor in factors(bare(product).replace("**", "^")):
        base, power, exponent = bare(factor).partition("^")
        count = whole(exponent) if power else 1
        plain = base.isidentifier() and count is not None and count <= MOST
        found += [base] * (count or 0) if plain else [factor.replace("^", "**")]
    return tuple(found)


MOST = 8
"""Maximum exponent to expand: one factor for each axis of a tensor."""


def product(shape: Sequence[Dim]) -> tuple[int, Counter[str]] | None:
    """Return the product of extents as a coefficient and a multiset of names; None if one is unknown.

    >>> product((4, "2*b", "s"))
    (8, Counter({'b': 1, 's': 1}))
    """
    number, names = 1, Counter[str]()
    for extent in shape:
        if extent is None:
            return None
        if isinstance(extent, int):
            number *= extent
            continue
        for factor in factors(extent):
            digits, inner = whole(factor), bare(factor)
            if digits is None:
                names[inner if is_unknown(inner) else factor] += 1  # `quotient` puts an invented name in parentheses
            else:
                number *= digits
    return number, names


def times(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return quotient((a, b), ()) if not (isinstance(a, int) and a < 0) and not (isinstance(b, int) and b < 0) else None


def added(a: Dim, b: Dim) -> Dim:
    """Return a + b if one of them is an integer.

    >>> added("past", 1), added(1, "past"), added("past", "new")
    ('(past+1)', '(past+1)', None)
    """
    return shifted(a, b) if isinstance(b, int) else shifted(b, a) if isinstance(a, int) else None


def subtracted(a: Dim, b: Dim) -> Dim:
    return shifted(a, -b) if isinstance(b, int) else None


def remainder(a: Dim, b: Dim) -> Dim:
    return a % b if isinstance(a, int) and isinstance(b, int) else None


def exact(a: Dim, b: Dim) -> Dim:
    """Return a / b if the division is exact, else None: 8 heads of a batch are `8*N`, and that by 8 is N again."""
    return quotient((a,), (b,))


def equal(a: Dim, b: Dim) -> Dim:
    """Compare two extents. An extent is never negative; two names may be one integer."""
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    negative = any(isinstance(d, int) and d < 0 for d in (a, b))
    return 0 if negative and None not in (a, b) else None


def largest(*extents: Dim) -> Dim:
    """Return the maximum, None if one of several is symbolic: it may be any integer."""
    return _one_of(extents, max)


def smallest(*extents: Dim) -> Dim:
    """Return the minimum, None if one of several is symbolic."""
    return _one_of(extents, min)


def _one_of(extents: Sequence[Dim], choose: Callable[[Iterable[int]], int]) -> Dim:
    if len(set(extents)) == 1:
        return extents[0]
    numbers = [e for e in extents if isinstance(e, int)]
    return choose(numbers) if len(numbers) == len(extents) else None


def where(condition: Dim, yes: Dim, no: Dim) -> Dim:
    return None if not isinstance(condition, int) else yes if condition else no
