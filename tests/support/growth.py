"""What stays of a server's sessions and shapes: `python tests/support/growth.py --full` on the stand-in libraries.

Plans are real, functions are stand-ins that compute nothing. Prints the kilobytes of resident memory that each more
session (opened, run, closed) and each more shape (of one open session) leaves behind.
"""

import argparse
import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

CUDA: list[Any] = [("CUDAExecutionProvider", {"arena_extend_strategy": "kNextPowerOfTwo"}), "CPUExecutionProvider"]
"""With an arena that grows in few steps: the stand-in's device memory is the host's, which is measured."""


def resident() -> int:
    """Return the kilobytes of memory that this process has."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def install() -> None:
    """Let plans be real and functions do nothing."""
    from onnxfuse import cuda
    from onnxfuse.cuda import Arch
    from tests.support.stand_in_kernels import HostKernel

    driver = ctypes.CDLL("libcuda.so.1")
    driver.fake_function.restype = ctypes.c_void_p
    callback = HostKernel(lambda arguments: None)
    handle = driver.fake_function(b"nothing", callback)
    loaded = SimpleNamespace(kernel=SimpleNamespace(ptr=handle), callback=callback)
    cuda.load = lambda kernel, device: loaded
    cuda.compile = lambda kernel, arch: b""
    cuda.is_compiled = lambda kernel, device: True
    cuda.arch_of = lambda device: Arch("sm_90a", 132)  # type: ignore[assignment]  # the stand-in of this process


def feeds(rows: int) -> dict[str, np.ndarray]:
    return {"x": np.zeros((rows, 8), np.float32), "b": np.zeros(8, np.float32)}


def of_sessions(count: int) -> list[int]:
    """Return the resident memory after a third, two thirds and all of so many sessions."""
    from onnxfuse import runtime
    from tests.support import fused_models as models

    install()
    marks = []
    for number in range(count):
        session = runtime.session(models.chain(), CUDA)
        session.run(None, feeds(3 + number % 5))
        del session
        if number + 1 in (count // 3, 2 * count // 3, count):
            marks.append(resident())
    return marks


def of_shapes(count: int) -> list[int]:
    """Return the same of so many shapes in one session."""
    from onnxfuse import runtime
    from tests.support import fused_models as models

    install()
    options = onnxruntime.SessionOptions()
    options.enable_mem_pattern = False  # ONNX Runtime keeps one for each shape, 0.3 kB here; what is ours is measured
    session = runtime.session(models.chain(), CUDA, options)
    marks = []
    for number in range(count):
        session.run(None, feeds(1 + number))
        if number + 1 in (count // 3, 2 * count // 3, count):
            marks.append(resident())
    return marks


def sessions() -> Any:
    return of_sessions(200)


def shapes() -> Any:
    return of_shapes(1800)


def main() -> int:
    """Measure one of the two, or each in a process that finds the stand-in libraries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="1,000 sessions and 100,000 shapes; else 200 and 1,800")
    parser.add_argument("--inner", choices=("sessions", "shapes"))
    parser.add_argument("--count", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.inner:
        marks = (of_sessions if arguments.inner == "sessions" else of_shapes)(arguments.count)
        each = (marks[2] - marks[1]) / (arguments.count / 3)
        print(f"{arguments.count} {arguments.inner}: {marks} kB, {each:.2f} kB each in the last third", flush=True)
        os._exit(0)  # the stand-in libraries do not survive ONNX Runtime's tear-down
    built = subprocess.run(
        [sys.executable, ROOT / "tests/support/fake_cuda/build.py"], capture_output=True, text=True, check=True
    )
    environment = os.environ | {"LD_LIBRARY_PATH": built.stdout.strip()}
    for what, few, many in (("sessions", 200, 1000), ("shapes", 1800, 100_000)):
        command = [sys.executable, __file__, "--inner", what, "--count", str(many if arguments.full else few)]
        subprocess.run(command, env=environment, cwd=ROOT, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
