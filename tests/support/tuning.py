"""A block of a transformer as exporters write it, and a stopwatch that says what it is told."""

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfuse.cuda.dispatch.measurements import Kind, Machine, Timed
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.measure.tune import Stopwatch
from onnxfuse.measure.tune.candidates import Candidate
from onnxfuse.measure.tune.work import TuningTask

HERE = Machine("Some GPU", "580.1", "1.2.3")
H200 = Arch("sm_90a", 132)
WIDTH, DEEP = 64, 4104
"""Columns of the block, and terms of the product that the rules leave to the library for its length."""


def block(rows: int | str = "N", inner: int = DEEP) -> ModelProto:
    """Gemm + GELU; a long MatMul + bias + ReLU; a MatMul, whose residual goes to the LayerNormalization after it."""

    def weight(name: str, *shape: int) -> TensorProto:
        rng = np.random.default_rng(len(name) + sum(shape))
        return numpy_helper.from_array((rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float16), name)

    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["m1"], name="up"),
        helper.make_node("Gelu", ["m1"], ["h"], name="act"),
        helper.make_node("MatMul", ["h", "w2"], ["m2"], name="down"),
        helper.make_node("Add", ["m2", "b2"], ["a"], name="bias"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w3"], ["p"], name="out"),
        helper.make_node("Add", ["p", "x"], ["s"], name="residual"),
        helper.make_node("LayerNormalization", ["s", "g", "b2"], ["y"], name="norm", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [rows, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [rows, WIDTH])],
        [
            weight("w1", WIDTH, inner), weight("b1", inner), weight("w2", inner, WIDTH), weight("b2", WIDTH),
            weight("g", WIDTH), weight("w3", WIDTH, WIDTH),
        ],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def short_attention(sequence: int, *, causal: bool = False, element: str = "float16") -> ModelProto:
    """Return attention of two heads of 64 on sequences of a written length, with a mask of positions where causal."""
    mask = """places = Range (zero, length, one)  keys = Unsqueeze (places, zeros)  queries = Unsqueeze (places, ones)
      seen = LessOrEqual (keys, queries)  low = Constant <value = E {LOW}> ()  u = Where (seen, t, low)"""
    mask = mask.replace("E {LOW}", "float16 {64511}" if element == "float16" else "float {-65504.0}")
    eighth = "float16 {12288}" if element == "float16" else "float {0.125}"
    row = f"{element}[2, {sequence}, 128]"
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20]>
    g ({row} q, {row} k, {row} v) => ({row} y)
    <int64[4] split = {{0, 0, 2, 64}}, int64[3] join = {{0, 0, -1}}, int64 zero = {{0}}, int64 one = {{1}},
     int64[1] zeros = {{0}}, int64[1] ones = {{1}}, int64 length = {{{sequence}}}> {{
      d = Constant <value = {eighth}> ()
      q4 = Reshape (q, split)  qh = Transpose <perm = [0,2,1,3]> (q4)
      k4 = Reshape (k, split)  kt = Transpose <perm = [0,2,3,1]> (k4)
      v4 = Reshape (v, split)  vh = Transpose <perm = [0,2,1,3]> (v4)
      s = MatMul (qh, kt)  t = Mul (s, d)  {mask if causal else "u = Identity (t)"}
      p = Softmax <axis = -1> (u)  c = MatMul (p, vh)
      ct = Transpose <perm = [0,2,1,3]> (c)  y = Reshape (ct, join)
    }}""")


Times = Callable[[TuningTask, Candidate], float | None]


def stopwatch(times: Times, seen: list[TuningTask] | None = None) -> Stopwatch:
    """Return a stopwatch that takes its times from a function, None where a candidate fails; `seen` gets the work."""

    def time(work: TuningTask, candidates: Sequence[Candidate]) -> list[Timed]:
        if seen is not None:
            seen.append(work)
        found = [(c, times(work, c)) for c in candidates]
        return [
            Timed(c.kind, c.tuning, failed="refused") if t is None else Timed(c.kind, c.tuning, t, (t, t))
            for c, t in found
        ]

    return Stopwatch(HERE, H200, time)


def by_kind(**times: float | None) -> Times:
    """Return times that depend on the kind of a candidate alone; of variants the plan's own choice is fastest."""
    kinds: dict[Kind, float | None] = {k: times.get(k) for k in get_args(Kind)}

    def of(_: TuningTask, candidate: Candidate) -> float | None:
        time = kinds[candidate.kind]
        return None if time is None else time + (candidate.tuning is not None)

    return of
