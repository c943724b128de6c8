"""The operators of ONNX: one entry each, with the traits that passes, templates, reference and profiler ask for.

`ops.Transpose` is an operator's entry and its name in one.
"""

from onnxfuse.ops import (
    attention,
    contraction,
    contrib,
    control_flow,
    elementwise,
    generate,
    movement,
    quantize,
    recurrent,
    reduction,
    select,
    text,
    window,
)
from onnxfuse.ops.attention import *
from onnxfuse.ops.contraction import *
from onnxfuse.ops.contrib import *
from onnxfuse.ops.control_flow import *
from onnxfuse.ops.elementwise import *
from onnxfuse.ops.generate import *
from onnxfuse.ops.movement import *
from onnxfuse.ops.quantize import *
from onnxfuse.ops.recurrent import *
from onnxfuse.ops.reduction import *
from onnxfuse.ops.registry import Operator as Operator
from onnxfuse.ops.registry import Trait as Trait
from onnxfuse.ops.registry import registry
from onnxfuse.ops.select import *
from onnxfuse.ops.text import *
from onnxfuse.ops.window import *

ENTRIES = registry(
    attention, contraction, contrib, control_flow, elementwise, generate, movement, quantize, recurrent, reduction,
    select, text, window,
)  # fmt: skip
"""All entries by (domain, operator), the default domain as ""."""


def operator(name: str, domain: str = "") -> Operator | None:
    """Return the entry of an operator, None for one that has none."""
    return ENTRIES.get((domain if domain != "ai.onnx" else "", name))


def named(*traits: Trait) -> frozenset[str]:
    """Return the operators of the default domain that have any of these traits."""
    return frozenset(name for (domain, name), one in ENTRIES.items() if not domain and one.traits & {*traits})
