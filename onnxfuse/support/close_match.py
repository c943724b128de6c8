"""Spelling suggestions: the closest known word to a misspelled one."""

import difflib
import os
from collections.abc import Collection
from pathlib import Path

ALIKE = 0.6
"""Minimum similarity ratio of a suggestion: at one half `einsum` would be suggested for `nosuch`."""


CONSIDERED = 10
"""Number of the closest names of files that are compared without their suffixes."""


def did_you_mean(word: str, words: Collection[str]) -> str:
    """Return " Did you mean X?" for the known word closest to `word`, or "" if none is close."""
    matches = difflib.get_close_matches(word, sorted(words), n=1, cutoff=ALIKE)
    return f" Did you mean {matches[0]}?" if matches else ""


def hint_for_missing(model: Path) -> str:
    """Return what to do about a model that is not there: an address is downloaded first, any other path checked."""
    is_address = model.parts[:1] in (("http:",), ("https:",), ("hf:",), ("s3:",), ("gs:",))
    return "Download it first: onnxfuse reads files, no addresses." if is_address else "Check the path."


def no_such_file(path: Path, what: str = "file") -> str:
    """Return that `path` does not exist, with the folder that is missing, or else the closest name beside it."""
    folder = path.parent
    if not os.path.isdir(folder):
        return f"{path}: no such {what}: there is no folder {folder}"
    try:
        names = {entry.name for entry in os.scandir(folder) if entry.name != path.name}
    except OSError:
        names = set()
    # Without the suffixes, too: in .onnx short names are alike already.
    near = [
        name
        for name in difflib.get_close_matches(path.name, sorted(names), n=CONSIDERED, cutoff=ALIKE)
        if difflib.SequenceMatcher(None, path.stem, Path(name).stem).ratio() >= ALIKE
    ]
    return f"{path}: no such {what}" + (f". Did you mean {folder / near[0]}?" if near else "")
