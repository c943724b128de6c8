"""Contents and binary layout of a kernel pack, documented in docs/KERNEL_PACK.md. Nothing here reads files.

Header, index, then the kernels, each located by offset and verified by its SHA-256. Integers are little-endian; a
string is its length and UTF-8. The reader checks each integer against its bounds.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from onnxfuse.cuda.launch_programs import tape
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.support.plurals import plural

T = TypeVar("T")

MAGIC, VERSION = b"OFKERNEL", 2
HEADER = struct.Struct("<8sIIQQ32s32s")
"""Magic, version, version of the launch programs; bytes of the file and of the index; SHA-256 of the index, and of the
planners that made it."""
MOST_INDEX = 256_000_000
"""Maximum bytes of an index: that of the largest sample model is 1 MB."""
MOST_BYTES = 8_000_000_000
"""Maximum bytes of a pack."""
CUBIN, PTX = 0, 1
GENERAL = 2
"""Stands in the place of the alignment for the general kernel."""


class PackError(ValueError):
    """Bytes that are not a valid pack of this version, with a one-line reason."""


@dataclass(frozen=True)
class Target:
    """GPUs for which a pack has kernels."""

    arch: Arch
    """The architecture of the plans."""
    kind: int = CUBIN
    """CUBIN: GPUs of exactly this architecture; PTX: also later ones, for which the driver compiles it."""

    @property
    def name(self) -> str:
        """Name in NVRTC's notation: `sm_90a`, `compute_86`."""
        return self.arch.name if self.kind == CUBIN else f"compute_{self.arch.number}"


@dataclass(frozen=True)
class PackedKernel:
    """Location of a compiled kernel."""

    entry: str
    target: int
    """Index of the target."""
    offset: int
    """Offset from the beginning of the file."""
    size: int
    digest: bytes
    """SHA-256."""


@dataclass(frozen=True)
class StoredProgram:
    """A launch program."""

    target: int
    aligned: bool
    """Whether it requires pointers that are all multiples of 16 bytes."""
    kernels: tuple[int, ...]
    """Indices of the pack's kernels, by their index in the tape."""
    tape: bytes
    variant: str = ""
    """Name of the variant measured fastest for these shapes; empty for the planner's own choice."""
    general: bool = False
    """Whether it is that of the general kernel, for all shapes and pointers that no other program covers."""


@dataclass(frozen=True)
class PackEntry:
    """A fused op."""

    name: str
    digest: bytes
    """SHA-256 of the op's definition, so that kernels of a different op of the same name are not used."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    """Element types, in ONNX's encoding."""
    may_alias: tuple[int, ...]
    """Inputs whose buffer output 0 may reuse."""
    programs: tuple[StoredProgram, ...]
    on_host: tuple[int, ...] = ()
    """Inputs that stay in host memory: they only carry a shape, and no kernel reads them."""


@dataclass(frozen=True)
class PackIndex:
    """Everything in a pack except the kernels themselves."""

    facts: str
    """JSON for people: what was requested, and how much of it is covered."""
    targets: tuple[Target, ...]
    kernels: tuple[PackedKernel, ...]
    ops: tuple[PackEntry, ...]


# ---- serialization


@dataclass
class _PackWriter:
    parts: list[bytes]

    def u32(self, *numbers: int) -> None:
        self.parts.append(struct.pack(f"<{len(numbers)}I", *numbers))

    def u64(self, *numbers: int) -> None:
        self.parts.append(struct.pack(f"<{len(numbers)}Q", *numbers))

    def blob(self, data: bytes) -> None:
        self.u32(len(data))
        self.parts.append(data)

    def several(self, numbers: Sequence[int]) -> None:
        self.u32(len(numbers), *numbers)


