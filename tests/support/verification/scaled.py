"""`python -m tests.support.verification.scaled`: each weight of the fused file times 1.01, in turn, opsets 7 to 23.

Networks with weights like those of trained ones, optimized; `verify` with its default options has to catch every one
of the scaled files, and to pass the file as it is. `--dtype float16` and `--factor` choose others.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import click
import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse.passes import pipeline
from onnxfuse.verification import verify

CPU = ["CPUExecutionProvider"]
OPSETS = range(7, 24)
FACTOR = 1.01
TYPES = {"float32": "float", "float16": "float16"}


@dataclass(frozen=True)
class Net:
    """A network in the form of some opsets."""

    name: str
    head: str
    """Inputs and outputs; T is the float type."""
    body: str
    since: int = 7
    until: int = 23
    half_since: int = 7
    """The first opset in which it exists in float16."""

    @property
    def changes(self) -> tuple[int, ...]:
        """The opsets at which an operator of it is another one than the opset before; and the first."""
        ops = {n.op_type for n in self._parsed(self.since, "float32").graph.node}
        found = {self.since}
        for schema in onnx.defs.get_all_schemas_with_history():
            if not schema.domain and schema.name in ops and self.since < schema.since_version <= self.until:
                found.add(schema.since_version)
        return tuple(sorted(found))

    def _parsed(self, opset: int, dtype: str) -> onnx.ModelProto:
        head = self.head.replace("T[", f"{TYPES[dtype]}[")
        return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> net {head} {{ {self.body} }}')

    def model(self, opset: int, dtype: str) -> onnx.ModelProto:
        """Return the network with its weights."""
        made = self._parsed(opset, dtype)
        read = {v for n in made.graph.node for v in n.input}
        for name, value in weights().items():
            if name in read:
                array = value.astype(dtype) if value.dtype.kind == "f" else value
                made.graph.initializer.append(numpy_helper.from_array(array, name))
        return made


def weights() -> dict[str, np.ndarray]:
    """Return weights by name: few large ones, many small; norms with variances over two decades."""
    rng = np.random.default_rng(3)

    def trained(*shape: int) -> np.ndarray:
        return rng.laplace(size=shape) / np.sqrt(2 * np.prod(shape[1:]))

    made = {
        "w1": trained(8, 6, 3, 3), "w2": trained(8, 8, 3, 3), "dw": trained(8, 1, 3, 3), "pw": trained(12, 8, 1, 1),
        "wt": trained(8, 6, 3, 3), "k1": trained(5, 8), "k2": trained(32, 32), "k3": trained(32, 32),
        "bias8": rng.standard_normal(8) / 8, "bias12": rng.standard_normal(12) / 8, "bias5": rng.standard_normal(5) / 8,
        "bias32": rng.standard_normal(32) / 8, "bias6": rng.standard_normal(6) / 8,
        "scale32": rng.uniform(0.5, 1.5, 32), "table": trained(40, 32) * 4, "places": trained(16, 32) * 4,
        "eps": np.array([1e-5]), "two": np.array([2.0]), "last": np.array([-1]), "half": np.array([0.5]),
        "step": np.array(0.02), "eight": rng.integers(-90, 90, (32, 32)).astype(np.int8), "rows": np.array([1, 32]),
        "slope": rng.uniform(0.05, 0.4, (8, 1, 1)),
    }  # fmt: skip
    for n in (6, 8, 12):
        made |= {f"s{n}": rng.uniform(0.5, 1.5, n), f"t{n}": rng.standard_normal(n) / 4}
        made |= {f"m{n}": rng.standard_normal(n) / 4, f"v{n}": 10 ** rng.uniform(-1.5, 0.5, n)}
    return made


IMAGE, ROWS = "(T[n, 6, 12, 12] x) => (T[n, a, b, c] y)", "(T[n, 16, 32] x) => (T[n, 16, a] y)"
SPELLED = (
    "mu = ReduceMean <axes = [2], keepdims = 1> (h)  d = Sub(h, mu)  q = Mul(d, d)"
    "  var = ReduceMean <axes = [2], keepdims = 1> (q)  e = Add(var, eps)  r = Sqrt(e)  n1 = Div(d, r)"
    "  n2 = Mul(n1, scale32)  y = Add(n2, bias32)"
)
SPELLED_18 = SPELLED.replace("<axes = [2], keepdims = 1> (h)", "(h, last)").replace(
    "<axes = [2], keepdims = 1> (q)", "(q, last)"
)
MEAN = "g = GlobalAveragePool(r)  f = Flatten(g)  z = Gemm <transB = 1> (f, k1, bias5)"
NETS = (
    Net("Conv", IMAGE, "c = Conv <pads = [1,1,1,1]> (x, w1, bias8)  r = Relu(c)  y = Conv(r, w2)"),
    Net("Conv + BN + Sigmoid", IMAGE,
        "c = Conv <pads = [1,1,1,1]> (x, w1)  d = BatchNormalization(c, s8, t8, m8, v8)  y = Sigmoid(d)"),
    Net("Conv + BN + PRelu, uneven pool", IMAGE,
        "c = Conv <pads = [1,1,1,1]> (x, w1, bias8)  d = BatchNormalization(c, s8, t8, m8, v8)  p = PRelu(d, slope)"
        "  y = MaxPool <kernel_shape = [3,3], pads = [0,0,1,1], strides = [2,2]> (p)"),
    Net("depthwise, class scores", "(T[n, 6, 12, 12] x) => (T[n, a] y)",
        "c = Conv (x, w1)  d = BatchNormalization(c, s8, t8, m8, v8)  r0 = Relu(d)  e = Conv <group = 8> (r0, dw)"
        f"  r = Relu(e)  {MEAN}  y = Softmax <axis = 1> (z)"),
    Net("BN before Conv", IMAGE,
        "d = BatchNormalization(x, s6, t6, m6, v6)  r = Relu(d)  c = Conv(r, w1)  y = Tanh(c)"),
    Net("ConvTranspose + BN", IMAGE,
        "c = Conv (x, w1)  r = Relu(c)  u = ConvTranspose <strides = [2,2]> (r, wt, bias6)"
        "  d = BatchNormalization(u, s6, t6, m6, v6)  y = Relu(d)"),
    Net("Gemm", "(T[n, 32] x) => (T[n, a] y)", "h = Gemm(x, k2, bias32)  r = Relu(h)  y = Gemm(r, k3, bias32)"),
    Net("MatMul", ROWS,
        "m = MatMul(x, k2)  h = Add(m, bias32)  s = Sigmoid(h)  g = Mul(h, s)  o = MatMul(g, k3)  y = Add(o, x)"),
    Net("LayerNorm in parts", ROWS, f"m = MatMul(x, k2)  h = Add(m, x)  {SPELLED}", until=17),
    Net("LayerNorm in parts", ROWS, f"m = MatMul(x, k2)  h = Add(m, x)  {SPELLED_18}", since=18),
    Net("LayerNormalization", ROWS, "m = MatMul(x, k2)  h = Add(m, x)  y = LayerNormalization(h, scale32, bias32)", 17),
    Net("embeddings", "(int64[n, 16] ids) => (T[n, 16, a] y)",
        f"w = Gather(table, ids)  h = Add(w, places)  {SPELLED}", until=17),
    Net("embeddings", "(int64[n, 16] ids) => (T[n, 16, a] y)",
        f"w = Gather(table, ids)  h = Add(w, places)  {SPELLED_18}", since=18),
    Net("rows of 8 bits", ROWS,
        "k = DequantizeLinear(eight, step)  m = MatMul(x, k)  h = Add(m, bias32)  y = Relu(h)", 10, half_since=19),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One network at one opset."""

    net: str
    opset: int
    missed: tuple[str, ...]
    """Weights whose scaling was not seen."""
    planted: int
    alarm: str
    """What was found wrong without a fault; empty where nothing was."""


