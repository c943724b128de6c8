"""Each tile and block of the gemm template once: `compute-sanitizer --tool memcheck python tests/gpu/every_tile.py`.

The sanitizer's words and exit code are the verdict; racecheck likewise. Sizes that stick out of every tile, a few rows
of a long sum; bodies without and with a staged operand, a gate, outputs that are written head by head, and left factors
that are computed; and 8-bit integers. `sm_90a`, `split` (its sums of several blocks) or `sm_80` behind it: that kernel
alone.
"""

import sys
from dataclasses import replace
from pathlib import Path

from tests.emulator.test_integers import TILES

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.cases.ops import HALF
from bench.cases.products import GELU, RESIDUAL, SWIGLU, TRANSPOSED, TRANSPOSED_GELU, prologue, table, window
from onnxfuse.cuda.planning.arch import A100
from onnxfuse.cuda.templates.gemm import costs
from onnxfuse.cuda.templates.gemm.variant import GemmTile
from tests.emulator.test_integers import DYNAMIC, INT8, SUMS, UINT8, case
from tests.gpu import test_integers
from tests.gpu.test_gemm import COMPUTING, check, run

WIDE, LONG, ODD = ((500,), 520, 264), ((3,), 72, 1096), ((77,), 133, 129)
COMPUTED = (300, 264, 264)


def hopper() -> int:
    """Launch every tile; return how often."""
    count = 0
    for tile in costs.wgmma().float16:
        if tile.n % 64:
            rows, columns, terms = WIDE
            check(TRANSPOSED_GELU, HALF, rows, columns if tile.n > 64 else 24, terms, tile)
            run(*window(HALF, (3, 11, 14, 72), 328 if tile.n > 64 else 24, (3, 2)), tile)
        else:
            for text in (GELU, RESIDUAL):
                check(text, HALF, *WIDE, tile)
        count += 2
    for tile in costs.wgmma().float16:
        if tile.n % 128 == 0 and tile.m * tile.n <= 128 * 128 * tile.warpgroups:
            check(SWIGLU, HALF, *WIDE, replace(tile, n=tile.n // 2))
            count += 1
    for name in ("written head by head", "written by windows"):
        run(*table(name, HALF), GemmTile(128, 128, 1))
        count += 1
    for tile in COMPUTING:
        if tile.split == 1:
            run(*prologue("silu and gate", HALF, *COMPUTED), tile)
            count += 1
    for tile in TILES:
        rows, columns, terms = WIDE
        test_integers.check(*case(DYNAMIC, (UINT8, INT8), rows, columns if tile.n > 64 else 24, terms + 8), tile)
        count += 1
    return count


def split() -> int:
    """Launch every split; return how often."""
    for tile in costs.wgmma().split:
        for text in (GELU, RESIDUAL) if tile.n % 64 == 0 else (TRANSPOSED, TRANSPOSED_GELU):
            check(text, HALF, *LONG, tile)
        test_integers.check(*case(DYNAMIC, (UINT8, INT8), (128,), 768, 3072), tile)
    return 3 * len(costs.wgmma().split)


def ampere() -> int:
    """Launch every block of the kernel for sm_80 and later; return how often."""
    count = 0
    for block in costs.mma(A100).rounded:
        for text, size in ((RESIDUAL, WIDE), (GELU, ODD)):
            check(text, HALF, *size, block)
            count += 1
        run(*prologue("silu and gate", HALF, *COMPUTED), block)
        count += 1
        if block.n // 2 % 64 == 0 and block.n // 2 // block.warps_n % 16 == 0:
            check(SWIGLU, HALF, *WIDE, replace(block, n=block.n // 2))
            count += 1
    for block in test_integers.BLOCKS:
        for size in (WIDE, ODD):
            test_integers.check(*case(SUMS, (UINT8, INT8), *size), block)
            count += 1
    return count


def main() -> None:
    launches = {"sm_90a": hopper, "split": split, "sm_80": ampere}
    print(f"{sum(launches[name]() for name in sys.argv[1:] or launches)} launches")


if __name__ == "__main__":
    main()
