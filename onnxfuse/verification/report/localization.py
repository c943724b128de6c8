"""What a bisection found: which fused op or which rule, and the smallest model that shows it."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Suspect:
    """One node of the fused model in the window that is wrong."""

    node: str
    """Its name in the fused model, else its first output."""
    op: str
    """`op_type`."""
    rule: str
    """The rule that fused it; empty for a plain node."""
    nodes: tuple[str, ...]
    """The original nodes that it replaced, as "Op name"; the node itself where it is a plain one."""
    output: str
    """Its first output."""


@dataclass(frozen=True)
class CrashSite:
    """Where a model ends the process that runs it, or breaks the GPU for it."""

    model: str
    """`original` or `fused`; `truth` where neither crashes by itself; empty where it is not known."""
    how: str
    """The signal, CUDA's error, or that it hangs; in words."""
    case: str
    """The inputs: their name and shapes; empty where none were run."""
    step: str
    """What the command was doing."""
    node: Suspect | None
    """The op; None where the crash did not happen again, at the default setting."""
    setting: str = ""
    """The setting of ONNX Runtime, as `bench` calls it; empty at the default one."""

    @property
    def text(self) -> str:
        """The crash in one line."""
        who = f"the {self.model} model" if self.model in ("original", "fused") else "ONNX Runtime"
        who += f" at {self.setting}" * bool(self.setting)
        at = f" on {self.case}" * bool(self.case)
        if self.node is None:
            step = f", at the step '{self.step}'" * bool(self.step)
            again = " at the default setting" * bool(self.setting)
            return f"{who} {self.how}{at}{step}; it did not happen again{again}, so no op can be named"
        rule = f" of rule {self.node.rule}, made of {', '.join(self.node.nodes)}" * bool(self.node.rule)
        what = "fused op " * bool(self.node.rule)
        return f"{who} {self.how}{at}, in {what}{self.node.op} ({self.node.node}){rule}"

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return {"text": self.text, **asdict(self)}


@dataclass(frozen=True)
class Localization:
    """The first part of the fused model, from its inputs on, that does not compute what the original does there."""

    guilty: Suspect | None
    """The one node that is at fault; None where only a rule could be named, or nothing was wrong in parts."""
    rules: tuple[str, ...]
    """The rules that wrote what is wrong: one, or several that wrote it together; empty where none did."""
    why: str
    """How that was decided, in one sentence."""
    fault: str
    """What is wrong with the window's output, as `verify` says it; empty where every window is right."""
    inputs: tuple[str, ...]
    """Values of both models that the window reads."""
    output: str
    """The output of the window that is wrong."""
    window: tuple[Suspect, ...]
    """Every node of the fused model between them that differs from the original."""
    replaced: tuple[str, ...]
    """The nodes of the original between the same values, as "Op name"."""
    checked: int
    """Windows that were looked at; all before the last one are right."""
    folder: str = ""
    """Where the window lies as a bug report; empty where none was asked for."""

    @property
    def text(self) -> str:
        """The finding in one line."""
        if not self.fault:
            return f"no single part leaves the budget ({self.checked} checked): the error adds up over them"
        if self.guilty is not None and self.guilty.rule:
            return f"fused op {self.guilty.op} ({self.guilty.node}) of rule {self.guilty.rule}: {self.fault}"
        if self.rules:
            return f"rule {' with '.join(self.rules)}, at '{self.output}': {self.fault}"
        place = (
            f"{self.guilty.op} ({self.guilty.node})" if self.guilty is not None else f"the part before '{self.output}'"
        )
        return f"{place}, which no rule wrote: {self.fault}"

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return {"text": self.text, **asdict(self)}
