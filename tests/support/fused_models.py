"""Small fused models, written as text: the graph, and each fused op with its body."""

import onnx
from onnx import TensorProto

from onnxfuse.model.fused import FusedOp, write

FLOAT = TensorProto.FLOAT
OPSET = 20


def fused_op(body: str, inputs: int, outputs: int = 1, template: str = "pointwise", element: int = FLOAT) -> FusedOp:
    """Return the op whose body is `NAME (a, b) => (y) { ... }`, with one element type throughout."""
    function = onnx.parser.parse_function(f'<domain: "onnxfuse", opset_import: ["" : {OPSET}]> {body}')
    return FusedOp(function.name, "by_hand", template, (element,) * inputs, (element,) * outputs, function)


def model(graph: str, *ops: FusedOp) -> onnx.ModelProto:
    """Return the model of `graph`, holding the functions of `ops`."""
    head = f'<ir_version: 10, opset_import: ["" : {OPSET}, "onnxfuse" : 1]>'
    made = onnx.parser.parse_model(f"{head} {graph}")
    made.functions.extend(write(op) for op in ops)
    onnx.checker.check_model(made)
    return made


BIAS_RELU = fused_op("BiasRelu_1 (x, b) => (y) { s = Add(x, b)  y = Relu(s) }", inputs=2)
TWICE_TANH = fused_op("TwiceTanh_2 (x) => (y) { s = Add(x, x)  y = Tanh(s) }", inputs=1)
NEGATE = fused_op("Negate_3 (x) => (y) { y = Neg(x) }", inputs=1)
SUM_SOFTMAX = fused_op(
    "SumSoftmax_4 (x, r) => (s, y) { s = Add(x, r)  y = Softmax <axis = -1> (s) }", inputs=2, outputs=2, template="row"
)
SHAPE_PRODUCT = fused_op(
    "ShapeProduct_5 (a, b) => (y) { p = Mul(a, b)  y = Neg(p) }", inputs=2, element=TensorProto.INT64
)
DIVIDE = fused_op("Divide_6 (x, n) => (y) { q = Div(x, n)  y = Neg(q) }", inputs=2)
DIVIDE_HALVES = fused_op(
    "DivideHalves_7 (x, n) => (y) { q = Div(x, n)  y = Neg(q) }", inputs=2, element=TensorProto.FLOAT16
)


def chain(shapes_known: bool = True) -> onnx.ModelProto:
    """-tanh(2 relu(x + b)) as three fused ops in a row, any batch; the shapes between them are in the file or not."""
    between = "<float[N, 8] h, float[N, 8] t>" if shapes_known else ""
    graph = f"""chain (float[N, 8] x, float[8] b) => (float[N, 8] y) {between} {{
      h = onnxfuse.BiasRelu_1 (x, b)
      t = onnxfuse.TwiceTanh_2 (h)
      y = onnxfuse.Negate_3 (t)
    }}"""
    return model(graph, BIAS_RELU, TWICE_TANH, NEGATE)


def sum_softmax() -> onnx.ModelProto:
    """A residual sum and its softmax, both outputs of one op and of the model."""
    graph = """rows (float[N, 8] x, float[N, 8] r) => (float[N, 8] s, float[N, 8] y) {
      s, y = onnxfuse.SumSoftmax_4 (x, r)
    }"""
    return model(graph, SUM_SOFTMAX)


def branches() -> onnx.ModelProto:
    """Fused ops in the branches of an If."""
    graph = """branches (bool c, float[N, 8] x) => (float[N, 8] y) {
      y = If (c) <
        then_branch = then () => (float[N, 8] p) { p = onnxfuse.Negate_3 (x) },
        else_branch = else () => (float[N, 8] q) { q = onnxfuse.TwiceTanh_2 (x) }
      >
    }"""
    return model(graph, NEGATE, TWICE_TANH)


def shape_product() -> onnx.ModelProto:
    """A fused op that works on a shape."""
    graph = """shapes (float[N, 8] x) => (int64[2] y) <int64[2] two = {2, 1}> {
      s = Shape (x)
      y = onnxfuse.ShapeProduct_5 (s, two)
    }"""
    return model(graph, SHAPE_PRODUCT)


def divide_by_folded() -> onnx.ModelProto:
    """A fused op that reads a value computed from a shape, and one that ONNX Runtime computes before all else."""
    graph = """mean (float[N, 8] x) => (float[1] y) <float[1] c = {2.5}> {
      n = Size (x)
      f = Cast <to = 1> (n)
      r = Round (c)
      y = onnxfuse.Divide_6 (f, r)
    }"""
    return model(graph, DIVIDE)


def divide_by_size() -> onnx.ModelProto:
    """A fused op that reads a graph input and a value computed from a shape."""
    graph = """mean (float[N, 8] x) => (float[N, 8] y) {
      n = Size (x)
      f = Cast <to = 1> (n)
      y = onnxfuse.Divide_6 (x, f)
    }"""
    return model(graph, DIVIDE)


