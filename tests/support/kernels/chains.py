"""Random chains of data movement, as bodies of fused ops: hypothesis draws them step by step, shapes in hand."""

import numpy as np
from hypothesis import strategies as st

from bench.cases import ops
from onnxfuse.model.fused import FusedOp

EXTENTS = st.sampled_from((1, 1, 2, 3, 4, 5, 6, 7, 8, 12))
LIMIT = 3000
"""Elements of a value: the interpreters of these tests are slow."""

Shape = tuple[int, ...]


class Chain:
    """A body under construction: statements, and the values that there are with their shapes."""

    def __init__(self, draw: st.DrawFn, dtype: int) -> None:
        self.draw, self.dtype = draw, dtype
        self.statements: list[str] = []
        self.inputs: list[Shape] = []
        self.last = ""
        """The name of the value that is the output."""

    def input(self, shape: Shape) -> str:
        self.inputs.append(shape)
        return f"x{len(self.inputs) - 1}"

    def name(self) -> str:
        return f"v{len(self.statements)}"

    def state(self, expression: str, names: int = 1) -> str:
        made = self.name()
        self.statements.append(
            f"{made if names == 1 else ', '.join(f'{made}_{i}' for i in range(names))} = {expression}"
        )
        return made

    def ints(self, *numbers: int) -> str:
        return self.state(f"Constant <value_ints = [{', '.join(map(str, numbers))}]> ()")

    def op(self) -> FusedOp:
        names = ", ".join(f"x{i}" for i in range(len(self.inputs)))
        text = f"({names}) => (y) {{ {' '.join(self.statements)} y = Identity({self.last}) }}"
        return ops.op(text, (self.dtype,) * len(self.inputs), (self.dtype,))


