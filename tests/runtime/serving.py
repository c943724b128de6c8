"""examples/cpp, built and run on the stand-in CUDA libraries, with kernels that are functions of the host."""

import os
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime

ROOT = Path(__file__).parents[2]
CAPI = Path(onnxruntime.__file__).parent / "capi"


def build(folder: Path) -> None:
    """Make built/serve, kernels.so, and general.so with the kernels for all shapes."""
    kernels = ["g++", "-O1", "-shared", "-fPIC", ROOT / "tests/runtime/host_kernels.cpp", "-o"]
    built = folder / "built"
    for command in (
        ["cmake", "-S", ROOT / "examples/cpp", "-B", built, f"-DONNXRUNTIME={CAPI}"],
        ["cmake", "--build", built],
        [*kernels, folder / "kernels.so"],
        [*kernels, folder / "general.so", "-DGENERAL"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


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
