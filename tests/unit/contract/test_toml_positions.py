"""Where each key and value of a TOML file is: the same ways as `tomllib` has values, and the place in the text."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from onnxfuse.contract.toml_positions import Keys, Position, Positions, position_of, positions

TEXTS = {
    "dotted keys": 'a.b.c = 1\na.b . d = 2\n"a".e = 3\n',
    "quoted keys": '"a b" = 1\n\'c.d\' = 2\n"e.f"."" = 3\n',
    "a key in escapes": '"\\u0061\\"\\tb" = 1\n[t."\\n"]\nx = 2\n',
    "tables": "[a]\nx = 1\n[ b . 'c' ]\nx = 2\n[b]\ny = 3\n",
    "arrays of tables": "[[m]]\nx = 1\n[m.t]\ny = 2\n[[m.n]]\nz = 3\n[[m.n]]\nz = 4\n[[m]]\n[[m.n]]\nz = 5\n",
    "an array over lines": "a = [ # one\n  1,\n\n  [2, 3], # ], two\n  { x = 4 },\n]\nb = 5\n",
    "inline tables": "a = { x = 1, y.z = [2, {w = 3}], 'q' = {} }\nb = []\n",
    "strings": 'a = "x # ] \\" y"\nb = \'c:\\\'\nc = \'\'\nd = ""\ne = 1\n',
    "strings over lines": 'a = """\n[b]\n"c" = 1 \\""" d""""\ne = \'\'\'\n[f]\'\'\'\'\'\ng = """"""\nh = 2\n',
    "other values": "a = 1979-05-27 07:32:00Z # then\nb = [1e3, -inf, true,07:32:00]\nc=0x1f\n",
    "no line at the end": "[a]\n# nothing\nx = [1]",
    "nothing": "\n# a = 1\n",
}


def ways(value: Any, way: Keys = ()) -> Iterator[Keys]:
    """Yield the way to each value in what `tomllib` returns, but of tables that are nowhere written by themselves."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if not isinstance(inner, dict | list) or not inner:
            yield (*way, key)
        yield from ways(inner, (*way, key))


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("name", TEXTS)
def test_each_value_is_found_by_the_way_to_it(name: str, end: str) -> None:
    """And no way leads to what `tomllib` does not have. Lines and columns are the same, however lines end."""
    text = TEXTS[name]
    found = positions(text.replace("\n", end))
    whole = tomllib.loads(text)
    assert found == positions(text)
    assert set(ways(whole)) <= set(found)
    for keys in found:
        value: Any = whole
        for key in keys:
            value = value[key]


def at(line: int, column: int) -> Position:
    return Position(line, column)


@pytest.mark.parametrize(
    ("text", "keys", "key", "value"),
    [
        ("a = 1", ("a",), at(1, 1), at(1, 5)),
        ("\r\n# c\r\n  a   =   1\r\n", ("a",), at(3, 3), at(3, 11)),
        ("[t]\nu.v = 'x'", ("t", "u", "v"), at(2, 1), at(2, 7)),
        ('"a = b" = 2', ("a = b",), at(1, 1), at(1, 11)),
        ("\n[t.u]\nx = 1", ("t", "u"), at(2, 1), at(2, 1)),
        ("[[m]]\n[[m]]\nx = 1", ("m", 1), at(2, 1), at(2, 1)),
        ("[[m]]\n[[m]]\nx = 1", ("m", 1, "x"), at(3, 1), at(3, 5)),
        ("a = [\n  1,\n  22, 3,\n]\nb = 4", ("a", 2), at(3, 7), at(3, 7)),
        ("a = [\n  1,\n  22, 3,\n]\nb = 4", ("b",), at(5, 1), at(5, 5)),
        ("a = [[1, 2], [3]]", ("a", 1, 0), at(1, 15), at(1, 15)),
        ("a = { b = 1, c.d = 2 }", ("a", "c", "d"), at(1, 14), at(1, 20)),
        ('a = """\n\n"""\nb = 1', ("b",), at(4, 1), at(4, 5)),
    ],
)
def test_lines_and_columns(text: str, keys: Keys, key: Position, value: Position) -> None:
    """Both from 1; those of a table are its first bracket, those of an array's element its value."""
    assert positions(text)[keys] == Positions(key, value)


def test_what_the_file_does_not_have_is_where_it_would_be() -> None:
    """The table that it is missing from, else the beginning of the file."""
    found = positions("a = 1\n[[m]]\nx = 1\n  [m.t]\n")
    assert position_of(found, ("m", 0, "x")) == found["m", 0, "x"]
    assert position_of(found, ("m", 0, "y")).value == (2, 1)
    assert position_of(found, ("m", 0, "t", "y", 3)).value == (4, 3)
    assert position_of(found, ("b",)) == position_of({}, ()) == Positions(Position(1, 1), Position(1, 1))
