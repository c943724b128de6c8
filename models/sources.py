"""Which commit the sources are of, for what is measured with them."""

import subprocess
from collections.abc import Collection
from pathlib import Path

from onnxfuse.support.errors import UsageError

ROOT = Path(__file__).parents[1]


def commit_of(written: Collection[str] = ()) -> str:
    """Return the abbreviated commit of the sources, with "+" where they differ from it. Raises UsageError.

    `written` are files that the measurement itself writes: they make no other state of the sources.
    """
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        excluded = [f":!{name}" for name in written]
        status = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", *excluded]
        changed = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        raise UsageError("the sources are no clone: their commit is not known", "Give it: --commit HASH") from None
    return f"{head}+" if changed else head
