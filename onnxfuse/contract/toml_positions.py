"""Lines and columns of the keys and values of a TOML file, which `tomllib` does not return."""

import bisect
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

Keys = tuple[str | int, ...]
"""The way to a value: keys of tables, and indices into arrays of tables."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"""[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[\w-]+)[ \t]*""")
_TEXT = re.compile(
    r'"{3}(?:[^\\]|\\.)*?"{3,5}|\'{3}.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'',
    re.DOTALL,
)
_WORD = re.compile(r"[^,\]}#\n]*")


class Position(NamedTuple):
    """A position in the text, both numbers from 1."""

    line: int
    column: int


class Positions(NamedTuple):
    """Where a key and its value begin; of a table in brackets, both are the first bracket."""

    key: Position
    value: Position


def positions(text: str) -> Mapping[Keys, Positions]:
    """Return the positions in a valid TOML text, by the way to each value.

    >>> positions("[[model]]\\npath = 'a'")["model", 0, "path"].value
    Position(line=2, column=8)
    """
    scanner = _Scanner(text)
    return {keys: Positions(scanner.position(key), scanner.position(value)) for keys, key, value in scanner.document()}


def position_of(positions: Mapping[Keys, Positions], where: Keys) -> Positions:
    """Return the positions of a key and its value; if it has none, of the table that it is in."""
    while where and where not in positions:
        where = where[:-1]
    return positions.get(where, Positions(Position(1, 1), Position(1, 1)))


class _Scanner:
    """Goes through a text that `tomllib` has accepted; offsets are in characters."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines = [0, *(end.end() for end in re.finditer("\n", text))]
        """Where each line begins."""
        self.lengths: dict[Keys, int] = {}
        """The number of tables in each array so far."""

    def position(self, offset: int) -> Position:
        line = bisect.bisect_right(self.lines, offset)
        return Position(line, offset - self.lines[line - 1] + 1)

    def document(self) -> Iterator[tuple[Keys, int, int]]:
        """Yield each way with the offsets of its key and its value."""
        table: Keys = ()
        while self._skip() < len(self.text):
            start = self.at
            if self.text[start] != "[":
                yield from self._pair(table)
                continue
            is_array = self.text.startswith("[[", start)
            self.at += 1 + is_array
            table = self._resolved(self._keys())
            self.at += 1 + is_array
            if is_array:
                number = self.lengths.get(table, 0)
                self.lengths[table] = number + 1
                table = (*table, number)
            yield table, start, start

    def _resolved(self, keys: Keys) -> Keys:
        """Return keys with the index of the last table after each array of tables but the last key."""
        way: Keys = ()
        for number, key in enumerate(keys, 1):
            way = (*way, key)
            if number < len(keys) and way in self.lengths:
                way = (*way, self.lengths[way] - 1)
        return way

    def _skip(self) -> int:
        """Skip blanks and comments; return where they end."""
        blank = _BLANK.match(self.text, self.at)
        self.at = blank.end() if blank else self.at
        return self.at

    def _keys(self) -> Keys:
        """Read a key, which may be dotted."""
        keys: list[str] = []
        while key := _KEY.match(self.text, self.at):
            (only,) = tomllib.loads(f"{key[1]} = 0")  # quoted keys may hold escapes
            keys.append(only)
            self.at = key.end()
            if self.text[self.at : self.at + 1] != ".":
                break
            self.at += 1
        return tuple(keys)

    def _pair(self, table: Keys) -> Iterator[tuple[Keys, int, int]]:
        start = self.at
        way = (*table, *self._keys())
        self.at += 1  # the equals sign
        value = self._skip()
        yield way, start, value
        yield from self._value(way)

    def _value(self, way: Keys) -> Iterator[tuple[Keys, int, int]]:
        """Read a value; yield what is inside it."""
        first = self.text[self.at]
        if first not in "[{":
            pattern = _TEXT if first in "\"'" else _WORD
            found = pattern.match(self.text, self.at)
            self.at = found.end() if found and found.end() > self.at else self.at + 1
            return
        self.at += 1
        number = 0
        while self.text[self._skip()] not in "]}":
            if first == "{":
                yield from self._pair(way)
            else:
                yield (*way, number), self.at, self.at
                yield from self._value((*way, number))
                number += 1
            if self.text[self._skip()] == ",":
                self.at += 1
        self.at += 1
