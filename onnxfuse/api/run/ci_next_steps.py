"""What to do about a model that `ci` failed: the commands that find the cause, ready to be copied."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from onnxfuse.contract.config import ModelEntry
from onnxfuse.options.functions import VerifyRun
from onnxfuse.options.groups import Optimizing, Rules
from onnxfuse.options.schema import part, written_out

Facts = Mapping[str, Any]

NODES = 1
"""Maximum number of nodes that are explained: the screen of one fits."""


def next_steps(
    entry: ModelEntry, verified: Facts | None, benched: Facts | None, *, fewer: bool, nodes: Sequence[str]
) -> dict[str, str]:
    """Return a line for each step that failed.

    `fewer`: rules applied less often, or nodes are more, than is required or in the lock; `nodes`: where rules stopped.
    """
    path, steps = shlex.quote(str(entry.path)), {}
    rules = written_out(Rules, part(Rules, entry.options))
    if verified is not None and verified["verdict"] in ("undecided", "blunt"):
        steps["verify"] = (
            'generated inputs test too little of this model: give real ones, verify = { inputs = ["FILE.npz"] }'
        )
    elif verified is not None and not verified["ok"]:
        failed = shlex.quote(f"{entry.name.replace('/', '-')}.failed.onnx")
        report = shlex.quote(f"{entry.name.replace('/', '-')}.fault")
        made = {**entry.options, "inputs": entry.inputs if entry.options.get("precision") else ()}
        compared = {**part(Rules, entry.options), "inputs": entry.inputs}
        steps["verify"] = (
            f"find the fusion or rule at fault: onnxfuse optimize {path} {failed}{written_out(Optimizing, made)} && "
            f"onnxfuse verify {path} {failed}{written_out(VerifyRun, compared)}{_sizes(entry)} --bisect {report}"
        )
    if fewer:
        also = "".join(f" --also {rule}" for rule in entry.options.get("also", ()))
        at = "".join(f" --at {shlex.quote(node)}" for node in [*dict.fromkeys(nodes)][:NODES]) or " --near"
        steps["optimize"] = f"see what would help: onnxfuse explain {path}{at}{also}{rules}"
    if benched is not None and not benched["ok"]:
        steps["bench"] = f"see where the time goes: onnxfuse profile {path}{rules}{_sizes(entry, first=True)}"
    return steps


def _sizes(entry: ModelEntry, *, first: bool = False) -> str:
    """Return the sizes of the entry's dimensions; `first`: one of each, for a command that runs one."""
    return "".join(
        f" --shape {shlex.quote(name)}={','.join(map(str, sizes[:1] if first else sizes))}"
        for name, sizes in entry.shapes.items()
    )
