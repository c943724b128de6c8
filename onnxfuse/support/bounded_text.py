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
"""Maximum opening brackets in one text, an upper bound of its nesting depth: the parser of onnx 1.23 handles 3,000
nested graphs on a stack of 8 MB, and not 10,000; the longest shipped text, an attention, has 300.
"""

MOST_BYTES = 1 << 31
"""Maximum bytes of a file that is read whole: the longest are inputs."""


def read_file(path: Path) -> bytes:
    """Return the contents of an untrusted file.

    Raises OSError like opening does, ValueError for a file that is too long, or not regular: a device is endless, a
    pipe may block forever, and some system files do not report their size.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("is not a regular file")
    if status.st_size > MOST_BYTES:
        raise ValueError(f"is longer than {MOST_BYTES >> 30} GB")
    with path.open("rb") as file:
        data = file.read(status.st_size + 1)
    if len(data) > status.st_size:
        raise ValueError("is longer than the system says")
    return data


def read_text(path: Path) -> str:
    """Return the text in a file; raises like `read_file`, and ValueError for invalid UTF-8."""
    return read_file(path).decode("utf-8")


def parse_function(text: str) -> onnx.FunctionProto:
    """Return the function in ONNX's syntax. Raises ModelError without a location: the caller adds it."""
    function: onnx.FunctionProto = _parsed(onnx.parser.parse_function, text)
    return function


def parse_model(text: str) -> onnx.ModelProto:
    """Return the model in ONNX's syntax; raises like `parse_function`."""
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
    except (IndexError, RuntimeError, ValueError) as error:  # onnx 1.23: its number parsers throw 'stoll'
        raise ModelError(f"a number of the text is outside of what its type can hold ({error})") from None


def _words(error: Exception) -> str:
    """Return what the parser expected, and near which text."""
    raw = error.args[0]
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
    context = re.search(r"Error context: (.*)", text)
    expected = next(reversed(text.strip().splitlines()), "it is not ONNX text")
    return f"{expected} Near: {context.group(1).strip()}" if context else expected


def read_json(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError, also if it nests deeper than Python's parser supports."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def read_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text. Raises ValueError, also for excessive nesting."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
