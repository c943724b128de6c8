"""Planted faults: what a wrong kernel, fold or rewrite leaves behind, each in the middle of a network.

A kernel's fault is planted in the body of its fused op: on a machine without a GPU that is what runs. A fold's or a
rewrite's is planted in the rule. The network around it computes something before and after, so that naming the place
takes more than seeing that the output is wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import FunctionProto, ModelProto, NodeProto, helper, numpy_helper

from onnxfuse.model.fused import DOMAIN
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file

SIDE = 32
"""Rows and columns: square, so that what is transposed or broadcast along the wrong axis still runs."""

Edit = Callable[[ModelProto, FunctionProto], None]
"""Changes the body of the fused op that computes `mid`; the model is there for its nodes."""


@dataclass(frozen=True)
class Mutant:
    """One planted fault."""

    name: str
    middle: str
    """Nodes from `a` to `mid`, both [n, SIDE, SIDE], or [n, channels, SIDE, SIDE] where `images`."""
    guilty: str
    """The rule that has to be named."""
    edit: Edit | None = None
    """The fault of a kernel."""
    rule: tuple[str, str] = ("", "")
    """The fault of a rule: a text in the file of the rule `guilty`, and what stands there instead."""
    own_rule: str = ""
    """A rule of a user's, wrong as it stands, called `guilty`."""
    images: bool = False
    channels: int = 4
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    """More weights."""
    float32_only: bool = False
    """Whether it is no fault in float16: rounding to float16 what is float16 already changes no bit."""
    below_float16: bool = False
    """Whether it changes less than one rounding of float16 there: what is tight enough to see it cries wolf elsewhere.

    A lost epsilon of 1e-5 beside a variance of 0.1 is 5e-5 of the result, a tenth of a rounding step.
    """

    @property
    def op(self) -> bool:
        """Whether a fused op has to be named, not a rule alone."""
        return self.edit is not None


