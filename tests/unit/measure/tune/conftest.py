"""What the tests of tuning share."""

import pytest

from onnxfuse.measure.tune import tune
from onnxfuse.measure.tune.work import TuningTask
from onnxfuse.rules.language import rule_file
from tests.support.tuning import block, by_kind, stopwatch


@pytest.fixture(scope="module")
def works() -> dict[str, TuningTask]:
    """All that there is to measure in the block, by rule and the operators of the nodes left alone."""
    seen: list[TuningTask] = []
    tune(
        block(4),
        rule_file.by_default(rule_file.shipped()),
        {},
        stopwatch=stopwatch(by_kind(fused=2, split=1, alone=3), seen),
    )
    return {f"{w.op.rule}: {' '.join(n.op_type for n in w.plain.graph.node)}": w for w in seen}
