"""Runs scenarios of tests, each in a fork of this process: what they all import is imported once.

Reads a request a line, `{"module", "function", "output", "stderr", "environment"}`, and writes how its process ended.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from onnxfuse.rules.language import rule_file

IMPORTED = (
    "hypothesis", "numpy", "onnx.reference.ops", "onnxruntime", "pytest", "onnxfuse.cuda", "onnxfuse.passes.pipeline",
    "onnxfuse.runtime", "onnxfuse.verification", "tests.support.fused_models", "tests.support.stand_in_kernels",
)  # fmt: skip
"""What most scenarios need: none of it looks for a GPU before it is asked."""


def run(request: dict[str, Any]) -> int:
    """Run a scenario in this process and write what it returns to a file; return the exit code."""
    os.environ.clear()
    os.environ.update(request["environment"])
    errors = os.open(request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream, instead in ((0, nothing), (1, nothing), (2, errors)):
        os.dup2(instead, stream)
    try:
        facts = getattr(importlib.import_module(request["module"]), request["function"])()
    except Exception:  # as a process of its own would end: the traceback on its standard error, exit code 1
        traceback.print_exc()
        return 1
    Path(request["output"]).write_text(json.dumps(facts))
    return 0


def main() -> None:
    """Run what is asked for until nobody asks any more."""
    for name in IMPORTED:
        importlib.import_module(name)
    rule_file.shipped()
    for line in sys.stdin:
        request = json.loads(line)
        with contextlib.suppress(Exception):  # the fork imports it again, and reports what is wrong
            importlib.import_module(request["module"])
        gc.freeze()  # a fork copies the pages that its garbage collection writes to
        child = os.fork()
        if not child:
            code = run(request)
            sys.stderr.flush()
            os._exit(code)  # the stand-in CUDA libraries do not survive ONNX Runtime's tear-down
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
