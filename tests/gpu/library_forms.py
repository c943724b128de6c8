"""Every form that `realize` can write, on a real GPU: `python tests/gpu/library_forms.py [--quick] [--seconds 60]`.

Attention with every mask, crossed, causal, with a past, with few heads; convolutions and poolings channels last, and
what stands in for a kernel of convolutions. Each runs through ONNX Runtime's own op, over sizes and lengths, in a
session of onnxfuse's, and is compared with the plain nodes in float32: it errs at most twice as much as the plain
nodes in its own type, or one rounding; factors of float32 both may round to TF32. A line for each failure, and the
count at the end; exit 1 where there is one.
Each group has a process of its own, several at a time: after a crash or an error the next one goes on behind that case.

`compute-sanitizer --tool memcheck --target-processes all python3 tests/gpu/library_forms.py --quick --jobs 1` looks at
each access.
"""

import argparse
import itertools
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[2]))

from onnxfuse.model.fused import fused_ops, write
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.verification.tolerance.metrics import chunks

if TYPE_CHECKING:
    import onnxruntime

SIZES = (8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 128, 160, 192, 256, 264, 320, 512, 1024, 2048, 4096)
ODD_SIZES = (1, 7, 49, 196, 784, 3136)
"""Attention over channels: heads as wide as an image has places."""
LENGTHS = (1, 7, 64, 197, 640, 1025, 5000)
QUICK_SIZES, QUICK_LENGTHS = (49, 64, 264, 1024, 3136), (1, 7, 64, 197)
WIDEST = 2**26
"""Elements of the queries of a case, at most: 5000 places of 12 heads of 1024."""
MOST_SCORES = 2**30
"""Elements of the scores of a case, at most; the plain nodes write them several times."""

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float": 2.0**-11}
"""Half a unit in the last place; of float32 the factors may be rounded to TF32, which has the digits of float16."""


@dataclass(frozen=True)
class Form:
    """One way to write attention: more inputs, what becomes of the scores `s`, where heads come from and go to."""

    given: str = ""
    masked: str = "masked = Identity (s)"
    softmax: str = "p = Softmax <axis = -1> (masked)"
    whole: str = ""
    """All nodes, where they are others than those around the scores."""
    row: str = "E[B,{L},{W}]"
    """The type of queries."""
    keys: str = ""
    """The type of keys and values, where it is another."""
    result: str = ""
    """The type of the result, where it is another."""
    opset: int = 18
    crossed: bool = False
    """Keys of another length than the queries."""


SAFE = "raw = Softmax <axis = -1> (masked)  lost = IsNaN (raw)  p = Where (lost, zero, raw)"
CAUSAL = """sizes = Shape (q)  n = Gather (sizes, one)  places = Range (nought, n, one)
  columns = Unsqueeze (places, front)  rows = Unsqueeze (places, back)  seen = LessOrEqual (columns, rows)"""
OP = """q4 = Reshape (q, split)  qh = Transpose <perm = [0,2,1,3]> (q4)
  k4 = Reshape (k, split)  kh = Transpose <perm = [0,2,1,3]> (k4)
  v4 = Reshape (v, split)  vh = Transpose <perm = [0,2,1,3]> (v4)
  c = Attention <scale = 0.37 OPTIONS> (qh, kh, vh MASK)
  ct = Transpose <perm = [0,2,1,3]> (c)  y = Reshape (ct, join)"""
FLAT_OP = "y = Attention <scale = 0.37, q_num_heads = {H}, kv_num_heads = {H} OPTIONS> (q, k, v MASK)"
HEADS = """kt = Transpose <perm = [0,1,3,2]> (k)  m = MatMul (q, kt)  s = Mul (m, scale)  p = Softmax <axis = -1> (s)
  y = MatMul (p, v)"""
