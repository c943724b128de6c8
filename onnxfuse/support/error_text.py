"""Format an exception's text for use inside a message."""

import re


def first_line(error: BaseException) -> str:
    """Return the first informative line of an error's text."""
    return next((line.strip() for line in plainly(error).splitlines() if line.strip()), type(error).__name__)


def plainly(error: BaseException) -> str:
    """Return an error's text without the C++ signatures that ONNX Runtime prepends to CUDA's messages.

    >>> plainly(RuntimeError("/onnxruntime_src/a.cc:154 void Call(const char*) CUDA failure 2: out of memory ; GPU=0"))
    'CUDA failure 2: out of memory ; GPU=0'
    """
    return re.sub(r"/onnxruntime_src/.*?(?=\bCU[A-Z]+ failure \d+: )", "", f"{error}", flags=re.DOTALL)