def original(mutant: Mutant, dtype: str = "float32") -> ModelProto:
    """Return the model without the fault: a layer, the middle, a layer."""
    shape = f"n, {mutant.channels}, {SIDE}, {SIDE}" if mutant.images else f"n, {SIDE}, {SIDE}"
    kind = {"float32": "float", "float16": "float16"}[dtype]
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> net ({kind}[{shape}] x) => ({kind}[{shape}] y) {{'
        f"  m0 = MatMul(x, w0)  h0 = Add(m0, b0)  a = Relu(h0)  {mutant.middle}"
        f"  m1 = MatMul(mid, w1)  h1 = Add(m1, b1)  s1 = Sigmoid(h1)  y = Mul(h1, s1) }}"
    )
    rng = np.random.default_rng(5)
    weights = {
        **{n: rng.standard_normal((SIDE, SIDE)) / 6 for n in ("w0", "w1", "w")},
        **{n: rng.standard_normal(SIDE) / 4 for n in ("b0", "b1", "b")},
        "g": 1 + rng.standard_normal(SIDE) / 8,
        **CHANNELS,
        **mutant.weights,
    }
    read = {v for n in model.graph.node for v in n.input}
    for name, values in weights.items():
        if name in read:
            array = np.asarray(values)
            array = array.astype(dtype) if array.dtype.kind == "f" else array
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def fused(mutant: Mutant, folder: Path, dtype: str = "float32") -> tuple[ModelProto, list[Path]]:
    """Return the optimized model with the fault in it, and the folders of rules that it was made with."""
    folders = [folder] if mutant.own_rule or mutant.rule[0] else []
    if mutant.own_rule:
        (folder / f"{mutant.guilty}.toml").write_text(mutant.own_rule)
    if mutant.rule[0]:
        text = rule_file.shipped_files()[mutant.guilty].read_text()
        assert mutant.rule[0] in text, mutant.name
        head, _, _ = text.replace(*mutant.rule).partition("[[example]]")
        (folder / f"{mutant.guilty}.toml").write_text(head)
    model = original(mutant, dtype)
    pipeline.run(model, rule_file.by_default(rule_file.select(folders)))
    if mutant.edit is not None:
        node = _planted(mutant, model)
        alone = FunctionProto()
        alone.CopyFrom(next(f for f in model.functions if f.name == node.op_type))
        alone.name = node.op_type = f"{node.op_type}x"  # The other nodes of the op keep the right body.
        model.functions.append(alone)
        mutant.edit(model, model.functions[-1])
        used = {n.op_type for n in model.graph.node}
        for function in list(model.functions):
            if function.domain == DOMAIN and function.name not in used:
                model.functions.remove(function)
    return model, folders


def rule_of(node: NodeProto) -> str:
    """Return the rule that wrote a fused op."""
    return next(p.value for p in node.metadata_props if p.key == f"{DOMAIN}.rule")


def _planted(mutant: Mutant, model: ModelProto) -> NodeProto:
    """Return the guilty rule's op: the one that computes `mid`, or else the last, inside a region of images.

    Another rule's op that computes `mid` where the guilty one has none: in float16 a product's kernel takes it all.
    """
    ops = [n for n in model.graph.node if n.domain == DOMAIN]
    last = [n for n in ops if "mid" in n.output]
    guilty = [n for n in ops if rule_of(n) == mutant.guilty]
    return next((n for n in guilty if n in last), (guilty or last)[-1])


# ---- faults of kernels


def _nodes(body: FunctionProto, op: str) -> NodeProto:
    return next(n for n in body.node if n.op_type == op)


def _attribute(node: NodeProto, name: str, value: object) -> None:
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def with_attribute(op: str, name: str, value: object) -> Edit:
    """Return the edit that sets an attribute."""
    return lambda _model, body: _attribute(_nodes(body, op), name, value)


def skipped(op: str, operand: int = 0) -> Edit:
    """Return the edit that leaves an operator out: its operand goes through."""

    def edit(_model: ModelProto, body: FunctionProto) -> None:
        node = _nodes(body, op)
        kept = node.input[operand]
        node.op_type = "Identity"
        del node.input[:], node.attribute[:]
        node.input.append(kept)

    return edit


def swapped(op: str, first: int, second: int) -> Edit:
    """Return the edit that swaps two operands."""

    def edit(_model: ModelProto, body: FunctionProto) -> None:
        node = _nodes(body, op)
        node.input[first], node.input[second] = node.input[second], node.input[first]

    return edit


def cut(op: str, operands: int) -> Edit:
    """Return the edit that drops the operands from this one on."""

    def edit(_model: ModelProto, body: FunctionProto) -> None:
        del _nodes(body, op).input[operands:]

    return edit


def replaced(op: str, text: str) -> Edit:
    """Return the edit that puts nodes, as ONNX text of the operands p, q, extra and the result r, for an operator."""

    def edit(_model: ModelProto, body: FunctionProto) -> None:
        at = next(n for n, node in enumerate(body.node) if node.op_type == op)
        node = body.node[at]
        names = dict(zip(("p", "q", "extra"), node.input, strict=False)) | {"r": node.output[0]}
        made = onnx.parser.parse_function(f'<domain: "d", opset_import: ["": 20]> f (p, q, extra) => (r) {{ {text} }}')
        for inner in made.node:
            for values in (inner.input, inner.output):
                for n, value in enumerate(values):
                    values[n] = names.get(value, f"planted_{value}")
        rest = list(body.node)
        del body.node[:]
        body.node.extend([*rest[:at], *made.node, *rest[at + 1 :]])

    return edit


def constant(change: Callable[[np.ndarray], np.ndarray]) -> Edit:
    """Return the edit of the first number that the body holds."""

    def edit(_model: ModelProto, body: FunctionProto) -> None:
        tensor = _nodes(body, "Constant").attribute[0].t
        old = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(change(old).astype(old.dtype)))

    return edit


def stale(value: str, instead: str) -> Edit:
    """Return the edit that gives the fused op another value of the network."""

    def edit(model: ModelProto, body: FunctionProto) -> None:
        node = next(n for n in model.graph.node if n.op_type == body.name)
        node.input[list(node.input).index(value)] = instead

    return edit


def without_the_tail(model: ModelProto, body: FunctionProto) -> None:
    """Leave the last column of the result as the operator before the last one left it."""
    last = body.node[-1]
    result, before = last.output[0], last.input[0]
    last.output[0] = "planted_all"
    columns = numpy_helper.from_array(np.arange(SIDE) < SIDE - 1)
    body.node.append(helper.make_node("Constant", [], ["planted_columns"], value=columns))
    body.node.append(helper.make_node("Where", ["planted_columns", "planted_all", before], [result]))


