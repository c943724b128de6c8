"""Find the fused op, rule or node to blame."""
