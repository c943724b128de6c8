"""Fused attention: softmax(Q K^T) V in one kernel."""
