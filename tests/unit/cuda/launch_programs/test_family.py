"""Launch programs of every template: recorded for a few batches they answer for the others, and ask for no bare number.

That they answer as the planner does, whatever the shapes, is the law of test_every_plan.py.
"""

import dataclasses
import math
import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.cases import attentions, moved, ops, products, rows
from bench.cases.ops import FLOAT, HALF
from onnxfuse.codegen.emit.source import Section
from onnxfuse.cuda.dispatch import dispatch
from onnxfuse.cuda.launch_programs.family import Family, Key
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import H200
from onnxfuse.cuda.planning.launch_plan import SmallCosts
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import branching
from onnxfuse.symbolic.branching import smaller
from onnxfuse.symbolic.recording import ChangingError, DecisionNode, Recording, recorded
from tests.support.kernels import dynamic, joined, programs, recurrents

RUNNING = "(x, b) => (y) { a = Constant <value = int64 {-1}> () s = Add(x, b) y = CumSum (s, a) }"
LAYER = recurrents.Case("LSTM", 256, 100, 8, 256, "bidirectional", states=False)
GROUPS, VOLUMES = "group = 16, pads = [0, 64, 0, 63]", "strides = [1, 2, 2], pads = [1, 1, 1, 1, 1, 1]"
FLOATS = attentions.Case(2, 12, 128, 128, dtype=FLOAT)


def _rows(name: str) -> tuple[FusedOp, Sequence[tuple[int, ...]]]:
    return rows.TEMPLATES[name].op(HALF), rows.TEMPLATES[name].small


def _shaped(op: FusedOp, inputs: Sequence[np.ndarray]) -> tuple[FusedOp, Sequence[tuple[int, ...]]]:
    return op, [x.shape for x in inputs]


CASES: dict[str, Callable[[], tuple[FusedOp, Sequence[tuple[int, ...]]]]] = {
    "attention": lambda: (attentions.Case(2, 12, 128, 128).op(), attentions.Case(2, 12, 128, 128).shapes()),
    "attention in float32": lambda: (FLOATS.op(), FLOATS.shapes()),
    "scan": lambda: (ops.op(RUNNING, (HALF,) * 2, (HALF,), "scan"), [(2, 130), (130,)]),
    "recurrent": lambda: (LAYER.op(), LAYER.shapes()),
    "topk": lambda: (rows.topk(8, HALF), [(2, 1000)]),
    "quantized": lambda: _shaped(*dynamic.alone(dynamic.drawn((2, 128, 768)))),
    "quantized norm": lambda: _shaped(*dynamic.norm(2, 768)),
    "quantized product": lambda: _shaped(*dynamic.product(2, 768)),
    "quantized attention": lambda: _shaped(*dynamic.attention(2, 128, 128)),
    "joined": lambda: joined.case(HALF, 2, (14, 14), 64),
    "convolution": lambda: products.window(HALF, (2, 56, 56, 64), 64, (3, 3), "pads = [1, 1, 1, 1]"),
    "convolution in groups": lambda: products.window(HALF, (2, 1, 49, 768), 768, (1, 128), GROUPS),
    "convolution of volumes": lambda: products.window(HALF, (2, 8, 28, 28, 128), 128, (3, 3, 3), VOLUMES),
    **{f"moved {name}": partial(moved.small(HALF).__getitem__, name) for name in sorted(moved.small(HALF))},
    **{f"row {name}": partial(_rows, name) for name in sorted(rows.TEMPLATES)},
    **{f"product {name}": partial(products.table, name, HALF) for name in sorted(products.TABLE)},
    **{f"prologue {name}": partial(products.prologue, name, HALF, 50, 768, 768) for name in sorted(products.PROLOGUES)},
}
OVER_THE_BATCH = {
    "row batch statistics", "row sum over the batch", "row sum over a long batch", "row relu backward + bias gradient",
}  # fmt: skip
"""Whose kernels' texts hold how many elements of the batch a thread adds up."""


