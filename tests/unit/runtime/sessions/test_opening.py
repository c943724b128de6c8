"""What ONNX Runtime is asked of written files: each opens with its weights beside it as with them in it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

from onnxfuse.files import external, io
from onnxfuse.runtime.sessions import opening
from onnxfuse.support.errors import ModelError

SHOWN = 32
"""Bytes that are small in these tests: one float for each axis, as ONNX's own examples have them."""


def constant_inputs() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield each form of ONNX's examples of one operator, its inputs in turn as a weight."""
    seen = set()
    with np.errstate(all="ignore"):
        cases = collect_testcases(None)
    for case in cases:
        model = case.model
        if model is None or len(model.graph.node) != 1:
            continue
        assert case.data_sets is not None
        (node,), given = model.graph.node, case.data_sets[0][0]
        for place, (value, array) in enumerate(zip(model.graph.input, given, strict=False)):
            if not isinstance(array, np.ndarray | np.generic) or array.dtype.kind not in "iufb":
                continue
            kind = (node.op_type, place, array.dtype.kind, np.ndim(array))
            if kind in seen:
                continue
            seen.add(kind)
            made = onnx.ModelProto()
            made.CopyFrom(model)
            made.ir_version = min(made.ir_version, 13)
            del made.graph.input[:]
            made.graph.input.extend(v for v in model.graph.input if v.name != value.name)
            made.graph.initializer.append(numpy_helper.from_array(np.asarray(array), value.name))
            yield f"{node.op_type} input {place} of {kind[2]} in {kind[3]} dimensions", made


def test_whatever_an_operator_reads_its_file_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shape inference finds all that it reads, of any size, in the model file: targets, axes, sizes, scales."""
    monkeypatch.setattr(external, "SMALL", SHOWN)
    moved = 0
    for what, model in constant_inputs():
        opens = opening.require_written(model)
        try:
            with io.saving(model, tmp_path / "m.onnx", external_data=True, opens=opens):
                pass
        except ModelError as error:
            pytest.fail(f"{what}: {error}")
        moved += any(external.is_external(t) for t in io.load(tmp_path / "m.onnx", weights=False).graph.initializer)
    assert moved > 100
