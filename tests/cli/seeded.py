"""Models in which one thing keeps a fusion away, each with the nodes that somebody would ask about and the cause."""

from dataclasses import dataclass

import onnx


@dataclass(frozen=True)
class Seeded:
    """A model that does not fuse as its author thinks, and why."""

    name: str
    text: str
    region: tuple[str, ...]
    """The nodes that would be one op: `--at` each of them tells the cause first."""
    rule: str
    stopped: str
    """The node at which the rule stops."""
    reason: str
    """Part of what is said, with the model's own names."""

    @property
    def model(self) -> onnx.ModelProto:
        """The model, which ONNX's checker takes."""
        return onnx.parser.parse_model(self.text)


HEAD = '<ir_version: 10, opset_import: ["" : 18]>'
CUSTOM = '<ir_version: 10, opset_import: ["" : 18, "my.ops" : 1]>'


def _numbers(count: int, number: float = 1) -> str:
    return "{" + ",".join([str(number)] * count) + "}"


def _attention(element: str, axis: int = -1, outputs: str = "") -> str:
    return f"""{HEAD} g ({element}[2,4,32,16] q, {element}[2,4,32,16] k, {element}[2,4,32,16] v)
      => ({element}[2,4,32,16] y{outputs}) <{element} root = {{4}}> {{
        [turn] kt = Transpose <perm = [0,1,3,2]> (k)
        [scores] m = MatMul (q, kt)
        [scale] s = Div (m, root)
        [soft] p = Softmax <axis = {axis}> (s)
        [context] y = MatMul (p, v)
      }}"""


_OF_ATTENTION = ("turn", "scores", "scale", "soft", "context")


def _heads(element: str, between: str = "", probabilities: str = "p") -> str:
    weights = ", ".join(f"{element}[64,64] w{n} = {_numbers(4096)}" for n in "qkvo")
    return f"""{HEAD} g ({element}[2,32,64] x, {element}[2,1,1,32] mask) => ({element}[2,32,64] out)
      <{weights}, int64[4] heads = {{0,0,4,16}}, int64[3] whole = {{0,0,64}}, {element} root = {{4}}> {{
        [q_proj] q0 = MatMul (x, wq)  [k_proj] k0 = MatMul (x, wk)  [v_proj] v0 = MatMul (x, wv)
        [q_heads] q1 = Reshape (q0, heads)  [k_heads] k1 = Reshape (k0, heads)  [v_heads] v1 = Reshape (v0, heads)
        [q_turn] q = Transpose <perm = [0,2,1,3]> (q1)
        [k_turn] kt = Transpose <perm = [0,2,3,1]> (k1)
        [v_turn] v = Transpose <perm = [0,2,1,3]> (v1)
        [scores] m = MatMul (q, kt)
        [scale] s = Div (m, root)
        [masked] sm = Add (s, mask)
        [soft] p = Softmax <axis = -1> (sm)
        {between}
        [context] c = MatMul ({probabilities}, v)
        [merge_turn] ct = Transpose <perm = [0,2,1,3]> (c)
        [merge] cm = Reshape (ct, whole)
        [o_proj] out = MatMul (cm, wo)
      }}"""


def _batchnorm(inputs: str = "", weights: str = "", outputs: str = "", other: str = "") -> str:
    facts = ", ".join(f"float[8] {name} = {{1,2,3,4,5,6,7,8}}" for name in ("s", "b", "mean", "var"))
    return f"""{HEAD} g (float[N,8,6,6] x{inputs}) => (float[N,8,6,6] y{outputs}) <{weights}{facts}> {{
        [conv] c = Conv (x, w)
        [bn] n = BatchNormalization (c, s, b, mean, var)
        [act] y = Relu (n)
        {other}
      }}"""


_KERNEL = f"float[8,8,1,1] w = {_numbers(64, 0.5)}, "