FEW = """q4 = Reshape (q, split)  qh = Transpose <perm = [0,2,1,3]> (q4)
  ka = Unsqueeze (k, two)  kg = Expand (ka, group)  kh = Reshape (kg, many)  kt = Transpose <perm = [0,1,3,2]> (kh)
  va = Unsqueeze (v, two)  vg = Expand (va, group)  vh = Reshape (vg, many)
  m = MatMul (qh, kt)  s = Mul (m, scale)  p = Softmax <axis = -1> (s)  c = MatMul (p, vh)
  ct = Transpose <perm = [0,2,1,3]> (c)  y = Reshape (ct, join)"""

PACKED = """x4 = Reshape (q, apart)  x5 = Unsqueeze (x4, ahead)  xt = Transpose <perm = [3,1,2,0,4]> (x5)
  qkv = Squeeze (xt, behind)  q1 = Gather (qkv, nought)  q3 = Reshape (q1, merged)  qt = Transpose <perm = [1,0,2]> (q3)
  qh = Reshape (qt, split)  k1 = Gather (qkv, one)  k3 = Reshape (k1, merged)  k3t = Transpose <perm = [1,0,2]> (k3)
  kh = Reshape (k3t, split)  v1 = Gather (qkv, third)  v3 = Reshape (v1, merged)  vt = Transpose <perm = [1,0,2]> (v3)
  vh = Reshape (vt, split)  kt = Transpose <perm = [0,1,3,2]> (kh)  m = MatMul (qh, kt)  s = Mul (m, scale)
  p = Softmax <axis = -1> (s)  c = MatMul (p, vh)  ct = Transpose <perm = [2,0,1,3]> (c)  y = Reshape (ct, flat)"""
FINITE = "hidden = Where (keep, zero, least)  masked = Add (s, hidden)"

FORMS = {
    "plain": Form(),
    "crossed": Form(keys="E[B,{K},{W}]", crossed=True),
    "mask by key": Form(", E[B,1,1,{L}] mask", "masked = Add (s, mask)"),
    "mask by head": Form(", E[1,{H},{L},{L}] mask", "masked = Add (s, mask)"),
    "crossed mask": Form(", E[B,1,1,{K}] mask", "masked = Add (s, mask)", keys="E[B,{K},{W}]", crossed=True),
    "two masks": Form(
        ", E[1,{H},{L},{L}] mask, E[B,1,1,{L}] other", "first = Add (s, mask)  masked = Add (first, other)"
    ),
    "windows": Form(
        ", E[1,4,{H},{L},{L}] windows",
        "apart5 = Reshape (s, to5)  hidden = Add (apart5, windows)  masked = Reshape (hidden, to4)",
    ),
    "finite mask": Form(", bool[B,1,1,{L}] keep", FINITE, SAFE),
    "safe mask": Form(", E[B,1,1,{L}] mask", "masked = Add (s, mask)", SAFE),
    "chosen": Form(", bool[B,1,1,{L}] keep", "masked = Where (keep, s, low)"),
    "safe chosen": Form(", bool[B,1,1,{L}] keep", "masked = Where (keep, s, low)", SAFE),
    "causal": Form("", f"{CAUSAL}  masked = Where (seen, s, least)"),
    "past": Form("", whole=HEADS, row="E[B,{H},{L},{S}]", keys="E[B,{H},{K},{S}]", crossed=True),
    "few heads": Form("", whole=FEW, keys="E[B,{F},{L},{S}]"),
    "packed": Form("", whole=PACKED, row="E[{L},2,{P}]", result="E[{R},{W}]"),
    "op": Form("", whole=OP, opset=23),
    "op causal": Form("", whole=OP.replace("OPTIONS", ", is_causal = 1"), opset=23),
    "op mask": Form(", E[B,1,{L},{L}] mask", whole=OP.replace("MASK", ", mask"), opset=23),
    "op chosen": Form(", bool[B,1,{L},{L}] keep", whole=OP.replace("MASK", ", keep"), opset=23),
    "flat op": Form("", whole=FLAT_OP, opset=23),
    "flat op causal": Form("", whole=FLAT_OP.replace("OPTIONS", ", is_causal = 1"), opset=23),
    "flat op mask": Form(", E[B,1,{L},{L}] mask", whole=FLAT_OP.replace("MASK", ", mask"), opset=23),
}
KNOWN = ("packed", "windows")
"""Those that exporters write for a length that the model knows."""


