"""Open a CUDA session on the stand-in libraries: `python -m models.survey.stand_ins MODEL.onnx`, 0 where it opens.

And where no fused op of it would run as its body.
"""

import os
import sys
from pathlib import Path

from models.survey.files import SHOWN, failures
from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import H200
from onnxfuse.model.fused import fused_ops
from onnxfuse.verification.report.kernel_counts import kernel_rows, launch_problems
from onnxfuse.verification.run import sessions


def main() -> int:
    """Return 0 where the session opens, and every fused op in it has a kernel or the library's op."""
    import onnx

    path = Path(sys.argv[1])
    # CuPy finds no GPU behind the stand-ins: the plans are those of an H200.
    vars(cuda)["arch_of"] = lambda device: H200
    providers = [sessions.CUDA, sessions.CPU]
    try:
        ops = fused_ops(onnx.load(path))
        if ops:
            # Nothing runs here: that none was called is no problem.
            problems = launch_problems(kernel_rows(sessions.with_kernels(path, providers)), excused=ops)
            if problems:
                print("; ".join(problems)[:SHOWN])
                return 1
        else:
            sessions.ort_session(path, providers)
    except failures() as error:
        print(" ".join(f"{type(error).__name__}: {error}".split())[:SHOWN])
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the stand-ins do not survive ONNX Runtime's tear-down