READS_ON_HOST = {
    "ConstantOfShape": "o = ConstantOfShape (s)  f = Cast <to = 1> (o)",
    "Expand": "o = Expand (one, s)  f = Cast <to = 1> (o)",
    "Range": "n = Size (x)  o = Range (zero, n, n)  f = Cast <to = 1> (o)",
    "Reshape": "v = Neg (s)  o = Reshape (v, s)  f = Cast <to = 1> (o)",
    "Slice": "o = Slice (s, first, s)  f = Cast <to = 1> (o)",
    "Split": "n = Size (x)  d = Div (n, n)  a = Unsqueeze (d, first)  o = Split (one, a)  f = Cast <to = 1> (o)",
    "Squeeze": "n = Size (x)  z = Sub (n, n)  a = Unsqueeze (z, first)  o = Squeeze (one, a)  f = Cast <to = 1> (o)",
    "Unsqueeze": "n = Size (x)  z = Sub (n, n)  a = Unsqueeze (z, first)  o = Unsqueeze (s, a)  f = Cast <to = 1> (o)",
    "Tile": "n = Size (x)  t = Unsqueeze (n, first)  o = Tile (s, t)  f = Cast <to = 1> (o)",
    "TopK": "n = Size (x)  d = Div (n, n)  k = Unsqueeze (d, first)  o, i = TopK (one, k)  f = Cast <to = 1> (o)",
    "Trilu": "n = Size (x)  o = Trilu (one, n)  f = Cast <to = 1> (o)",
    "OneHot": "n = Size (x)  o = OneHot (first, n, ends)  f = Cast <to = 1> (o)",
    "CumSum": "n = Size (x)  z = Sub (n, n)  o = CumSum (one, z)  f = Cast <to = 1> (o)",
    "NonMaxSuppression": "n = Size (x)  o = NonMaxSuppression (box, score, n)  f = Cast <to = 1> (o)",
    "Pad": "p = Sub (s, s)  f = Pad (real, p)",
    "Resize": "f = Resize (real, , , s)",
    **{
        op: f"n = Size (x)  z = Sub (n, n)  a = Unsqueeze (z, first)  o = {op} (one, a)  f = Cast <to = 1> (o)"
        for op in ("ReduceSum", "ReduceMax", "ReduceMin")
    },
    **{
        op: f"n = Size (x)  z = Sub (n, n)  a = Unsqueeze (z, first)  f = {op} (real, a)"
        for op in (
            "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
        )
    },
}  # fmt: skip
"""For each operator whose CUDA kernel reads an input in host memory, nodes that make a float of a shape with it."""


def divide_by_what_reads_on_host(op: str) -> onnx.ModelProto:
    """A fused op that reads a graph input and what `op` makes of a shape."""
    graph = f"""mean (float[N, 8] x) => (float y)
      <int64[1] first = {{0}}, int64[1, 1] one = {{1}}, int64 zero = {{0}}, int64[2] ends = {{0, 1}},
       float[1, 1] real = {{1}}, float[1, 1, 4] box = {{0, 0, 1, 1}}, float[1, 1, 1] score = {{1}}> {{
      s = Shape (x)
      {READS_ON_HOST[op]}
      y = onnxfuse.Divide_6 (x, f)
    }}"""
    return model(graph, DIVIDE)


def divide_halves_by_size() -> onnx.ModelProto:
    """A fused op that reads a half-type graph input and a value computed from a shape."""
    graph = """mean (float16[N, 8] x) => (float16[N, 8] y) {
      n = Size (x)
      f = Cast <to = 10> (n)
      y = onnxfuse.DivideHalves_7 (x, f)
    }"""
    return model(graph, DIVIDE_HALVES)


def divide_by_device_value() -> onnx.ModelProto:
    """A fused op that reads a value computed from a shape, and one that is computed on the device."""
    graph = """mean (float[N, 8] x) => (float[N, 8] y) {
      n = Size (x)
      f = Cast <to = 1> (n)
      a = onnxfuse.Negate_3 (x)
      y = onnxfuse.Divide_6 (a, f)
    }"""
    return model(graph, DIVIDE, NEGATE)


def divide_by_large_constant() -> onnx.ModelProto:
    """A fused op that reads a value computed from a shape, and a Constant of more elements than the CPU is given."""
    numbers = ", ".join(["2"] * 104)
    graph = f"""mean (float[N, 8] x) => (float[13, 8] y) {{
      n = Size (x)
      f = Cast <to = 1> (n)
      c = Constant <value = float[13, 8] {{{numbers}}}> ()
      y = onnxfuse.Divide_6 (c, f)
    }}"""
    return model(graph, DIVIDE)
