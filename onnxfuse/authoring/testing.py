"""Test rules on their own examples: what fuses, what is refused and why, and numerical equality."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.api.run import running
from onnxfuse.authoring.rules import example_model
from onnxfuse.graph.graph import bodies
from onnxfuse.model.display_names import as_line
from onnxfuse.model.fused import DOMAIN, fused_ops
from onnxfuse.model.validate import validate
from onnxfuse.options.groups import CPU as CPU_ONLY
from onnxfuse.options.groups import CUDA as CUDA_FIRST
from onnxfuse.passes import pipeline
from onnxfuse.rules.match import near_misses
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.support.errors import ModelError, OnnxfuseError, RuleError
from onnxfuse.support.isolation import Crash, isolated
from onnxfuse.support.progress import Progress, Steps, silent

if TYPE_CHECKING:
    from onnxfuse.rules.language.rule_file import Example, Rule
    from onnxfuse.verification import VerifyReport

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
"""Element types in which an example is tested in addition to its own."""


@dataclass(frozen=True)
class ExampleFault:
    """A statement of a rule file that does not hold."""

    example: int
    """Counted from 1; 0 for the rule as a whole."""
    fact: str
    """What is wrong, and what was expected."""
    diff: tuple[str, ...] = ()
    """Expected or original lines with "-", actual ones with "+": operators, or lines of graph text."""
    why: tuple[str, ...] = ()
    """For an example that does not become its `after`: where the rule's furthest attempts stopped, and why."""


@dataclass(frozen=True)
class UntestedType:
    """An example to which the rule applies as written, but not in another element type."""

    example: int
    type: str
    why: str