def batches(op: FusedOp, shapes: Sequence[tuple[int, ...]], count: int) -> tuple[Family, int, int]:
    """Return the program of shapes that differ in the batch, how many of them were planned and how many recorded."""
    rank = max(map(len, shapes))
    batch = next(s[0] for s in shapes if len(s) == rank)
    free = [n == batch and place == 0 for s in shapes for place, n in enumerate(s)]
    dims = [n for s in shapes for n in s]
    made = dispatch.family(
        op, Key(tuple(map(len, shapes)), tuple(None if f else n for f, n in zip(free, dims, strict=True))), True, H200
    )
    chance, planned, asked = random.Random(3), 0, 0
    for _ in range(count):
        now = chance.randint(1, 400)
        others = tuple(tuple(now if n == batch and not d else n for d, n in enumerate(s)) for s in shapes)
        expected = programs.plan(op, others, True, H200)
        if expected is None:
            continue
        planned += 1
        if made.answer(others) is None:
            asked += 1
            made.record(others)
        assert made.answer(others) == expected
    return made, planned, asked


@pytest.mark.parametrize("name", sorted(CASES))
def test_one_program_serves_most_batches(name: str) -> None:
    """Of 16 batches at most 7 are recorded, and nothing asks for the batch itself: no dictionary, no text, no float."""
    op, shapes = CASES[name]()
    made, planned, asked = batches(op, tuple(map(tuple, shapes)), 16)
    if name not in OVER_THE_BATCH:
        assert asked <= min(7, planned)
    assert not [pin for pin in made.pins if re.fullmatch(r"d\d+", pin)]


# ---- the recording itself


def recording(*dims: int) -> tuple[Recording, list[Any]]:
    made = Recording({}, DecisionNode(), dims)
    return made, [made.dim(n) for n in range(len(dims))]


def questions(node: DecisionNode) -> int:
    return 0 if node.condition is None else 1 + sum(map(questions, node.children.values()))


@pytest.mark.parametrize(
    "use", [hash, str, int, range, float, lambda n: [0] * n, lambda n: list(range(9))[n], bin, lambda n: math.gcd(n, 4)]
)
def test_the_bare_number_cannot_be_had_unasked(use: Callable[..., Any] | type[Any]) -> None:
    """Whatever takes it, in Python or in C: the recording holds for that number alone."""
    made, (n,) = recording(7)
    use(n)
    assert questions(made.at) == 0
    assert made.pins == ["d0"]


@pytest.mark.parametrize(
    "moved", ["Slice (x, one, end, zero)", "Slice (x, one, last, zero)", "Slice (x, last, one, zero, last)"]
)
def test_a_slice_is_no_program_for_each_extent(moved: str) -> None:
    """Where it begins and ends follows from the extent by a few comparisons."""
    constants = " ".join(
        f"{name} = Constant <value_ints = [{value}]> ()"
        for name, value in {"zero": 0, "one": 1, "last": -1, "end": 100}.items()
    )
    op = ops.op(f"(x) => (y) {{ {constants} t = {moved} y = Exp (t) }}", (FLOAT,), (FLOAT,))
    family = dispatch.family(op, Key((2,), (None, 8)), True, H200)
    for extent in (*range(4, 40), 101, 300, 1000):
        family.record(((extent, 8),))
    assert family.answers < 10


def test_what_is_implied_is_not_asked_again() -> None:
    made, (n,) = recording(7)
    root = made.at
    assert n > 3
    assert n >= 2
    assert n != 0
    assert n + 1 > 4
    assert max(n, 1) is n
    assert questions(root) == 1


def test_extents_that_are_equal_are_one_name() -> None:
    """And a minimum, a quotient and a remainder are what is known of them on this path."""
    made, (a, b, c) = recording(6, 6, 12)
    root = made.at
    assert a == b
    assert c == 2 * b
    assert b > 1
    asked = questions(root)
    assert type(3 * b - 3 * a) is int
    assert c * b > a + b
    assert smaller(b, 1) == 1
    assert smaller(a - 1, c) % (2 * a) == b - 1
    assert (b - 1) // a == 0
    assert c // a == 2
    assert questions(root) == asked