def heads_of(size: int) -> int:
    """Return how many heads of this size are tried: few wide ones, and more than 1024 vectors of narrow ones."""
    return 24 if size < 128 else 12 if size <= 256 else 4 if size <= 1024 else 2


def attention(name: str, element: str, size: int, heads: int = 0, length: int = 0) -> onnx.ModelProto:
    """Return the form of this name; lengths that are 0 are left open, heads that are 0 are `heads_of` the size."""
    form, heads = FORMS[name], heads or heads_of(size)
    few = max(heads // 4, 1)
    facts = {
        "H": heads, "S": size, "W": heads * size, "F": few, "L": length or "L", "K": "K", "P": 3 * heads * size,
        "R": 2 * length or "R",
    }  # fmt: skip
    row, keys, result = (kind.format(**facts) for kind in (form.row, form.keys or form.row, form.result or form.row))
    others = "" if name == "packed" else f", {keys} k, {keys} v"
    # The packed one is known by its length alone: what is split and merged on the way says it.
    split = f"2,{heads},{length or -1},{size}" if name == "packed" else f"0,0,{heads},{size}"
    nodes = (
        form.whole.format(**facts)
        or f"""q4 = Reshape (q, split)  qh = Transpose <perm = [0,2,1,3]> (q4)
      k4 = Reshape (k, split)  kt = Transpose <perm = [0,2,3,1]> (k4)
      v4 = Reshape (v, split)  vh = Transpose <perm = [0,2,1,3]> (v4)
      m = MatMul (qh, kt)  s = Mul (m, scale)  {form.masked}  {form.softmax}
      c = MatMul (p, vh)  ct = Transpose <perm = [0,2,1,3]> (c)  y = Reshape (ct, join)"""
    )
    text = f"""<ir_version: 10, opset_import: ["" : {form.opset}]>
    g ({row} q{others}{form.given.format(**facts)}) => ({result} y)
    <int64[4] split = {{{split}}}, int64[4] apart = {{0,0,3,{heads * size}}}, int64[1] ahead = {{0}},
     int64[1] behind = {{-2}}, int64 third = {{2}}, int64[3] merged = {{0,{2 * heads},{size}}},
     int64[2] flat = {{-1,{heads * size}}}, int64[3] join = {{0,0,{heads * size}}}, int64[1] two = {{2}},
     int64[5] group = {{1,1,{heads // few},1,1}}, int64[4] many = {{0,{heads},-1,{size}}},
     int64[5] to5 = {{-1,4,{heads},{length or 1},{length or 1}}},
     int64[4] to4 = {{-1,{heads},{length or 1},{length or 1}}}, int64[3] front = {{0,1,2}},
     int64[3] back = {{0,1,3}}, int64 nought = {{0}}, int64 one = {{1}}> {{
      {nodes.replace("OPTIONS", "").replace("MASK", "")}
    }}"""
    model = onnx.parser.parse_model(text.replace("E[", f"{element}["))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(element.upper()))
    for label, number in (("scale", 0.37), ("zero", 0.0), ("low", -np.inf), ("least", -60000.0)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(number, dtype), label))
    if form.opset > 18:
        del model.graph.initializer[-4:]
    return model


# ---- convolutions and poolings, between the Transposes that make them channels last

CONVOLUTIONS: Mapping[str, tuple[str, int, dict[str, Any]]] = {
    "Conv": ("Conv", 1, {}), "Conv strided": ("Conv", 1, {"strides": [2, 2]}),
    "Conv dilated": ("Conv", 1, {"dilations": [2, 2]}), "Conv in groups": ("Conv", 2, {}),
    "Conv same": ("Conv", 1, {"auto_pad": "SAME_UPPER"}), "ConvTranspose": ("ConvTranspose", 1, {}),
    "ConvTranspose strided": ("ConvTranspose", 1, {"strides": [2, 2]}),
}  # fmt: skip
"""Operator, groups and attributes."""

