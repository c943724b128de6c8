"""Small detectors: convolutions with norms, and boxes decoded as they do it: exp or squares, grids, strides, scores."""

import numpy as np
import onnx
from onnx import numpy_helper

SIDE, CLASSES = 16, 5

DECODED = {
    "exp": """p = Add(xy, grid)  centres = Mul(p, stride)  e = Exp(wh)  sizes = Mul(e, stride)""",
    "squares": """z = Sigmoid(xy)  z2 = Mul(z, two)  z3 = Sub(z2, half)  p = Add(z3, grid)  centres = Mul(p, stride)
                  g = Sigmoid(wh)  g2 = Mul(g, two)  g3 = Mul(g2, g2)  sizes = Mul(g3, stride)""",
    "distances": """l = Relu(xy)  k = Relu(wh)  low = Sub(grid, l)  high = Add(grid, k)  sum = Add(low, high)
                    mid = Mul(sum, half)  centres = Mul(mid, stride)
                    span = Sub(high, low)  sizes = Mul(span, stride)""",
}


def detector(decoded: str, seed: int, opset: int = 13) -> onnx.ModelProto:
    """Return images [n, 3, SIDE, SIDE] -> boxes and scores [n, places, 4 + CLASSES], of two levels."""
    places = (SIDE // 2, SIDE // 4)
    count = sum(p * p for p in places)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]>'
        f"net (float[n, 3, {SIDE}, {SIDE}] x) => (float[n, {count}, {4 + CLASSES}] y) {{"
        "  c1 = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w1)  n1 = BatchNormalization(c1, s1, t1, m1, v1)"
        "  g1 = Sigmoid(n1)  r1 = Mul(n1, g1)"
        "  c2 = Conv <pads = [1,1,1,1], strides = [2,2]> (r1, w2)  n2 = BatchNormalization(c2, s2, t2, m2, v2)"
        "  g2_ = Sigmoid(n2)  r2 = Mul(n2, g2_)  h1 = Conv (r1, head1, b1)  h2 = Conv (r2, head2, b2)"
        "  f1 = Reshape(h1, flat)  f2 = Reshape(h2, flat)  all = Concat <axis = 2> (f1, f2)"
        "  turned = Transpose <perm = [0,2,1]> (all)  xy, wh, logits = Split <axis = 2> (turned, parts)"
        f"  {DECODED[decoded]}  scores = Sigmoid(logits)  y = Concat <axis = 2> (centres, sizes, scores) }}"
    )
    rng = np.random.default_rng(seed)
    weights = {
        "w1": rng.standard_normal((16, 3, 3, 3)) / 5, "w2": rng.standard_normal((32, 16, 3, 3)) / 12,
        **_norm(rng, 1, 16), **_norm(rng, 2, 32),
        "head1": rng.standard_normal((4 + CLASSES, 16, 1, 1)) / 4, "b1": rng.standard_normal(4 + CLASSES) / 4,
        "head2": rng.standard_normal((4 + CLASSES, 32, 1, 1)) / 6, "b2": rng.standard_normal(4 + CLASSES) / 4,
        "grid": np.concatenate([np.mgrid[:p, :p].reshape(1, 2, -1).transpose(0, 2, 1) for p in places], 1),
        "stride": np.concatenate([np.full((1, p * p, 1), SIDE / p) for p in places], 1), "two": 2.0, "half": 0.5,
    }  # fmt: skip
    read = {v for node in model.graph.node for v in node.input}
    kept = {name: np.asarray(value, np.float32) for name, value in weights.items() if name in read}
    kept |= {"flat": np.array([0, 4 + CLASSES, -1]), "parts": np.array([2, 2, CLASSES])}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in kept.items())
    return model


def _norm(rng: np.random.Generator, level: int, channels: int) -> dict[str, np.ndarray]:
    """Return scale, shift, mean and variance as trained nets hold them."""
    made = (
        rng.uniform(0.5, 1.5, channels),
        rng.standard_normal(channels) / 4,
        rng.standard_normal(channels) / 4,
        rng.uniform(0.3, 2, channels),
    )
    return {f"{name}{level}": value for name, value in zip("stmv", made, strict=True)}