def _layer_norm(power: int = 2, axes: int = -1) -> str:
    return f"""{HEAD} g (float[N,16,64] x) => (float[N,16,64] y)
      <int64[1] last = {{-1}}, int64[1] other = {{{axes}}}, float two = {{{power}}}, float tiny = {{0.00001}},
       float[64] gain = {_numbers(64, 1.5)}, float[64] offset = {_numbers(64, 0.5)}> {{
        [mean] m = ReduceMean <keepdims = 1> (x, last)
        [centre] d = Sub (x, m)
        [square] q = Pow (d, two)
        [variance] v = ReduceMean <keepdims = 1> (q, other)
        [eps] e = Add (v, tiny)
        [root] r = Sqrt (e)
        [divide] n = Div (d, r)
        [scale] t = Mul (n, gain)
        [shift] y = Add (t, offset)
      }}"""


_OF_NORM = ("mean", "centre", "square", "variance", "eps", "root", "divide", "scale", "shift")


_WIDE_MASK = (
    _heads("float16")
    .replace("float16[2,1,1,32] mask", "float[2,1,1,32] mask")
    .replace(
        "[masked] sm = Add (s, mask)",
        "[wide] sw = Cast <to = 1> (s) [masked] sb = Add (sw, mask) [narrow] sm = Cast <to = 10> (sb)",
    )
)


def _product(terms: int, inputs: str = "", weights: str = "") -> str:
    return f"""{HEAD} g (float16[32,{terms}] x{inputs}) => (float16[32,64] y)
      <{weights}float16[64] b = {_numbers(64)}> {{
        [product] m = MatMul (x, w)
        [bias] a = Add (m, b)
        [act] y = Relu (a)
      }}"""