def moved(change: Callable[[np.ndarray], np.ndarray], name: str) -> Edit:
    """Return the edit of a constant that the fused op takes as an input of its own: a weight as the kernel reads it."""

    def edit(model: ModelProto, body: FunctionProto) -> None:
        node = next(n for n in model.graph.node if n.op_type == body.name)
        sizes = {t.name: t for t in model.graph.initializer}
        at, tensor = next((i, sizes[v]) for i, v in enumerate(node.input) if v in sizes and v.startswith(name))
        array = np.ascontiguousarray(change(numpy_helper.to_array(tensor)))
        model.graph.initializer.append(numpy_helper.from_array(array, f"planted_{tensor.name}"))
        node.input[at] = f"planted_{tensor.name}"

    return edit


# ---- faults of rules

CHANNELS = {
    "k": np.random.default_rng(6).standard_normal((4, 4, 3, 3)) / 6,
    "kb": np.random.default_rng(7).standard_normal(4),
    "scale": 1 + np.random.default_rng(8).standard_normal(4) / 4,
    "shift": np.random.default_rng(9).standard_normal(4),
    "mean": np.random.default_rng(10).standard_normal(4) / 4,
    # Exporters of trained nets hold variances like these; beside a large one nobody would miss an epsilon.
    "var": np.array([0.3, 0.02, 1.5, 0.7]),
    "per": 1 + np.random.default_rng(11).standard_normal((1, 4, 1, 1)) / 4,
}

CONV = "c = Conv <pads = [1,1,1,1]> (a, k, kb)  "
NORMALIZED = CONV + "d = BatchNormalization <epsilon = 0.001> (c, scale, shift, mean, var)  mid = Relu(d)"

TRANSPOSED = """summary = "An Einsum as MatMul and Mul, the transposition forgotten: a square weight does not complain."
[[rewrite]]
from = '''(x, w, s) => (y) { y = Einsum <equation = "nij,kj,k->nik"> (x, w, s) }'''
to = "(x, w, s) => (y) { m = MatMul (x, w)  y = Mul (m, s) }"
where = ["const(w)"]
"""

CONCATENATED = '''summary = "Relu after Concat instead of before, of the wrong parts."
[[rewrite]]
from = """(a, b) => (y) {
  p = Relu (a)
  q = Relu (b)
  y = Concat <axis: int = @axis> (p, q)
}"""
to = "(a, b) => (y) { c = Concat <axis: int = @axis> (b, a)  y = Relu (c) }"
'''