def _index_bytes(index: PackIndex) -> bytes:
    out = _PackWriter([])
    out.blob(index.facts.encode())
    out.u32(len(index.targets))
    for t in index.targets:
        out.blob(t.name.encode())
        out.blob(t.arch.name.encode())
        out.u32(
            t.kind, t.arch.number, t.arch.sm_count, t.arch.threads_per_sm, t.arch.shared_bytes, t.arch.isa.starts_early
        )
    out.u32(len(index.kernels))
    for k in index.kernels:
        out.blob(k.entry.encode())
        out.u32(k.target)
        out.u64(k.offset, k.size)
        out.parts.append(k.digest)
    out.u32(len(index.ops))
    for op in index.ops:
        out.blob(op.name.encode())
        out.parts.append(op.digest)
        for numbers in (op.inputs, op.outputs, op.may_alias, op.on_host):
            out.several(numbers)
        out.u32(len(op.programs))
        for p in op.programs:
            out.u32(p.target, GENERAL if p.general else p.aligned)
            out.several(p.kernels)
            out.blob(p.variant.encode())
            out.blob(p.tape)
    return b"".join(out.parts)


def packed(
    facts: str,
    targets: Sequence[Target],
    ops: Sequence[PackEntry],
    kernels: Sequence[tuple[str, int, bytes]],
    planners: bytes,
) -> tuple[PackIndex, list[bytes]]:
    """Return the index of a pack, and its parts in order.

    `kernels` are (entry, target, image), by the indices that `ops` use.
    """
    ranges: dict[bytes, tuple[int, int]] = {}
    images: list[bytes] = []
    at = 0
    entries = []
    for entry, target, image in kernels:
        digest = hashlib.sha256(image).digest()
        if digest not in ranges:
            ranges[digest] = (at, len(image))
            images.append(image)
            at += len(image)
        entries.append((entry, target, digest))

    def index(first: int) -> PackIndex:
        packed_kernels = tuple(PackedKernel(e, t, first + ranges[d][0], ranges[d][1], d) for e, t, d in entries)
        return PackIndex(facts, tuple(targets), packed_kernels, tuple(ops))

    size = len(_index_bytes(index(0)))  # its size does not depend on the offsets
    last = index(HEADER.size + size)
    encoded = _index_bytes(last)
    head = HEADER.pack(
        MAGIC, VERSION, tape.VERSION, HEADER.size + size + at, size, hashlib.sha256(encoded).digest(), planners
    )
    return last, [head, encoded, *images]


# ---- parsing


@dataclass(frozen=True)
class Head:
    """The parsed header."""

    size: int
    index: int
    digest: bytes
    planners: bytes


def head_of(data: bytes, size: int) -> Head:
    """Parse the header of a file of `size` bytes; raises `PackError`."""
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise PackError("is no kernel pack" if data else "is empty")
    _, version, tapes, declared, index, digest, planners = HEADER.unpack_from(data)
    if (version, tapes) != (VERSION, tape.VERSION):
        raise PackError(
            f"is a pack of version {version}.{tapes}, and this onnxfuse reads version {VERSION}.{tape.VERSION}"
        )
    if declared != size:
        raise PackError(f"has {plural(size, 'byte')}, and says that it has {declared}")
    if index > min(MOST_INDEX, size - HEADER.size) or size > MOST_BYTES:
        raise PackError(f"says that its index has {plural(index, 'byte')}, more than there can be")
    return Head(declared, index, digest, planners)


