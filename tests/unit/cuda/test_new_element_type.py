"""A new type of factors is a row of the table, and its name where it is multiplied: the recipe of docs/dev/ADDING.md,
carried out in a copy of the package that does not know products of uint8 by int8."""

from pathlib import Path

from tests.support.package_copy import copy_package, run_in_copy
from tests.support.recipes import blocks, edit

SCRIPT = """
import numpy as np
from onnx import TensorProto

from bench.cases import ops
from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import A100, H200, Arch
from tests.emulator import emulate

TEXT = "(x, w) => (y) { t = Transpose <perm = [1, 0]> (w) y = MatMulInteger(x, t) }"
rng = np.random.default_rng(0)
x, w = rng.integers(0, 256, (19, 48)).astype(np.uint8), rng.integers(-128, 128, (24, 48)).astype(np.int8)
fused = ops.op(TEXT, (TensorProto.UINT8, TensorProto.INT8), (ops.INT32,), "gemm")
shapes = (x.shape, w.shape)
assert cuda.supports(fused, lambda: A100) is None
assert "kernels are made for sm_80" in (cuda.supports(fused, lambda: Arch("sm_75", 40)) or "")
(y,) = emulate.run(cuda.plan(fused, shapes, True, A100), [x, w], [np.int32])
assert (y == x.astype(np.int32) @ w.astype(np.int32).T).all()
assert "k32.s32.u8.s8 " in cuda.plan(fused, ((512, 512), (512, 512)), True, H200).kernel.text
# its neighbour is still none
other = ops.op(TEXT, (TensorProto.UINT8, TensorProto.UINT8), (ops.INT32,), "gemm")
assert cuda.supports(other) == "products of UINT8"
"""


def test_a_new_type_of_factors_is_a_row_and_its_names(tmp_path: Path) -> None:
    (row,) = blocks("An element type", "python")
    copy_package(tmp_path)

    def change(file: str, before: str, after: str) -> None:
        edit(tmp_path / "onnxfuse" / file, before, after)

    # As if it were not there: the table ends with the signed pair.
    change(
        "cuda/isa/factors.py", "for left in (TensorProto.INT8, TensorProto.UINT8)", "for left in (TensorProto.INT8,)"
    )
    # Steps 1 to 3.
    change("cuda/isa/factors.py", "\nFACTORS = (FLOAT16,", f"\n{row}\nFACTORS = (UINT8_BY_INT8, FLOAT16,")
    for file, call in (("sm_80", "mma_sync("), ("sm_90", "wgmma_async(")):
        change(f"cuda/isa/{file}.py", f"{call}FLOAT16,", f"{call}UINT8_BY_INT8, FLOAT16,")
        change(
            f"cuda/isa/{file}.py", "INTEGERS, SPLIT_FLOAT32, TF32\n", "INTEGERS, SPLIT_FLOAT32, TF32, UINT8_BY_INT8\n"
        )
    change("cuda/templates/gemm/body.py", "FACTORS = (FLOAT16,", "FACTORS = (UINT8_BY_INT8, FLOAT16,")
    change("cuda/templates/gemm/body.py", "Rounding, factors_of\n", "Rounding, UINT8_BY_INT8, factors_of\n")
    run_in_copy(tmp_path, SCRIPT)
