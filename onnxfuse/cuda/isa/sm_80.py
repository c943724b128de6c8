"""Ampere, compute capability 8.0, 8.6 and 8.7: mma.sync, cp.async."""

from dataclasses import replace

from onnxfuse.cuda.isa.factors import BFLOAT16, E4M3, FLOAT16, INTEGERS, SPLIT_FLOAT32, TF32
from onnxfuse.cuda.isa.isa import Copy, Isa, mma_sync

SIXTEEN = mma_sync(FLOAT16, BFLOAT16, TF32, SPLIT_FLOAT32, *INTEGERS)
"""The matrix instructions of all tensor cores from sm_80 on."""
SM_80 = Isa(
    "sm_80",
    shared_bytes=163 * 1024,
    copies=frozenset({Copy.CP_ASYNC}),
    instructions=(*SIXTEEN, *mma_sync(E4M3)),
)
"""Its products of e4m3 are two of float16: include/float8.cuh."""
SM_86 = replace(SM_80, name="sm_86", shared_bytes=99 * 1024)
SM_87 = replace(SM_80, name="sm_87")