SEEDED = (
    Seeded("an attention in float64", _attention("double"), _OF_ATTENTION, "attention", "context", "is double"),
    Seeded(
        "an attention of a whole layer in float64", _heads("double"),
        ("q_turn", "k_turn", "v_turn", "scores", "scale", "masked", "soft", "context", "merge_turn", "merge"),
        "attention", "merge", "(float16, bfloat16, float) (qh is 'q')",
    ),
    Seeded(
        "an attention that gives its probabilities away", _attention("float16", outputs=", float16[2,4,32,32] p"),
        _OF_ATTENTION, "attention", "soft", "value 'p' is a graph output",
    ),
    Seeded(
        "a softmax over the wrong axis", _attention("float16", axis=2), _OF_ATTENTION, "attention", "soft",
        "value(axis) is 2",
    ),
    Seeded(
        "a gain between softmax and values",
        _heads("float16", between="[gain] pg = Mul (p, p)", probabilities="pg"),
        ("scores", "scale", "soft", "gain", "context"), "attention", "gain", "is a Mul, the rule wants a Softmax",
    ),
    Seeded(
        "a gain between softmax and values of single heads",
        _attention("float16").replace("[context] y = MatMul (p,", "[gain] pg = Mul (p, p) [context] y = MatMul (pg,"),
        (*_OF_ATTENTION, "gain"), "attention", "gain", "the node before it, Softmax soft, is one",
    ),
    Seeded(
        "a convolution that others read, too",
        _batchnorm(weights=_KERNEL, outputs=", float[N,8,6,6] z", other="[other] z = Sigmoid (c)"),
        ("conv", "bn"), "batchnorm", "conv", "value 'c' is also read by Sigmoid other",
    ),
    Seeded(
        "a kernel that is an input", _batchnorm(inputs=", float[8,8,1,1] w"), ("conv", "bn"), "batchnorm", "bn",
        "'w' is not a constant",
    ),
    Seeded(
        "a norm with a cube", _layer_norm(power=3), _OF_NORM, "layer_norm", "square",
        "has the constant 3, the rule wants 2",
    ),
    Seeded(
        "a norm over two axes", _layer_norm(axes=1), _OF_NORM, "layer_norm", "variance",
        "reads 'other' where the rule wants 'last' again",
    ),
    Seeded(
        "a product of 61 terms", _product(61, weights=f"float16[61,64] w = {_numbers(61 * 64)}, "),
        ("product", "bias", "act"), "gemm", "product", "dim(w, 0) % 8 is 5",
    ),
    Seeded(
        "a product with a computed weight", _product(64, inputs=", float16[64,64] w"), ("product", "bias", "act"),
        "gemm", "product", "'w' is not a constant",
    ),
    Seeded(
        "an operator that nobody knows",
        f"""{CUSTOM} g (float16[32,64] x) => (float16[32,64] y) <float16[64] b = {_numbers(64)}> {{
          [mine] u = my.ops.Special (x)
          [bias] a = Add (u, b)
          [act] r = Relu (a)
          [gain] y = Mul (r, r)
        }}""",
        ("bias", "act", "gain"), "pointwise", "", "made by Special mine, an operator of my.ops",
    ),
    Seeded(
        "cubic interpolation",
        f"""{HEAD} g (float16[1,8,16,16] x) => (float16[1,8,32,32] y) <float[4] scales = {{1,1,2,2}}> {{
          [up] r = Resize <mode = "cubic"> (x, , scales)
          [act] y = Relu (r)
        }}""",
        ("up", "act"), "image_resize", "up", "Resize has mode = cubic, the rule wants linear",
    ),
    Seeded(
        "a mask that is added in float32", _WIDE_MASK,
        ("scores", "scale", "wide", "masked", "narrow", "soft", "context"), "attention", "narrow",
        "the node before it, Add masked, is one",
    ),
    Seeded(
        "a norm in training",
        _batchnorm(weights=_KERNEL).replace("n = BatchNorm", "n, m1, v1 = BatchNorm").replace(
            "BatchNormalization (", "BatchNormalization <training_mode = 1> ("
        ),
        ("conv", "bn"), "batchnorm", "bn", "has training_mode = 1, the rule wants 0",
    ),
    Seeded(
        "a norm with a computed gain",
        _batchnorm(weights=_KERNEL, inputs=", float[8] gain").replace("(c, s,", "(c, gain,"),
        ("conv", "bn"), "batchnorm", "bn", "'gain' is not a constant",
    ),
    Seeded(
        "a pooling that gives its indices",
        f"""{HEAD} g (float16[2,8,16,16] x) => (float16[2,8,8,8] y, int64[2,8,8,8] i) {{
          [pool] p, i = MaxPool <kernel_shape = [2,2], strides = [2,2]> (x)
          [act] y = Relu (p)
        }}""",
        ("pool", "act"), "image_pool", "pool", "has 2 outputs, the rule wants 1",
    ),
    Seeded(
        "a pooling in float64",
        f"""{HEAD} g (double[2,8,16,16] x) => (double[2,8,8,8] y) {{
          [pool] p = AveragePool <kernel_shape = [2,2], strides = [2,2]> (x)
          [act] y = Relu (p)
        }}""",
        ("pool", "act"), "image_pool", "pool", "dtype(x) is double",
    ),
    Seeded(
        "an attention of unknown sizes", _attention("float16").replace("[2,4,32,16]", "[B,H,S,D]"), _OF_ATTENTION,
        "attention", "context", "is not known",
    ),
    Seeded(
        "an attention with dropout", _heads(
            "float16", between="[drop] pd = Dropout (p, ratio, training)", probabilities="pd"
        ).replace("float16 root = {4}", "float16 root = {4}, float ratio = {0.1}, bool training = {1}"),
        ("scores", "soft", "drop", "context"), "attention", "drop", "is a Dropout, the rule wants a Softmax",
    ),
    Seeded(
        "a norm whose centred values are an output",
        _layer_norm().replace("=> (float[N,16,64] y)", "=> (float[N,16,64] y, float[N,16,64] d)"), _OF_NORM,
        "layer_norm", "centre", "value 'd' is a graph output",
    ),
    Seeded(
        "a norm whose variance is an output",
        _layer_norm().replace("=> (float[N,16,64] y)", "=> (float[N,16,64] y, float[N,16,1] v)"), _OF_NORM,
        "layer_norm", "variance", "value 'v' is a graph output",
    ),
    Seeded(
        "a convolution that is an output, too", _batchnorm(weights=_KERNEL, outputs=", float[N,8,6,6] c"),
        ("conv", "bn"), "batchnorm", "conv", "value 'c' is a graph output",
    ),
)  # fmt: skip
"""The cause of each is one thing: with it mended the region fuses."""
