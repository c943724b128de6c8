"""Write a small model that fuses, for the jobs of the workflows that install the package: OUT.onnx is the argument."""

import sys

import onnx

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n,64] x) => (float[n,64] y) { a = Mul (x, x) b = Sigmoid (a) y = Mul (a, b) }
"""

if __name__ == "__main__":
    onnx.save(onnx.parser.parse_model(TEXT), sys.argv[1])
