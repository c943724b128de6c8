"""Inputs that count, point or give a size are made up so that the operator takes them, in every kind of case."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse import ops
from onnxfuse.ops.inputs import Data, TruthValues
from onnxfuse.ops.registry import MICROSOFT
from onnxfuse.support.errors import ModelError
from onnxfuse.verification.inputs.counted_extents import Site
from onnxfuse.verification.inputs.counting_inputs import accepted
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import cases
from onnxfuse.verification.run import sessions

F, I64, I32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
X4 = {"x": (F, (2, 3, "H", 8))}
ROWS = np.linspace(-1, 1, 512, dtype=np.float32).reshape(128, 4)
LSTM = {"W": np.ones((1, 12, 6), np.float32), "R": np.ones((1, 12, 3), np.float32)}
NONE: dict[str, Any] = {}

Form = tuple[str, list[str], dict[str, Any], dict[str, Any], dict[str, Any], tuple[int, ...]]
"""Operator with its domain, inputs, attributes, types and shapes of the graph's inputs, weights, opsets."""

FORMS: tuple[Form, ...] = (
    ("LSTM", ["x", "W", "R", "", "l"], {"hidden_size": 3},
     {"x": (F, ("T", 2, 6)), "l": (I32, (2,))}, LSTM, (7, 14, 22)),
    ("LSTM", ["x", "W", "R", "", "l"], {"hidden_size": 3}, {"x": (F, (None, "N", 6)), "l": (I32, ("N",))}, LSTM, (14,)),
    ("GRU", ["x", "W", "R", "", "l"], {"hidden_size": 3, "linear_before_reset": 1},
     {"x": (F, ("T", 2, 6)), "l": (I32, (2,))},
     {"W": np.ones((1, 9, 6), np.float32), "R": np.ones((1, 9, 3), np.float32)}, (7, 14, 22)),
    ("RNN", ["x", "W", "R", "", "l"], {"hidden_size": 3}, {"x": (F, ("T", 2, 6)), "l": (I32, (2,))},
     {"W": np.ones((1, 3, 6), np.float32), "R": np.ones((1, 3, 3), np.float32)}, (7, 22)),
    ("ReverseSequence", ["x", "l"], {"batch_axis": 0, "time_axis": 1},
     {"x": (F, ("N", 4, 6)), "l": (I64, ("N",))}, NONE, (10, 17)),
    ("ReverseSequence", ["x", "l"], {}, {"x": (F, (None, "N", 6)), "l": (I64, ("N",))}, NONE, (10,)),
    ("RotaryEmbedding", ["x", "c", "s", "p"], {}, {"x": (F, (1, 2, "S", 8)), "p": (I64, (1, "S"))},
     {"c": ROWS, "s": ROWS}, (23,)),
    ("com.microsoft.RotaryEmbedding", ["x", "p", "c", "s"], {}, {"x": (F, (1, 2, "S", 8)), "p": (I64, (1, "S"))},
     {"c": ROWS, "s": ROWS}, (17,)),
    ("com.microsoft.RotaryEmbedding", ["x", "p", "c", "s"], {}, {"x": (F, ("N", "S", 16)), "p": (I64, (1,))},
     {"c": ROWS[:16], "s": ROWS[:16]}, (17,)),
    ("RoiAlign", ["x", "r", "b"], {"output_height": 2, "output_width": 2},
     {"x": (F, ("N", 3, 8, 8)), "r": (F, ("R", 4)), "b": (I64, ("R",))}, NONE, (10, 16)),
    ("TensorScatter", ["p", "u", "w"], {"axis": 2},
     {"p": (F, (2, 4, 8, 16)), "u": (F, (2, 4, 3, 16)), "w": (I64, (2,))}, NONE, (24,)),
    ("TensorScatter", ["p", "u", "w"], {}, {"p": (F, (2, 9, 16)), "u": (F, (2, 4, 16)), "w": (I64, (2,))},
     NONE, (24,)),
    ("Attention", ["q", "k", "k", "", "", "", "l"], {},
     {"q": (F, (2, 4, 2, 16)), "k": (F, (2, 4, "P", 16)), "l": (I64, (2,))}, NONE, (24,)),
    ("Attention", ["q", "k", "k", "", "", "", "l"], {"q_num_heads": 2, "kv_num_heads": 2},
     {"q": (F, (2, 2, 16)), "k": (F, (2, 8, 16)), "l": (I64, (2,))}, NONE, (24,)),
    *(("MaxUnpool", ["x", "i"], {"kernel_shape": [k, k], "strides": [s, s]},
       {"x": (F, (1, 2, 3, "W")), "i": (I64, (1, 2, 3, "W"))}, NONE, (9, 11)) for k, s in ((2, 2), (3, 2), (2, 1))),
    ("MaxUnpool", ["x", "i", "o"], {"kernel_shape": [2, 2], "strides": [2, 2]},
     {"x": (F, (1, 2, 3, 3)), "i": (I64, (1, 2, 3, 3)), "o": (I64, (4,))}, NONE, (11,)),
    ("com.microsoft.GroupQueryAttention", ["q", "k", "k", "pk", "pk", "l", "t"], {"num_heads": 4, "kv_num_heads": 2},
     {"q": (F, (2, 1, 32)), "k": (F, (2, 1, 16)), "pk": (F, (2, 2, "P", 8)), "l": (I32, (2,)), "t": (I32, ())},
     NONE, (17,)),
    ("com.microsoft.GroupQueryAttention", ["q", "k", "k", "", "", "l", "t"], {"num_heads": 4, "kv_num_heads": 2},
     {"q": (F, ("N", "S", 32)), "k": (F, ("N", "S", 16)), "l": (I32, ("N",)), "t": (I32, (1,))}, NONE, (17,)),
    ("com.microsoft.MultiHeadAttention", ["q", "k", "k", "", "m"], {"num_heads": 2},
     {"q": (F, ("N", "S", 8)), "k": (F, ("N", "T", 8)), "m": (I32, ("N",))}, NONE, (17,)),
    ("com.microsoft.MultiHeadAttention", ["q", "k", "k", "", "m"], {"num_heads": 2},
     {"q": (F, ("N", "S", 8)), "k": (F, ("N", "T", 8)), "m": (I32, ("N", "T"))}, NONE, (17,)),
    ("com.microsoft.Attention", ["x", "w", "b", "m"], {"num_heads": 2}, {"x": (F, ("N", "S", 8)), "m": (I32, ("N",))},
     {"w": np.ones((8, 24), np.float32), "b": np.ones(24, np.float32)}, (17,)),
    ("com.microsoft.Attention", ["x", "w", "b", "m"], {"num_heads": 2},
     {"x": (F, ("N", "S", 8)), "m": (I32, ("N", "S"))},
     {"w": np.ones((8, 24), np.float32), "b": np.ones(24, np.float32)}, (17,)),
    ("com.microsoft.EmbedLayerNormalization", ["i", "s", "w", "p", "t", "g", "g", "m", "n"], {},
     dict.fromkeys("ismn", (I32, ("N", "S"))),
     {"w": ROWS, "p": ROWS[:20], "t": ROWS[:2], "g": np.ones(4, np.float32)}, (17,)),
    ("com.microsoft.CropAndResize", ["x", "r", "b", "c"], {},
     {"x": (F, ("N", 3, 8, 8)), "r": (F, ("R", 4)), "b": (I32, ("R",)), "c": (I32, (2,))}, NONE, (17,)),
    ("com.microsoft.MatMulNBits", ["x", "B", "s", "", "g"], {"K": 32, "N": 4, "bits": 4, "block_size": 16},
     {"x": (F, ("N", 32)), "g": (I32, (32,))},
     {"B": np.arange(64, dtype=np.uint8).reshape(4, 2, 8), "s": np.ones(8, np.float32)}, (17,)),
    ("com.microsoft.Trilu", ["x", "k"], {}, {**X4, "k": (I64, ())}, NONE, (17,)),
    ("Gather", ["x", "i"], {"axis": 2}, {**X4, "i": (I64, ("n",))}, NONE, (7, 11, 13)),
    ("GatherElements", ["x", "i"], {"axis": 2}, {**X4, "i": (I64, (2, 3, "n", 8))}, NONE, (11, 13)),
    ("GatherND", ["x", "i"], {}, {**X4, "i": (I64, ("n", 3))}, NONE, (11, 12, 13)),
    ("GatherND", ["x", "i"], {"batch_dims": 1}, {**X4, "i": (I64, (2, "n", 2))}, NONE, (12, 13)),
    ("ScatterND", ["x", "i", "u"], {}, {**X4, "i": (I64, (3, 2)), "u": (F, (3, "H", 8))}, NONE, (11, 13, 18)),
    ("ScatterElements", ["x", "i", "x"], {"axis": 2}, {**X4, "i": (I64, (2, 3, "H", 8))}, NONE, (11, 13, 18)),
    ("Slice", ["x", "s", "e", "a", "t"], {}, {**X4, **dict.fromkeys("seat", (I64, (2,)))}, NONE, (10, 11, 13)),
    ("Pad", ["x", "p"], {}, {**X4, "p": (I64, (8,))}, NONE, (11, 13, 18)),
    ("Pad", ["x", "p", "", "a"], {"mode": "reflect"}, {"x": (F, (2, 3, 4)), "p": (I64, (4,)), "a": (I64, (2,))},
     NONE, (18, 21)),
    ("Tile", ["x", "r"], {}, {**X4, "r": (I64, (4,))}, NONE, (7, 13)),
    ("Expand", ["x", "s"], {}, {"x": (F, ("N", 1, 4)), "s": (I64, (3,))}, NONE, (8, 13)),
    ("Expand", ["x", "s"], {}, {"x": (F, ("N", 4)), "s": (I64, (3,))}, NONE, (13,)),
    ("Reshape", ["x", "s"], {}, {**X4, "s": (I64, ("n",))}, NONE, (7, 13, 14, 21)),
    ("ConstantOfShape", ["s"], {}, {"s": (I64, (3,))}, NONE, (9, 21)),
    ("Range", ["a", "b", "c"], {}, dict.fromkeys("abc", (I64, ())), NONE, (11,)),
    ("Range", ["a", "b", "c"], {}, dict.fromkeys("abc", (F, ())), NONE, (11,)),
    ("TopK", ["x", "k"], {"axis": 1}, {**X4, "k": (I64, (1,))}, NONE, (10, 11)),
    ("OneHot", ["i", "d", "v"], {}, {"i": (I64, ("N",)), "d": (I64, ()), "v": (F, (2,))}, NONE, (9, 11)),
    ("Resize", ["x", "s"], {}, {**X4, "s": (F, (4,))}, NONE, (10,)),
    ("Resize", ["x", "", "s"], {"mode": "linear"}, {**X4, "s": (F, (4,))}, NONE, (13, 18)),
    ("Resize", ["x", "", "", "s"], {"mode": "linear"}, {**X4, "s": (I64, (4,))}, NONE, (13, 19)),
    ("Resize", ["x", "", "", "s"], {"axes": [2, 3]}, {**X4, "s": (I64, (2,))}, NONE, (18,)),
    ("Upsample", ["x", "s"], {"mode": "linear"}, {**X4, "s": (F, (4,))}, NONE, (9,)),
    ("Split", ["x", "s"], {"axis": 2}, {**X4, "s": (I64, (1,))}, NONE, (13, 18)),
    ("Split", ["x", "s"], {"axis": 3}, {**X4, "s": (I64, (2,))}, NONE, (13, 18)),
    ("SplitToSequence", ["x", "s"], {"axis": 3}, {**X4, "s": (I64, (3,))}, NONE, (11,)),
    ("SplitToSequence", ["x", "s"], {"axis": 2}, {**X4, "s": (I64, ())}, NONE, (11,)),
    ("Unsqueeze", ["x", "a"], {}, {**X4, "a": (I64, (2,))}, NONE, (13, 21)),
    ("Squeeze", ["x", "a"], {}, {"x": (F, (1, "N", 1, 4)), "a": (I64, (2,))}, NONE, (13, 21)),
    *((f"Reduce{name}", ["x", "a"], {}, {**X4, "a": (I64, (2,))}, NONE, (18,))
      for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")),
    ("CumSum", ["x", "a"], {}, {**X4, "a": (I64, ())}, NONE, (11, 14)),
    ("Trilu", ["x", "k"], {}, {**X4, "k": (I64, ())}, NONE, (14,)),
    ("CenterCropPad", ["x", "s"], {}, {**X4, "s": (I64, (4,))}, NONE, (18,)),
    ("Col2Im", ["x", "i", "b"], {}, {"x": (F, ("N", 6, "L")), "i": (I64, (2,)), "b": (I64, (2,))}, NONE, (18,)),
    ("AffineGrid", ["x", "s"], {}, {"x": (F, ("N", 2, 3)), "s": (I64, (4,))}, NONE, (20,)),
    ("AffineGrid", ["x", "s"], {}, {"x": (F, ("N", 3, 4)), "s": (I64, (5,))}, NONE, (20,)),
    ("STFT", ["x", "t", "", "n"], {}, {"x": (F, (1, "L", 1)), "t": (I64, ()), "n": (I64, ())}, NONE, (17,)),
    ("DFT", ["x", "n"], {}, {"x": (F, (1, "L", 1)), "n": (I64, ())}, NONE, (17,)),
    ("DFT", ["x", "n", "a"], {}, {"x": (F, (1, "L", 5, 2)), "n": (I64, ()), "a": (I64, ())}, NONE, (20,)),
    *((f"{name}Window", ["n"], {}, {"n": (I64, ())}, NONE, (17,)) for name in ("Hann", "Hamming", "Blackman")),
    ("MelWeightMatrix", list("mnrlh"), {}, {**dict.fromkeys("mnr", (I64, ())), **dict.fromkeys("lh", (F, ()))},
     NONE, (17,)),
    ("NonMaxSuppression", list("xsmit"), {},
     {"x": (F, ("N", "B", 4)), "s": (F, ("N", 2, "B")), "m": (I64, ()), "i": (F, ()), "t": (F, ())}, NONE, (10, 11)),
    ("BitShift", ["x", "y"], {"direction": "LEFT"},
     {"x": (TensorProto.UINT8, ("N", 4)), "y": (TensorProto.UINT8, ("N", 4))}, NONE, (11,)),
    ("DequantizeLinear", ["x", "s", "z"], {}, {"x": (I32, ("N", 4)), "z": (I32, ())},
     {"s": np.array(0.5, np.float32)}, (10, 13, 19, 21)),
    ("NegativeLogLikelihoodLoss", ["x", "t"], {}, {"x": (F, ("N", 5)), "t": (I64, ("N",))}, NONE, (12, 13)),
    ("SoftmaxCrossEntropyLoss", ["x", "t"], {}, {"x": (F, ("N", 5)), "t": (I64, ("N",))}, NONE, (12, 13)),
    ("ai.onnx.ml.ArrayFeatureExtractor", ["x", "y"], {}, {"x": (F, ("N", 5)), "y": (I64, (3,))}, NONE, (17,)),
)  # fmt: skip


def made(form: Form, opset: int) -> onnx.ModelProto:
    """Return the one node as a model."""
    called, read, attributes, feeds, weights, _ = form
    domain, _, op = called.rpartition(".")
    count = feeds["s"][1][0] if op == "Split" else 2 if op in ("TopK", "EmbedLayerNormalization") else 1
    node = helper.make_node(op, read, [f"out{n}" for n in range(count)], domain=domain, **attributes)
    inputs = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in feeds.items()]
    tensors = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=node.output[0])], tensors)
    domains = {"": opset, MICROSOFT: 1, "ai.onnx.ml": 3}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*d) for d in domains.items()], ir_version=10)


