"""examples/cpp, built and run on the stand-in CUDA libraries, with kernels that are functions of the host."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from bench import worker
from bench.worker import CAPI, ROOT

KERNELS = Path(__file__).with_name("host_kernels.cpp")


def build(folder: Path) -> None:
    """Put built/serve, built/worker, kernels.so, and general.so with the kernels for all shapes into a folder.

    They are built once, and kept under a name that changes with their sources.
    """
    sources = [p for p in (*(ROOT / "examples/cpp").iterdir(), KERNELS) if p.suffix in (".cpp", ".h", ".txt")]
    key = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(sources)))
    key.update(f"{CAPI} {onnxruntime.__version__} {os.getuid()}".encode())
    kept = Path(tempfile.gettempdir()) / f"onnxfuse-cpp-{key.hexdigest()[:16]}"
    if not kept.exists():
        unfinished = Path(tempfile.mkdtemp(prefix="onnxfuse-cpp-"))
        _build(unfinished)
        try:
            unfinished.rename(kept)
        except OSError:  # another test process was faster
            shutil.rmtree(unfinished)
    for made in kept.iterdir():
        (folder / made.name).symlink_to(made)


def _build(folder: Path) -> None:
    worker.build(folder / "built")
    for name, more in (("kernels.so", ()), ("general.so", ("-DGENERAL",))):
        command = ["g++", "-O1", "-shared", "-fPIC", KERNELS, "-o", folder / name, *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def image(kernels: Path) -> bytes:
    """Return what the stand-in driver takes as a module of the host's functions."""
    return f"host-kernels:{kernels}\0".encode()


class Served:
    """What a run of the program has said."""

    def __init__(
        self, made: Path, libraries: Path, model: Path, library: Path, *options: str | Path, **more: str
    ) -> None:
        command = [made / "built" / "serve", model, library, *options]
        environment = os.environ | {"LD_LIBRARY_PATH": f"{libraries}:{CAPI}"} | more
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
        self.code, self.error = done.returncode, done.stderr
        *answers, last = done.stdout.splitlines() or [""]
        self.answers = [np.array(a.split(":")[1].split(), np.float32).reshape(_shape(a)) for a in answers]
        self.kilobytes = int(last.split()[-1]) if last else 0


def _shape(answer: str) -> list[int]:
    return list(map(int, answer.split(":")[0].split()))


def expected(rows: int) -> np.ndarray:
    """Return what the model makes of the program's inputs."""
    x = ((np.arange(rows * 8) % 17 - 8) / 8).astype(np.float32).reshape(rows, 8)
    b = (((np.arange(8) + 1) % 17 - 8) / 8).astype(np.float32)
    return -np.tanh(2 * np.maximum(x + b, 0))


def right(served: Served, first: int, count: int = 1) -> bool:
    """Return whether `count` sessions have answered right for as many rows from `first` on."""
    assert served.code == 0, served.error
    return len(served.answers) == count and all(
        np.allclose(a, expected(first + n), atol=1e-6) and a.shape == (first + n, 8)
        for n, a in enumerate(served.answers)
    )
