"""How far ties of rounding inside a window move what comes out of it.

Between the values that both models compute a window may round several times: a sum in steps of one size, then a product
with it in steps of another. Where the inner step is the larger one, a tie inside is several steps outside. So the
original's window is run with some of its inner integers one step off, and its outputs tell how far that is.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfuse import ops
from onnxfuse.model.schema import opset_of
from onnxfuse.ops.quantize import INTEGER_RANGES
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types
from onnxfuse.verification.run import random_numbers, sessions
from onnxfuse.verification.tolerance.quantized_outputs import rounds

SHARE = 1 / 16
"""Share of the inner integers that are moved in one run: several of every few dozen, and few of one sum."""
RUNS = 4


def reach_of_ties(window: ModelProto, feeds: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, float]:
    """Return how far each output of an original's window moves where inner integers are one step off.

    Empty if it rounds to no integers but those that it returns.
    """
    reach: dict[str, float] = {}
    plain: Mapping[str, npt.NDArray[np.generic]] = {}
    for seed in range(RUNS):
        moved = _with_moved_integers(window, seed)
        if moved is None:
            return {}
        plain = plain or _run(window, feeds)
        for name, values in _run(moved, feeds).items():
            off = np.abs(values.astype(np.float64) - plain[name].astype(np.float64))
            reach[name] = max(reach.get(name, 0.0), float(off[np.isfinite(off)].max(initial=0.0)))
    return reach


def _run(model: ModelProto, feeds: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, npt.NDArray[np.generic]]:
    found = sessions.run(sessions.ort_session(model, [sessions.CPU]), dict(feeds))
    return {name: x for name, x in found.items() if isinstance(x, np.ndarray) and x.dtype.kind in "fiuV"}


def _with_moved_integers(window: ModelProto, seed: int) -> ModelProto | None:
    """Return a window some of whose inner integers are one step off; None if it has none of known type."""
    if opset_of(window) < random_numbers.SINCE:  # nor has it a Round then
        return None
    types, outputs = value_types(infer(window).graph), {o.name for o in window.graph.output}
    copy = ModelProto()
    copy.CopyFrom(window)
    nodes = list[NodeProto]()
    for node in window.graph.node:
        value = node.output[0] if node.output else ""
        dtype = types[value].dtype if value in types else 0
        nodes.append(node)
        if rounds(node) and value not in outputs and dtype in (*INTEGER_RANGES, TensorProto.FLOAT8E4M3FN):
            nodes[-1] = NodeProto.FromString(node.SerializeToString())
            nodes[-1].output[0] = f"{value}.exact"
            nodes += _moved(value, dtype, seed) if dtype in INTEGER_RANGES else _moved_float8(value, dtype, seed)
    if len(nodes) == len(window.graph.node):
        return None
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


BESIDE_FLOAT8 = 0.07
"""Share of a float8 number that leads to the next one, and not to the one behind that: steps are 1/16 to 1/8 of it."""


def _moved_float8(value: str, dtype: int, seed: int) -> list[NodeProto]:
    """Return the nodes from `value`.exact to `value`, some of its float8 numbers the next one."""
    wide, drawn, scaled, by, off, sums, c, share = (
        f"{value}.{n}" for n in ("wide", "u", "s", "by", "off", "sum", "c", "share")
    )
    constants = [
        helper.make_node(ops.Constant, [], [name], value=numpy_helper.from_array(np.array(number, np.float32)))
        for name, number in ((c, 0.5 / (1 - SHARE)), (share, BESIDE_FLOAT8))
    ]
    return [
        *constants,
        helper.make_node(ops.Cast, [f"{value}.exact"], [wide], to=TensorProto.FLOAT),
        *random_numbers.uniform_like(wide, drawn, -1.0, 1.0, seed),
        helper.make_node(ops.Mul, [drawn, c], [scaled]),
        helper.make_node(ops.Round, [scaled], [by]),
        helper.make_node(ops.Mul, [by, share], [off]),
        helper.make_node(ops.Mul, [off, wide], [f"{value}.step"]),
        helper.make_node(ops.Add, [wide, f"{value}.step"], [sums]),
        helper.make_node(ops.Cast, [sums], [value], to=dtype),
    ]


def _moved(value: str, dtype: int, seed: int) -> list[NodeProto]:
    """Return the nodes from `value`.exact to `value`, some of them one step further."""
    low, high = INTEGER_RANGES[dtype]
    wide, drawn, scaled, by, sums, least, most = (f"{value}.{n}" for n in ("wide", "u", "s", "by", "sum", "lo", "hi"))
    numbers = {f"{value}.c": 0.5 / (1 - SHARE), f"{value}.low": low, f"{value}.high": high}
    constants = [
        helper.make_node(ops.Constant, [], [name], value=numpy_helper.from_array(np.array(number, np.float32)))
        for name, number in numbers.items()
    ]
    c, bottom, top = numbers
    return [
        *constants,
        helper.make_node(ops.Cast, [f"{value}.exact"], [wide], to=TensorProto.FLOAT),
        *random_numbers.uniform_like(wide, drawn, -1.0, 1.0, seed),
        helper.make_node(ops.Mul, [drawn, c], [scaled]),
        helper.make_node(ops.Round, [scaled], [by]),
        helper.make_node(ops.Add, [wide, by], [sums]),
        helper.make_node(ops.Max, [sums, bottom], [least]),
        helper.make_node(ops.Min, [least, top], [most]),
        helper.make_node(ops.Cast, [most], [value], to=dtype),
    ]
