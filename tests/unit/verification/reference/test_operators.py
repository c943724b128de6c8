"""The truth is what ONNX Runtime computes: every operator, at every opset that changed it, in the forms that matter."""

import re
from collections import defaultdict

import onnx
import onnxruntime
import pytest

from onnxfuse import ops
from onnxfuse.codegen.operators.movement_ops import FREE, MOVEMENT
from onnxfuse.codegen.operators.pointwise_ops import POINTWISE
from onnxfuse.codegen.operators.reduction_ops import REDUCTIONS
from onnxfuse.ops import Trait
from onnxfuse.rules.language.rule_file import parts_file, shipped_files
from tests.support.verification.operator_rows import ROWS
from tests.support.verification.operators import NotHereError, Row, peer, versions

BY_OP: dict[str, list[Row]] = defaultdict(list)
for _row in ROWS:
    BY_OP[_row.op].append(_row)

NOT_IN_ONNX_RUNTIME = {("GlobalLpPool", 22), ("RoiAlign", 22)}
"""Versions that its CPU provider has no kernel for (1.31)."""
WRONG_THERE = {("1.28", "AveragePool"): (19, {"ceil_mode": 1, "count_include_pad": 1})}
"""Of releases of ONNX Runtime and operators, before which opset and with which attributes they are wrong: 1.28 counts
what lies beyond the padding, 1.29 does not."""


def touched() -> set[str]:
    """Return the operators of onnx that a rule file names, a kernel's body may hold, or the layout turns around."""
    known = {s.name for s in onnx.defs.get_all_schemas() if not s.domain and min(versions(s.name), default=99) < 26}
    named = {
        word
        for f in (parts_file(), *shipped_files().values())
        for word in re.findall(r"(?<![\w.])[A-Z]\w+", f.read_text())
    }
    tables = {op for domain, op in (*POINTWISE, *MOVEMENT, *REDUCTIONS) if not domain}
    layout = ops.named(Trait.CONVOLUTION, Trait.IMAGES, Trait.NAMES_AXES)
    return (named | tables | layout | set(FREE)) & known


@pytest.mark.parametrize("op", sorted(touched() | set(BY_OP)))
def test_the_truth_agrees_with_onnx_runtime(op: str) -> None:
    """In float64 where ONNX Runtime has a kernel, else in float32; at every version something was compared."""
    before, at_fault = WRONG_THERE.get((onnxruntime.__version__.rpartition(".")[0], op), (0, {}))
    wrong: list[str] = []
    theirs: list[str] = []
    compared: set[int] = set()
    for row in BY_OP[op]:
        for opset in row.opsets():
            try:
                found = peer(row, opset)
            except NotHereError:
                continue
            compared.add(max(v for v in versions(op) if v <= opset))
            known = opset < before and at_fault.items() <= row.attributes.items()
            (theirs if known else wrong).extend(f"{row.text} opset {opset}: {w}" for w in found.differences())
    assert not wrong, "\n".join(wrong)
    assert theirs or not at_fault, "ONNX Runtime is right here"
    missing = set(versions(op)) - compared - {v for name, v in NOT_IN_ONNX_RUNTIME if name == op}
    assert not missing, f"no row of {op} at opsets {sorted(missing)}"


def test_a_truth_that_differs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break one and see it: a table that cannot fail holds nothing."""
    from onnxfuse.verification.reference.operators import BatchNormalization

    right = BatchNormalization._run
    monkeypatch.setattr(
        BatchNormalization, "_run", lambda self, x, s, b, m, v, **more: right(self, x, s, b, m, v * (1 + 1e-9), **more)
    )
    assert any(list(peer(row, 9).differences()) for row in BY_OP["BatchNormalization"] if 9 in row.opsets())
