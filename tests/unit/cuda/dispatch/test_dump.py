"""A dumped kernel: registers, plans, tensor maps."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.cuda import Arch
from onnxfuse.cuda.dispatch.dump import dump, resources


def test_two_shapes_of_one_op_are_two_plans(tmp_path: Path) -> None:
    """Equal sources are written once; each set of shapes has its plan."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[8,4] x, float[16,4] z) => (float[8,4] y, float[16,4] w)
    { a = Exp (x) y = Neg (a) b = Exp (z) w = Neg (b) }"""
    found = dump(onnxfuse.optimize(onnx.parser.parse_model(text)), tmp_path, Arch("sm_90a", 132))
    (op,) = found
    plans = [json.loads(p.read_text()) for p in sorted((tmp_path / "ops" / op.folder).glob("*.plan.json"))]
    assert op.plans == 2
    assert [p["outputs"] for p in plans] == [[[8, 4]], [[16, 4]]]
    assert all((tmp_path / "ops" / op.folder / p["source"]).exists() for p in plans)


def test_a_product_in_one_kernel_tells_its_tensor_maps(tmp_path: Path) -> None:
    """The gemm template's plan holds them; for a GPU that it does not run on, the reason stands in place of a plan."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float16[8192,256] x) => (float16[8192,256] y)
    <float16[256,256] w, float16[256] b> { m = MatMul (x, w) h = Add (m, b) y = Relu (h) }"""
    model = onnx.parser.parse_model(text)
    for name, shape in (("w", (256, 256)), ("b", (256,))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float16), name))
    fused = onnxfuse.optimize(model)
    (op,) = dump(fused, tmp_path / "new", Arch("sm_90a", 132))
    (plan,) = (tmp_path / "new" / "ops" / op.folder).glob("*.plan.json")
    assert op.rule == "gemm"
    assert len(json.loads(plan.read_text())["tensor_maps"]) >= 2
    (old,) = dump(fused, tmp_path / "old", Arch("sm_75", 40))
    assert (old.plans, bool(old.note)) == (0, True)


def test_the_assemblers_log_is_read() -> None:
    """Registers, shared memory, stack and spills; anything else is refused."""
    log = (
        "ptxas info    : Function properties for k\n"
        "    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]\n"
    )
    found = resources(log)
    assert (found.registers, found.shared_bytes, found.stack_bytes) == (255, 1024, 16)
    assert (found.spill_stores, found.spill_loads) == (8, 12)
    with pytest.raises(ValueError, match="no resource usage"):
        resources("nothing")
