"""Locate the fused op, rule or node at fault."""
