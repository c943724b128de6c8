"""Delete external data files that are orphaned when a model is replaced.

Several models may share a file of weights, under any name and in any format, and other tools may use it. So a file is
deleted only if the replaced model read it, it lies in the same folder, and no other file there contains its name.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from onnxfuse.files import external
from onnxfuse.files.outline import outline
from onnxfuse.model.validate import tensors
from onnxfuse.support.errors import ModelError

LARGEST = 2**31
"""Maximum bytes of a protobuf message: larger files are not models, and are not searched."""

AT_ONCE = 1 << 20
"""Bytes per read."""


def read_by(path: Path) -> tuple[Path, ...]:
    """Return the data files of the model currently at `path`; none if it cannot be parsed.

    Links, files with several hard links, and files in subfolders are excluded: others may refer to them. So is a file
    that does not end with the last weight: a model can name any file as its data.
    """
    if not path.is_file():
        return ()
    try:
        light = outline(path)
    except OSError:
        return ()
    if light is None:
        return ()
    ends = dict[str, int]()
    try:
        for tensor in filter(external.is_external, tensors(onnx.ModelProto.FromString(light))):
            name = external.location(tensor)
            ends[name] = max(ends.get(name, 0), external.end_of(tensor))
    except ModelError:
        return ()
    siblings = ((path.with_name(n), end) for n, end in sorted(ends.items()) if n == Path(n).name and n != path.name)
    return tuple(file for file, end in siblings if _is_plain(file) and file.stat().st_size == end)


def removable(files: Sequence[Path], replaced: Sequence[Path] = ()) -> list[Path]:
    """Return the data files whose names occur in no other file of their folder, nor in a model above.

    The model that read them is among the `replaced`, or has been. An unreadable file may contain any name.
    """
    aside = (*files, *replaced)
    return [
        file
        for file in files
        if _is_plain(file) and not any(_holds(other, os.fsencode(file.name)) for other in _around(file, aside))
    ]


def remove(files: Sequence[Path]) -> list[Path]:
    """Delete the data files that are `removable`; return them."""
    removed = []
    for file in removable(files):
        with contextlib.suppress(OSError):  # another user's folder: keep it
            file.unlink()
            removed.append(file)
    return removed


def _is_plain(file: Path) -> bool:
    try:
        return not file.is_symlink() and file.is_file() and file.stat().st_nlink == 1
    except OSError:
        return False


def _around(file: Path, leaving: Sequence[Path]) -> Iterator[Path]:
    yield from (f for f in file.parent.iterdir() if f not in leaving and not f.is_dir())
    for folder in file.resolve().parent.parents:
        with contextlib.suppress(OSError):  # an unreadable folder holds no model of ours
            yield from folder.glob("*.onnx")


def _holds(other: Path, name: bytes) -> bool:
    try:
        if not other.is_file() or other.stat().st_size > LARGEST:
            return False
        # Read, not mapped into memory: another process may cut the file meanwhile, and its pages would be gone.
        with other.open("rb") as opened:
            rest = b""
            while part := opened.read(AT_ONCE):
                rest += part
                if name in rest:
                    return True
                rest = rest[max(0, len(rest) - len(name) + 1) :]
            return False
    except FileNotFoundError:
        return False
    except OSError:
        return True
