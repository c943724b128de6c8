"""A session in a C++ process: examples/cpp/worker.cpp, built, asked for runs and timed."""

import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx
import onnxruntime

ROOT = Path(__file__).parents[1]
CAPI = Path(onnxruntime.__file__).parent / "capi"
Arrays = Sequence[np.ndarray[Any, Any]]


def build(folder: Path) -> Path:
    """Build examples/cpp against the installed wheel's ONNX Runtime; return the folder of its programs."""
    commands: tuple[list[str | Path], ...] = (
        ["cmake", "-S", ROOT / "examples/cpp", "-B", folder, f"-DONNXRUNTIME={CAPI}"],
        ["cmake", "--build", folder],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return folder


def environment() -> dict[str, str]:
    """Return the environment in which ONNX Runtime's CUDA provider finds the CUDA libraries of the wheels."""
    site = Path(onnxruntime.__file__).parents[1]
    places = (os.environ.get("LD_LIBRARY_PATH"), *map(str, sorted(site.glob("nvidia/*/lib"))), str(CAPI))
    return os.environ | {"LD_LIBRARY_PATH": ":".join(filter(None, places))}


class Worker:
    """The process, which ends with the `with` block. `library`: None is ONNX Runtime alone. `flags`: as it has them."""

    def __init__(
        self, programs: Path, model: Path, library: Path | None, *flags: str, more: dict[str, str] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [programs / "worker", model, library or "-", *flags],
            env=environment() | (more or {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, inputs: Arrays) -> list[np.ndarray[Any, Any]]:
        """Return the outputs for these inputs, in the model's order; they stay bound."""
        parts = [b"r"]
        for array in inputs:
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            parts += [struct.pack(f"<iI{array.ndim}qQ", kind, array.ndim, *array.shape, array.nbytes), array.tobytes()]
        self._ask(b"".join(parts))
        return [self._tensor() for _ in range(self._number("I"))]

    def times(self, runs: int, *, waited: bool = True) -> np.ndarray[Any, Any]:
        """Return the microseconds of so many runs of what was run last; not `waited`: until they are enqueued."""
        self._ask(b"t" + struct.pack("<II", runs, waited))
        return np.frombuffer(self._read(8 * self._number("I")), np.float64)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.communicate()

    def _ask(self, words: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(words)
            self.process.stdin.flush()
        except BrokenPipeError:  # it has said why
            self.process.stdin = None
        if (answer := self._read(1)) != b"k":
            raise RuntimeError(self._read(self._number("Q")).decode() if answer == b"e" else "the worker has ended")

    def _read(self, size: int) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.read(size)

    def _number(self, kind: str) -> int:
        (number,) = struct.unpack(f"<{kind}", self._read(struct.calcsize(f"<{kind}")))
        return int(number)

    def _tensor(self) -> np.ndarray[Any, Any]:
        kind, rank = self._number("i"), self._number("I")
        shape = [self._number("q") for _ in range(rank)]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        return np.frombuffer(self._read(self._number("Q")), dtype).reshape(shape)
