"""Attention in float32: the kernel, which rounds factors to TF32, or the nodes; never the library's op."""

from onnx import ModelProto

from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.fusion.region.choices import Choices
from onnxfuse.fusion.region.realize import realize
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.model.tf32 import set_strict_fp32
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.runtime.sessions.registration import with_forms
from tests.support.small import ops, parse

H200 = Arch("sm_90a", 132)
NODES = ["Reshape", "Transpose"] * 3 + ["MatMul", "{Mul Softmax}", "MatMul", "Transpose", "Reshape"]


def model(
    element: str = "float", keys: int | str = 5, size: int = 16, batch: int | str = 2, queries: int = 17
) -> ModelProto:
    """Return attention of two heads as exporters write it."""
    q, k = (f"{element}[{batch},{rows},{2 * size}]" for rows in (queries, keys))
    return parse(f"""g ({q} q, {k} k, {k} v) => ({q} y) <int64[4] split = {{0, 0, 2, {size}}},
      int64[3] join = {{0, 0, -1}}, {element} scale = {{2}}> {{
      q4 = Reshape (q, split)  qh = Transpose <perm = [0,2,1,3]> (q4)
      k4 = Reshape (k, split)  kt = Transpose <perm = [0,2,3,1]> (k4)
      v4 = Reshape (v, split)  vh = Transpose <perm = [0,2,1,3]> (v4)
      m = MatMul (qh, kt)  s = Mul (m, scale)  p = Softmax <axis = -1> (s)  c = MatMul (p, vh)
      ct = Transpose <perm = [0,2,1,3]> (c)  y = Reshape (ct, join)
    }}""")


def optimized(made: ModelProto, choices: Choices | None = None) -> OptimizeReport:
    return pipeline.run(made, rule_file.by_default(rule_file.shipped()), choices=choices)


def attention(made: ModelProto) -> FusedOp | None:
    return next((op for op in fused_ops(made).values() if op.rule == "attention"), None)


def reasons(report: OptimizeReport) -> str:
    return "\n".join(near.refusal.reason for near in report.stopped if near.rule == "attention")


def test_the_kernel_takes_what_it_is_worth() -> None:
    """Few keys, many queries or few, or a number of them that is open."""
    for made in (
        model(keys=257, queries=16),
        model(keys=5),
        model(keys=256),
        model(keys="N"),
        model(keys=257, batch=241),
        model(keys=257, batch="N"),
    ):
        optimized(made)
        op = attention(made)
        assert op is not None
        assert op.template == "attention"


def test_the_nodes_stay_where_the_kernel_is_not_worth_it_or_cannot() -> None:
    for made, told in ((model(keys=257, batch=240), "T <= 256"), (model(size=24), "D % 16 == 0")):
        report = optimized(made)
        assert ops(made) == NODES
        assert told in reasons(report)


def test_measuring_asks_nothing_of_cost_and_never_proposes_the_library() -> None:
    made = model(keys=257)
    (applied,) = (a for a in optimized(made, Choices()).applied if a.rule == "attention")
    assert not applied.library
    assert "T <= 256" in applied.cost


def test_float16_may_be_the_library_s() -> None:
    made = model("float16")
    (applied,) = (a for a in optimized(made, Choices()).applied if a.rule == "attention")
    assert applied.library


def test_strict_float32_stays_with_the_nodes() -> None:
    made = model()
    set_strict_fp32(made)
    report = optimized(made)
    assert ops(made) == NODES
    assert "strict float32 was asked for" in reasons(report)


def test_strict_float32_leaves_float16_alone() -> None:
    made = model("float16")
    set_strict_fp32(made)
    optimized(made)
    assert attention(made) is not None


def test_a_session_without_tf32_runs_the_body() -> None:
    """The form that the kernel reads is none that the library may run."""
    made = model()
    optimized(made)
    op = attention(made)
    assert op is not None
    assert not realize(made, {op.name: op})[op.name].runs
    formed, refusals = with_forms(made, True, (), None, H200)
    assert refusals[op.name] is None
    assert cuda.supports(formed[op.name], lambda: H200) is None
    formed, refusals = with_forms(made, False, (), None, H200)
    assert refusals[op.name] == "the kernel rounds float32 to TF32, and use_tf32 is 0"
    assert formed[op.name].library is None
