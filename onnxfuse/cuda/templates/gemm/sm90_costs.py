"""Measured costs of the gemm template's tiles on Hopper, for tile selection."""

from dataclasses import dataclass

from onnxfuse.cuda.templates.gemm.body import Anatomy
from onnxfuse.cuda.templates.gemm.variant import GemmTile


@dataclass(frozen=True)
class Cost:
    """Microseconds of a tile: measured on an H200, float16, bias + GELU, 2026-11, over 24 sizes."""

    launch: float
    """For a single tile per multiprocessor: everything except the products."""
    step: float
    """For a single tile: 64 terms."""
    several: float
    """For several tiles, with the card at its power limit: 64 terms."""
    finish: float
    """For several tiles: everything else, per tile."""
    light: float
    """The same for an epilogue of few instructions: bias, residual, ReLU."""


COSTS = {
    GemmTile(128, 32, 1): Cost(3.2, 0.170, 0.180, 0.60, 0.30),
    GemmTile(256, 32, 1): Cost(3.6, 0.310, 0.320, 1.00, 0.40),
    GemmTile(256, 32, 1, warpgroups=2): Cost(3.6, 0.310, 0.320, 1.00, 0.40),
    GemmTile(256, 32, 1, warpgroups=2, teams=1): Cost(3.6, 0.310, 0.320, 1.20, 0.60),
    GemmTile(64, 64, 1): Cost(2.6, 0.126, 0.160, 0.60, 0.30),
    GemmTile(64, 128, 1): Cost(3.4, 0.195, 0.265, 0.60, 0.30),
    GemmTile(128, 64, 1): Cost(3.3, 0.210, 0.250, 0.60, 0.30),
    GemmTile(64, 128, 1, teams=1): Cost(3.4, 0.190, 0.285, 0.75, 0.40),
    GemmTile(128, 64, 1, warpgroups=2, teams=1): Cost(3.2, 0.205, 0.255, 1.03, 0.50),
    GemmTile(128, 128, 1, warpgroups=2, teams=1): Cost(3.7, 0.317, 0.361, 1.98, 0.82),
    GemmTile(128, 128, 1): Cost(4.0, 0.357, 0.379, 1.19, 0.37),
    GemmTile(128, 128, 1, warpgroups=2): Cost(4.2, 0.357, 0.385, 1.20, 0.40),
    GemmTile(128, 128, 2): Cost(4.2, 0.357, 0.345, 1.90, 0.80),
    GemmTile(128, 192, 1, warpgroups=2, teams=1): Cost(4.1, 0.460, 0.593, 1.88, 0.92),
    GemmTile(128, 192, 1): Cost(3.9, 0.548, 0.594, 3.00, 0.00),
    GemmTile(192, 128, 1, warpgroups=3, teams=1): Cost(3.9, 0.490, 0.608, 1.95, 0.97),
    GemmTile(192, 192, 1, warpgroups=3, teams=1): Cost(4.3, 0.800, 0.930, 1.53, 0.28),
    GemmTile(256, 128, 1, warpgroups=2, teams=1): Cost(4.5, 0.700, 0.700, 3.30, 2.00),
    GemmTile(128, 256, 1, warpgroups=2, teams=1): Cost(4.5, 0.700, 0.820, 2.30, 1.10),
    GemmTile(64, 160, 1): Cost(3.4, 0.229, 0.267, 0.80, 0.70),
    GemmTile(64, 192, 1): Cost(3.6, 0.231, 0.300, 1.50, 0.55),
    GemmTile(128, 96, 1, warpgroups=2, teams=1): Cost(3.5, 0.240, 0.290, 1.40, 0.70),
    GemmTile(128, 160, 1): Cost(4.3, 0.437, 0.461, 2.60, 0.10),
    GemmTile(128, 160, 1, warpgroups=2, teams=1): Cost(4.2, 0.431, 0.452, 1.90, 0.90),
    GemmTile(128, 320, 1, warpgroups=2, teams=1): Cost(5.2, 0.870, 0.950, 3.60, 1.90),
}
"""Costs of the tiles that are considered and tuned. Columns of all products of a gate count together.

Those of 32 columns are for windows, whose rows load more slowly than a matrix's: about twice the times here. The choice
is within 4% of the fastest tile in 24 convolutions of at most 32 filters, float16 and float32 (2026-11-22).

Those of 96, 160 and 320 columns and 64x192: fitted to 18 convolutions of 320 and 640 filters and 12 products of 1568
and 6272 rows, consistent with 128x64, 192x128, 128x192 and 192x192 (2026-11-26); the choice is within 1% of the fastest
tile there, at worst 12%. 320 columns are two instructions, of 192 and 128 columns.

Omitted because they were never fastest: wider clusters of these tiles, 64x256, two blocks of one warpgroup on a
multiprocessor (1024x1024x1024 8.3 us, 6.6 for one); 192x96, 256x96, 128x224, 192x160, 256x192, and 256x160, as fast as
128x160 by two teams, which leaves room for a residual.
"""
TF32_COSTS = {
    **COSTS,
    GemmTile(128, 64, 1): Cost(3.3, 0.210, 0.233, 0.60, 0.30),
    GemmTile(128, 64, 1, warpgroups=2, teams=1): Cost(2.7, 0.205, 0.221, 1.03, 0.50),
    GemmTile(128, 128, 1): Cost(4.0, 0.357, 0.379, 1.01, 0.37),
    GemmTile(64, 192, 1): Cost(3.6, 0.231, 0.340, 1.50, 0.40),
    GemmTile(256, 128, 1, warpgroups=2, teams=1): Cost(4.9, 0.700, 0.700, 3.30, 2.00),
}
"""The same for float32, 32 terms per step. Over 79 products and convolutions of ResNet-50, BERT and ViT (2026-11-21)
the choice takes 0.3% more time than the best tile of each, at worst 14%; with float16's table 2.5%, at worst 35%.
64x192 is an estimate."""
PRECISE_COSTS = {
    GemmTile(64, 64, 1): Cost(2.6, 0.62, 0.65, 0.75, 0.44),
    GemmTile(64, 128, 1): Cost(3.4, 1.00, 1.05, 1.10, 0.83),
    GemmTile(128, 64, 1): Cost(3.3, 1.05, 1.10, 1.10, 0.81),
    GemmTile(128, 64, 1, warpgroups=2, teams=1): Cost(3.2, 0.87, 0.91, 1.03, 0.50),
    GemmTile(256, 64, 1, warpgroups=2, teams=1): Cost(3.6, 1.50, 1.57, 1.98, 0.82),
    GemmTile(128, 128, 1, warpgroups=2, teams=1): Cost(3.7, 1.37, 1.43, 1.98, 0.82),
}
"""The same for unrounded float32. `several` and `light` are fitted to the six layers of ResNet-50's first blocks, 32
images (H200, 2026-11-26), the others derived from them. With two sets of sums the registers suffice for 64 rows of 128
columns, or 128 of 64."""


def costs_of(parts: Anatomy) -> dict[GemmTile, Cost]:
    """Return the tiles available for a body, and the cost of each."""
    if parts.precise:
        return PRECISE_COSTS
    return TF32_COSTS if parts.to_tf32 else COSTS
