"""Hopper, compute capability 9.0: clusters, TMA, early launches; and in `sm_90a` alone wgmma."""

from dataclasses import replace

from onnxfuse.cuda.isa.factors import BFLOAT16, E4M3, E5M2, FLOAT16, INTEGERS, SPLIT_FLOAT32, TF32
from onnxfuse.cuda.isa.isa import FLOAT8_BITS, Copy, mma_sync, wgmma_async
from onnxfuse.cuda.isa.sm_80 import SIXTEEN
from onnxfuse.cuda.isa.sm_89 import SM_89

SM_90 = replace(
    SM_89,
    name="sm_90",
    shared_bytes=227 * 1024,
    copies=frozenset({Copy.CP_ASYNC, Copy.TMA}),
    cluster=8,
    starts_early=True,
    instructions=(*SIXTEEN, *mma_sync(E4M3), *mma_sync(E5M2, sum_bits=FLOAT8_BITS)),
)
"""What all later GPUs have, too; Hopper's own TMA kernels all multiply by wgmma."""
SM_90A = replace(
    SM_90,
    name="sm_90a",
    instructions=(
        *SM_90.instructions, *wgmma_async(FLOAT16, BFLOAT16, TF32, SPLIT_FLOAT32, *INTEGERS),
        *wgmma_async(E4M3, E5M2, sum_bits=FLOAT8_BITS),
    ),
)  # fmt: skip
