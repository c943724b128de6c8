"""The engine for arm64 (Grace, Jetson, DGX Spark), built by a cross compiler and run by qemu.

Its `char` has no sign, and a compiler for it may contract a product and a sum to one rounding.
"""

import hashlib
import os
import re
import runpy
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.cases import products, rows
from bench.cases.ops import HALF
from onnxfuse.cuda.launch_programs.tape import NUMBERS
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.engine.bridge import LIBRARY
from tests.support.kernels import programs
from tests.unit.runtime.kernels.test_programs import H200, operations, program

ROOT = Path(__file__).parents[4]
DRIVER = ROOT / "tests" / "support" / "evaluate_tapes.c"
CROSS, QEMU = "aarch64-linux-gnu-g++", "qemu-aarch64"

pytestmark = pytest.mark.skipif(
    not (shutil.which(CROSS) and shutil.which(QEMU)), reason=f"no {CROSS} or no {QEMU} (qemu-user) here"
)


@pytest.fixture(scope="module")
def arm64() -> Path:
    """The folder of the engine and of the program that reads tapes, for arm64: built once, kept by their sources."""
    sources = sorted([DRIVER, ROOT / "setup.py", *(ROOT / "engine").iterdir()])
    key = hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]
    kept = Path(tempfile.gettempdir()) / f"onnxfuse-aarch64-{key}-{os.getuid()}"
    if not kept.exists():
        unfinished = Path(tempfile.mkdtemp(prefix="onnxfuse-aarch64-"))
        facts: dict[str, Any] = {}
        setuptools = pytest.importorskip("setuptools")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(ROOT)
            patch.setattr(setuptools, "setup", facts.update)
            engine = runpy.run_path("setup.py")["engine"]
        library = unfinished / LIBRARY.name
        options = [*engine.extra_compile_args, "-fPIC", "-shared", *engine.sources, *engine.extra_link_args]
        subprocess.run([CROSS, *options, "-o", library], cwd=ROOT, check=True)
        build(CROSS, unfinished / "evaluate", library)
        unfinished.rename(kept)
    return kept


def build(compiler: str, target: Path, library: Path) -> None:
    """Build the program that reads tapes against an engine."""
    # By its name, not its path: it is found beside the program, wherever both are moved.
    linked = [f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,$ORIGIN:{library.parent}"]
    options: list[str | Path] = ["-x", "c", DRIVER, "-x", "none", f"-I{ROOT / 'engine'}", *linked]
    subprocess.run([compiler.replace("g++", "gcc"), "-std=c11", "-Wall", "-Werror", *options, "-o", target], check=True)


def words(tape: bytes, kernels: int, shapes: Sequence[Sequence[int]]) -> bytes:
    """Return a case as the program reads it."""
    extents = [n for shape in shapes for n in (len(shape), *shape)]
    padded = tape + bytes(-len(tape) % 8)
    return struct.pack("<Q", len(tape)) + padded + struct.pack(f"<{2 + len(extents)}q", kernels, len(shapes), *extents)


def cases() -> Iterator[bytes]:
    """Yield each operation with odd numbers; programs of products and rows, with shapes inside and outside of them."""
    for name in NUMBERS:
        yield from (words(tape, 1, [()]) for _, tape in operations(name))
    bodies: list[tuple[FusedOp, Sequence[tuple[int, ...]]]] = [products.case(products.GELU, HALF, (2, 33), 3072, 768)]
    bodies += [(case.op(HALF), case.small) for _, case in sorted(rows.TEMPLATES.items())]
    for op, given in bodies:
        shapes = tuple(map(tuple, given))
        family = programs.agrees(op, shapes, True, H200)
        if family.kernels:
            tape = program(family).tape
            yield from (words(tape, len(family.kernels), s) for s in (shapes, *programs.others(shapes, 6)))


def test_launch_programs_answer_as_on_this_machine(arm64: Path, tmp_path: Path) -> None:
    """To the last bit, integers and reals alike, but for the bits of a NaN."""
    build("g++", tmp_path / "evaluate", LIBRARY)
    asked = [*cases()]
    native: list[str | Path] = [tmp_path / "evaluate"]
    qemu: list[str | Path] = [QEMU, "-L", "/usr/aarch64-linux-gnu", arm64 / "evaluate"]
    here, there = (
        subprocess.run(command, input=b"".join(asked), capture_output=True, check=True).stdout.decode().splitlines()
        for command in (native, qemu)
    )
    assert len(here) == len(there) == len(asked)
    assert sum("grid" in line for line in here) > len(asked) / 2
    nan = re.compile(r"\b000000000000f8[7f]f\b")
    assert [nan.sub("nan", line) for line in there] == [nan.sub("nan", line) for line in here]
