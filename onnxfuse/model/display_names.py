"""Operators, kernels and nodes as text, for tables, graphs and charts."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import onnx

from onnxfuse.ops import Trait, named

MOVES = named(Trait.KEEPS_ELEMENTS, Trait.CASTS)
"""Operators that say little about what a body computes."""


def short(operators: Sequence[str], limit: int = 4) -> str:
    """Return operators as a title: equal adjacent ones counted; if too many, computing operators come first."""
    words = [_word(op, n) for op, n in _runs(operators)]
    if len(words) <= limit:
        return " + ".join(words)
    telling = [op for op in operators if op not in MOVES] or list(operators)
    runs = list(itertools.islice(_runs(telling), limit - 1))
    remaining = len(operators) - sum(n for _, n in runs)
    return " + ".join([*(_word(op, n) for op, n in runs), f"{remaining} more"])


def _runs(operators: Iterable[str]) -> Iterator[tuple[str, int]]:
    return ((op, sum(1 for _ in group)) for op, group in itertools.groupby(operators))


def _word(op: str, count: int) -> str:
    return op if count == 1 else f"{count} {op}"


def plain_name(kernel: str) -> str:
    """Return a kernel's name without C++ decorations: return type, template arguments, parameters."""
    plain = kernel.removeprefix("void ").partition("<")[0].partition("(")[0]
    return plain if plain.strip() else kernel


def as_line(node: onnx.NodeProto) -> str:
    """Return a node as one line of ONNX text, without its provenance."""
    plain = onnx.NodeProto(op_type=node.op_type, input=node.input, output=node.output, attribute=node.attribute)
    text: str = onnx.printer.to_text(plain)
    return text.strip()
