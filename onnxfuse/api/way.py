"""The one way in which every function here optimizes: by what was measured, and the same again without some rules."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import ModelProto

from onnxfuse.api import options as asked
from onnxfuse.api.options import Progress
from onnxfuse.api.source import Origin
from onnxfuse.rewrite import pipeline
from onnxfuse.rewrite.language.rule_file import Rule
from onnxfuse.rewrite.report import Report
from onnxfuse.rewrite.unfuse import unfuse

if TYPE_CHECKING:
    from onnxfuse.tuning import Tuned
    from onnxfuse.verification.bisect import Reoptimize


@dataclass(frozen=True)
class Way:
    """How one model is optimized, however often: by all rules, or without some of them."""

    origin: Origin
    freeze: bool = False
    """Whether weights that are graph inputs, too, become constants."""
    tuned: "Tuned | None" = None
    """What was measured, and decides."""

    def run(self, model: ModelProto, rules: Sequence[Rule], progress: Progress) -> Report:
        """Optimize `model`, fresh from where it comes, in place. Raises ModelError that names the file."""
        from onnxfuse.runtime.opening import refusal  # ONNX Runtime is imported where something is to be run.

        with self.origin.named():
            choices = None
            if self.tuned is not None:
                unfuse(model)
                choices = self.tuned.choices(model, rules)
            return pipeline.run(model, rules, progress, choices, opens=refusal, again=self._again, freeze=self.freeze)

    def reoptimizer(self, rules: Sequence[Rule], progress: Progress, reports: list[Report]) -> "Reoptimize":
        """Return what optimizes without some of the rules; `reports` gets what was done each time."""

        def reoptimize(without: Collection[str]) -> tuple[ModelProto, tuple[str, ...]]:
            model = self.origin.fresh()
            reports.append(self.run(model, asked.without(rules, without), progress))
            return model, tuple(reports[-1].by_rule())

        return reoptimize

    def _again(self) -> ModelProto:
        fresh = self.origin.fresh()
        if self.tuned is not None:
            unfuse(fresh)
        return fresh
