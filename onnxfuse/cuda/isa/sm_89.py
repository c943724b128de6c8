"""Ada, compute capability 8.9: mma.sync of float8, too."""

from dataclasses import replace

from onnxfuse.cuda.isa.factors import E5M2
from onnxfuse.cuda.isa.isa import mma_sync
from onnxfuse.cuda.isa.sm_80 import SM_86

SM_89 = replace(SM_86, name="sm_89", instructions=(*SM_86.instructions, *mma_sync(E5M2)))
