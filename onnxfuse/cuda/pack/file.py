"""A kernel pack as a file next to its model: opened without trust, its kernels read on demand."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from onnxfuse.cuda.build import cache
from onnxfuse.cuda.pack.layout import HEADER, Head, PackedKernel, PackError, PackIndex, head_of, index_of
from onnxfuse.files import file_owner

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
        handle = os.open(path, file_owner.READ_UNBLOCKED | (0 if named or links else file_owner.NO_LINK))
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "is a link" if path.is_symlink() else f"cannot be read ({error.strerror})"
        raise PackError(why) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise PackError("is no file")
        if not named and not file_owner.is_mine(status, or_root=True):
            raise PackError("belongs to another user")
        if not named and file_owner.open_to_others(status):
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


_seeking = threading.Lock()


def _read_at(handle: int, size: int, at: int) -> bytes:
    """Return bytes from an offset: without `os.pread`, on Windows, one thread at a time."""
    if hasattr(os, "pread"):
        return os.pread(handle, size, at)
    with _seeking:
        os.lseek(handle, at, os.SEEK_SET)
        return os.read(handle, size)


def _read(handle: int, size: int, at: int) -> bytes:
    parts = []
    while size > 0:
        try:
            part = _read_at(handle, min(size, 1 << 26), at)
        except OSError as error:
            raise PackError(f"cannot be read ({error.strerror})") from None
        if not part:
            break
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)
