"""Ada, compute capability 8.9: mma.sync of float8, too."""

from dataclasses import replace

from onnxfuse.cuda.isa.factors import E4M3, E5M2
from onnxfuse.cuda.isa.isa import FLOAT8_BITS, mma_sync
from onnxfuse.cuda.isa.sm_80 import SIXTEEN, SM_86

SM_89 = replace(SM_86, name="sm_89", instructions=(*SIXTEEN, *mma_sync(E4M3, E5M2, sum_bits=FLOAT8_BITS)))
