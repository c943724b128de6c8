"""Image programs: recognize a convolution, pooling or resize together with the Transposes around it.

ONNX's images are channels first, and kernels prefer channels last: then one Transpose precedes the operation and one
follows it. Layout detection happens only here.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.codegen.program.movement import Squeezed, Transposed
from onnxfuse.codegen.program.program import BodyProgram, Contraction, Move, Reduce, Resample, SlidingWindow
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic.element_types import UnsupportedError

LAST: dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    4: ((0, 3, 1, 2), (2, 3, 0, 1), (0, 2, 3, 1)), 3: ((0, 2, 1), (1, 2, 0), (0, 2, 1)),
    5: ((0, 4, 1, 2, 3), (2, 3, 4, 0, 1), (0, 2, 3, 4, 1)),
}  # fmt: skip
"""Permutations to channels-last images, and of weights packed by pixel, and back; by rank."""


@dataclass(frozen=True)
class ImageProblem:
    """A convolution, pooling or resize, with the layouts of its images and filters."""

    core: Contraction | Reduce | Resample
    window: SlidingWindow | None
    """The window that the core contracts or reduces; None for a resize."""
    x: int
    """Index of the images, before Transposes."""
    w: int | None
    """Index of a convolution's filters, before Transposes."""
    images_last: bool
    """Whether images are stored [N, ..., C]; else [N, C, ...]."""
    channels_last: bool
    """Whether results are stored channels last."""
    packing: tuple[int, ...]
    """Permutation of the stored filters to ONNX's [F, C, ...]; empty for the identity."""
    rank: int
    """Rank of the images, 3 to 5; 0 if the body does not determine it."""
    result: int
    """Index of the final value."""
    inside: frozenset[int]
    """Indices of the values between `x`, `w` and the result."""


def image_works(program: BodyProgram) -> tuple[int, ...]:
    """Return the indices of live convolutions, poolings and resizes, in order."""
    return tuple(i for i in sorted(program.live()) if _parts(program, i) is not None)


def image_problem(program: BodyProgram, index: int) -> ImageProblem:
    """Return a convolution, pooling or resize with its layout; raises `UnsupportedError` if the value is none of these.

    Images may be transposed twice: stored channels first, where only the result is channels last.
    """
    parts = _parts(program, index)
    if parts is None:
        raise UnsupportedError("no convolution, pooling or resizing")
    core, window, data = parts
    x, *images = _turns(program, data[0])
    w, *filters = _turns(program, data[1]) if len(data) > 1 else (None,)
    data = (x,) if w is None else (x, w)
    inside = program.reached([index], data).difference(data)
    if not images and not filters:
        rank = 4 if w is None or window is None else window.dims and window.dims + 2
        return ImageProblem(core, window, x, w, False, False, (), rank, index, inside - {index})
    after = program.readers(index)
    turns, packings, backs = ([_perm(program, i) for i in chain] for chain in (images, filters, after))
    for rank, (first, by_pixel, last) in LAST.items():
        channels_last = turns in ([first], [last, first]) and packings in ([], [by_pixel], [first])
        if channels_last and backs == [last] and not program.is_output(index):
            if window is not None and window.dims != rank - 2 and (window.dims or rank == 5):
                raise UnsupportedError(f"a window along {plural(window.dims, 'dimension')} over images of rank {rank}")
            packing = packings[0] if packings else ()
            return ImageProblem(core, window, x, w, len(turns) == 1, True, packing, rank, after[0], inside)
    raise UnsupportedError(f"a convolution between transposes by {[*turns, *packings]} and {backs}")


Parts = tuple[Contraction | Reduce | Resample, SlidingWindow | None, tuple[int, ...]]


def _parts(program: BodyProgram, index: int) -> Parts | None:
    """Return the core that computes a value, its window, and its images and filters."""
    value = program.values[index]
    match value:
        case Contraction(args=(seen, filters)) if isinstance(window := program.values[seen], SlidingWindow):
            return value, window, (window.args[0], filters)
        case Move(how=Squeezed(), args=(found,)) if isinstance(reduce := program.values[found], Reduce):
            window = program.values[reduce.arg]
            return (reduce, window, window.args) if isinstance(window, SlidingWindow) else None
        case Resample(arg=images):
            return value, None, (images,)
        case _:
            return None


def _turns(program: BodyProgram, index: int) -> list[int]:
    """Return the value behind a chain of Transposes, and these."""
    chain: list[int] = []
    while index >= 0 and isinstance(move := program.values[index], Move) and isinstance(move.how, Transposed):
        chain.insert(0, index)
        index = move.args[0]
    return [index, *chain]


def _perm(program: BodyProgram, index: int) -> tuple[int, ...]:
    """Return the permutation of a Transpose, empty for another value."""
    match program.values[index]:
        case Move(how=Transposed(perm=tuple(perm))):
            return perm
        case _:
            return ()
