"""The kernel templates, one folder each with planner and CUDA source, declared in the folder's `template.py`."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxfuse.cuda.planning.template import Template


@cache
def every() -> "Mapping[str, Template]":
    """Return the templates declared by the folders here, by name, in descending priority."""
    folders = sorted(file.parent.name for file in Path(__file__).parent.glob("*/template.py"))
    templates = [t for folder in folders for t in import_module(f"{__name__}.{folder}.template").TEMPLATES]
    return {t.name: t for t in sorted(templates, key=lambda t: t.order)}