@dataclass(frozen=True)
class Tested:
    """Test result of one rule."""

    rule: str
    file: Path
    examples: int
    types: tuple[str, ...] = ()
    """Element types in which results were compared."""
    without: tuple[UntestedType, ...] = ()
    """Examples that the rule ignores in an element type other than their own."""
    cases: int = 0
    """Number of compared input sets, over all examples, types and execution modes."""
    kernels: int = 0
    """Number of those on which fused ops ran as kernels."""
    bodies: tuple[str, ...] = ()
    """Why fused ops ran through their bodies on a GPU, each reason once."""
    faults: tuple[ExampleFault, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything that the file states holds."""
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain data for JSON."""
        return {
            "rule": self.rule,
            "file": str(self.file),
            "ok": self.ok,
            "examples": self.examples,
            "types": list(self.types),
            "without": [asdict(one) for one in self.without],
            "cases": self.cases,
            "kernels": self.kernels,
            "bodies": list(self.bodies),
            "faults": [
                {"example": f.example, "fact": f.fact, "diff": list(f.diff), "why": list(f.why)} for f in self.faults
            ],
        }


@dataclass
class _Counters:
    """Counters accumulated over the examples of a rule."""

    types: dict[str, None] = field(default_factory=dict)
    without: list[UntestedType] = field(default_factory=list)
    cases: int = 0
    kernels: int = 0
    bodies: dict[str, None] = field(default_factory=dict)


def run_examples(rules: Sequence[Rule], folders: Sequence[Path] = (), progress: Steps = silent) -> list[Tested]:
    """Test each rule on its examples.

    Only the rule itself is applied to each example: the result must be `after`, or unchanged for the stated reason.
    Where it applies, the result is run in the example's type, and in the other of float32 and float16 if the rule
    applies there, on generated inputs of several kinds and sizes, and compared with the example in float64: through the
    plain nodes of the bodies and, on a GPU, also by the kernels. `folders` are those from which the rules were read.
    """
    results = []
    for one in rules:
        progress(one.name)
        result = isolated(partial(_test_rule, one, folders))
        if isinstance(result, Crash):
            fault = ExampleFault(0, f"its examples crash the process: {result.how} ({result.step})")
            result = Tested(one.name, one.path, len(one.examples), faults=(fault,))
        results.append(result)
    return results


def _test_rule(one: Rule, folders: Sequence[Path], progress: Progress) -> Tested:
    from onnxfuse.verification.run.sessions import (  # ONNX Runtime is imported only when needed.
        CUDA,
        chosen_providers,
    )

    provider_lists = [CPU_ONLY, *([CUDA_FIRST] if chosen_providers(None)[0] == CUDA else [])]
    count, faults = _Counters(), list[ExampleFault]()
    for index, example in enumerate(one.examples, 1):
        progress(f"example {index}", index, len(one.examples))
        faults += _faults(one, index, example, provider_lists, folders, count)
    shown_by_others = one.fuse is not None and one.fuse.needs_others
    if not shown_by_others and not any(e.after for e in one.examples):
        faults.append(
            ExampleFault(
                0, "has no [[example]] that applies: nothing shows what it does; --new extracts one from a model"
            )
        )
    result = Tested(one.name, one.path, len(one.examples))
    counted = replace(result, types=tuple(count.types), cases=count.cases, kernels=count.kernels, faults=tuple(faults))
    return replace(counted, bodies=tuple(count.bodies), without=tuple(count.without))


def _faults(
    one: Rule,
    index: int,
    example: Example,
    provider_lists: Sequence[list[str]],
    folders: Sequence[Path],
    count: _Counters,
) -> Iterator[ExampleFault]:
    try:
        before, after = example_model(one, example.text), example_model(one, example.text)
        report = pipeline.run(after, [one])
    except OnnxfuseError as error:
        yield ExampleFault(index, f"{error}. {error.hint}".strip())
        return
    if example.refusal:
        fault = _unexpected_refusal(example, before, after, report)
    else:
        fault = _unexpected_result(one, example, after, report) or _not_valid(after)
    if fault is not None:
        yield replace(fault, example=index)
        return
    if example.after:
        for name, variant in _variants(before):
            fault = _numeric_fault(one, index, name, variant, provider_lists, folders, count)
            if fault is not None:
                yield replace(fault, example=index)


def _unexpected_refusal(
    example: Example, before: onnx.ModelProto, after: onnx.ModelProto, report: OptimizeReport
) -> ExampleFault | None:
    """Return the fault of an example that must be unchanged for the stated reason."""
    if report.applied:
        return ExampleFault(0, f"the rule applies, though `refusal` says '{example.refusal}'", changed(before, after))
    reasons = [f"{n.refusal.node}: {n.refusal.reason}" for n in report.near]
    if any(example.refusal in line for line in reasons):
        return None
    actual = [f"+ {line}" for line in reasons] or ["+ (no rule matched any node)"]
    return ExampleFault(0, "it is refused for another reason", (f"- {example.refusal}", *actual))


def _unexpected_result(
    one: Rule, example: Example, after: onnx.ModelProto, report: OptimizeReport
) -> ExampleFault | None:
    """Return the fault of an example that does not become what its file states."""
    actual = operators(after)
    if actual == list(example.after):
        return None
    stops = [f"{a.op or a.rule} grew no further: at {s.node}: {s.reason}" for a in report.applied for s in a.stops]
    why = stops if report.applied else _why_not(one, report)
    return ExampleFault(0, "the result is not what `after` says", _diff(example.after, actual), tuple(why))


def _why_not(one: Rule, report: OptimizeReport) -> list[str]:
    """Return where the rule's furthest attempts stopped, and why; at least one."""
    return near_misses.why(near_misses.lost(report, one.name)) or ["no rule matched any node"]


def _not_valid(after: onnx.ModelProto) -> ExampleFault | None:
    try:
        validate(after)
    except ModelError as error:
        return ExampleFault(0, f"the result is not a valid model: {error}", tuple(f"+ {line}" for line in lines(after)))
    return None


def _numeric_fault(
    one: Rule,
    index: int,
    name: str,
    original: onnx.ModelProto,
    provider_lists: Sequence[list[str]],
    folders: Sequence[Path],
    count: _Counters,
) -> ExampleFault | None:
    """Return the fault of an example whose results change when the rule is applied; None if they do not."""
    rewritten = onnx.ModelProto()
    rewritten.CopyFrom(original)
    try:
        report = pipeline.run(rewritten, [one])
        if not report.applied:  # the rule is for other types
            count.without.append(UntestedType(index, name, next(iter(_why_not(one, report)))))
            return None
        for providers in provider_lists:
            ran = _compared(original, rewritten, providers, folders)
            count.types[name] = None
            count.cases += len(ran.cases)
            count.kernels += len(ran.cases) if any(k.launches for k in ran.kernels) else 0
            count.bodies.update(dict.fromkeys(k.reason for k in ran.kernels if providers is CUDA_FIRST and k.reason))
            if not ran.ok:
                where = "as kernels" if providers is CUDA_FIRST else "as plain nodes"
                wrong = next((f"{r.output}: {r.fault}" for r in ran.rows if r.fault), "")
                report_text = "; ".join(dict.fromkeys(word for word in (ran.summary, wrong, *ran.problems) if word))
                return ExampleFault(0, f"wrong values in {name}, {where}: {report_text}", changed(original, rewritten))
    except (RuleError, ModelError) as error:
        return ExampleFault(0, f"in {name}: {error}", changed(original, rewritten))
    return None


def _compared(
    original: onnx.ModelProto, rewritten: onnx.ModelProto, providers: list[str], folders: Sequence[Path]
) -> VerifyReport:
    """Compare the result of a rule with its example on `providers`.

    ONNX Runtime runs some examples on the CPU alone, so each is compared with its CPU run. If its own GPU kernels yield
    other results than the CPU (the variance of equal values may be below 0: NaN), with its GPU run.
    """
    from onnxfuse.verification.report.kernel_counts import (
        launch_problems,  # ONNX Runtime is imported only when needed.
    )

    def verified_against(its: list[str]) -> VerifyReport:
        with np.errstate(all="ignore"):
            # The same inputs on every machine, so that pages and pipelines can compare their number.
            ran = running.verify(
                original, rewritten, providers=its, fused_providers=providers, rules=folders, extra_cases=False
            )
        # A small example without a kernel on this GPU is not a fault of the rule; wrong results are.
        not_launched = launch_problems(ran.kernels) if providers is CUDA_FIRST else []
        return replace(ran, problems=tuple(p for p in ran.problems if p not in not_launched))

    by_cpu = verified_against(CPU_ONLY)
    if by_cpu.ok or providers is CPU_ONLY:
        return by_cpu
    try:
        by_gpu = verified_against(providers)
    except ModelError:
        return by_cpu
    return by_gpu if by_gpu.ok else by_cpu


def _variants(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the model in its own and the other supported types, where it is valid."""
    elements = [_element(v) for v in model.graph.input]
    own_type = next((t for t in elements if t in TYPES.values()), None)
    written = next(iter(elements), 0) if own_type is None else own_type
    yield next((n for n, t in TYPES.items() if t == own_type), TensorProto.DataType.Name(written).lower()), model
    for name, element in TYPES.items():
        if own_type is not None and element != own_type:
            other = _retyped(model, own_type, element)
            if _is_valid(other):
                yield name, other


def _is_valid(model: onnx.ModelProto) -> bool:
    """Return whether a model can be optimized: in another type an operator may be undefined, or a Cast in the way."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    try:
        validate(copy)
        pipeline.run(copy, [])
    except ModelError:
        return False
    return True


def _element(value: onnx.ValueInfoProto) -> int:
    return int(value.type.tensor_type.elem_type)


def _retyped(model: onnx.ModelProto, own_type: int, element: int) -> onnx.ModelProto:
    """Return the model with values, weights and constants of one element type converted to another."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element)

    def convert(graph: onnx.GraphProto) -> None:
        for value in (*graph.input, *graph.output, *graph.value_info):
            if _element(value) == own_type:
                value.type.tensor_type.elem_type = element
        constants = [a.t for n in graph.node if n.op_type == ops.Constant for a in n.attribute if a.name == "value"]
        for tensor in (*graph.initializer, *constants):
            if tensor.data_type == own_type:
                with np.errstate(over="ignore"):
                    array = numpy_helper.to_array(tensor).astype(dtype)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        for node in graph.node:
            for cast in (a for a in node.attribute if node.op_type == ops.Cast and a.name == "to" and a.i == own_type):
                cast.i = element
            for body in bodies(node):
                convert(body)

    convert(other.graph)
    return other


# ---- as text


def operators(model: onnx.ModelProto) -> list[str]:
    """Return the remaining operators in order, in the notation of `after`: a fused op as its nodes in braces."""
    fused = fused_ops(model)
    return [
        "{" + " ".join(n.op_type for n in fused[node.op_type].body.node if n.op_type != ops.Constant) + "}"
        if node.domain == DOMAIN
        else node.op_type
        for node in model.graph.node
    ]


def lines(model: onnx.ModelProto) -> list[str]:
    """Return a model's nodes as lines of ONNX text, bodies of fused ops below them."""
    fused, text_lines = fused_ops(model), list[str]()
    for node in model.graph.node:
        text_lines.append(as_line(node))
        if node.domain == DOMAIN:
            text_lines += [f"  {as_line(inner)}" for inner in fused[node.op_type].body.node]
    return text_lines


def changed(before: onnx.ModelProto, after: onnx.ModelProto) -> tuple[str, ...]:
    """Return the changes to a model as a diff of its text lines: "-" removed, "+" added."""
    return _diff(lines(before), lines(after))


def _diff(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    return tuple(line for line in difflib.ndiff(list(before), list(after)) if not line.startswith("?"))