POOLINGS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "MaxPool": ("MaxPool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "MaxPool ceil": ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    "AveragePool": ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "AveragePool counted": (
        "AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ),
    "LRN": ("LRN", {"size": 5}), "DepthToSpace": ("DepthToSpace", {"blocksize": 2}),
    "SpaceToDepth": ("SpaceToDepth", {"blocksize": 2}),
}  # fmt: skip

CHANNELS = (1, 3, 4, 8, 12, 20, 64, 320)
PLACES = (2, 8, 14, 56, 198)
WINDOWS = (1, 2, 3, 7)


def image_op(
    op: str, element: str, channels: int, options: Mapping[str, Any], weight: tuple[int, ...] | None
) -> onnx.ModelProto:
    """Return an image operator on [batch, height, width, channels], of open batch, height and width."""
    make = onnx.helper.make_node
    dtype = TensorProto.DataType.Value(element.upper())
    nodes = [make("Transpose", ["x"], ["first"], perm=[0, 3, 1, 2])]
    weights = []
    if weight is not None:
        drawn = np.random.default_rng(1).normal(size=weight) / np.prod(weight[1:]) ** 0.5
        drawn = drawn.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))
        # Conv reads filters as the layout phase packs them, ConvTranspose as they are.
        packed = drawn.transpose(0, 2, 3, 1) if op == "Conv" else drawn
        weights = [numpy_helper.from_array(np.ascontiguousarray(packed), "w")]
        if op == "Conv":
            nodes.append(make("Transpose", ["w"], ["filters"], perm=[0, 3, 1, 2]))
    given = ["first"] if weight is None else ["first", "filters" if op == "Conv" else "w"]
    nodes += [
        make(op, given, ["c"], **options),
        make("Transpose", ["c"], ["last"], perm=[0, 2, 3, 1]),
        make("Relu", ["last"], ["y"]),
    ]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "g", [info("x", dtype, ["N", "H", "W", channels])], [info("y", dtype, ["N", "P", "Q", None])], weights
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)


# ---- one case


@dataclass(frozen=True)
class Case:
    """A model in its type and in float32, and the inputs of one run by their shapes."""

    name: str
    build: "tuple[str, str, tuple[int, ...]]"
    """Kind, name of the form, and its numbers: those of the same are one model."""
    element: str
    sizes: Mapping[str, int]
    """What the open dimensions stand for."""


def attention_cases(name: str, element: str, quick: bool) -> Iterator[Case]:
    """Yield the sizes, open and known lengths of one form."""
    sizes = QUICK_SIZES if quick else (*SIZES, *ODD_SIZES)
    lengths = QUICK_LENGTHS if quick else LENGTHS
    fixed = (7, 64, 197) if name in KNOWN else (0,) if quick or FORMS[name].crossed else (0, 7, 64, 197)
    for size, known in itertools.product(sizes, fixed):
        heads = heads_of(size)
        for length in (known,) if known else lengths:
            keys = length + 60 if FORMS[name].crossed else length
            if heads * size * max(length, keys) > WIDEST or heads * length * keys * 2 > MOST_SCORES:
                continue
            title = f"{name} {element} {heads}x{size} of {length} by {keys}{', known' if known else ''}"
            yield Case(
                title,
                ("attention", name, (size, heads, known)),
                element,
                {"B": 8 if name == "windows" else 2, "L": length, "K": keys},
            )


def image_cases(name: str, element: str, quick: bool) -> Iterator[Case]:
    """Yield the channels, windows and images of one form."""
    windows = (WINDOWS[1:3] if quick else WINDOWS) if name in CONVOLUTIONS else (0,)
    for channels, window in itertools.product(CHANNELS[1:5] if quick else CHANNELS, windows):
        if (name == "DepthToSpace" and channels % 4) or (name == "Conv in groups" and channels % 2):
            continue
        for places in PLACES[1:3] if quick else PLACES:
            reach = (window - 1) * 2 + 1 if name == "Conv dilated" else window
            if places < reach and name != "Conv same" and not name.startswith("ConvTranspose"):
                continue
            title = f"{name} {element} {channels} channels, windows of {window}, {places} places"
            yield Case(title, ("image", name, (channels, window)), element, {"N": 2, "H": places, "W": places})


