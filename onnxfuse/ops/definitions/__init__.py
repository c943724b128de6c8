"""What operators of ONNX Runtime compute, as nodes of ONNX's own operators: one function for each.

A definition serves the pass that writes such an operator as the nodes that rules match, and the float64 reference.
"""
