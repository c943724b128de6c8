"""Random models, optimized: every fused op has a plan on every architecture, and its kernel computes its body.

The same models run on a GPU by `python tests/gpu/fuzz.py`.
"""

import pytest

from tests.support.kernels import fuzz, random_models


@pytest.mark.parametrize("kind", random_models.KINDS)
def test_every_fused_op_of_random_models_has_plans(kind: str) -> None:
    """All architectures, aligned or not, zero extents among them."""
    found = 0
    for seed in range(6):
        for op, inputs in fuzz.called(random_models.model(f"plans {seed}", kind=kind)):
            assert fuzz.plans_everywhere(op, tuple(x.shape for x in inputs)) == [], f"seed 'plans {seed}'"
            found += 1
    assert found > 3


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", random_models.KINDS)
def test_kernels_of_random_models_compute_their_bodies(kind: str, seed: int) -> None:
    """On the host, which sees every read and write beside the buffers."""
    for number, (op, inputs) in enumerate(fuzz.called(random_models.model(f"emulated {seed}", kind=kind))):
        fuzz.emulated(op, inputs, aligned=(number + seed) % 2 == 0)
