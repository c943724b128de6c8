"""Launch plans of the gemm template: matrix products with pointwise prologue and epilogue in one kernel."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

from onnxfuse.cuda.isa.factors import SPLIT_FLOAT32
from onnxfuse.cuda.planning import limits
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.template import Extents
from onnxfuse.cuda.templates.gemm import costs, few, few_packed, sm80, sm90, unpack
from onnxfuse.cuda.templates.gemm.body import Anatomy, anatomy
from onnxfuse.cuda.templates.gemm.problem import (  # fmt: skip
    GemmProblem,
    group_kind,
    kind_of,
    operand_kind,
    output_shapes,
    placed,
    problem,
    product_kind,
)
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant, Strip
from onnxfuse.cuda.templates.gemm.work import GemmSource, LeftRows
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: GemmVariant | None = None
) -> LaunchPlan:
    """Return the launch plan of `op` for these shapes, on tensor cores; `UnsupportedError` leaves the rest to the
    general kernel."""
    tuning = variant or GemmVariant()
    work = _work(op, input_shapes)
    parts, size = work.parts, work.size
    if parts.precise:
        tuning = _valid(tuning, parts, arch)
    chosen = tuning.block
    skinny = _skinny(work, aligned, arch)
    if tuning.tile is None and chosen is None and skinny is not None:
        made: LaunchPlan = skinny.plan(work, tuning.strip or skinny.choose(work, arch), arch)
        return made
    if aligned and chosen is None and sm90.takes(work, arch):
        apart = unpack.plan(work, arch) if tuning.tile is None else None
        if apart is not None:
            return apart
        of_work = tuning.tile or _choose(work, arch)
        if isinstance(of_work, GemmTile):
            return sm90.plan(work, of_work, arch)
        chosen = of_work
    if not sm80.takes(parts, size, arch):
        raise UnsupportedError(
            f"products of {parts.factors.name} on {arch.name}" if arch.isa.mma(parts.factors) is None
            else f"images of {limits.INDICES} elements or more"
        )  # fmt: skip
    instruction = arch.isa.mma(parts.factors)
    if not op.tf32 and instruction is not None and not instruction.keeps_float32:
        raise UnsupportedError(f"sums of {instruction.sum_bits} bits, and use_tf32 is 0")
    return sm80.plan(work, aligned, chosen, arch)


def of_few_rows(
    op: FusedOp,
    input_shapes: tuple[Shape, ...],
    aligned: bool,
    arch: Arch,
    variant: GemmVariant | None,
    left: Callable[[int, int], LeftRows],
) -> LaunchPlan | None:
    """Return the launch plan of `op` by a kernel for few rows whose blocks compute its left factor; None if none."""
    tuning = variant or GemmVariant()
    work = replace(_work(op, input_shapes), left=left)
    if tuning.tile or tuning.block or work.size.m > costs.skinny(arch).left_rows:
        return None
    skinny = _skinny(work, aligned, arch)
    if skinny is None:
        return None
    made: LaunchPlan = skinny.plan(work, tuning.strip or skinny.choose(work, arch), arch)
    return made


def _skinny(work: GemmSource, aligned: bool, arch: Arch) -> ModuleType | None:
    """Return the module of the kernel for few rows that supports the products; None if none does."""
    return next((kernel for kernel in (few, few_packed) if kernel.takes(work, aligned, arch)), None)


def _work(op: FusedOp, input_shapes: tuple[Shape, ...]) -> GemmSource:
    outputs = output_shapes(op, input_shapes)
    parts = placed(anatomy(op), op, input_shapes)
    if parts.to_tf32 and not op.tf32:
        parts = replace(parts, factors=SPLIT_FLOAT32)
    size = problem(parts, input_shapes)
    if parts.prologue is not None and parts.prologue.joined and size.batch is not None:
        raise UnsupportedError("a batch of products by matrices side by side")
    # Rows of all products of a batch, columns and terms are counted with 32 bits, as by the library.
    if max(size.m * size.products, size.n, size.k) >= limits.INDICES:
        raise UnsupportedError(
            f"a product of [{size.m}, {size.k}] by [{size.k}, {size.n}], {size.products} times: rows, columns and "
            "terms, expected less than 2^31"
        )
    return GemmSource(op, parts, size, _kinds(parts, size, input_shapes), outputs)


def _valid(tuning: GemmVariant, parts: Anatomy, arch: Arch) -> GemmVariant:
    """Return the tuning if it names a kernel for unrounded float32, else the default."""
    tile, block, together = tuning.tile, tuning.block, len(parts.epilogues[0].products)
    tiles = (*costs.wgmma().tiles(parts), *sm90.shared(parts))
    if tile is not None and replace(tile, n=tile.n * together) in tiles:
        return tuning
    measured = block is not None and replace(block, n=block.n * together) in costs.mma(arch).exact
    return tuning if measured else GemmVariant()


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the body of `op` is preferred on `arch`; None if the kernel is."""
    return sm80.refuses(anatomy(op), arch)


def reads(shape: Extents, full: Extents) -> str | None:
    """Return why the kernel cannot read an operand of `shape` with a product of shape `full`; else None."""
    return None if product_kind(shape, full) else "lies across the rows and columns of the product"