def forms() -> Iterator[Any]:
    """Return each form at each of its opsets."""
    for form in FORMS:
        for opset in form[-1]:
            text = " ".join(f"{n}={'x'.join(map(str, s))}" for n, (_, s) in form[3].items())
            yield pytest.param(form, opset, id=f"{form[0]}-{opset} {text}")


@pytest.mark.parametrize(("form", "opset"), list(forms()))
def test_the_operator_takes_what_is_made_up(form: Form, opset: int) -> None:
    """No case of any kind is refused: lengths, positions, row numbers and sizes are in range at every size."""
    model = made(form, opset)
    try:
        session = sessions.unoptimized(model)
    except ModelError as error:
        if "NOT_IMPLEMENTED" in str(error):
            pytest.skip(f"ONNX Runtime {onnxruntime.__version__} has no kernel on the CPU")
        raise
    for case in cases(input_specs(model), (0, 1)):
        sessions.run(session, case.make())


VARYING = {
    ("OneHot", "indices"), ("DequantizeLinear", "x_zero_point"), ("QuantizeLinear", "y_zero_point"),
    ("Scan", "sequence_lens"),
}  # fmt: skip
"""Operators and inputs whose values depend on more than the operator."""


@pytest.mark.parametrize("entry", [e for e in ops.ENTRIES.values() if e.inputs], ids=str)
def test_every_role_has_values(entry: ops.Operator) -> None:
    """What is neither data nor a truth value is made up: a role that nothing interprets would be any number."""
    node = helper.make_node(entry, list(entry.inputs), ["y"], domain=entry.domain)
    for position, (name, role) in enumerate(entry.inputs.items()):
        values = accepted(Site(node, position, {}, {}))
        made_up = not isinstance(role, Data | TruthValues) and (entry, name) not in VARYING
        assert (values is not None) == made_up, name


@pytest.mark.parametrize("shift", ["", "-1"])
def test_what_is_summed_to_a_length_is_a_mask(shift: str) -> None:
    """A row of zeros and ones is as long as its ones: no length is beyond the sequence."""
    minus = "l = Sub(n, one)" if shift else "l = Identity(n)"
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[N, T, 6] x, int64[N, T] m) => (float[N, T, 6] y) <int64[1] axis = {{1}}, int64 one = {{1}}> {{
          n = ReduceSum <keepdims = 0> (m, axis)  {minus}  y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, l)
        }}""")
    assert {s.name: s.role.kind for s in input_specs(model)} == {"x": "number", "m": "mask"}
    session = sessions.unoptimized(model)
    for case in cases(input_specs(model), (0, 1)):
        given = case.make()
        assert set(np.unique(given["m"])) <= {0, 1}
        if not shift:
            sessions.run(session, given)