WINDOWS = {
    "dw": np.random.default_rng(12).standard_normal((4, 1, 3, 3)) / 2,
    "deep": np.random.default_rng(13).standard_normal((48, 48, 3, 3)) / 20,
    "bias": np.random.default_rng(18).standard_normal(48),
    "kb8": np.random.default_rng(14).standard_normal(8),
    "k84": np.random.default_rng(15).standard_normal((8, 4, 3, 3)) / 6,
    "k48": np.random.default_rng(16).standard_normal((4, 8, 3, 3)) / 8,
}
DEPTHWISE = "c = Conv <group = 4, pads = [1,1,1,1]> (a, dw, kb)  mid = Relu(c)"
IMAGES = (
    "c = Conv <pads = [1,1,1,1]> (a, deep, bias)  r = Relu(c)  d = Conv <pads = [1,1,1,1]> (r, deep, bias)"
    "  mid = Relu(d)"
)
NARROW = (
    "c = Conv <pads = [1,1,1,1]> (a, k84, kb8)  r = Relu(c)  d = Conv <pads = [1,1,1,1]> (r, k48, kb)  mid = Relu(d)"
)
CUTS = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "half": np.array([SIDE // 2]),
        "end": np.array([2**62]), "last": np.array([-1])}  # fmt: skip

LINEAR = "m = MatMul(a, w)  h = Add(m, b)  "
SOFTMAX = "mid = Softmax <axis = -1> (s)"

MUTANTS = (
    Mutant("wrong axis", LINEAR + "s = Mul(h, half)  " + SOFTMAX, "softmax", with_attribute("Softmax", "axis", 1),
           weights={"half": np.array(0.5, np.float32)}),
    Mutant("dropped Relu", LINEAR + "mid = Relu(h)", "gemm", skipped("Relu")),
    Mutant("swapped operands", "m = MatMul(a, w)  h = Sub(m, b)  mid = Tanh(h)", "gemm", swapped("Sub", 0, 1)),
    Mutant("epsilon lost", "mid = LayerNormalization(a, g, b)", "layer_norm",
           with_attribute("LayerNormalization", "epsilon", 0.0), below_float16=True),
    Mutant("stale residual", LINEAR + "r = Tanh(h)  mid = Add(r, a)", "gemm", stale("a", "x")),
    Mutant("mask inverted", "m = MatMul(a, w)  s = Where(keep, m, low)  " + SOFTMAX, "softmax", swapped("Where", 1, 2),
           weights={"keep": np.arange(SIDE) % 3 > 0, "low": np.array(-1e4, np.float32)}),
    Mutant("off-by-one tail", LINEAR + "mid = Relu(h)", "gemm", without_the_tail),
    Mutant("float16 accumulation", "mid = LayerNormalization(a, g, b)", "layer_norm",
           replaced("LayerNormalization",
                    "u = Cast <to = 10> (p)  v = CastLike(u, p)  r = LayerNormalization(v, q, extra)"),
           float32_only=True),
    Mutant("wrong scale", "m = MatMul(a, w)  s = Div(m, root)  " + SOFTMAX, "softmax", constant(lambda c: c * 2),
           weights={"root": np.array(np.sqrt(SIDE), np.float32)}),
    Mutant("bias dropped", LINEAR + "mid = Gelu(h)", "gemm", skipped("Add")),
    Mutant("BN fold without epsilon", NORMALIZED, "batchnorm", rule=("Add (var, e)", "Identity (var)"), images=True),
    Mutant("BN fold with the root missing", NORMALIZED, "batchnorm", rule=("Sqrt (ve)", "Identity (ve)"), images=True),
    Mutant("GELU by tanh", LINEAR + "mid = Gelu(h)", "gemm", with_attribute("Gelu", "approximate", "tanh")),
    Mutant("Clip bound lost", LINEAR + "mid = Clip(h, low, high)", "gemm", cut("Clip", 2),
           weights={"low": np.array(-1, np.float32), "high": np.array(1, np.float32)}),
    Mutant("the 6 of Relu6 lost", LINEAR + "mid = Clip(h, zero, six)", "gemm", cut("Clip", 2),
           weights={"zero": np.array(0, np.float32), "six": np.array(6, np.float32)}),
    Mutant("missing max subtraction", LINEAR + "s = Mul(h, ten)  " + SOFTMAX, "softmax",
           replaced("Softmax", "e = Exp(p)  l = Constant <value_ints = [-1]> ()  t = ReduceSum(e, l)  r = Div(e, t)"),
           weights={"ten": np.array(10, np.float32)}),
    Mutant("transposed square weight",
           'm = Einsum <equation = "nij,kj,k->nik"> (a, w, parts)  h = Add(m, b)  mid = Relu(h)', "square",
           own_rule=TRANSPOSED, weights={"parts": np.linspace(0.5, 1.5, SIDE)}),
    Mutant("wrong broadcast", "m = MatMul(a, w)  h = Mul(m, column)  mid = Tanh(h)", "gemm",
           replaced("Mul", "t = Transpose <perm = [1,0]> (q)  r = Mul(p, t)"),
           weights={"column": np.linspace(0.5, 1.5, SIDE).reshape(SIDE, 1)}),
    Mutant("cast truncation", "m = MatMul(a, w)  h = Mul(m, four)  q = Round(h)  mid = Div(q, four)", "gemm",
           replaced("Round", "i = Cast <to = 6> (p)  r = CastLike(i, p)"), weights={"four": np.array(4, np.float32)}),
    Mutant("wrong concat order", "l, k2 = Split <axis = 1, num_outputs = 2> (a)  p = Relu(l)  q = Relu(k2)"
           "  mid = Concat <axis = 1> (p, q)", "parts", own_rule=CONCATENATED),
    Mutant("channel scale left out of the bias", CONV + "d = Mul(c, per)  mid = Relu(d)", "channel_scale",
           rule=("Mul (b, k)", "Identity (b)"), images=True),
    Mutant("gate on the wrong branch", "m = MatMul(a, w)  h = Add(m, b)  s = Sigmoid(h)  t = Tanh(a)  mid = Mul(s, t)",
           "gemm", replaced("Sigmoid", "r = Tanh(p)")),
    Mutant("mean kept", "r = Add(a, x)  mid = LayerNormalization(r, g, b)", "layer_norm",
           replaced("LayerNormalization",
                    "l = Constant <value_ints = [-1]> ()  z = Mul(p, p)  v = ReduceMean(z, l)"
                    "  c = Constant <value_float = 1e-5> ()  k = CastLike(c, p)  e = Add(v, k)  d = Sqrt(e)"
                    "  n = Div(p, d)  o = Mul(n, q)  r = Add(o, extra)")),
    # Windows: depthwise, implicit GEMM, the convolutions that ONNX Runtime runs channels last.
    Mutant("depthwise padded on one side", DEPTHWISE, "depthwise", with_attribute("Conv", "pads", [2, 2, 0, 0]),
           images=True, weights=WINDOWS),
    Mutant("depthwise channels swapped", DEPTHWISE, "depthwise", moved(lambda w: w[[1, 0, 2, 3]], "dw"), images=True,
           weights=WINDOWS),
    Mutant("window a pixel too far", IMAGES, "implicit_gemm", with_attribute("Conv", "pads", [0, 0, 2, 2]),
           images=True, channels=48, weights=WINDOWS),
    Mutant("weights of two channels swapped", IMAGES, "implicit_gemm",
           moved(lambda w: np.roll(w, 1, axis=w.shape.index(48)), "deep"), images=True, channels=48, weights=WINDOWS),
    Mutant("bias of a convolution dropped", IMAGES, "implicit_gemm", skipped("Add"), images=True, channels=48,
           weights=WINDOWS),
    Mutant("height and width swapped", NARROW, "direct", with_attribute("Transpose", "perm", [0, 3, 2, 1]),
           images=True, weights=WINDOWS),
    Mutant("region left turned", NARROW, "movement", with_attribute("Transpose", "perm", [0, 3, 2, 1]), images=True,
           weights=WINDOWS),
    # Reductions over other axes than the last.
    Mutant("image mean over the channels", "m = GlobalAveragePool(a)  s = Sigmoid(m)  mid = Mul(a, s)", "reduce",
           replaced("GlobalAveragePool", "l = Constant <value_ints = [1]> ()  r = ReduceMean(p, l)"), images=True),
    Mutant("last row left out of a column's mean", "s = ReduceMean(a, rows)  mid = Mul(a, s)", "image_mean",
           replaced("ReduceMean",
                    "z = Constant <value_ints = [0]> ()  e = Constant <value_ints = [-1]> ()"
                    "  l = Constant <value_ints = [1]> ()  t = Slice(p, z, e, l)  r = ReduceMean(t, l)"),
           weights={"rows": np.array([1])}),
    Mutant("maximum over the wrong axis", "s = ReduceMax(a, rows)  d = Sub(a, s)  mid = Exp(d)", "reduce",
           replaced("ReduceMax", "l = Constant <value_ints = [2]> ()  r = ReduceMax(p, l)"),
           weights={"rows": np.array([1])}),
    Mutant("epsilon of a group norm", "r = Reshape(a, groups)  n = InstanceNormalization(r, ones, zeros)"
           "  s = Reshape(n, whole)  k1 = Mul(s, per)  mid = Relu(k1)", "group_norm",
           with_attribute("InstanceNormalization", "epsilon", 0.01), images=True,
           weights={"groups": np.array([0, 2, -1]), "whole": np.array([0, 4, SIDE, SIDE]), "ones": np.ones(2),
                    "zeros": np.zeros(2)}),
    # Data movement as index maps.
    Mutant("rotation the wrong way", "l = Slice(a, zero, half, last)  r = Slice(a, half, end, last)  t = Neg(r)"
           "  u = Concat <axis = -1> (t, l)  p = Mul(a, cos)  q = Mul(u, sin)  mid = Add(p, q)", "movement",
           skipped("Neg"),
           weights={**CUTS, "cos": np.cos(np.linspace(0, 3, SIDE)), "sin": np.sin(np.linspace(0, 3, SIDE))}),
    Mutant("rolled by one too few", "l = Slice(a, two, end, one)  r = Slice(a, zero, two, one)"
           "  t = Concat <axis = 1> (l, r)  u = Relu(t)  mid = Mul(u, g)", "movement",
           replaced("Concat", "z = Constant <value_ints = [0]> ()  o = Constant <value_ints = [1]> ()"
                    "  e = Constant <value_ints = [-1]> ()  c = Concat <axis = 1> (p, q)  l = Slice(c, z, e, o)"
                    "  b = Constant <value_ints = [99]> ()  f = Slice(c, e, b, o)  r = Concat <axis = 1> (f, l)"),
           weights=CUTS),
    Mutant("channels not shuffled", "r = Reshape(a, pairs)  t = Transpose <perm = [0,2,1,3,4]> (r)"
           "  s = Reshape(t, whole)  mid = Relu(s)", "movement", with_attribute("Transpose", "perm", [0, 1, 2, 3, 4]),
           images=True, weights={"pairs": np.array([0, 2, 2, SIDE, SIDE]), "whole": np.array([0, 4, SIDE, SIDE])}),
)  # fmt: skip
