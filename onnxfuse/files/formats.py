"""Detect other model formats by their magic bytes, and say how to convert them to ONNX."""

import codecs
import re
from collections.abc import Callable
from typing import NamedTuple

from onnxfuse.support.printable import printable

HEAD = 4096
"""Number of bytes to inspect."""

SHOWN = 60
"""Maximum characters of a text to quote."""


class Format(NamedTuple):
    """A file format that is mistaken for ONNX."""

    what: str
    """Description, completing "is ..."."""
    hint: str
    """How to convert it to ONNX."""


_TORCH = "Export the model that it holds: torch.onnx.export(model, inputs, 'model.onnx')."
_TENSORFLOW = "Convert it: python -m tf2onnx.convert {} --output model.onnx."
_WEIGHTS = "Export the model that reads them: torch.onnx.export(model, inputs, 'model.onnx')."


def _starts(*begins: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(begins)


def _says(word: bytes) -> Callable[[bytes], bool]:
    """Return whether a flatbuffer has the identifier `word`."""
    return lambda head: head[4:8] == word


_NODE_DEF = re.compile(rb"\x0a[\x80-\xff]*[\x00-\x7f]\x0a([\x01-\x7f])([ -~]+?)\x12([\x01-\x7f])([A-Z_][A-Za-z0-9_]+)")
"""First node of a TensorFlow graph, which begins with its name and its operator."""


def _graph_def(head: bytes) -> bool:
    match = _NODE_DEF.match(head)
    return match is not None and len(match[2]) == match[1][0] and len(match[4]) >= match[3][0]


_SAVED_MODEL = re.compile(rb"\x08\x01\x12[\x80-\xff]*[\x00-\x7f]\x0a")
"""Schema 1, and a MetaGraphDef: at its offset ONNX has a tool's name, without line ends."""

KNOWN: tuple[tuple[Callable[[bytes], bool], Format], ...] = (
    (
        _starts(b"version https://git-lfs"),
        Format("a Git LFS pointer, not the file itself", "Fetch it: git lfs pull."),
    ),
    (
        lambda head: head.startswith(b"PK\x03\x04") and b"/data.pkl" in head,
        Format("a PyTorch archive (torch.save, torch.jit.save)", _TORCH),
    ),
    (
        lambda head: head.startswith(b"PK\x03\x04") and b"archive_format" in head,
        Format("a PyTorch archive (torch.export.save)", _TORCH),
    ),
    (_starts(b"PK\x03\x04"), Format("a zip archive", "Unpack it, and give the .onnx file inside.")),
    (_starts(*(b"\x80" + bytes([n]) for n in range(2, 6))), Format("a Python pickle, as torch.save writes it", _TORCH)),
    (_says(b"TFL3"), Format("a TensorFlow Lite model", _TENSORFLOW.format("--tflite FILE"))),
    (
        _says(b"ORTM"),
        Format("a model in ONNX Runtime's own format (.ort)", "Give the .onnx file that it was made of."),
    ),
    (_starts(b"\x89HDF\r\n\x1a\n"), Format("an HDF5 file, as Keras writes it", _TENSORFLOW.format("--keras FILE"))),
    (
        lambda head: _SAVED_MODEL.match(head) is not None,
        Format("a TensorFlow SavedModel", _TENSORFLOW.format("--saved-model FOLDER")),
    ),
    (
        _graph_def,
        Format("a TensorFlow graph", _TENSORFLOW.format("--graphdef FILE --inputs NAME:0 --outputs NAME:0")),
    ),
    (lambda head: head[8:10] == b'{"' and head[5:8] == bytes(3), Format("a safetensors file: weights only", _WEIGHTS)),
    (_starts(b"GGUF"), Format("a GGUF file: weights only", _WEIGHTS)),
    (
        _starts(b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c"),
        Format("compressed", "Unpack it first."),
    ),
)


def recognized(data: bytes) -> Format | None:
    """Return the known format of a file that begins so; None for others.

    >>> recognized(b"GGUF" + bytes(100)).what
    'a GGUF file: weights only'
    """
    return of(data[:HEAD]) or _text(data[:HEAD])


def of(head: bytes) -> Format | None:
    """Return the format identified by magic bytes. Text is not quoted: a model may name any file."""
    return next((other_format for matches, other_format in KNOWN if matches(head)), None)


def _text(head: bytes) -> Format | None:
    """Describe a text file: usually a server's error page in place of the file."""
    try:
        # What is longer may be cut within a letter.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < HEAD)
    except UnicodeDecodeError:
        return None
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not first or not all(letter.isprintable() or letter.isspace() for letter in text):
        return None
    quoted = first if len(first) <= SHOWN else first[: SHOWN - 1] + "…"
    return Format(
        f"text that begins with '{printable(quoted)}'",
        "Is it a server's error page? Download or export the file again.",
    )
