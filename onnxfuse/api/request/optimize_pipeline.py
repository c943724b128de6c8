"""The one way in which every function here optimizes: by what was measured, and the same again without some rules."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import ModelProto

from onnxfuse.api.request import options as asked
from onnxfuse.api.request.model_source import Origin
from onnxfuse.api.request.options import Progress
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.passes import pipeline
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.report import OptimizeReport

if TYPE_CHECKING:
    from onnxfuse.tuning import Tuned
    from onnxfuse.verification.localize.bisect import Reoptimize


@dataclass(frozen=True)
class OptimizePipeline:
    """How one model is optimized, however often: by all rules, or without some of them."""

    origin: Origin
    freeze: bool = False
    """Whether weights that are graph inputs, too, become constants."""
    tuned: "Tuned | None" = None
    """What was measured, and decides."""

    def run(self, model: ModelProto, rules: Sequence[Rule], progress: Progress) -> OptimizeReport:
        """Optimize `model`, fresh from where it comes, in place. Raises ModelError that names the file."""
        from onnxfuse.runtime.sessions.opening import refusal  # ONNX Runtime is imported where something is to be run.

        with self.origin.named():
            choices = None
            if self.tuned is not None:
                unfuse(model)
                choices = self.tuned.choices(model, rules)
            return pipeline.run(model, rules, progress, choices, opens=refusal, again=self._again, freeze=self.freeze)

    def reoptimizer(self, rules: Sequence[Rule], progress: Progress, reports: list[OptimizeReport]) -> "Reoptimize":
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
