"""Tuning on a real GPU: every candidate runs, agrees and has a time; the choice holds in a session."""

import os
import time

import numpy as np
import onnxruntime
import pytest

from onnxfuse import runtime
from onnxfuse.cuda.dispatch import measurements
from onnxfuse.files.io import without_weights
from onnxfuse.measure import tune as tuning
from onnxfuse.measure.tune import Tuned
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.gpu.test_kernels import _gpu
from tests.support.tuning import block

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]
CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
RULES = rule_file.by_default(rule_file.shipped())


@pytest.fixture(scope="module")
def found() -> Tuned:
    """The block at 512 rows, tuned."""
    return tuning.tune(block(512), RULES, {})


def test_every_candidate_has_a_time(found: Tuned) -> None:
    """None is refused by the compiler or the device, none computes something else than the nodes."""
    measured = found.decisions.new.values()
    assert {m.rule for m in measured} >= {"gemm", "layer_norm"}
    failed = [(m.op, c.name, c.failed) for m in measured for c in m.candidates if c.microseconds is None]
    assert not failed
    assert all(1 < (c.microseconds or 0) < 1000 for m in measured for c in m.candidates)


def test_no_fused_op_is_kept_where_it_measured_slower(found: Tuned) -> None:
    for decided in found.decisions.decided:
        for measured in decided.measured:
            others = [c.microseconds or np.inf for c in measured.candidates if c.kind != "fused"]
            kept = measured.best("fused")
            assert decided.verdict != "fused" or (kept is not None and (kept.microseconds or np.inf) <= min(others))


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="beside other tests on the GPU times mean nothing")
def test_times_repeat(found: Tuned) -> None:
    """A second tuning comes to medians within a fifth: what decides is a property of the kernel, not of the moment."""
    again = tuning.tune(block(512), RULES, {}).decisions.new
    for key, was in found.decisions.new.items():
        for a, b in zip(was.candidates, again[key].candidates, strict=True):
            assert a.microseconds == pytest.approx(b.microseconds, rel=0.2, abs=0.5), (was.op, a.name)


def test_a_session_runs_what_was_chosen(found: Tuned) -> None:
    """The tuned model computes what the original does, with every fused op as a kernel and no warning."""
    model = block(512)
    fused = without_weights(model, lambda weight: weight)
    pipeline.run(fused, RULES, choices=found.choices(fused, RULES))
    found.attach(fused)
    carried = measurements.of_model(fused)
    assert {m.op for section in carried.values() for m in section.values()} >= set(fused_ops(fused))
    x = np.random.default_rng(1).standard_normal((512, 64)).astype(np.float16)
    session = runtime.session(fused, CUDA)
    assert {p.runs_as for p in session.fused} <= {"kernel", "onnxruntime"}
    plain = onnxruntime.InferenceSession(model.SerializeToString(), providers=CUDA)
    mine, theirs = (s.run(None, {"x": x})[0].astype(np.float32) for s in (session, plain))
    # Values of a norm: of size 1, and float16 rounds three times on the way.
    assert np.abs(mine - theirs).max() < 3 * 2**-8


def test_known_times_are_not_measured_again(found: Tuned) -> None:
    began = time.perf_counter()
    again = tuning.tune(block(512), RULES, found.book)
    assert not again.decisions.new
    assert again.decisions.choices == found.decisions.choices
    assert time.perf_counter() - began < 5
