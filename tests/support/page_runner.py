"""Runs a page of the documentation: its files are written, its commands must print what the page says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.cli.main import main

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MACHINE = re.compile(r"\b\d+(\.\d+)? (s|ms)\b")
"""Times, which no two runs have in common."""
NUMBER = re.compile(r"\d+\.\d+(e[-+]\d+)?|\d+e[-+]\d+")
"""Errors and times; counts and sizes are equal on every machine."""
EXIT = re.compile(r"^\[exit code (\d+)\]$", re.MULTILINE)


def run(page: Path, folder: Path, capsys: pytest.CaptureFixture[str], toml: str = "") -> int:
    """Run the blocks of a page in order, in `folder`, which is the current one; return how many commands ran.

    Python is executed; TOML is written to the file `toml`; of blocks with "$ " each command runs. A line in brackets
    stands for any lines; errors of `verify` and times are those of a machine.
    """
    names: dict[str, Any] = {}
    count = 0
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            exec(block, names)
        elif language == "toml":
            (folder / toml).write_text(block, encoding="utf-8")
        elif block.startswith("$ "):
            for call in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, expected = call.partition("\n")
                _compared(command, expected, capsys)
                count += 1
    return count


def _compared(command: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)
    code = EXIT.search(expected)
    capsys.readouterr()
    if words[0] == "onnxfuse":
        with pytest.raises(SystemExit) as left:
            main(words[1:])
        found, told = int(left.value.code or 0), capsys.readouterr()
        printed = told.out + told.err
    else:
        words = [sys.executable, *words[1:]] if words[0] == "python" else words
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        }
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        found, printed = done.returncode, done.stdout + done.stderr
    assert found == (int(code[1]) if code else 0), f"{command}: {printed}"
    parts = re.split(r"^\[.*\]$", EXIT.sub("", expected), flags=re.MULTILINE)
    pattern = r"[\s\S]*".join(re.escape(_plain(command, part)) for part in parts)
    assert re.fullmatch(pattern, _plain(command, printed)), f"{command}:\n{printed}"


def _plain(command: str, text: str) -> str:
    """Return what a command prints as it is compared: without figures of the machine, and where they break lines."""
    if command.startswith("onnxfuse verify"):
        return " ".join(NUMBER.sub("#", text).split())
    return "\n".join(MACHINE.sub("#", line).rstrip() for line in text.strip().splitlines())
