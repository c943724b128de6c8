"""Random graphs of every operator, each value of which is computed as the graph grows; the laws that hold for them."""
