"""Explain what fuses in a model, what does not, and why; describe a model; what the candidates for a node cost."""
