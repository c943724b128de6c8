"""Depthwise convolutions drawn at random."""

from hypothesis import strategies as st

from bench.cases import ops
from bench.cases.images import OPERANDS, Case


@st.composite
def cases(draw: st.DrawFn, largest: int) -> Case:
    """Draw a depthwise convolution over images of at most this size."""
    rank = draw(st.integers(1, 2))
    kernel = tuple(draw(st.integers(1, 7)) for _ in range(rank))
    dilations = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    pads = tuple(draw(st.integers(0, 4)) for _ in range(2 * rank))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    least = [max(r - pads[d] - pads[d + rank], 1) for d, r in enumerate(reach)]
    size = tuple(draw(st.integers(n, max(largest, n))) for n in least)
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER"]))
    last = draw(st.booleans())
    mean = draw(st.sampled_from([None, 0, 1])) if last and rank == 2 else None
    return Case(
        draw(st.sampled_from(list(OPERANDS))), draw(st.sampled_from([ops.HALF, ops.BRAIN, ops.FLOAT])),
        last, draw(st.integers(1, 3)), draw(st.integers(1, 40)), size, kernel,
        tuple(draw(st.integers(1, 3)) for _ in range(rank)), dilations, pads if auto == "NOTSET" else (), auto,
        draw(st.booleans()), mean,
    )  # fmt: skip
