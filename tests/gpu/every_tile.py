"""Each tile of the gemm template once, for `compute-sanitizer --tool memcheck python tests/gpu/every_tile.py`.

The sanitizer's words and exit code are the verdict; racecheck likewise. Sizes that stick out of every tile, a few rows
of a long sum; bodies without and with a staged operand, and a gate.
"""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from onnxfuse.kernels import gemm
from onnxfuse.kernels.plans import Tile
from tests.gpu.test_gemm import check
from tests.kernels.ops import HALF
from tests.kernels.products import GELU, RESIDUAL, SWIGLU

WIDE, LONG = ((500,), 520, 264), ((3,), 72, 1096)
SPLIT = [Tile(64, 64, 1, teams=1, split=split) for split in gemm.SPLITS]


def main() -> None:
    count = 0
    for text in (GELU, RESIDUAL):
        for tile in (*gemm.COSTS, *SPLIT):
            check(text, HALF, *(LONG if tile.split > 1 else WIDE), tile)
            count += 1
    for tile in gemm.COSTS:
        if tile.n % 128 == 0 and tile.m * tile.n <= 128 * 128 * tile.warpgroups:
            check(SWIGLU, HALF, *WIDE, replace(tile, n=tile.n // 2))
            count += 1
    print(f"{count} launches")


if __name__ == "__main__":
    main()
