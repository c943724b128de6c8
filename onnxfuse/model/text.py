"""Text from files into data: ONNX's syntax, JSON and TOML, of a depth that their readers can bear.

ONNX's parser calls itself for each bracket and ends the process where the stack does; the others raise RecursionError.
"""

import json
import re
import tomllib
from typing import Any

import onnx
import onnx.parser

from onnxfuse.model.errors import ModelError

MOST_BRACKETS = 2000
"""Opening brackets in one text, which bounds their depth whatever the text says: the parser of onnx 1.23 bears 3,000
nested graphs on a stack of 8 MB, and not 10,000; the longest text of ours, an attention, has 300."""


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
        raise ModelError(f"the text opens {opened} brackets, at most {MOST_BRACKETS} are read")
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
