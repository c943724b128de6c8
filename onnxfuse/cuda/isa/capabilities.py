"""The instruction set of each compute capability."""

from onnxfuse.cuda.isa.isa import Isa
from onnxfuse.cuda.isa.sm_80 import SM_80, SM_86, SM_87
from onnxfuse.cuda.isa.sm_89 import SM_89
from onnxfuse.cuda.isa.sm_90 import SM_90, SM_90A
from onnxfuse.cuda.isa.sm_100 import SM_100, SM_120

BEFORE = Isa("sm_50", shared_bytes=48 * 1024)
"""GPUs before Turing, and Turing: kernels without tensor cores."""
TURING = Isa("sm_75", shared_bytes=64 * 1024)

ISAS = ((120, SM_120), (100, SM_100), (90, SM_90), (89, SM_89), (87, SM_87), (86, SM_86), (80, SM_80), (75, TURING))
"""Instruction sets by the minimum compute capability, times ten, latest first."""


def isa_of(name: str) -> Isa:
    """Return the instruction set of an architecture in NVRTC's notation, such as `sm_90a`."""
    if name == SM_90A.name:
        return SM_90A
    return next((isa for least, isa in ISAS if capability(name) >= least), BEFORE)


def capability(name: str) -> int:
    """Return the compute capability of an architecture in NVRTC's notation, times ten."""
    return int("".join(c for c in name if c.isdigit()))
