"""A small kernel pack: its targets, ops and kernels, and its bytes."""

from onnxfuse.cuda.pack import layout
from onnxfuse.cuda.pack.layout import HEADER, PTX, PackEntry, StoredProgram, Target
from onnxfuse.cuda.planning.arch import Arch

TARGETS = (Target(Arch("sm_90a", 132)), Target(Arch("sm_86", 132, 1536), PTX))

OPS = (
    PackEntry(
        "Gelu_1",
        b"g" * 32,
        (10, 10),
        (10,),
        (0,),
        (StoredProgram(0, True, (0, 1), b"tape"), StoredProgram(1, False, (2,), b"")),
    ),
    PackEntry("Norm_2", b"n" * 32, (1, 7), (1, 1), (), (), (1,)),
)

KERNELS = [("gelu", 0, b"first image"), ("gelu", 0, b"second"), ("gelu", 1, b"first image")]


def parts() -> bytes:
    return b"".join(layout.packed('{"ranges": {}}', TARGETS, OPS, KERNELS, b"p" * 32)[1])


def read(data: bytes) -> layout.PackIndex:
    head = layout.head_of(data[: HEADER.size], len(data))
    return layout.index_of(data[HEADER.size : HEADER.size + head.index], head)
