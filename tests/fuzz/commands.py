"""A command in this process, and what it must not do: fail by a fault of its own, leave files, print raw controls."""

import contextlib
import io
import os
import re
import unicodedata
from pathlib import Path

from onnxfuse.cli.main import main

EXPECTED = frozenset({0, 1, 2, 3, 4, 5})
"""Exit codes that are an answer."""


class FaultError(Exception):
    """What a mutant brought to light; its words name the class."""


def run(*arguments: str, leaves: tuple[str, ...] = ()) -> int:
    """Return the exit code of a command. Raises FaultError for a traceback, raw controls, and files beyond `leaves`."""
    before = set(os.listdir("."))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*arguments, "--traceback"])
            code: object = 0
        except SystemExit as left:
            code = left.code
    told = out.getvalue() + err.getvalue()
    if code not in EXPECTED:
        raise FaultError(f"traceback: {place(err.getvalue())}")
    raw = next((c for c in told if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"), None)
    if raw is not None:
        raise FaultError(f"{arguments[0]} printed the control character {raw!r}")
    if re.search(r"^::", told, re.MULTILINE):
        raise FaultError(f"{arguments[0]} printed a workflow command")
    strays = set(os.listdir(".")) - before - (set(leaves) if code == 0 else set())
    if strays:
        raise FaultError(f"{arguments[0]} left {sorted(strays)} with exit {code}")
    return int(str(code))


def place(text: str) -> str:
    """Return the innermost place of our own in a traceback, and the exception's last line."""
    frames = re.findall(r'File "[^"]*/onnxfuse/(onnxfuse/[^"]*|[^"]*)", line (\d+), in (\w+)', text)
    ours = re.findall(
        r'File "[^"]*/(onnxfuse/(?:cli|model|rewrite|kernels|runtime|verification|profiling|contract|'
        r'reporting|tuning|benchmark)/[^"]*)", line (\d+), in (\w+)',
        text,
    )
    found = ours or frames
    last = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception|Warning|Interrupt)?\b.*", line)]
    error = next((line for line in last if re.match(r"[A-Za-z_.]+(Error|Exception|Exit|Iteration)\b", line)), "")
    return f"{':'.join(found[-1]) if found else '?'} {error.split(':')[0]} | {error.partition(':')[2][:100]}"


def empty(folder: Path) -> None:
    """Make `folder` the current one, without files."""
    import shutil

    os.chdir(folder)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
