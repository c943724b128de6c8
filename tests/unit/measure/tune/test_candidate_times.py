"""The real stopwatch on the stand-in CUDA: sessions, variants, turns, refusals; the times themselves mean nothing."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxfuse import cuda
from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.dispatch.measurements import Timed
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.measure.timing import stopwatch
from onnxfuse.measure.tune import candidate_times, decide
from onnxfuse.measure.tune.candidates import Candidate, candidates
from onnxfuse.measure.tune.work import TuningTask
from onnxfuse.rules.language import rule_file
from onnxfuse.runtime.kernels import variants as runtime_tuned
from onnxfuse.support.errors import KernelError
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda
from tests.support.tuning import H200, HERE

HEAD = '<ir_version: 10, opset_import: ["" : 20]>'
CHAIN = f"{HEAD} g (float[64, 8] x, float[8] b) => (float[64, 8] y) {{ s = Add (x, b)  r = Relu (s)  y = Add (r, x) }}"


def work_of(text: str) -> TuningTask:
    found: list[TuningTask] = []

    def keep(work: TuningTask) -> measurements.MeasuredVariants:
        found.append(work)
        return measurements.MeasuredVariants(
            work.op.name, "", (), (), work.shapes, (measurements.Timed("fused", None, 1.0),)
        )

    decide(onnx.parser.parse_model(text), rule_file.by_default(rule_file.shipped()), {}, ({},), keep)
    return found[0]


def timed(**settings: Any) -> Any:
    """Time every candidate of the chain. ONNX Runtime's own kernels compute nothing here: another evaluator answers."""
    runtime_tuned.machine_of = lambda device: HERE
    stand_in = stand_in_kernels.install(**settings)
    cuda.compile = lambda kernel, arch: b""
    answer = candidate_times._answer

    def answered(candidate: Candidate, inputs: candidate_times.Arrays) -> Any:
        mine = answer(candidate, inputs)
        if candidate.fused:
            return mine
        names = [o.name for o in candidate.model.graph.output]
        return dict(zip(names, ReferenceEvaluator(candidate.model).run(None, inputs), strict=True))

    candidate_times._answer = answered
    work = work_of(CHAIN)
    found = candidates(work, rule_file.by_default(rule_file.shipped()), HERE, H200)
    times = candidate_times.time_on_gpu(work, found, H200)
    return stand_in, found, times


def changed(variant: Variant | None) -> dict[str, Any]:
    return {} if variant is None else variant.changed


def facts_of(times: list[Timed]) -> Any:
    return [[t.kind, changed(t.tuning), t.failed] for t in times]


def all_candidates() -> Any:
    stand_in, found, times = timed()
    return {
        "asked": [[c.kind, changed(c.tuning)] for c in found],
        "told": facts_of(times),
        "times": [t.microseconds > 0 and t.spread[0] <= t.microseconds <= t.spread[1] for t in times],
        "planned": [changed(t) for t in dict.fromkeys(stand_in.tunings)],
        "rows": sorted({shapes[0][0] for _, shapes, _ in stand_in.planned}),
    }


def test_every_candidate_is_timed_in_its_own_variant(on_fake_cuda: FakeCuda) -> None:
    """Each gets a time of its own, and each variant reaches the plan of its session through the model's metadata."""
    facts = on_fake_cuda(all_candidates)
    assert [[kind, tuning] for kind, tuning, _ in facts["told"]] == facts["asked"]
    assert [kind for kind, _ in facts["asked"]] == ["fused"] * (len(facts["asked"]) - 1) + ["alone"]
    assert all(facts["times"])
    assert not any(failed for _, _, failed in facts["told"])
    assert facts["planned"] == [tuning for kind, tuning in facts["asked"] if kind == "fused"]
    assert len(facts["planned"]) >= 3
    assert facts["rows"] == [64]


def in_turns() -> Any:
    timed()


def test_candidates_replay_a_graph_of_many_copies(on_fake_cuda: FakeCuda) -> None:
    """Between the timed runs no kernel is launched: each session captures its copies once and replays them."""
    on_fake_cuda(in_turns)
    kernels, candidates = 3, 4
    answers, captured = kernels, 3 * kernels
    launches = [entry["kernel"] for entry in on_fake_cuda.trace("cuLaunchKernel")]
    assert len(launches) == answers + candidate_times.MOST * captured
    runs = stopwatch.WARM_UP + candidate_times.ROUNDS * (candidate_times.RUNS + 1)
    assert len(on_fake_cuda.trace("cudaGraphLaunch")) == candidates * runs


def a_wrong_variant() -> Any:
    stand_in = stand_in_kernels.StandInKernels
    evaluate = stand_in_kernels._evaluate
    wrong = {"now": False}

    def off(op: Any, inputs: Any) -> Any:
        results = evaluate(op, inputs)
        return [r + np.float32(wrong["now"]) for r in results]

    stand_in_kernels._evaluate = off
    plan = stand_in.plan

    def planned(self: Any, op: Any, shapes: Any, aligned: bool, arch: Any, tuning: Any) -> Any:
        wrong["now"] = changed(tuning) == {"pointwise_threads": 512}
        if changed(tuning) == {"pointwise_threads": 128}:
            raise KernelError("no registers are left", "")
        return plan(self, op, shapes, aligned, arch, tuning)

    pytest.MonkeyPatch().setattr(stand_in, "plan", planned)
    return facts_of(timed()[2])


def test_a_variant_that_computes_something_else_has_no_time(on_fake_cuda: FakeCuda) -> None:
    """Nor has one that does not run: each is told with its reason, and the others are timed."""
    own, refused, wrong, alone = on_fake_cuda(a_wrong_variant)
    assert own == ["fused", {}, ""]
    assert refused[:2] == ["fused", {"pointwise_threads": 128}]
    assert refused[2].endswith("no registers are left")
    assert wrong[:2] == ["fused", {"pointwise_threads": 512}]
    assert wrong[2].startswith("computes something else: 1 off")
    assert alone == ["alone", {}, ""]


def without_kernel() -> Any:
    return facts_of(timed(unsupported=dict.fromkeys([work_of(CHAIN).op.name], "this GPU has none"))[2])


def test_a_body_in_the_place_of_the_kernel_is_not_timed_as_one(on_fake_cuda: FakeCuda) -> None:
    """Where the op runs as its nodes, its time would be that of the nodes alone."""
    facts = on_fake_cuda(without_kernel)
    assert all("runs as its body: this GPU has none" in failed for kind, _, failed in facts if kind == "fused")
    assert facts[-1][0] == "alone"
    assert not facts[-1][2]
