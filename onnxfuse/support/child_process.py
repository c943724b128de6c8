"""Start a Python process that runs one function of this package, with a connection to it, on every system."""

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def start(serve: Callable[[], None], theirs: Connection, *, kind: type["subprocess.Popen[bytes]"]) -> Any:
    """Start a process of the class `kind` that calls `serve`, a function of a module, and inherits `theirs`.

    Not by `multiprocessing`, which would run the caller's script again. It leads a process group of its own, where the
    system has them.
    """
    code = f"import sys; sys.path[:] = {sys.path!r}; from {serve.__module__} import {serve.__name__} as run; run()"
    handle = theirs.fileno()
    command = [sys.executable, "-c", code, f"{handle}"]
    if os.name != "nt":
        return kind(command, stdin=subprocess.DEVNULL, pass_fds=[handle], process_group=0)
    os.set_handle_inheritable(handle, True)  # type: ignore[attr-defined]  # Windows alone has it
    inherited = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})  # type: ignore[attr-defined]  # Windows alone has it
    return kind(command, stdin=subprocess.DEVNULL, startupinfo=inherited)


def connection() -> Connection:
    """Return the connection to the parent, in a process that `start` started."""
    if os.name != "nt":
        return Connection(int(sys.argv[1]))
    from multiprocessing.connection import PipeConnection  # type: ignore[attr-defined]  # Windows alone has it

    return PipeConnection(int(sys.argv[1]))  # type: ignore[no-any-return]  # Windows alone has it
