"""What to do about a model that `ci` failed: the commands that find the cause, ready to be copied."""

from collections.abc import Mapping, Sequence
from typing import Any

from onnxfuse.api.request.settings import active_settings
from onnxfuse.contract.config import ModelEntry
from onnxfuse.options.groups import PROVIDERS
from onnxfuse.options.next_command import next_command
from onnxfuse.verification.report.screen import broken_weights

Facts = Mapping[str, Any]

NODES = 1
"""Maximum number of nodes that are explained: the screen of one fits."""


def next_steps(
    entry: ModelEntry, verified: Facts | None, benched: Facts | None, *, fewer: bool, nodes: Sequence[str]
) -> dict[str, str]:
    """Return a line for each step that failed.

    `fewer`: rules applied less often, or nodes are more, than is required or in the lock; `nodes`: what rules lost.
    """
    failed, steps = f"{entry.name.replace('/', '-')}.failed.onnx", {}
    made_with = _made_with(entry)
    make = next_command("optimize", entry.path, failed, given=made_with)
    run = {**made_with, "shapes": entry.shapes, "providers": PROVIDERS[entry.provider]}
    if verified is not None and verified.get("nan_weights"):
        steps["verify"] = broken_weights(verified["nan_weights"])
    elif verified is not None and verified["verdict"] in ("undecided", "blunt"):
        steps["verify"] = (
            'generated inputs test too little of this model: give real ones, verify = { inputs = ["FILE.npz"] }'
        )
    elif verified is not None and not verified["ok"]:
        report = f"{entry.name.replace('/', '-')}.fault"
        judge = next_command("verify", entry.path, failed, "--bisect", report, given=run)
        steps["verify"] = f"find the fusion or rule at fault: {make} && {judge}"
    if fewer:
        at = [word for node in [*dict.fromkeys(nodes)][:NODES] for word in ("--at", node)] or ["--near"]
        steps["optimize"] = f"see what would help: {explain_command(entry, *at)}"
    if benched is not None and not benched["ok"]:
        missed = next(block for block in benched["blocks"] if block["speedup"] < benched["min_speedup"])
        one = {**run, "shapes": missed["dimensions"]}  # the entry may have several sizes, and shapes of inputs
        profile = next_command("profile", entry.path, failed, given=one)
        steps["bench"] = f"see where the time goes: {make} && {profile}"
    return steps


def explain_command(entry: ModelEntry, *words: str) -> str:
    """Return the command that explains the model as the entry has it made."""
    return next_command("explain", entry.path, *words, given=_made_with(entry))


def _made_with(entry: ModelEntry) -> dict[str, Any]:
    return {**active_settings(), **entry.options, "inputs": entry.inputs}
