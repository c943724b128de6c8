"""Make this process look like one on Windows: without the modules and functions that only POSIX systems have.

python -m tests.support.without_posix CODE
"""

import os
import signal
import sys

MODULES = ("fcntl", "resource", "termios", "pwd", "grp")
FUNCTIONS = (
    "fork", "forkpty", "register_at_fork", "geteuid", "getuid", "pread", "killpg", "sched_getaffinity", "mkfifo",
    "O_NONBLOCK", "O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "RTLD_NOLOAD",
)  # fmt: skip
SIGNALS = ("SIGPIPE", "SIGHUP", "SIGALRM")


def remove_posix() -> None:
    """Block the modules, and delete the functions; the standard library has what it needs of them already."""
    import shutil
    import subprocess
    import tempfile
    from multiprocessing import connection

    assert subprocess
    assert tempfile
    assert connection
    vars(shutil)["_use_fd_functions"] = False  # as on Windows: the other way opens folders
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # what makes an import fail
    for name in FUNCTIONS:
        delattr(os, name)
    for name in SIGNALS:
        delattr(signal, name)


if __name__ == "__main__":
    remove_posix()
    exec(compile(sys.argv[1], "<code>", "exec"))
