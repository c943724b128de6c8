"""Numbers that float16 does not hold, in real architectures: no NaN, each kept node named, the rest converted."""

import numpy as np
import pytest

import onnxfuse
from models import traps
from models.traps import TRAP, Trap
from onnxfuse.api.optimize.optimizing import optimize
from onnxfuse.api.request.options import Options
from onnxfuse.model.precision_record import HighPrecisionNode
from onnxfuse.precision import Lowering
from onnxfuse.precision.plan import FLOAT, float_nodes, opsets_of
from onnxfuse.precision.scopes import called, scopes_of
from onnxfuse.precision.trial import Trial
from tests.support.precision import normalized, true_outputs

MOST = 0.05
"""The share of the nodes that may stay."""


@pytest.mark.parametrize("trap", traps.TRAPS, ids=lambda t: t.name)
def test_a_trap_is_found_and_only_what_stands_in_it_stays(trap: Trap) -> None:
    """The converted and fused file gives numbers as near the truth as the contract asks, in plain ONNX Runtime too."""
    model, feeds = traps.planted(trap), traps.feeds(trap, 1)
    made = optimize(model, Options(precision=Lowering("float16", tuple(feeds))))
    assert made.lowered is not None
    kept = made.lowered.kept
    assert len(kept) <= MOST * made.lowered.nodes
    assert all(k.node.startswith(TRAP) and k.reason for k in kept), kept
    assert bool(kept) == trap.kept
    report = onnxfuse.verify(model, made.model, inputs=list(feeds), providers=["CPUExecutionProvider"], isolate=False)
    assert report.ok, report.summary
    assert report.contract == made.lowered


def test_without_the_choice_traps_break_the_contract() -> None:
    """They are traps: plain float16, every node converted, gives no numbers or wrong ones in all that keep nodes."""
    for trap in (t for t in traps.TRAPS if t.kept):
        model = normalized(traps.planted(trap))
        feeds = traps.feeds(trap, 1)
        trial = Trial(model, 10, 0.0098, feeds, true_outputs(model, feeds), np.inf, lambda _: None)
        assert not trial.run({}).ok, trap.name


def test_a_branch_that_never_ran_is_left_as_it_is() -> None:
    """Nothing is known of its values."""
    trap = next(t for t in traps.TRAPS if t.name == "inside an If")
    made = optimize(traps.planted(trap), Options(precision=Lowering("float16", tuple(traps.feeds(trap, 1)))))
    assert made.lowered is not None
    idle = [k for k in made.lowered.kept if "/else/" in k.node]
    assert idle == [HighPrecisionNode(n, op, "float32", "never ran on these inputs") for n, op in
                    (("trap1/else/Mul", "Mul"), ("trap1/else/Div", "Div"))]  # fmt: skip


def test_every_node_of_a_trap_has_a_name_that_tells_it() -> None:
    """Else the tests above would say nothing."""
    model = normalized(traps.planted(traps.TRAPS[0]))
    found = float_nodes(scopes_of(model), opsets_of(model))
    assert sum(called(p.node).startswith(TRAP) for p in found.values()) == 4
    assert all(p.types or p.why for p in found.values())
    assert FLOAT == 1
