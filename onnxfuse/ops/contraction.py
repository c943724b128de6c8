"""Sums of products: matrix products and convolutions."""

from onnxfuse.ops import flops
from onnxfuse.ops.registry import Operator, Trait
from onnxfuse.ops.shapes import products, windows

__all__ = ["Conv", "ConvTranspose", "DeformConv", "Det", "Einsum", "Gemm", "MatMul"]

MatMul = Operator("MatMul", Trait.MATRIX_PRODUCT, Trait.BATCHED_PRODUCT, flops=flops.matmul, shape=products.matmul)
Gemm = Operator("Gemm", Trait.MATRIX_PRODUCT, flops=flops.gemm, shape=products.gemm)
Conv = Operator("Conv", Trait.CONVOLUTION, flops=flops.convolution, shape=windows.convolved(1))
ConvTranspose = Operator(
    "ConvTranspose",
    Trait.CONVOLUTION,
    flops=flops.transposed_convolution,
    shape=windows.transposed_convolution,
)
Einsum = Operator("Einsum", Trait.CONTRACTION, Trait.FOLDABLE, flops=flops.einsum, shape=products.einsum)

DeformConv = Operator("DeformConv", Trait.OPAQUE, Trait.SLIDES)
Det = Operator("Det", Trait.OPAQUE)