def outcome(net: Net, opset: int, dtype: str = "float32", factor: float = FACTOR, *, one: bool = False) -> Outcome:
    """Return what verify makes of the fused file as it is, and with each weight scaled in turn.

    With `one` a single weight is scaled, another one at each opset.
    """
    plain, fused = net.model(opset, dtype), net.model(opset, dtype)
    pipeline.run(fused)
    report = verify(plain, fused, providers=CPU)
    names = [t.name for t in fused.graph.initializer if _is_weight(t)]
    names = [names[opset % len(names)]] if one else names
    missed = tuple(name for name in names if verify(plain, times(fused, name, factor), providers=CPU).ok)
    return Outcome(net.name, opset, missed, len(names), "" if report.ok else report.summary)


def times(model: onnx.ModelProto, name: str, factor: float) -> onnx.ModelProto:
    """Return a copy of the model with one weight scaled."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    tensor = next(t for t in copy.graph.initializer if t.name == name)
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array((array * factor).astype(array.dtype), name))
    return copy


def _is_weight(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16) and (
        int(np.prod(tensor.dims)) > 1 or tensor.name == "step"
    )


def outcomes(dtype: str, factor: float) -> Iterator[list[Outcome]]:
    """Yield each network at all of its opsets."""
    for name in dict.fromkeys(net.name for net in NETS):
        yield [
            outcome(net, opset, dtype, factor)
            for net in NETS
            for opset in OPSETS
            if net.name == name and max(net.since, net.half_since if dtype == "float16" else 0) <= opset <= net.until
        ]


@click.command(help=__doc__)
@click.option("--dtype", type=click.Choice(list(TYPES)), default="float32", show_default=True)
@click.option("--factor", default=FACTOR, show_default=True)
def main(dtype: str, factor: float) -> None:
    """Print a row per network, and what was missed; leave with 1 if anything was."""
    every: list[Outcome] = []
    print(f"| {dtype}, weights times {factor:g} | opsets | caught | false alarms |\n|---|---|---|---|", flush=True)
    for rows in outcomes(dtype, factor):
        planted, missed = sum(r.planted for r in rows), sum(len(r.missed) for r in rows)
        alarms = sum(bool(r.alarm) for r in rows)
        opsets = f"{rows[0].opset} to {rows[-1].opset}"
        print(f"| {rows[0].net} | {opsets} | {planted - missed} of {planted} | {alarms} of {len(rows)} |", flush=True)
        every += rows
    for row in every:
        for name in row.missed:
            print(f"{row.net}, opset {row.opset}: missed: {name}")
        if row.alarm:
            print(f"{row.net}, opset {row.opset}: false alarm: {row.alarm}")
    raise SystemExit(1 if any(r.missed or r.alarm for r in every) else 0)


if __name__ == "__main__":
    main()
