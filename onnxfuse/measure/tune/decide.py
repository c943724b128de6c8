"""Select which of the proposed fusions are made: each where it measured fastest, unmeasured ones as the rules say.

The rules propose fusions irrespective of cost. Slower ones are declined, then the rules propose again: the nodes may
now go to another rule, whose kernel is measured too. Each round declines at least one location for good, so this
terminates.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnx import ModelProto, NodeProto

from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.dispatch.measurements import Key, Kind, MeasuredVariants
from onnxfuse.files.io import without_weights
from onnxfuse.fusion.region.choices import Choices, Declined, Place
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.graph.concrete_shapes import every_type, fused_nodes, input_shapes, may_have, with_sizes
from onnxfuse.measure.tune.work import TuningTask, extract_task
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.report import Applied
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import ValueType
from onnxfuse.support.progress import Steps, silent

Sizes = Sequence[Mapping[str, int]]
"""Relevant sets of sizes of the dynamic dimensions; none: all that were measured."""
Known = Mapping[Key, Sequence[MeasuredVariants]]
"""Measurements on one machine or several."""
Measure = Callable[[TuningTask], MeasuredVariants]


@dataclass(frozen=True)
class Decided:
    """Decision on one proposed fused op, on inputs of certain shapes."""

    verdict: Kind
    measured: tuple[MeasuredVariants, ...]
    """At each set of sizes, on each machine: one or more."""
    places: int
    """Number of nodes of the model that it concerns."""


@dataclass(frozen=True)
class Decisions:
    """Decisions for one model."""

    choices: Choices
    decided: tuple[Decided, ...]
    """In the order in which they were proposed."""
    unmeasured: int
    """Locations without measurements: the cost estimates of the rules apply."""
    new: Mapping[Key, MeasuredVariants]
    """New measurements."""


def decide(
    model: ModelProto,
    rules: Sequence[Rule],
    known: Known,
    sizes: Sizes = (),
    measure: Measure | None = None,
    progress: Steps = silent,
) -> Decisions:
    """Decide on each location of `model`, which is not changed.

    What `known` lacks is measured if a stopwatch is given.
    """
    unfused = without_weights(model, lambda weight: weight)
    unfuse(unfused)
    pipeline.run(unfused, [replace(rule, fuse=None) for rule in rules])
    search = _Search(unfused, rules, known, sizes, measure, progress)
    declined: dict[Place, Declined] = {}
    while fresh := search.round(Choices(declined)):
        declined = {**declined, **fresh}
    decided = tuple(Decided(verdict, m, node_count) for (verdict, m), node_count in search.decided.items())
    return Decisions(Choices(declined), decided, search.unmeasured, search.new)


@dataclass
class _Search:
    """Decisions for one model in progress."""

    unfused: ModelProto
    """The model after all rewrites, before all fusions."""
    rules: Sequence[Rule]
    known: Known
    sizes: Sizes
    measure: Measure | None
    progress: Steps
    new: dict[Key, MeasuredVariants] = field(default_factory=dict)
    decided: dict[tuple[Kind, tuple[MeasuredVariants, ...]], int] = field(default_factory=dict)
    unmeasured: int = 0

    def round(self, choices: Choices) -> dict[Place, Declined]:
        """Let the rules propose fusions, and return which are declined."""
        trial = without_weights(self.unfused, lambda weight: weight)
        applied = {(a.op, a.outputs): a for a in pipeline.run(trial, self.rules, choices=choices).applied}
        views = [infer(with_sizes(trial, s)[0]) for s in self.sizes] or [infer(trial)]
        trial_state = _Trial(trial, fused_ops(trial), [every_type(view.graph) for view in views])
        declined: dict[Place, Declined] = {}
        counts = Counter[tuple[Kind, tuple[MeasuredVariants, ...]]]()
        self.unmeasured = 0
        for name, nodes in fused_nodes(trial.graph).items():
            for node in nodes:
                proposed = applied[name, tuple(node.output)]
                measured = self.at(node, proposed, trial_state)
                if not measured:
                    self.unmeasured += 1
                    if proposed.cost:
                        declined[name, proposed.outputs] = Declined(proposed.cost, library=proposed.library)
                    continue
                verdict = measurements.verdict(measured)
                if verdict == "fused":
                    counts[verdict, measured] += 1
                    continue
                declined[name, proposed.outputs] = Declined(
                    measurements.best_times_line(measured), alone=verdict == "alone", library=verdict == "library"
                )
                self.decided[verdict, measured] = self.decided.get((verdict, measured), 0) + 1
        if not declined:
            self.decided |= counts
        return declined

    def at(self, node: NodeProto, proposed: Applied, trial_state: "_Trial") -> tuple[MeasuredVariants, ...]:
        """Return the measurements of a fused node, on all shapes that its inputs may have if theirs are unknown."""
        answers: dict[MeasuredVariants, None] = {}
        for types in trial_state.types:
            shapes = input_shapes(node, types)
            key = measurements.key(proposed.op, shapes or ())
            if shapes is None:
                of_op = (m for (name, _), measured in self.known.items() if name == key[0] for m in measured)
                answers.update(dict.fromkeys(m for m in of_op if may_have(node, m.shapes, types)))
                continue
            if key not in self.known and key not in self.new and self.measure is not None:
                self.progress(f"measure {len(self.new) + 1}: {proposed.op} {measurements.extents(shapes)}")
                op = trial_state.ops[proposed.op]
                task = extract_task(node, op, shapes, trial_state.model, self.unfused, types, proposed.kept)
                self.new[key] = self.measure(replace(task, library=proposed.library))
            answers.update(dict.fromkeys([self.new[key]] if key in self.new else self.known.get(key, ())))
        return tuple(m for m in answers if m.ran)


@dataclass(frozen=True)
class _Trial:
    """The result of the rules on the model in one round."""

    model: ModelProto
    ops: Mapping[str, FusedOp]
    types: Sequence[Mapping[str, ValueType]]
    """Types of all values, at each of the sets of sizes."""
