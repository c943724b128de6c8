"""Result of a bisection: the fused op or rule at fault, and the smallest model that reproduces it."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Suspect:
    """One node of the fused model in the faulty window."""

    node: str
    """Its name in the fused model, else its first output."""
    op: str
    """`op_type`."""
    rule: str
    """The rule that fused it; empty for a plain node."""
    nodes: tuple[str, ...]
    """The original nodes that it replaced, as "Op name"; the node itself if it is a plain one."""
    output: str
    """Its first output."""


@dataclass(frozen=True)
class CrashSite:
    """The op at which a model ends the process or breaks the GPU."""

    model: str
    """`original` or `fused`; `truth` if neither crashes by itself; empty if unknown."""
    how: str
    """The signal, CUDA's error, or that it hangs; in words."""
    case: str
    """The inputs: their name and shapes; empty if none were run."""
    step: str
    """The step that the command was executing."""
    node: Suspect | None
    """The op; None if the crash could not be reproduced, at the default setting."""
    setting: str = ""
    """The setting of ONNX Runtime in the words of `bench`; empty for the default one."""

    @property
    def text(self) -> str:
        """Describe the crash in one line."""
        subject = f"the {self.model} model" if self.model in ("original", "fused") else "ONNX Runtime"
        subject += f" at {self.setting}" * bool(self.setting)
        at = f" on {self.case}" * bool(self.case)
        if self.node is None:
            step = f", at the step '{self.step}'" * bool(self.step)
            setting_text = " at the default setting" * bool(self.setting)
            return f"{subject} {self.how}{at}{step}; it did not happen again{setting_text}, so no op can be named"
        rule = f" of rule {self.node.rule}, made of {', '.join(self.node.nodes)}" * bool(self.node.rule)
        kind = "fused op " * bool(self.node.rule)
        return f"{subject} {self.how}{at}, in {kind}{self.node.op} ({self.node.node}){rule}"

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return {"text": self.text, **asdict(self)}


@dataclass(frozen=True)
class Localization:
    """The first window of the fused model, in execution order, that does not compute what the original does there."""

    guilty: Suspect | None
    """The single node at fault; None if only a rule could be named, or no window was wrong."""
    rules: tuple[str, ...]
    """The rules at fault: one, or several that produced the fault together; empty if none did."""
    why: str
    """How that was determined, in one sentence."""
    fault: str
    """What is wrong with the window's output, in the words of `verify`; empty if every window is right."""
    inputs: tuple[str, ...]
    """Values of both models that the window reads."""
    output: str
    """The output of the window that is wrong."""
    window: tuple[Suspect, ...]
    """Every node of the fused model between them that differs from the original."""
    replaced: tuple[str, ...]
    """The nodes of the original that they replaced, as "Op name"."""
    checked: int
    """Number of windows examined; all before the last one are right."""
    folder: str = ""
    """Folder of the bug report; empty if none was requested."""
    outdated: bool = False
    """Whether `optimize` makes this part right today, so that the file alone is at fault."""

    @property
    def text(self) -> str:
        """Describe the finding in one line."""
        if not self.fault:
            return f"no single part leaves the budget ({self.checked} checked): the error adds up over them"
        if self.guilty is not None and self.guilty.rule:
            return f"fused op {self.guilty.op} ({self.guilty.node}) of rule {self.guilty.rule}: {self.fault}"
        if self.rules:
            return f"rule {' with '.join(self.rules)}, at '{self.output}': {self.fault}"
        part = (
            f"{self.guilty.op} ({self.guilty.node})" if self.guilty is not None else f"the part before '{self.output}'"
        )
        return f"{part}, which no rule wrote: {self.fault}"

    @property
    def named_rules(self) -> tuple[str, ...]:
        """The rules at fault, including that of a single fused op; empty if none is."""
        own = self.guilty.rule if self.guilty is not None and self.fault else ""
        return (own,) if own else self.rules

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return {"text": self.text, **asdict(self)}
