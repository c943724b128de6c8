"""Blackwell: data center GPUs, compute capability 10.0 to 11.0, with tcgen05, and others, 12.0 and later, without."""

from dataclasses import replace

from onnxfuse.cuda.isa.sm_89 import SM_89
from onnxfuse.cuda.isa.sm_90 import SM_90

SM_100 = replace(SM_90, name="sm_100", unused="tcgen05")
"""A kernel by tcgen05 does not exist yet: those for mma.sync run, which reach a fraction of the tensor cores' rate."""
SM_120 = replace(SM_90, name="sm_120", shared_bytes=99 * 1024, instructions=SM_89.instructions)