def transposed(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    perm = c.draw(st.permutations(range(len(shape))))
    if len(shape) == 0:
        return x, shape
    return c.state(f"Transpose <perm = [{', '.join(map(str, perm))}]> ({x})"), tuple(shape[d] for d in perm)


def factors(draw: st.DrawFn, count: int) -> Shape:
    """Return extents with this product."""
    parts: list[int] = []
    while count > 1 and len(parts) < 4:
        by = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        parts.append(by)
        count //= by
    parts.append(count)
    return tuple(draw(st.permutations(parts)))


def reshaped(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    to = factors(c.draw, int(np.prod(shape)))
    written = list(to)
    if c.draw(st.booleans()):
        written[c.draw(st.integers(0, len(to) - 1))] = -1
    return c.state(f"Reshape ({x}, {c.ints(*written)})"), to


def sliced(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    if not shape:
        return x, shape
    axis = c.draw(st.integers(0, len(shape) - 1))
    step = c.draw(st.sampled_from((1, 1, 2, 3, -1, -2)))
    start, end = c.draw(st.integers(-2, shape[axis])), c.draw(st.sampled_from((-1, 0, 1, 4, 1000, -1000)))
    taken = len(range(*slice(start, end, step).indices(shape[axis])))
    if taken == 0:
        start, end = (0, 1000) if step > 0 else (-1, -1000)
        taken = len(range(*slice(start, end, step).indices(shape[axis])))
    written = axis - len(shape) if c.draw(st.booleans()) else axis
    text = f"Slice ({x}, {c.ints(start)}, {c.ints(end)}, {c.ints(written)}, {c.ints(step)})"
    return c.state(text), (*shape[:axis], taken, *shape[axis + 1 :])


def concatenated(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    if not shape:
        return x, shape
    axis = c.draw(st.integers(0, len(shape) - 1))
    more = c.draw(st.sampled_from((1, 2, 3, 8)))
    other = (*shape[:axis], more, *shape[axis + 1 :])
    parts = [x, c.input(other)]
    total = shape[axis] + more
    if c.draw(st.booleans()):
        parts.reverse()
    if c.draw(st.booleans()):
        parts.append(x)
        total += shape[axis]
    return c.state(f"Concat <axis = {axis}> ({', '.join(parts)})"), (*shape[:axis], total, *shape[axis + 1 :])


def rolled(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    if not shape:
        return x, shape
    axis = c.draw(st.integers(0, len(shape) - 1))
    by, zero, end, along = c.draw(st.integers(0, shape[axis])), c.ints(0), c.ints(1000), c.ints(axis)
    at = c.ints(by)
    left = c.state(f"Slice ({x}, {at}, {end}, {along})")
    right = c.state(f"Slice ({x}, {zero}, {at}, {along})")
    return c.state(f"Concat <axis = {axis}> ({left}, {right})"), shape


def padded(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    pads = [c.draw(st.sampled_from((0, 0, 1, 3))) for _ in range(2 * len(shape))]
    if not shape:
        return x, shape
    mode = c.draw(st.sampled_from(("constant", "reflect", "edge", "wrap")))
    if mode != "constant":
        most = [n - 1 if mode == "reflect" else n for n in shape] * 2
        pads = [min(pair) for pair in zip(pads, most, strict=True)]
        return c.state(f'Pad <mode = "{mode}"> ({x}, {c.ints(*pads)})'), around(shape, pads)
    given = ", ".join((x, c.ints(*pads)))
    if c.draw(st.booleans()) and c.dtype in (ops.INT64, ops.FLOAT):
        word = "int64" if c.dtype == ops.INT64 else "float"
        given += ", " + c.state(f"Constant <value = {word} {{-7}}> ()")
    return c.state(f"Pad ({given})"), around(shape, pads)


def around(shape: Shape, pads: list[int]) -> Shape:
    """Return the shape with what stands before and after each axis."""
    return tuple(n + pads[d] + pads[d + len(shape)] for d, n in enumerate(shape))


def expanded(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    to = tuple(c.draw(st.sampled_from((1, 2, 3))) if n == 1 else n for n in shape)
    to = (2, *to) if c.draw(st.booleans()) else to
    return (c.state(f"Expand ({x}, {c.ints(*to)})"), to) if to else (x, shape)


def gathered(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    if not shape:
        return x, shape
    axis = c.draw(st.integers(0, len(shape) - 1))
    if c.draw(st.booleans()):
        at = c.draw(st.integers(-shape[axis], shape[axis] - 1))
        one = c.state(f"Constant <value_int = {at}> ()")
        return c.state(f"Gather <axis = {axis}> ({x}, {one})"), (*shape[:axis], *shape[axis + 1 :])
    numbers = c.draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=6))
    return (
        c.state(f"Gather <axis = {axis}> ({x}, {c.ints(*numbers)})"),
        (*shape[:axis], len(numbers), *shape[axis + 1 :]),
    )


def resized(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    by = [c.draw(st.sampled_from((1, 1, 2, 3))) for _ in shape]
    if not shape:
        return x, shape
    scales = c.state(f"Constant <value_floats = [{', '.join(f'{float(b)}' for b in by)}]> ()")
    how = c.draw(
        st.sampled_from(('coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"', 'mode = "nearest"'))
    )
    return c.state(f"Resize <{how}> ({x}, , {scales})"), tuple(n * b for n, b in zip(shape, by, strict=True))


def split(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    axes = [d for d, n in enumerate(shape) if n > 1]
    if not axes:
        return x, shape
    axis = c.draw(st.sampled_from(axes))
    parts = c.draw(st.integers(2, min(3, shape[axis])))
    size = -(-shape[axis] // parts)
    if size * (parts - 1) >= shape[axis]:
        return x, shape
    made = c.state(f"Split <axis = {axis}, num_outputs = {parts}> ({x})", parts)
    if shape[axis] % parts == 0 and c.draw(st.booleans()):
        return c.state(f"Add ({made}_0, {made}_{parts - 1})"), (*shape[:axis], size, *shape[axis + 1 :])
    sizes = [size] * (parts - 1) + [shape[axis] - size * (parts - 1)]
    part = c.draw(st.integers(0, parts - 1))
    return f"{made}_{part}", (*shape[:axis], sizes[part], *shape[axis + 1 :])


def depth_to_space(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    if len(shape) != 4:
        return x, shape
    n, ch, h, w = shape
    if ch % 4 == 0 and c.draw(st.booleans()):
        mode = c.draw(st.sampled_from(("DCR", "CRD")))
        return c.state(f'DepthToSpace <blocksize = 2, mode = "{mode}"> ({x})'), (n, ch // 4, 2 * h, 2 * w)
    if h % 2 == 0 and w % 2 == 0:
        return c.state(f"SpaceToDepth <blocksize = 2> ({x})"), (n, ch * 4, h // 2, w // 2)
    return x, shape


def squeezed(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    if c.draw(st.booleans()):
        return c.state(f"Unsqueeze ({x}, {c.ints(0, -1)})"), (1, *shape, 1)
    if 1 in shape:
        return c.state(f"Squeeze ({x})"), tuple(n for n in shape if n != 1)
    return c.state(f"Flatten <axis = {min(1, len(shape))}> ({x})"), (
        int(np.prod(shape[:1])),
        int(np.prod(shape[1:])),
    )


def added(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    other = tuple(1 if c.draw(st.booleans()) else n for n in shape)
    return c.state(f"Add ({x}, {c.input(other)})"), shape


def together(c: Chain, x: str, shape: Shape) -> tuple[str, Shape]:
    """The value beside itself, moved: it is wanted at two places."""
    if len(shape) < 2 or shape[-1] != shape[-2]:
        return rolled(c, x, shape)
    perm = ", ".join(map(str, (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)))
    other = c.state(f"Transpose <perm = [{perm}]> ({x})")
    return c.state(f"Sub ({x}, {other})"), shape


STEPS = (
    transposed, transposed, reshaped, reshaped, sliced, concatenated, rolled, padded, expanded, gathered, resized,
    split, depth_to_space, squeezed, added, together,
)  # fmt: skip


@st.composite
def chains(draw: st.DrawFn, dtype: int = ops.INT64, steps: int = 6) -> tuple[FusedOp, tuple[Shape, ...]]:
    """Draw a fused op of up to `steps` movements with a few elementwise nodes, and the shapes of its inputs."""
    c = Chain(draw, dtype)
    shape = tuple(draw(st.lists(EXTENTS, min_size=1, max_size=4)))
    x = c.input(shape)
    for _ in range(draw(st.integers(1, steps))):
        before = (list(c.statements), list(c.inputs), x, shape)
        x, shape = draw(st.sampled_from(STEPS))(c, x, shape)
        if int(np.prod(shape)) > LIMIT:
            c.statements, c.inputs, x, shape = before
    c.last = x
    return c.op(), tuple(c.inputs)
