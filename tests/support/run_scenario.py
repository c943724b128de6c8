"""Run one scenario of a test in this process and write what it returns to a file: `MODULE FUNCTION OUTPUT`."""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path


def main() -> int:
    module, function, output = sys.argv[1:]
    try:
        facts = getattr(importlib.import_module(module), function)()
    except Exception:
        traceback.print_exc()
        return 1
    Path(output).write_text(json.dumps(facts))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # the stand-in CUDA libraries do not survive ONNX Runtime's tear-down
