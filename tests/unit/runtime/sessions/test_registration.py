"""Which ops of a model get a kernel, and why the others do not; what options hold."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from onnxfuse.cuda import Arch
from onnxfuse.fusion.region.realize import Realized
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.model.tf32 import set_strict_fp32
from onnxfuse.runtime.sessions import registration
from onnxfuse.runtime.sessions.registration import as_functions, ops_of, register, with_forms
from onnxfuse.support.errors import UsageError
from onnxfuse.symbolic.integer import Int
from tests.support import fused_models as models
from tests.support.small import optimize, parse

H200 = Arch("sm_90a", 132)


def test_where_cuda_is_missing_nothing_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every placement says why, and how many nodes the op has."""
    monkeypatch.setattr(registration, "cuda_unusable", lambda: "there is no driver")
    options = onnxruntime.SessionOptions()
    placed = register(options, models.chain())
    assert {(p.runs_as, p.reason) for p in placed} == {("body", "CUDA cannot be used: there is no driver")}
    assert ops_of(options) is None
    assert as_functions(models.chain(), "because") == tuple(
        p.__class__(p.op, p.rule, p.nodes, "body", "because") for p in placed
    )


def test_what_is_registered_is_what_has_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the file says of TF32, or the caller."""
    given = list[bool]()

    def noted(options: object, model: object, *, tf32: bool, **_: object) -> tuple[tuple[()], dict[str, object]]:
        given.append(tf32)
        return (), {}

    monkeypatch.setattr(registration, "cuda_unusable", lambda: None)
    monkeypatch.setattr(registration, "register_kernels", noted)
    model = models.chain()
    for strict in (False, True):
        set_strict_fp32(model, strict=strict)
        for asked in (None, True, False):
            register(onnxruntime.SessionOptions(), model, tf32=asked)
    assert given == [True, True, False, False, True, False]


def test_options_are_of_one_model() -> None:
    """ONNX Runtime would take the ops of both, each by the other's plans."""
    options = onnxruntime.SessionOptions()
    assert not registration._is_marked(options)
    options.add_session_config_entry(registration.MARK, "1")
    assert registration._is_marked(options)
    with pytest.raises(UsageError, match="already hold the fused kernels of a model"):
        registration._register(options, [])


SHAPES = """g (float[N,S,8] x) => (int64[2] y) <int64[2] k = {2, 2}, int64[2] c = {1, 3}> {
  s = Shape <start = 0, end = 2> (x) a = Mul (s, k) y = Add (a, c) }"""


def test_kernels_are_for_what_runs_on_the_gpu() -> None:
    """An op without a form of the library keeps none, and is told the session's TF32."""
    ops, refusals = with_forms(models.chain(), False, (), None, H200)
    assert set(refusals.values()) == {None}
    assert {op.tf32 for op in ops.values()} == {False}
    assert {op.library for op in ops.values()} == {None}
    assert ops.keys() == fused_ops(models.chain()).keys()


ATTENTION = """g (float16[N,4,S,64] q, float16[N,4,T,64] k, float16[N,4,T,64] v) => (float16[N,4,S,64] y)
  <float16 r = {18432}> {
  kt = Transpose <perm = [0,1,3,2]> (k) m = MatMul (q, kt) s = Div (m, r) p = Softmax <axis = -1> (s)
  y = MatMul (p, v) }"""


def heads(op: FusedOp) -> list[int]:
    """Return how many heads the library's attention has."""
    assert op.library is not None
    return [a.i for n in op.library.node for a in n.attribute if a.name == "num_heads"]


def test_the_form_of_the_library_is_that_of_the_rule() -> None:
    """What the file says is not trusted: a form that does not compute the body is replaced by one that does."""
    model, _ = optimize(parse(ATTENTION))
    (op,) = fused_ops(model).values()
    (function,) = (f for f in model.functions if f.name == op.name)
    (entry,) = (p for p in function.metadata_props if p.key.endswith(".library"))
    entry.value = entry.value.replace("num_heads: int = 4", "num_heads: int = 2")
    entry.value = entry.value.replace("num_heads = 4", "num_heads = 2")
    assert heads(fused_ops(model)[op.name]) == [2]
    ops, refusals = with_forms(model, True, (), None, H200)
    assert heads(ops[op.name]) == heads(op) == [4]
    assert ops[op.name].open_length
    assert refusals == {op.name: None}
    pinned = onnx.ModelProto()
    pinned.CopyFrom(model)
    for value in (*pinned.graph.input, *pinned.graph.output):
        for axis in (2, 3):
            value.type.tensor_type.shape.dim[axis].dim_value = 64
    assert not with_forms(pinned, True, (), None, H200)[0][op.name].open_length


def test_arithmetic_on_shapes_stays_with_the_body() -> None:
    """ONNX Runtime keeps those on the CPU."""
    body = onnx.parser.parse_function(
        '<opset_import: ["" : 17], domain: "onnxfuse"> Scaled (v0, v1) => (v2) { v2 = Mul (v0, v1) }'
    )
    for key, text in {
        "rule": "pointwise",
        "template": "pointwise",
        "inputs": "INT64,INT64",
        "outputs": "INT64",
    }.items():
        body.metadata_props.add(key=f"onnxfuse.{key}", value=text)
    model = parse(SHAPES)
    model.graph.node[1].CopyFrom(onnx.helper.make_node("Scaled", ["s", "k"], ["a"], domain="onnxfuse"))
    model.opset_import.append(onnx.helper.make_opsetid("onnxfuse", 1))
    model.functions.append(body)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "unused"))
    _, refusals = with_forms(model, True, (), None, H200)
    assert refusals == {"Scaled": "works on shapes, which ONNX Runtime keeps on the CPU"}


@pytest.mark.parametrize(
    ("shapes", "open_"),
    [
        (((8, 16), (16,)), False),
        ((("N", 16), (16,)), False),
        (((8, "S", 16),), True),
        (((8, 4, "S"),), True),
        (((8, None),), True),
        ((None,), True),
    ],
)
def test_a_length_is_open_where_more_than_the_batch_is(shapes: Any, open_: bool) -> None:
    """At one of the op's locations."""
    named = tuple(s and tuple(Int.name(d) if isinstance(d, str) else d for d in s) for s in shapes)
    known = ((8, 16), (16,))
    assert registration._is_open(Realized(None, "", (known, named))) is open_
