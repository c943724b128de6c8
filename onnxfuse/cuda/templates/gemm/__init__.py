"""Matrix products and implicit GEMM on tensor cores, with prologue and epilogue."""
