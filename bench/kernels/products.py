"""Matrix products of the gemm template against cuBLAS on the GPU at hand: `python -m bench.kernels.products --help`

Each row: the product alone by cuBLAS (torch.mm); bias + GELU (--gate: SwiGLU of two products) by cuBLAS and one kernel
of the pointwise template; all of it in one kernel; and in the kernel for sm_80 and later. One CUDA graph of twenty
launches each, in turns, medians. Needs torch.
"""

import argparse
import math
import statistics

import torch
from onnx import TensorProto

from bench.cases import ops, products
from bench.kernels import timing
from onnxfuse import cuda
from onnxfuse.cuda.templates.gemm import body as gemm_body
from onnxfuse.cuda.templates.gemm import plan as gemm
from onnxfuse.cuda.templates.gemm import problem as gemm_problem
from onnxfuse.cuda.templates.gemm import sm80
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant, Strip
from onnxfuse.model.fused import FusedOp

SIZES = [
    (1, 768, 768), (1, 3072, 768), (16, 768, 3072), (16, 5632, 2048), (128, 768, 768), (128, 3072, 768),
    (128, 768, 3072), (197, 3072, 768), (512, 768, 768), (512, 3072, 768), (512, 5632, 2048), (1024, 1024, 1024),
    (2048, 3072, 768), (4096, 768, 768), (4096, 2304, 768), (4096, 3072, 768), (4096, 768, 3072), (6304, 3072, 768),
    (6304, 768, 3072), (6304, 768, 768), (4096, 4096, 4096), (16384, 768, 768), (16384, 3072, 768),
]  # fmt: skip
"""Rows, columns and terms of the products of BERT, ViT, MLPs and LLaMA, from one row to 16384."""
LAUNCHES = 20
TYPES = {
    "float16": (TensorProto.FLOAT16, torch.float16),
    "bfloat16": (TensorProto.BFLOAT16, torch.bfloat16),
    "float32": (TensorProto.FLOAT, torch.float32),
}
"""float32 is TF32 for both; its right factors lie [n, k]."""
GATES = [(16, 5632, 2048), (512, 5632, 2048), (4096, 5632, 2048)]
"""Rows, columns and terms of the products of a LLaMA block's gate and up."""


def launcher(plan: cuda.LaunchPlan, tensors: list[torch.Tensor]) -> timing.Work:
    """Return what launches the plan on these tensors, inputs and then outputs."""
    return timing.launcher(plan, [t.data_ptr() for t in tensors])


def microseconds(works: list[timing.Work]) -> list[float]:
    """Return the median time of each, measured in turns."""
    return timing.microseconds([[work] * LAUNCHES for work in works])


def of_sm80(fused: FusedOp, shapes: list[tuple[int, ...]], tensors: list[torch.Tensor]) -> timing.Work:
    """Return what launches the kernel for sm_80 and later on these tensors, with the block that it chooses."""
    parts, arch = gemm_body.anatomy(fused), cuda.arch_of(0)
    block = sm80.choose(parts, gemm_problem.problem(parts, tuple(shapes)), arch)
    return launcher(cuda.plan(fused, tuple(shapes), True, arch, GemmVariant(block=block)), tensors)


def row(m: int, n: int, k: int, dtype: int, element: torch.dtype) -> tuple[list[float], GemmTile | Block | Strip]:
    """Return the times of one size, and the tile that the plan took."""
    transposed = element == torch.float32
    fused, shapes = products.case(products.TRANSPOSED_GELU if transposed else products.GELU, dtype, (m,), n, k)
    x, w, b = (torch.randn(s, device="cuda").to(element) for s in shapes)
    w /= math.sqrt(k)
    right = w.T if transposed else w
    product, y, z, o = (torch.empty(m, n, device="cuda", dtype=element) for _ in range(4))
    arch = cuda.arch_of(0)
    one = launcher(cuda.plan(fused, tuple(shapes), True, arch), [x, w, b, y])
    epilogue = ops.op("(m, b) => (y) { a = Add(m, b) y = Gelu(a) }", (dtype,) * 2, (dtype,))
    after = launcher(cuda.plan(epilogue, ((m, n), (n,)), True, arch), [product, b, z])

    def two() -> None:
        torch.mm(x, right, out=product)
        after()

    older = of_sm80(fused, shapes, [x, w, b, o])
    times = microseconds([lambda: torch.mm(x, right, out=product), two, one, older])
    for got in (y, o):
        torch.testing.assert_close(
            got, torch.nn.functional.gelu(x.double() @ right.double() + b).to(element), rtol=2e-2, atol=2e-2
        )
    return times, gemm.chosen(fused, tuple(shapes), arch)


def gate(m: int, n: int, k: int, dtype: int, element: torch.dtype) -> tuple[list[float], GemmTile | Block | Strip]:
    """Return the times of SwiGLU, both products by cuBLAS first, and the tile that the plan took."""
    fused, shapes = products.case(products.SWIGLU, dtype, (m,), n, k)
    x, g, u = (torch.randn(s, device="cuda").to(element) for s in shapes)
    for right in (g, u):
        right /= math.sqrt(k)
    first, second, y, z, o = (torch.empty(m, n, device="cuda", dtype=element) for _ in range(5))
    arch = cuda.arch_of(0)
    one = launcher(cuda.plan(fused, tuple(shapes), True, arch), [x, g, u, y])
    text = "(m, n) => (y) { s = Sigmoid(m) t = Mul(m, s) y = Mul(t, n) }"
    after = launcher(cuda.plan(ops.op(text, (dtype,) * 2, (dtype,)), ((m, n),) * 2, True, arch), [first, second, z])

    def product() -> None:
        torch.mm(x, g, out=first)
        torch.mm(x, u, out=second)

    def two() -> None:
        product()
        after()

    times = microseconds([product, two, one, of_sm80(fused, shapes, [x, g, u, o])])
    for got in (y, o):
        torch.testing.assert_close(got, z, rtol=2e-2, atol=2e-2)
    return times, gemm.chosen(fused, tuple(shapes), arch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=TYPES, default="float16")
    parser.add_argument("--gate", action="store_true", help="SwiGLU of two products, 16-bit")
    arguments = parser.parse_args()
    dtype, element = TYPES[arguments.dtype]
    torch.backends.cuda.matmul.allow_tf32 = True
    print(f"{torch.cuda.get_device_name()}, {element}; microseconds")
    print("    m     n     k   cuBLAS  + kernel   fused   / cuBLAS   sm_80   tile")
    against_product, against_two, against_older = [], [], []
    for size in GATES if arguments.gate else SIZES:
        (product, two, one, older), tile = (gate if arguments.gate else row)(*size, dtype, element)
        against_product.append(one / product)
        against_two.append(two / one)
        against_older.append(one / older)
        times = f"{product:8.1f} {two:9.1f} {one:7.1f} {one / product:10.2f} {older:7.1f}"
        print("{:5} {:5} {:5}".format(*size), times, f"  {tile}", flush=True)
    mean = statistics.geometric_mean
    print(
        f"geometric means: {mean(against_product):.2f} of cuBLAS without what follows (worst "
        f"{max(against_product):.2f}), {mean(against_two):.2f}x faster than cuBLAS and one kernel (worst "
        f"{min(against_two):.2f}x); the kernel for sm_80 has {mean(against_older):.2f} of its speed (worst "
        f"{min(against_older):.2f})"
    )


if __name__ == "__main__":
    main()
