"""One fusion attempt: the region, the fused op built from it, and the proof that a kernel exists."""