def model_of(case: Case, element: str) -> onnx.ModelProto:
    """Return the plain model of a case in this type."""
    kind, name, numbers = case.build
    if kind == "attention":
        size, heads, length = numbers
        return attention(name, element, size, heads, length)
    channels, window = numbers
    if name in POOLINGS:
        op, options = POOLINGS[name]
        return image_op(op, element, channels, options, None)
    op, groups, options = CONVOLUTIONS[name]
    filters = 16 if groups == 1 else 2 * channels
    weight = (filters, channels // groups, window, window) if op == "Conv" else (channels, filters, window, window)
    return image_op(op, element, channels, {**options, "group": groups}, weight)


def through_library(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model optimized, with the library's op wherever a fused op has that form, also beside a kernel."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    # A pooling that our kernel takes has no such form: what it leaves over has.
    pipeline.run(made, [r for r in rule_file.by_default(rule_file.shipped()) if r.name != "pool"])
    ops = fused_ops(made)
    for function in made.functions:
        op = ops[function.name]
        if op.library is not None:
            function.CopyFrom(write(replace(op, template="library")))
    return made


def between_casts(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inputs and outputs of float32 where they are bfloat16, which numpy does not know.

    What lies between stays as it is: the fused ops and their forms were found without the casts.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    narrow = {v.name: f"{v.name}_narrow" for v in graph.input if v.type.tensor_type.elem_type == TensorProto.BFLOAT16}
    for node in graph.node:
        node.input[:] = [narrow.get(name, name) for name in node.input]
    cast = onnx.helper.make_node
    before = [cast("Cast", [wide], [name], to=TensorProto.BFLOAT16) for wide, name in narrow.items()]
    nodes = [*before, *graph.node]
    for value in (*graph.input, *graph.output):
        tensor = value.type.tensor_type
        if tensor.elem_type == TensorProto.BFLOAT16:
            inner = graph.value_info.add()
            inner.CopyFrom(value)
            tensor.elem_type = TensorProto.FLOAT
            if value.name in narrow:
                inner.name = narrow[value.name]
            else:
                value.name = f"{value.name}_wide"
                nodes.append(cast("Cast", [inner.name], [value.name], to=TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend(nodes)
    return made


def inputs_of(case: Case, model: onnx.ModelProto, seed: int = 7) -> dict[str, np.ndarray]:
    """Return signed inputs; a mask hides a fifth of the keys, and never the first."""
    random = np.random.default_rng(seed)
    found = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else case.sizes[d.dim_param] for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        drawn: np.ndarray = random.standard_normal(shape, np.float32)
        if value.name in ("mask", "other", "keep"):
            keep = random.random(shape) < 0.8
            keep[..., 0] = True
            drawn = keep if value.name == "keep" else np.where(keep, drawn, np.float32(-60000))
        found[value.name] = np.asarray(drawn).astype(dtype)
    return found


MORE = 8
"""Draws of inputs that a doubtful case is judged by, beside the first one.

With few queries one row decides: 28 rows of heads of 3136 in bfloat16 hold scores of 100, whose own rounding weighs a
key by a tenth more or less. The plain nodes round them once more as they are scaled, which by luck undoes the first
rounding of that row: then a kernel that does not round erred 3.6 times as much. Of 200 draws in numpy it erred more
than is allowed in 7, over any nine of them 0.6 of it at most; what is truly lost is lost in every draw.
"""


def judged(case: Case, model: onnx.ModelProto, run: Callable[[dict[str, np.ndarray]], tuple[np.ndarray, ...]]) -> str:
    """Return what is wrong with a case, empty where nothing is; `run` gives the result, the plain nodes' and the truth.

    What one draw of the inputs finds too much is judged by MORE others, too, all of them together.
    """
    first = run(inputs_of(case, model))
    got, plain, truth = first
    wrong = fault(got, plain, truth, ROUNDING[case.element])
    if not wrong or got.shape != truth.shape:
        return wrong
    drawn = [first, *(run(inputs_of(case, model, seed)) for seed in range(100, 100 + MORE))]
    got, plain, truth = (np.stack(kind) for kind in zip(*drawn, strict=True))
    return fault(got, plain, truth, ROUNDING[case.element])


def fault(got: np.ndarray, plain: np.ndarray, truth: np.ndarray, rounding: float) -> str:
    """Return what is wrong with the result, empty where it errs at most twice as much as the plain nodes."""
    if got.shape != truth.shape:
        return f"has the shape {got.shape}, expected {truth.shape}"
    squares, largest, lost = np.zeros(3), np.zeros(3), 0
    for _, *pieces in chunks(got, plain, truth):
        ours, theirs, exact = (x.astype(np.float64) for x in pieces)
        measured = np.abs([ours - exact, theirs - exact, exact])
        lost += int(np.count_nonzero(~np.isfinite(measured[0])))
        squares += (measured**2).sum(axis=1)
        largest = np.maximum(largest, measured.max(axis=1))
    if lost:
        return f"{lost} of {got.size} elements are no numbers"
    for kind, found in (("root mean square", np.sqrt(squares / max(truth.size, 1))), ("largest", largest)):
        ours, theirs, exact = map(float, found)
        allowed = max(2 * theirs, 2 * rounding * exact)
        if ours > allowed:
            return f"{kind} error {ours:.3g}, allowed {allowed:.3g}, plain nodes {theirs:.3g}"
    return ""


# ---- a group: all cases of one form and type, in a process of its own

GROUPS = (
    *(f"{name}|{element}" for element in ("bfloat16", "float16") for name in FORMS),
    *(f"{name}|{element}" for name in (*CONVOLUTIONS, *POOLINGS) for element in ("float16", "float")),
)


def cases_of(group: str, quick: bool) -> list[Case]:
    """Return the cases of a group in order, those of one model beside each other."""
    name, element = group.split("|")
    return list((attention_cases if name in FORMS else image_cases)(name, element, quick))


def run_group(group: str, quick: bool, skip: int) -> None:
    """Run the cases of a group behind the first `skip`: a line when each begins, and one when it ends.

    An error is the last case: on a GPU that an illegal access has stopped, all others would fail too.
    """
    import onnxruntime

    import onnxfuse

    onnxruntime.set_default_logger_severity(4)
    exactly = [("CUDAExecutionProvider", {"use_tf32": "0"})]
    plainly = one_thread()
    plainly.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    sessions: list[Any] = []
    built, how, refused = None, "", ""
    for index, case in enumerate(cases_of(group, quick)[skip:], skip):
        print(f"begin {index} {case.name}", flush=True)
        if case.build != built:
            sessions, how, built = [], "", case.build
            plain = model_of(case, case.element)
            try:
                made = ((model_of(case, "float"), exactly), (between_casts(plain), ["CUDAExecutionProvider"]))
                sessions = [
                    onnxruntime.InferenceSession(m.SerializeToString(), plainly, providers=providers)
                    for m, providers in made
                ]
            except Exception as error:
                if (reason := first_line(error)) != refused:
                    print(f"none {case.name}: ONNX Runtime refuses the plain nodes: {reason}", flush=True)
                refused = reason
        if not sessions:
            print("ran nowhere", flush=True)
            continue
        try:
            if len(sessions) == 2:
                opened = onnxfuse.session(
                    between_casts(through_library(plain)), ["CUDAExecutionProvider"], one_thread()
                )
                how = next((p.runs_as for p in opened.fused if p.rule != "pointwise"), "nodes")
                sessions.append(opened)
            wrong = judged(case, plain, partial(results, case, sessions))
        except Exception as error:
            print(f"fail {case.name} ({how or 'not opened'}): {type(error).__name__}: {first_line(error)}", flush=True)
            return
        print(f"fail {case.name} ({how or 'not opened'}): {wrong}" if wrong else f"ran {how}", flush=True)


def one_thread() -> "onnxruntime.SessionOptions":
    """Return options of a session: groups run side by side, and a thread for each core in each of them is too many."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = False  # of many shapes, as in `onnxfuse.session` without options
    return options


def results(
    case: Case, sessions: "Sequence[onnxruntime.InferenceSession]", feeds: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what our session makes of `feeds`, the plain nodes in their type, and those in float32."""
    import ml_dtypes

    halves = (np.float16, ml_dtypes.bfloat16)
    wide = {k: v.astype(np.float32) if v.dtype in halves else v for k, v in feeds.items()}
    own = wide if case.element == "bfloat16" else feeds
    (got,) = sessions[2].run(None, own)
    print("through", flush=True)
    (truth,), (theirs,) = sessions[0].run(None, wide), sessions[1].run(None, own)
    return got, theirs, truth


def first_line(error: Exception) -> str:
    """Return what an error says first, short enough for a line."""
    return (str(error).splitlines() or [""])[0][:200]


def tried(group: str, quick: bool, until: float) -> Counter[str]:
    """Return how many cases of a group ran how, failed, or were left at the time `until`; print what failed."""
    counts: Counter[str] = Counter()
    skip, total = 0, len(cases_of(group, quick))
    while skip < total:
        command = [sys.executable, __file__, "--group", group, "--skip", str(skip), *["--quick"] * quick]
        left = until - time.monotonic()
        if left <= 0:
            counts["left"] += total - skip
            tell(f"left {group}: all from case {skip} on")
            break
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=left if left < math.inf else None
            )
            lines = done.stdout.splitlines()
        except subprocess.TimeoutExpired as late:
            done, lines = None, (late.stdout or b"").decode().splitlines()
        begun = [line for line in lines if line.startswith("begin ")]
        ended = [line for line in lines if line.startswith(("ran ", "fail "))]
        counts.update("failed" if line.startswith("fail ") else line.removeprefix("ran ") for line in ended)
        for line in lines:
            if line.startswith(("fail ", "=====", "none ")):  # also the sanitizer's words, and what is not compared
                tell(line)
        if done is None:
            counts["left"] += total - skip - len(ended)
            tell(f"left {group}: all from case {skip + len(ended)} on")
            break
        if len(begun) == len(ended) == total - skip and done.returncode == 0:
            break
        if not lines or not lines[-1].startswith("fail "):
            counts["failed"] += 1
            last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
            where = "in the plain nodes" if lines and lines[-1] == "through" else "in the library's form"
            tell(f"crash {where}, {begun[-1] if begun else group}: exit {done.returncode}: {last[:200]}")
        skip += max(len(begun), 1)
    return counts


def tell(line: str) -> None:
    """Print a line whole, beside other threads that print theirs."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the groups of the shard, each in a process; return 1 where a case failed or crashed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few sizes and lengths")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop then, and tell how many cases are left")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="groups at a time")
    parser.add_argument("--shard", default="1/1", help="I/N: every Nth group from the Ith on")
    parser.add_argument("--only", default="", help="the groups whose name holds this")
    parser.add_argument("--group", help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.group:
        run_group(asked.group, asked.quick, asked.skip)
        return 0
    shard, of = map(int, asked.shard.split("/"))
    until = time.monotonic() + asked.seconds
    groups = [g for g in GROUPS if asked.only in g][shard - 1 :: of]
    with ThreadPoolExecutor(asked.jobs) as pool:
        counts = sum(pool.map(lambda group: tried(group, asked.quick, until), groups), Counter())
    failures, left = counts.pop("failed", 0), counts.pop("left", 0)
    told = ", ".join(f"{count} {how}" for how, count in sorted(counts.items()))
    tell(
        f"{counts.total() + failures} cases: {told or 'none ran'}; {failures} failed"
        + (f"; {left} left after {asked.seconds:g} seconds" if left else "")
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
