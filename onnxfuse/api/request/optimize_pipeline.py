"""Shared optimize entry: applies a tuning file; can re-run with rules disabled."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import ModelProto

from onnxfuse.api.request import options as request_options
from onnxfuse.api.request.origin import Origin
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.model import ort_fusions
from onnxfuse.passes import pipeline
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.support.progress import Steps

if TYPE_CHECKING:
    from onnxfuse.measure.tune import Tuned
    from onnxfuse.verification.localize.bisect import Reoptimize


@dataclass(frozen=True)
class OptimizePipeline:
    """How one model is optimized, repeatedly if needed: by all rules, or with some disabled."""

    origin: Origin
    freeze: bool = False
    """Whether weights that are also graph inputs become constants."""
    tuned: "Tuned | None" = None
    """Measurements that decide."""

    def run(self, model: ModelProto, rules: Sequence[Rule], progress: Steps) -> OptimizeReport:
        """Optimize `model`, freshly loaded from its origin, in place. Raises ModelError that names the file."""
        from onnxfuse.runtime.sessions.opening import refusal  # ONNX Runtime is imported only when something is run.

        with self.origin.named():
            choices = None
            if self.tuned is not None:
                unfuse(model)
                choices = self.tuned.choices(model, rules)
            report = pipeline.run(
                model, rules, progress, choices, opens=refusal, again=self._reload, freeze=self.freeze
            )
        report.notes += [*filter(None, (ort_fusions.left(report.before, report.after),))]
        return report

    def reoptimizer(self, rules: Sequence[Rule], progress: Steps, reports: list[OptimizeReport]) -> "Reoptimize":
        """Return a function that optimizes with some rules disabled; `reports` receives the report of each run."""

        def reoptimize(without: Collection[str]) -> tuple[ModelProto, tuple[str, ...]]:
            model = self.origin.fresh()
            reports.append(self.run(model, request_options.without(rules, without), progress))
            return model, tuple(reports[-1].by_rule())

        return reoptimize

    def _reload(self) -> ModelProto:
        fresh = self.origin.fresh()
        if self.tuned is not None:
            unfuse(fresh)
        return fresh