def test_a_pad_of_joined_images_asks_little_of_their_batch() -> None:
    """Its kernel's text depends on which of 100 strides, bounds and offsets are equal."""
    pads = "p = Constant <value_ints = [1, 1, 1, 1, 1, 1, 1, 1]> ()"
    text = f'(a, b, c) => (y) {{ {pads} j = Concat <axis = 1> (a, b, c) y = Pad <mode = "edge"> (j, p) }}'
    made = dispatch.family(ops.op(text, (FLOAT,) * 3, (FLOAT,)), Key((4,) * 3, (None, 3, 20, 24) * 3), True, H200)
    made.record(((2, 3, 20, 24),) * 3)
    assert questions(made.root) < 40


def test_a_choice_is_one_question() -> None:
    """However the costs branch; and it goes as Python's min and max do, the first of equals."""
    made, (n,) = recording(50)
    root = made.at

    def cost(tile: int) -> float:
        rounds = -(-n // tile)
        return 2.0 * rounds if rounds > 3 else rounds + tile / 64

    with recorded(made):
        found = [branching.least((8, 16, 64, 64), cost), branching.most((8, 16, 64, 64), cost, lambda tile: tile <= n)]
    assert questions(root) == 2
    plain = {t: 2.0 * -(-50 // t) if -(-50 // t) > 3 else -(-50 // t) + t / 64 for t in (8, 16, 64)}
    assert found == [min(plain, key=lambda t: plain[t]), max((8, 16), key=lambda t: plain[t])]


def test_a_planner_that_changes_its_mind_is_told() -> None:
    made, (n, m) = recording(7, 8)
    root = made.at
    assert n > 3
    again = Recording(made.cache, root, (7, 8))
    again.dim(0)
    with pytest.raises(ChangingError):
        bool(again.dim(1) > 3)
    assert m.value == 8


# ---- the cache of recorded programs


def test_what_is_recorded_under_other_costs_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that plans small tensors as large ones shares the folder with one that does not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    softmax = rows.TEMPLATES["log softmax"]
    op, shapes = dataclasses.replace(softmax.op(HALF), name="LogSoftmax_0123456789"), softmax.small
    key = programs.any_extents(shapes)
    for small in (0, 1024):
        monkeypatch.setattr(launch_plan, "small_costs", lambda arch, small=small: SmallCosts(small, 128))
        expected = dispatch.plan(op, shapes, True, H200)
        family = dispatch.cached_family(op, key, True, H200)
        assert family.answer(shapes) is None
        assert family.learn(shapes, expected)
        dispatch.keep_family(op, family, True, H200)
        assert dispatch.cached_family(op, key, True, H200).answer(shapes) == expected


def test_a_program_that_is_not_what_is_planned_says_how_they_differ() -> None:
    """The fields, and of the kernels the lines."""
    softmax = rows.TEMPLATES["log softmax"]
    op, shapes = softmax.op(HALF), softmax.small
    expected = dispatch.plan(op, shapes, True, H200)
    section = expected.kernel.sections[-1]
    longer = (*expected.kernel.sections[:-1], Section(section.file, f"{section.text}// more"))
    kernel = dataclasses.replace(expected.kernel, sections=longer)
    other = dataclasses.replace(expected, grid=(77, 1, 1), kernel=kernel, then=(expected,))
    family = dispatch.family(op, programs.any_extents(shapes), True, H200)
    family.learn(shapes, expected)
    with pytest.raises(AssertionError, match=r"grid .* instead of \(77, 1, 1\).*// more.*0 launches .* of 1") as told:
        family.learn(shapes, other)
    assert "scratch" not in str(told.value)
