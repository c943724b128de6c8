"""Writes numbers into the text of a cost file: its order, its comments and all that was not measured stay."""

import re
from collections.abc import Mapping

Numbers = Mapping[str, object]


def with_table(text: str, table: str, rows: Mapping[str, Numbers]) -> str:
    """Return the text with these rows of a table: in the place of those of their keys, new ones at its end."""
    for key, numbers in rows.items():
        shown = ", ".join(f"{name} = {_shown(number)}" for name, number in numbers.items())
        text = with_value(text, table, key, f"{{ {shown} }}")
    return text


def with_value(text: str, table: str, key: str, value: str) -> str:
    """Return the text with one value of a table; `value` is TOML."""
    lines = text.rstrip("\n").split("\n") if text else []
    start = next((n for n, line in enumerate(lines) if line.split("#")[0].strip() == f"[{table}]"), None)
    shown = key if re.fullmatch(r"[A-Za-z_]\w*", key) else f'"{key}"'
    if start is None:
        return "\n".join([*lines, "", f"[{table}]", f"{shown} = {value}", ""])
    end = next((n for n in range(start + 1, len(lines)) if lines[n].startswith("[")), len(lines))
    for n in range(start + 1, end):
        if (found := re.match(rf'("?){re.escape(key)}\1(\s*=\s*)', lines[n])) is not None:
            lines[n] = f"{found[0].split('=')[0].rstrip()}{found[2]}{value}"
            return "\n".join([*lines, ""])
    last = max((n for n in range(start, end) if lines[n].strip() and not lines[n].startswith("#")), default=start)
    return "\n".join([*lines[: last + 1], f"{shown} = {value}", *lines[last + 1 :], ""])


def _shown(number: object) -> str:
    return f"{number:.4g}" if isinstance(number, float) else str(number)