@dataclass
class _PackReader:
    data: bytes
    at: int = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise PackError("has an index that ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def below(self, bound: int, what: str) -> int:
        number = self.u32()
        if number >= bound:
            raise PackError(f"names {what} {number} of {bound}")
        return number

    def text(self) -> str:
        try:
            return self.take(self.u32()).decode()
        except UnicodeDecodeError:
            raise PackError("has a text that is no UTF-8") from None

    def several(self, one: Callable[[], T]) -> tuple[T, ...]:
        # An entry has at least 4 bytes: reject an implausible count before allocating.
        return tuple(one() for _ in range(self.u32()))


def index_of(data: bytes, head: Head) -> PackIndex:
    """Parse an index; raises `PackError`."""
    if len(data) != head.index or hashlib.sha256(data).digest() != head.digest:
        raise PackError("is damaged: its index is not what was written")
    reader = _PackReader(data)
    facts = reader.text()
    targets = reader.several(lambda: _target(reader))
    kernels = reader.several(lambda: _kernel(reader, head, len(targets)))
    ops = reader.several(lambda: _entry(reader, targets, kernels))
    if reader.at != len(data):
        raise PackError("has an index with more behind its end")
    return PackIndex(facts, targets, kernels, ops)


def _target(reader: _PackReader) -> Target:
    name, arch = reader.text(), reader.text()
    kind = reader.below(2, "kind")
    number, sm_count, threads, shared, early = (reader.u32() for _ in range(5))
    if not any(c.isdigit() for c in arch) or not 0 < sm_count < 2**16 or not 0 < threads < 2**16:
        raise PackError(f"is for a GPU that there is not, {arch!r}")
    read = Target(Arch(arch, sm_count, threads), kind)
    if (read.name, read.arch.number, read.arch.shared_bytes, read.arch.isa.starts_early) != (
        name,
        number,
        shared,
        early,
    ):
        raise PackError(f"contradicts itself about the GPU {name!r}")
    return read


def _kernel(reader: _PackReader, head: Head, targets: int) -> PackedKernel:
    entry, target = reader.text(), reader.below(targets, "target")
    offset, size = reader.u64(), reader.u64()
    if offset < HEADER.size + head.index or size > head.size or offset > head.size - size:
        raise PackError(f"has the kernel {entry!r} beyond its end")
    return PackedKernel(entry, target, offset, size, reader.take(32))


def _entry(reader: _PackReader, targets: Sequence[Target], kernels: Sequence[PackedKernel]) -> PackEntry:
    name, digest = reader.text(), reader.take(32)
    inputs, outputs, may_alias, on_host = (reader.several(reader.u32) for _ in range(4))
    programs = reader.several(lambda: _stored(reader, targets, kernels))
    return PackEntry(name, digest, inputs, outputs, may_alias, programs, on_host)


def _stored(reader: _PackReader, targets: Sequence[Target], kernels: Sequence[PackedKernel]) -> StoredProgram:
    target, kind = reader.below(len(targets), "target"), reader.below(GENERAL + 1, "flag")
    numbers = reader.several(lambda: reader.below(len(kernels), "kernel"))
    if any(kernels[n].target != target for n in numbers):
        raise PackError("has a launch program with kernels of another GPU")
    variant = reader.text()
    return StoredProgram(target, kind == 1, numbers, reader.take(reader.u32()), variant, kind == GENERAL)


def best(targets: Sequence[Target], arch: Arch) -> int | None:
    """Return the index of the best target for a GPU; None if none fits.

    Kernels of its own architecture, preferably planned for as many multiprocessors; else the latest PTX that it
    supports, if its shared memory suffices for the plans.
    """
    own = [n for n, t in enumerate(targets) if t.kind == CUBIN and t.arch.name == arch.name]
    if own:
        return min(own, key=lambda n: abs(targets[n].arch.sm_count - arch.sm_count))
    later = [
        n
        for n, t in enumerate(targets)
        if t.kind == PTX and t.arch.number <= arch.number and t.arch.shared_bytes <= arch.shared_bytes
    ]
    return max(later, key=lambda n: targets[n].arch.number, default=None)


def sizes(index: PackIndex) -> Mapping[str, tuple[int, int]]:
    """Return the number of kernels of each target, and their bytes."""
    return {
        t.name: (
            sum(k.target == n for k in index.kernels),
            sum({k.digest: k.size for k in index.kernels if k.target == n}.values()),
        )
        for n, t in enumerate(index.targets)
    }
