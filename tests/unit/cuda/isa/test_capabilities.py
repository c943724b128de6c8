"""The instruction set of each capability."""

import pytest

from onnxfuse.cuda.isa.capabilities import isa_of
from onnxfuse.cuda.isa.factors import (
    FLOAT16,
)
from onnxfuse.cuda.planning.arch import SUPPORTED


@pytest.mark.parametrize(
    ("name", "kilobytes", "cluster", "early", "unused"),
    [
        ("sm_61", 48, 1, False, ""), ("sm_75", 64, 1, False, ""), ("sm_80", 163, 1, False, ""),
        ("sm_86", 99, 1, False, ""), ("sm_87", 163, 1, False, ""), ("sm_89", 99, 1, False, ""),
        ("sm_90", 227, 8, True, ""), ("sm_90a", 227, 8, True, ""), ("sm_100", 227, 8, True, "tcgen05"),
        ("sm_103", 227, 8, True, "tcgen05"), ("sm_110", 227, 8, True, "tcgen05"), ("sm_120", 99, 8, True, ""),
        ("sm_121", 99, 8, True, ""), ("sm_120a", 99, 8, True, ""),
    ],
)  # fmt: skip
def test_the_instruction_set_of_each_capability(
    name: str, kilobytes: int, cluster: int, early: bool, unused: str
) -> None:
    isa = isa_of(name)
    assert (isa.shared_bytes, isa.cluster, isa.starts_early, isa.unused) == (kilobytes * 1024, cluster, early, unused)


def test_supported_gpus_have_tensor_cores() -> None:
    assert all(arch.isa.mma(FLOAT16) for arch in SUPPORTED)
