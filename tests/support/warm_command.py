"""A command in a fork of a process that has imported the package: what tests ask of `onnxfuse`, without its start.

    python -I -S warm_command.py SOCKET MODULE ARGUMENTS

runs a module as `python -m MODULE ARGUMENTS` does, with the streams, the folder and the environment of this process,
and ends as it ends; `python -m tests.support.warm_command SOCKET` answers. Imports, LD_LIBRARY_PATH and sitecustomize
are those of the process that answers: tests of these start Python.
"""

import os
import signal
import socket
import sys

STREAMS = (0, 1, 2)
IMPORTED = ("onnxruntime", "pytest", "onnxfuse.measure.benchmark.compare", "onnxfuse.runtime", "onnxfuse.verification")
"""What most commands need, beside the commands themselves."""


def ask(path: str, arguments: list[str]) -> None:
    """Hand over the streams, and end as the command ends."""
    words = [os.getcwd(), *(f"{name}={value}" for name, value in os.environ.items()), "", *arguments]
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [b"!"], STREAMS)
        server.sendall("\0".join(words).encode(errors="surrogateescape"))
        server.shutdown(socket.SHUT_WR)
        code = int(server.recv(16))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def answer(path: str) -> None:
    """Run each command in a fork of this process, several at once, until this process is ended."""
    import gc  # here and below: whoever asks should start fast
    import importlib

    from onnxfuse.options import COMMANDS
    from onnxfuse.rules.language import rule_file

    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    commands = (f"onnxfuse.cli.commands.{name.replace('-', '_')}" for name in COMMANDS)
    for name in (*IMPORTED, *commands):
        importlib.import_module(name)
    rule_file.shipped()
    gc.freeze()  # a fork copies the pages that its garbage collection writes to
    with socket.socket(socket.AF_UNIX) as asked:
        asked.bind(f"{path}.new")
        asked.listen(64)
        os.rename(f"{path}.new", path)
        while True:
            connection, _ = asked.accept()
            _reap()
            if not os.fork():
                asked.close()
                break
            connection.close()
    with connection:
        _, streams, _, _ = socket.recv_fds(connection, 1, len(STREAMS))
        words = b"".join(iter(lambda: connection.recv(2**16), b"")).decode(errors="surrogateescape").split("\0")
        command = os.fork()
        if command:
            for stream in streams:
                os.close(stream)
            connection.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]))
            os._exit(0)
    end = words.index("")
    _become(words[0], dict(word.split("=", 1) for word in words[1:end]), words[end + 1 :], streams)


def _reap() -> None:
    """Wait for the forks that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _become(folder: str, environment: dict[str, str], command: list[str], streams: list[int]) -> None:
    """Let this process be what was asked for, and end as that does."""
    import atexit
    import runpy

    for stream, given in zip(STREAMS, streams, strict=True):
        os.dup2(given, stream)
        os.close(given)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - till the end
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - till the end
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - till the end
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["", *command[1:]]
    code = 0
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        code = end.code or 0
    atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr):
        output.flush()
    os._exit(code & 0xFF)  # the interpreter would take down every module, and copy most pages by that


if __name__ == "__main__":
    if len(sys.argv) > 2:
        ask(sys.argv[1], sys.argv[2:])
    answer(sys.argv[1])
