"""A disk that fills up while a command writes: which file it was is told, and nothing of the call is left."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest

from tests.cli.conftest import MODEL, Command

BESIDE = ("--report", "out/r.html", "--junit", "out/r.xml")
CALLS: dict[str, tuple[str, ...]] = {
    "a model": ("optimize", "in.onnx", "out/m.onnx"),
    "a report": ("optimize", "in.onnx", "out/m.onnx", *BESIDE),
    "a plain model": ("optimize", "--undo", "in.onnx", "out/m.onnx"),
    "a dump": ("optimize", "in.onnx", "m.onnx", "--dump", "out/deep/dump", "--arch", "sm_90a"),
    "inputs": ("verify", "in.onnx", "in.onnx", "--provider", "cpu", "--save-inputs", "out/deep/inputs"),
    "a window": ("verify", "in.onnx", "other.onnx", "--provider", "cpu", "--bisect", "out/deep/window"),
}  # fmt: skip


@contextmanager
def room(size: int) -> Iterator[None]:
    """Let no file be longer than `size` bytes: the system says so where it would say that the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("size", [0, 60])
def test_a_full_disk_is_told_and_leaves_nothing(folder: Path, onnxfuse_command: Command, what: str, size: int) -> None:
    """Exit 3 and the place; what the folder held is there as it was, and no folder was made for nothing."""
    onnx.save(onnx.parser.parse_model(MODEL.replace("Relu", "Neg")), folder / "other.onnx")
    (folder / "out").mkdir()
    (folder / "out" / "m.onnx").write_bytes(b"old")
    call = CALLS[what]
    with room(size):
        done = onnxfuse_command(*call)
    assert (done.code, "File too large" in done.err) == (3, True), done.err
    assert "out/" in done.err
    left = {p.name for p in (folder / "out").rglob("*")} - {"r.xml"}  # which tells why the call failed
    assert left == {"m.onnx"}
    assert (folder / "out" / "m.onnx").read_bytes() == b"old"
