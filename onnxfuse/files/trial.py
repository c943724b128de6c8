"""Trial form of a written model: what is opened for checking before the model replaces its target, at little cost."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import onnx

from onnxfuse.files import external
from onnxfuse.files.atomic_write import as_model_error, temporary
from onnxfuse.files.outline import outline

Opens = Callable[[Path], None]
"""Raises ModelError for a written file that ONNX Runtime should load but does not."""

DIRECT = 1 << 26
"""Maximum bytes of a file that is opened directly. ONNX Runtime copies weights inside the file: 1.9 GB take 2.6 s and
1.9 GB of memory. References into a file are memory-mapped: 0.01 s and none (two cores, 2026-11).
"""


def is_utf8(path: Path) -> bool:
    """Return whether a path is valid UTF-8: only then can a model refer to it, and ONNX Runtime open it by name."""
    return not any("\udc80" <= letter <= "\udcff" for letter in f"{path}")


def opened_whole(written: Path, path: Path, opens: Opens) -> None:
    """Run `opens` on the file written for `path`, with its weights; on an outline of it if it is long."""
    long = written.stat().st_size > DIRECT and is_utf8(Path(written.name))  # a model cannot refer to another file
    light = outline(written) if long else None
    if light is None:
        opens(written)
        return
    with temporary(path) as (file, name):
        file.write(light)
        file.flush()
        opens(name)


def opened_with_data(light: onnx.ModelProto, path: Path, location: str, data: Path, opens: Opens) -> None:
    """Run `opens` on the model for `path`, whose data file is called `data` until it is `location`."""
    external.name_data(light, data.name, location)
    try:
        with temporary(path) as (file, name):
            file.write(light.SerializeToString(deterministic=True))
            file.flush()
            opens(name)
    finally:
        external.name_data(light, location, data.name)


@contextlib.contextmanager
def spooled(write: Callable[[BinaryIO], None], opens: Opens) -> Iterator[Callable[[BinaryIO], None]]:
    """Yield a function that forwards the model written by `write` after it was opened: a stream cannot be undone."""
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
        name = Path(folder) / "out.onnx"
        with as_model_error(name), name.open("w+b") as file:
            write(file)
            file.flush()
            opened_whole(name, name, opens)

        def send(stream: BinaryIO) -> None:
            with name.open("rb") as file:
                shutil.copyfileobj(file, stream)

        yield send
