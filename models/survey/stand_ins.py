"""Open a CUDA session on the stand-in libraries: `python -m models.survey.stand_ins MODEL.onnx`, 0 where it opens."""

import os
import sys
from pathlib import Path

from models.survey.checks import ARCHS, SHOWN, failures
from onnxfuse import kernels
from onnxfuse.model.fused import fused_ops
from onnxfuse.verification import sessions


def main() -> int:
    """Return 0 where the session opens."""
    import onnx

    path = Path(sys.argv[1])
    # CuPy finds no GPU behind the stand-ins: the plans are those of an H200.
    h200 = next(a for a in ARCHS if a.name == "sm_90a")
    vars(kernels)["arch_of"] = lambda device: h200
    providers = [sessions.CUDA, sessions.CPU]
    try:
        if fused_ops(onnx.load(path)):
            sessions.with_kernels(path, providers)
        else:
            sessions.plain(path, providers)
    except failures() as error:
        print(" ".join(f"{type(error).__name__}: {error}".split())[:SHOWN])
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the stand-ins do not survive ONNX Runtime's tear-down
