"""Variants of kernels: what differs from the plan's own choice, in names, JSON and text, and what is refused."""

from dataclasses import dataclass

import pytest

from onnxfuse.cuda.planning.variant import MOST, Variant, one_at_a_time
from onnxfuse.support import json_fields
from onnxfuse.support.json_fields import JsonObject


@dataclass(frozen=True)
class Tile:
    """A part."""

    rows: int
    columns: int
    depth: int = 1

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}"


@dataclass(frozen=True)
class Choice(Variant):
    """A kernel's constants."""

    threads: int = 0
    stages: int = 0
    tile: Tile | None = None


@dataclass(frozen=True)
class Values:
    """What a benchmark tries."""

    threads: tuple[int, ...] = (64, 128)
    tile: tuple[Tile, ...] = (Tile(16, 16),)


def read(text: str) -> JsonObject:
    """Return the object in a text."""
    return json_fields.parse(text)


def test_what_differs_names_a_variant() -> None:
    """Equal ones have equal names, in whatever order the constants are written."""
    assert Choice().changed == {}
    assert str(Choice(threads=64, tile=Tile(8, 16))) == "threads 64 tile 8x16x1"
    assert Choice(stages=2, threads=64).name == Choice(threads=64, stages=2).name
    assert Choice(threads=64).name != Choice(stages=64).name
    assert Choice(threads=64).over(Choice(threads=32, stages=3)) == Choice(threads=64, stages=3)


@pytest.mark.parametrize("variant", [Choice(), Choice(threads=64), Choice(stages=0, tile=Tile(8, 16, 4))])
def test_json_gives_the_variant_back(variant: Choice) -> None:
    """Only what differs is written; a part as its numbers."""
    import json

    assert Choice.of_json(read(json.dumps(variant.as_json()))) == variant
    assert set(variant.as_json()) == set(variant.changed)


def test_a_part_may_leave_out_what_it_has_a_default_for() -> None:
    """And null is no part."""
    assert Choice.of_json(read('{"tile": {"rows": 8, "columns": 16}}')).tile == Tile(8, 16)
    assert Choice.of_json(read('{"tile": null}')) == Choice()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"thread": 64}', "thread"),
        ('{"threads": -1}', "threads"),
        ('{"threads": 1.5}', "threads"),
        ('{"threads": "64; int x"}', "threads"),
        ('{"threads": true}', "threads"),
        (f'{{"threads": {MOST + 1}}}', "threads"),
        ('{"tile": {"rows": 8}}', "columns"),
        ('{"tile": {"rows": 8, "columns": "4"}}', "columns"),
        ('{"tile": {"rows": 8, "columns": 4, "more": 1}}', "more"),
        ('{"tile": 8}', "tile"),
    ],
)
def test_a_file_may_say_nothing_but_integers(text: str, place: str) -> None:
    """They become part of a kernel's source: anything else is refused, with its place."""
    with pytest.raises(ValueError, match=place):
        Choice.of_json(read(text))


def test_a_field_is_set_by_text() -> None:
    """As a benchmark's option has it."""
    assert Choice().with_field("threads", "64") == Choice(threads=64)
    assert Choice(threads=1).with_field("tile", "8x16x2") == Choice(threads=1, tile=Tile(8, 16, 2))
    with pytest.raises(ValueError, match="no field 'thread', expected one of threads, stages, tile"):
        Choice().with_field("thread", "1")
    with pytest.raises(ValueError, match="many"):
        Choice().with_field("threads", "many")
    assert Choice.accepts({"threads": 1, "tile": 2})
    assert not Choice.accepts({"threads": 1, "other": 2})


def test_one_constant_is_changed_at_a_time() -> None:
    """Each value of each field, beside the plan's own choice of the others."""
    assert one_at_a_time(Choice, Values()) == (Choice(threads=64), Choice(threads=128), Choice(tile=Tile(16, 16)))
