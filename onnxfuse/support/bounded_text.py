"""Parse ONNX text, JSON and TOML from untrusted files, with a bounded nesting depth.

ONNX's parser recurses once per bracket and ends the process on stack overflow; the others raise RecursionError.
"""

import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import onnx
import onnx.parser

from onnxfuse.support.errors import ModelError
from onnxfuse.support.plurals import plural

MOST_BRACKETS = 2000
"""Opening brackets in one text, which bounds their depth whatever the text says: the parser of onnx 1.23 bears 3,000
nested graphs on a stack of 8 MB, and not 10,000; the longest text of ours, an attention, has 300."""

MOST_BYTES = 1 << 31
"""Of a file that is read whole: the longest are inputs."""


def read_file(path: Path) -> bytes:
    """Return what is in a file that somebody else may have put there.

    Raises OSError as opening does, ValueError for what is too long, or no regular file: a device does not end, a pipe
    may never begin, and some of the system's files do not say how long they are.
    """
    known = os.stat(path)
    if not stat.S_ISREG(known.st_mode):
        raise ValueError("is no regular file")
    if known.st_size > MOST_BYTES:
        raise ValueError(f"is longer than {MOST_BYTES >> 30} GB")
    with path.open("rb") as file:
        data = file.read(known.st_size + 1)
    if len(data) > known.st_size:
        raise ValueError("is longer than the system says")
    return data


def read_text(path: Path) -> str:
    """Return the text in a file; raises as `read_file`, and ValueError for what is no UTF-8."""
    return read_file(path).decode("utf-8")


def parse_function(text: str) -> onnx.FunctionProto:
    """Return the function in ONNX's syntax. Raises ModelError with the fact alone: the caller knows where."""
    function: onnx.FunctionProto = _parsed(onnx.parser.parse_function, text)
    return function


def parse_model(text: str) -> onnx.ModelProto:
    """Return the model in ONNX's syntax; raises as `parse_function`."""
    model: onnx.ModelProto = _parsed(onnx.parser.parse_model, text)
    return model


def _parsed(parse: Any, text: str) -> Any:
    opened = sum(text.count(bracket) for bracket in "(<[{")
    if opened > MOST_BRACKETS:
        raise ModelError(f"the text opens {plural(opened, 'bracket')}, at most {MOST_BRACKETS} are read")
    if "\0" in text:
        raise ModelError("the text holds a NUL character")
    try:
        return parse(text)
    except onnx.parser.ParseError as error:
        raise ModelError(_words(error)) from None
    except (IndexError, RuntimeError, ValueError) as error:  # onnx 1.23: what its number readers throw, 'stoll'
        raise ModelError(f"a number of the text is outside of what its type can hold ({error})") from None


def _words(error: Exception) -> str:
    """Return what the parser expected, and near what."""
    raw = error.args[0]
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
    context = re.search(r"Error context: (.*)", text)
    expected = next(reversed(text.strip().splitlines()), "it is no ONNX text")
    return f"{expected} Near: {context.group(1).strip()}" if context else expected


def read_json(text: str) -> Any:
    """Return what the JSON text holds. Raises ValueError, also where it nests deeper than Python's reader can."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def read_toml(text: str) -> dict[str, Any]:
    """Return what the TOML text holds. Raises ValueError, also for too deep nesting."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
