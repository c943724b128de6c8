"""onnx's own cases of its operators: a model of one node, inputs and what it gives."""

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache
from typing import Any

from onnx.backend.test.case import node as node_cases

MODULES = sorted(m.name for m in pkgutil.iter_modules(node_cases.__path__))
"""One for each operator, or a few."""


@cache
def cases_of(module: str) -> Sequence[Any]:
    """Return the cases of a module, which writes them into a list when it is imported."""
    before = len(node_cases._NodeTestCases)
    importlib.import_module(f"{node_cases.__name__}.{module}")
    return node_cases._NodeTestCases[before:]
