"""A kernel pack as a file next to its model: opened without trust, its kernels read on demand."""

from __future__ import annotations

import hashlib
import os
import stat
import weakref
from dataclasses import dataclass
from pathlib import Path

from onnxfuse.cuda.build import cache
from onnxfuse.cuda.pack.layout import HEADER, Head, PackedKernel, PackError, PackIndex, head_of, index_of

SUFFIX = ".kernels"

TRUST = "onnxfuse compile {} --trust-pack"
"""Command that lets sessions use the pack next to a model."""


def pack_path_of(model: Path) -> Path:
    """Return the path of the pack of a model's file."""
    return model.with_name(f"{model.name}{SUFFIX}")


@dataclass(frozen=True)
class KernelPack:
    """An open pack. Replacing its file does not affect it."""

    path: Path
    handle: int
    head: Head
    index: PackIndex

    def image(self, kernel: PackedKernel) -> bytes:
        """Return a compiled kernel; raises `PackError` if it is damaged."""
        data = _read(self.handle, kernel.size, kernel.offset)
        if hashlib.sha256(data).digest() != kernel.digest:
            raise PackError(f"is damaged: the kernel {kernel.entry} is not what was written")
        return data


def opened(path: Path, *, named: bool, links: bool = False) -> KernelPack:
    """Open the pack in a file; raises `PackError` for an invalid one, FileNotFoundError if there is none.

    Kernels are machine code: unless the user has `named` the file, it must not be a link (where links are not
    followed), must be owned by the user or root, must not be world-writable, and must have been compiled here or
    trusted once by the user: whoever unpacks a stranger's model owns its files.
    """
    try:
        # Opening a FIFO would block.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if named or links else os.O_NOFOLLOW))
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "is a link" if path.is_symlink() else f"cannot be read ({error.strerror})"
        raise PackError(why) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise PackError("is no file")
        if not named and status.st_uid not in (os.geteuid(), 0):
            raise PackError("belongs to another user")
        if not named and status.st_mode & stat.S_IWOTH:
            raise PackError("can be written by anyone")
        head = head_of(_read(handle, HEADER.size, 0), status.st_size)
        if not named and not cache.trusts_pack(head.digest.hex()):
            trusted = TRUST.format(f"{path}".removesuffix(SUFFIX))
            raise PackError(
                f"was not compiled here. Where you trust who did, say once: {trusted}; or name it, kernels="
            )
        pack = KernelPack(path, handle, head, index_of(_read(handle, head.index, HEADER.size), head))
        weakref.finalize(pack, os.close, handle).atexit = False
        return pack
    except BaseException:
        os.close(handle)
        raise


def trust(path: Path) -> KernelPack:
    """Let sessions use the pack with this content from now on, and return it; raises as `opened`."""
    pack = opened(path, named=True)
    cache.trust_pack(pack.head.digest.hex())
    return pack


def _read(handle: int, size: int, at: int) -> bytes:
    parts = []
    while size > 0:
        try:
            part = os.pread(handle, min(size, 1 << 26), at)
        except OSError as error:
            raise PackError(f"cannot be read ({error.strerror})") from None
        if not part:
            break
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)