def reads_before(shape: Extents, full: Extents) -> str | None:
    """Return why the kernels cannot compute a left factor of shape `full` from an operand of `shape`; else None."""
    read = operand_kind(shape, full) is not None or group_kind(shape, full) is not None
    return None if read else "lies across the rows and terms of the left factor"


# ---- kernel selection


def tiles(op: FusedOp, input_shapes: tuple[Shape, ...]) -> list[GemmTile]:
    """Return the tiles supported for `op`, with the columns of each product."""
    work = _work(op, input_shapes)
    return [replace(t, n=t.n // work.first_operand) for t in sm90.fitting(work)]


def chosen(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> GemmTile | Block | Strip:
    """Return the plan's own choice: a tile, a block of the sm_80 kernel, or a strip for few rows."""
    work = _work(op, input_shapes)
    skinny = _skinny(work, True, arch)
    return _choose(work, arch) if skinny is None else skinny.choose(work, arch)


def _choose(work: GemmSource, arch: Arch) -> GemmTile | Block:
    """Return the tile with the least estimated time; for few rows the other kernel's block if that takes less."""
    tile, time = sm90.choose(work, arch)
    if work.parts.packed is not None:  # its warps dequantize beside the products, those of a block between them
        return tile
    if work.extremes_of is not None:  # which a block does not leave
        return tile
    if not work.parts.precise and (work.size.m > costs.mma(arch).few_rows or work.size.window is not None):
        return tile
    block = sm80.choose(work.parts, work.size, arch)
    return block if sm80.microseconds(block, work.parts, work.size, arch) < time else tile


def candidates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[GemmVariant, ...]:
    """Return the tiles and sm_80 blocks whose estimate is near the best; all split-K factors if tiles are few."""
    work = _work(op, input_shapes)
    hopper = sm90.takes(work, arch)
    blocks = sm80.worth_measuring(work.parts, work.size, arch) if work.size.window is None or not hopper else []
    tiles = sm90.worth_measuring(work, arch) if hopper else []
    skinny = _skinny(work, True, arch)
    strips = [] if skinny is None else skinny.fitting(work, arch)
    return (
        *(GemmVariant(tile=tile) for tile in tiles),
        *(GemmVariant(block=block) for block in blocks),
        *(GemmVariant(strip=strip) for strip in strips),
    )


def estimates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> dict[GemmVariant, float]:
    """Return the estimated microseconds of the tiles and blocks that fit; none for few rows, whose strips have none."""
    work = _work(op, input_shapes)
    if _skinny(work, True, arch) is not None:
        return {}
    found: dict[GemmVariant, float] = {}
    if sm90.takes(work, arch):
        found |= {GemmVariant(tile=tile): time for tile, time in sm90.estimates(work, arch).items()}
    if sm80.takes(work.parts, work.size, arch) and (work.size.window is None or not found):
        found |= {GemmVariant(block=block): time for block, time in sm80.estimates(work.parts, work.size, arch).items()}
    return found


def estimator(
    op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch, variant: GemmVariant
) -> Callable[[costs.TileCost | costs.Pace], float]:
    """Return the estimated microseconds of a tile or block by its cost: for calibration, which looks for that."""
    work = _work(op, input_shapes)

    def microseconds(cost: costs.TileCost | costs.Pace) -> float:
        if isinstance(cost, costs.TileCost):
            assert variant.tile is not None
            return sm90.microseconds(work, variant.tile, arch, cost)
        assert variant.block is not None
        return sm80.microseconds(variant.block, work.parts, work.size, arch, cost)

    return microseconds


def stand_ins(op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch) -> tuple[GemmVariant, ...]:
    """Return the tiles (or blocks) with the summation order of the chosen one, fastest first."""
    work = _work(op, input_shapes)
    # Tiles of other row counts reduce in another order; for few rows the warps share the terms.
    if work.parts.prologue is not None or _skinny(work, aligned, arch) is not None:
        return ()
    hopper = aligned and sm90.takes(work, arch)
    chosen = _choose(work, arch) if hopper else sm80.choose(work.parts, work.size, arch)
    if isinstance(chosen, GemmTile):
        return tuple(GemmVariant(tile=tile) for tile in sm90.adding_alike(work, chosen, arch))
    return tuple(GemmVariant(block=block) for block in sm80.adding_alike(work.parts, work.size, chosen, arch))


def _kinds(parts: Anatomy, size: GemmProblem, input_shapes: tuple[Shape, ...]) -> tuple[str, ...]:
    """Return how each operand of an epilogue lies in the output; the epilogues agree."""
    kinds = {
        (
            *(kind_of(input_shapes[i], size.full_of(body)) for i in epilogue.operands),
            *["literal"] * len(epilogue.parameters),
        )
        for body, epilogue in enumerate(parts.epilogues)
    }
    if len(kinds) > 1:
        raise UnsupportedError("products side by side with operands of different shapes")
    return kinds.pop()


MOST_BESIDE = (limits.TENSOR_MAPS - 1) // 2
"""Maximum products of one left factor in Hopper's kernel, each a right factor and an output; more use the sm_80
kernel."""
MOST_TOGETHER = sm80.most_products()
"""Maximum products of one body, which one node may combine."""
COLUMNS_BESIDE = 8
"""Required multiple of columns if those products differ: others would lose Hopper's kernel for all of them."""
