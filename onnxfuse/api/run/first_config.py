"""A first `onnxfuse.toml`, from the models in a folder."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onnxfuse.contract.config import NAME as NAME
from onnxfuse.files import io
from onnxfuse.model.fused import fused_ops
from onnxfuse.model.overridable import required_inputs
from onnxfuse.support.errors import ModelError, UsageError

SKIPPED = ("node_modules", "site-packages", "__pycache__")
"""Folders that hold models of others; hidden folders are left out, too."""
FUSED = ".fused.onnx"
"""Ends the names of the outputs."""
HEAD = """\
# Requirements for the optimized models: onnxfuse ci checks them, onnxfuse ci --help explains every key.
# After an intended change: onnxfuse ci --update, and commit onnxfuse.lock.
"""
BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A key of TOML that needs no quotes."""


@dataclass(frozen=True)
class FirstConfig:
    """The text of the file, and what was found."""

    text: str
    models: tuple[Path, ...]
    """Models of the file, relative to the folder."""
    left_out: dict[str, str]
    """Other files that end in .onnx, with the reason."""


def first_config(folder: Path) -> FirstConfig:
    """Return a configuration for the models below `folder`, with a commented line for what only their owner knows.

    Raises UsageError if there is none.
    """
    dimensions: dict[Path, list[str]] = {}
    left_out: dict[str, str] = {}
    for path in _files(folder):
        relative = path.relative_to(folder)
        try:
            model = io.outline(path)
        except ModelError as error:
            left_out[str(relative)] = f"{error}"
            continue
        if fused_ops(model):
            left_out[str(relative)] = "already contains fused ops"
            continue
        sizes = [dim for v in required_inputs(model.graph) for dim in v.type.tensor_type.shape.dim]
        dimensions[relative] = [*dict.fromkeys(dim.dim_param for dim in sizes if dim.dim_param)]
    if not dimensions:
        raise UsageError(
            f"{folder}: contains no models to write a configuration for",
            "Export a model, or name the folder that has one.",
        )
    stems = Counter(path.stem for path in dimensions)
    names = {path: path.with_suffix("").as_posix() if stems[path.stem] > 1 else "" for path in dimensions}
    tables = [_table(path, own, names[path]) for path, own in dimensions.items()]
    return FirstConfig("\n".join([HEAD, *tables]), tuple(dimensions), left_out)


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        yield from (Path(parent, name) for name in sorted(files) if name.endswith(".onnx"))


def _table(path: Path, dimensions: list[str], name: str) -> str:
    """Return the table of a model; `dimensions` are the names of its dynamic ones, that of the batch first.

    `name` is empty if that of the file says enough.
    """
    lines = ["[[model]]", f"path = {_string(path.as_posix())}"]
    lines += [f"name = {_string(name)}"] if name else []
    lines += [f"output = {_string(path.with_suffix('').as_posix() + FUSED)}"]
    if dimensions:
        sizes = ", ".join(f"{_key(name)} = {'[1, 8]' if n == 0 else 128}" for n, name in enumerate(dimensions))
        lines += [f"# shapes = {{ {sizes} }}  # the sizes that you serve"]
    lines += ['# precision = "float16"  # nodes that would lose accuracy stay float32']
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if BARE.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
