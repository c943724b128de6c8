"""A copy of the package in which a recipe of docs/dev/ADDING.md is carried out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("onnxfuse", "rules", "tests", "models", "bench", "engine", "tools")


def copy_package(to: Path, copied: tuple[str, ...] = ("onnxfuse",)) -> None:
    """Copy the folders that the recipe changes, and link the others.

    What Python has compiled comes along: it is valid for a file of the same time and size, and is made anew for others.
    """
    for name in copied:
        shutil.copytree(ROOT / name, to / name)
    for name in FOLDERS:
        if name not in copied:
            (to / name).symlink_to(ROOT / name)


def told_by_tests(folder: Path, *arguments: str) -> str:
    """Run tests against the copy by pytest's arguments; return what it printed."""
    options = ("-q", "-p", "no:cacheprovider", "-m", "not gpu")
    # Plugins are not looked for: none is needed, and to import them is a third of the start.
    return _run(folder, "-m", "pytest", *options, *arguments, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1").stdout


def run_in_copy(folder: Path, script: str) -> None:
    """Run a Python script against the copy; an AssertionError has what it printed if it fails."""
    done = _run(folder, "-W", "ignore", "-c", script)
    assert done.returncode == 0, done.stderr


def _run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(folder)} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
