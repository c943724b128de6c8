"""Programs cover every shape of a range, and what is left is named."""

import numpy as np
import pytest

from bench.cases import products
from bench.cases.ops import HALF
from onnxfuse.cuda.dispatch.dispatch import family
from onnxfuse.cuda.launch_programs import cover as covering
from onnxfuse.cuda.launch_programs.cover import Domain, cover
from onnxfuse.cuda.launch_programs.family import Key
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.runtime.engine.bridge import bridge
from onnxfuse.symbolic.element_types import UnsupportedError
from tests.support import fused_models as models

H200 = Arch("sm_90a", 132)


def gelu(rows: np.ndarray) -> covering.Covered | None:
    op, shapes = products.case(products.GELU, HALF, (2, 33), 768, 768)
    first = [n for s in shapes for n in s]
    key = Key(tuple(map(len, shapes)), (None, None, *first[2:]))
    extents = np.concatenate([rows, np.repeat([first[2:]], len(rows), 0)], 1).astype(np.int64)
    return cover(family(op, key, True, H200), Domain(key, extents, True), bridge().unanswered)


def all_of(batches: int, lengths: int) -> np.ndarray:
    return np.array([(b, n) for b in range(1, batches + 1) for n in range(1, lengths + 1)])


def test_every_shape_of_a_range_is_answered() -> None:
    """And that is evaluated, not concluded: with a leaf less some shapes are left."""
    found = gelu(all_of(32, 128))
    assert found is not None
    assert (found.shapes, found.left, found.why) == (32 * 128, 0, "")
    assert len(found.kernels) > 1


def test_what_is_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covering, "MOST_ANSWERS", 2)
    found = gelu(all_of(32, 128))
    assert found is not None
    assert 0 < found.left < found.shapes
    assert "more than 2 ways" in found.why


def test_shapes_without_a_plan_are_left() -> None:
    """They cost a few tries, however many they are; the others are answered."""
    op, key = models.NEGATE, Key((1,), (None,))
    made = family(op, key, True, H200)
    tried, plan = [], made.plan

    def odd(shapes: tuple[tuple[int, ...], ...]) -> object:
        tried.append(shapes)
        if shapes[0][0] > 100:
            raise UnsupportedError("more than 100")
        return plan(shapes)

    made.plan = odd  # type: ignore[assignment]  # the stand-in of this process
    rows = np.arange(1, 5001).reshape(-1, 1)
    found = cover(made, Domain(key, rows, True), bridge().unanswered)
    assert found is not None
    assert len(tried) < 200


def test_a_program_that_is_wrong_is_a_defect() -> None:
    op, key = models.NEGATE, Key((1,), (None,))
    made = family(op, key, True, H200)
    plan, times = made.plan, iter(range(1000))

    def other(shapes: tuple[tuple[int, ...], ...]) -> object:
        found = plan(shapes)
        return found if next(times) % 2 else type(found)(**{**vars(found), "shared_bytes": 64})

    made.plan = other  # type: ignore[assignment]  # the stand-in of this process
    with pytest.raises(AssertionError, match="plan is not the planner's: shared_bytes 0 instead of 64"):
        cover(made, Domain(key, np.array([[64]]), True), bridge().unanswered)


def test_rows_of_unequal_length_are_refused() -> None:
    found = gelu(all_of(1, 2))
    assert found is not None
    with pytest.raises(RuntimeError, match="unequal"):
        bridge().unanswered(found.tape, b"12345678", 3)
    with pytest.raises(RuntimeError, match="launch program"):
        bridge().unanswered(b"no tape", b"12345678", 1)
