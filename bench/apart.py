"""What is measured in processes of their own: with which caches and GPU, and what one plans and compiles.

What can be made ready before anything is timed is: a process prepares, says so, and waits for its turn.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from onnxfuse import cuda
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.launch_plan import LaunchPlan

ORIGINAL, PACKED, EMPTY, CACHED = "original", "fused, kernel pack", "fused, nothing on disk", "fused, caches on disk"


class Counted:
    """Counts the plans and the compilations of this process from here on."""

    def __init__(self) -> None:
        self.planned, self.planning, self.compiled = 0, 0.0, 0
        """Plans, their seconds, and kernels that NVRTC made."""
        plan, build = cuda.plan, nvrtc.build

        def planned(*facts: Any) -> LaunchPlan:
            begun = time.perf_counter()
            made = plan(*facts)
            self.planned += 1
            self.planning += time.perf_counter() - begun
            return made

        def built(*facts: Any, **more: Any) -> tuple[bytes, str]:
            self.compiled += 1
            return build(*facts, **more)

        vars(cuda).update(plan=planned)
        vars(nvrtc).update(build=built)


Turn = Callable[[], None]
"""Called between what prepares and what is timed: it returns when nothing else runs on the machine."""

PREPARED = "-- prepared --"


def at_once() -> None:
    """Take the turn: nobody else wants it."""


_word, _answer = sys.stdin, sys.stdout


def attend() -> None:
    """Keep what goes between this process and the one that began it from its own children: call it first of all.

    They would hold the pipe open when this one has ended. What is printed goes to the standard error from here on.
    """
    global _word, _answer
    _word, _answer = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)


def wait() -> None:
    """Tell the process that began this one that all is prepared, and wait for its word."""
    print(PREPARED, file=_answer, flush=True)
    if not _word.readline():
        sys.exit("what waited for this process has ended")


def leave(found: Any) -> NoReturn:
    """Answer in JSON and end this process with nothing torn down: the libraries of GPUs take long, and can crash."""
    print(json.dumps(found), file=_answer, flush=True)
    os._exit(0)


class Waiting:
    """A process that prepares, waits for its turn (`attend`, `wait`), and answers (`leave`). Begun at once."""

    def __init__(self, command: Sequence[str], gpu: int, **environment: str) -> None:
        self._command = command
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- as long as the process
        self._process = subprocess.Popen(
            command, env=os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)} | environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    def prepared(self) -> None:
        """Return when it waits. Raises ClickException where it has ended instead."""
        assert self._process.stdout is not None
        if all(line.rstrip() != PREPARED for line in iter(self._process.stdout.readline, "")):
            raise self._failed()

    def result(self) -> Any:
        """Let it go on, and return its answer. Raises ClickException where it ends without."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended: how is told below
            self._process.stdin.write("\n")
            self._process.stdin.close()
        answer = self._process.stdout.read()
        if self._process.wait() != 0:
            raise self._failed()
        return json.loads(answer.splitlines()[-1])  # the first one is that it waits, where nobody has read it

    def end(self) -> None:
        """Leave nothing of it, whatever it is at; what waits for it in turn ends by itself."""
        self._process.kill()
        self._process.wait()

    def _failed(self) -> click.ClickException:
        code = self._process.wait()
        self._errors.seek(0)
        return _failed(self._command, code, self._errors.read())


def called(command: Sequence[str], cache: Path, gpu: int) -> str:
    """Return what a command prints; the caches of this machine are in the folder `cache`."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "CUDA_VISIBLE_DEVICES": str(gpu)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _failed(command, done.returncode, done.stderr)
    return done.stdout


def _failed(command: Sequence[str], code: int, errors: str) -> click.ClickException:
    return click.ClickException(f"{' '.join(command[1:4])} ends with {code}:\n{errors[-2000:]}")
