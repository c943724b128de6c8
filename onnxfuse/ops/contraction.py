"""Sums of products: matrix products and convolutions."""

from onnxfuse.ops.registry import Operator, Trait

MatMul = Operator("MatMul", Trait.CONTRACTION)
Gemm = Operator("Gemm", Trait.CONTRACTION)
Conv = Operator("Conv", Trait.CONTRACTION)
ConvTranspose = Operator("ConvTranspose", Trait.CONTRACTION)
Einsum = Operator("Einsum", Trait.CONTRACTION)

DeformConv = Operator("DeformConv", Trait.OPAQUE)
Det = Operator("Det", Trait.OPAQUE)
