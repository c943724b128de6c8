"""User pins: find the nodes that the user wants in float32, by name or pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from onnxfuse.precision.plan import FloatNode
from onnxfuse.precision.scopes import called
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import UsageError

OPTION = "--keep-fp32"


def of(float_nodes: Mapping[str, FloatNode], words: Sequence[str]) -> dict[str, str]:
    """Return the nodes by first output, each with the reason for staying float32.

    A pin is the name of a node, of one of its outputs, an operator, or a pattern with * and ? of any of these. Raises
    UsageError for one that matches no node with float32 values.
    """
    names = {key: {called(p.node), p.node.op_type, *p.node.output} - {""} for key, p in float_nodes.items()}
    every = set().union(*names.values())
    pinned: dict[str, str] = {}
    for word in words:
        keys = [k for k, of_it in names.items() if word in of_it]
        keys = keys or [k for k, of_it in names.items() if any(fnmatchcase(name, word) for name in of_it)]
        if not keys:
            raise UsageError(
                f"{OPTION} {word}: no node that computes with float32 has that name, gives that value or is that "
                f"operator.{did_you_mean(word, every)}",
                "Names are those that explain prints, and those of the model; * and ? stand for any letters.",
            )
        for key in keys:
            pinned.setdefault(key, f"{OPTION} {word} says so")
    return pinned
