"""What a GPU launches: a plan that exceeds a limit is refused with that limit, at the limit it is launched."""

from dataclasses import replace
from typing import Any

import pytest

from bench.cases import ops
from bench.cases.ops import HALF
from onnxfuse import cuda
from onnxfuse.cuda.planning import limits
from onnxfuse.cuda.planning.arch import A10
from onnxfuse.cuda.planning.launch_plan import LaunchPlan, TensorMapSpec


def addition() -> LaunchPlan:
    """Return the plan of a kernel with three tensors."""
    fused = ops.op("(x, b) => (y) { y = Add(x, b) }", (HALF, HALF), (HALF,))
    plan = cuda.plan(fused, ((8,), (8,)), True, A10)
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"grid": (1, 65536, 1)}, "65536 blocks, expected at most 65535"),
        ({"grid": (2**31, 1, 1)}, "2147483648 blocks"),
        ({"block": (1025, 1, 1)}, "1025 threads"),
        ({"block": (32, 0, 1)}, "0 threads"),
        ({"shared_bytes": 100 * 1024}, "102400 bytes of shared memory, sm_86 has 101376"),
        ({"parameters": bytes(4090)}, "4114 bytes of arguments"),
        ({"tensor_maps": (TensorMapSpec(0, HALF, (8, 8), (16,), (8, 8)),) * 25}, "25 tensor maps, expected at most 24"),
        ({"tensor_maps": (TensorMapSpec(0, HALF, (9, 8), (18,), (8, 8)),)}, "multiples of 16"),
        ({"tensor_maps": (TensorMapSpec(0, HALF, (8, 2**33), (16,), (8, 8)),)}, "expected 1 to 2^32"),
        ({"tensor_maps": (TensorMapSpec(0, HALF, (8, 0), (16,), (8, 8)),)}, "expected 1 to 2^32"),
        ({"tensor_maps": (TensorMapSpec(0, HALF, (8, 8), (2**40,), (8, 8)),)}, "below 2^40"),
        ({"tensor_maps": (TensorMapSpec(0, HALF, (8, 8), (16,), (8, 512)),)}, "expected 1 to 256"),
    ],
)
def test_a_plan_that_no_gpu_launches_is_told(change: dict[str, Any], reason: str) -> None:
    """Also of a launch behind the first one."""
    plan = addition()
    assert limits.exceeded(plan, 3, A10) is None
    broken = replace(plan, **change)
    for whole in (broken, replace(plan, then=(broken,))):
        assert reason in (limits.exceeded(whole, 3, A10) or "")


@pytest.mark.parametrize(
    "change",
    [
        {"grid": (2**31 - 1, 65535, 65535)},
        {"block": (32, 32, 1)},
        {"shared_bytes": A10.shared_bytes},
        {"parameters": bytes(4096 - 3 * 8)},
        {"scratch_bytes": 1, "parameters": bytes(4096 - 4 * 8)},
        {"tensor_maps": (TensorMapSpec(0, HALF, (8, 2**32), (16,), (8, 256)),) * 24},
        {"grid": (0, 1, 1), "tensor_maps": (TensorMapSpec(0, HALF, (8, 0), (16,), (8, 8)),)},
    ],
)
def test_at_the_limit_it_is_launched(change: dict[str, Any]) -> None:
    """And what launches nothing needs no tensor maps of anything."""
    assert limits.exceeded(replace(addition(), **change), 3, A10) is None


def test_scratch_memory_is_one_more_pointer() -> None:
    plan = replace(addition(), scratch_bytes=1, parameters=bytes(4096 - 3 * 8))
    assert limits.exceeded(plan, 3, A10) == "4104 bytes of arguments, expected at most 4096"
