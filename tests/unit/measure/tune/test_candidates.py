"""The models that are timed: all ways to do a piece of work compute the same, from the same inputs."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.templates.attention.variant import AttentionVariant
from onnxfuse.measure.tune import candidate_times as watches
from onnxfuse.measure.tune import reuse, tune
from onnxfuse.measure.tune.candidates import Candidate, candidates
from onnxfuse.measure.tune.work import TuningTask
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.support.tuning import H200, HERE, by_kind, short_attention, stopwatch

HEAD = '<ir_version: 10, opset_import: ["" : 20]>'

RULES = rule_file.by_default(rule_file.shipped())


def run(model: onnx.ModelProto, inputs: watches.Arrays) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def test_every_candidate_computes_what_the_nodes_do(works: dict[str, TuningTask]) -> None:
    """With the same names of inputs and outputs; float16 sums may round once more in between."""
    for work in works.values():
        inputs = watches._inputs(work.plain)
        truth = run(work.plain, inputs)
        for candidate in candidates(work, RULES, HERE, H200):
            onnx.checker.check_model(candidate.model, full_check=True)
            assert [o.name for o in candidate.model.graph.output] == [o.name for o in work.plain.graph.output]
            assert {i.name for i in candidate.model.graph.input} == set(inputs)
            for mine, theirs in zip(run(candidate.model, inputs), truth, strict=True):
                assert mine.dtype == theirs.dtype
                np.testing.assert_allclose(mine.astype(float), theirs.astype(float), rtol=2**-9, atol=2**-9)


def test_kinds_of_candidates(works: dict[str, TuningTask]) -> None:
    """The plan's own choice first, its variants, one split with the product by itself, the nodes last."""
    found = candidates(works["gemm: Gemm Gelu"], RULES, HERE, H200)
    kinds = [c.kind for c in found]
    assert kinds == ["fused"] * (len(found) - 2) + ["split", "alone"]
    assert found[0].tuning is None
    assert len({c.tuning for c in found if c.kind == "fused"}) == len(found) - 2 > 3
    split = [n.op_type.rpartition("_")[0] for n in found[-2].model.graph.node]
    assert split == ["PlainProduct_Gemm", "Linear_AddGelu"]


def test_a_computed_factor_is_measured_against_a_kernel_before_the_product() -> None:
    """Where that is faster, the product keeps what follows it, and is measured again without what stands before it."""
    weight = numpy_helper.from_array(np.eye(256, dtype=np.float16), "w")
    model = onnx.parser.parse_model(f"""{HEAD} g (float16[4, 256] x, float16[4, 256] g) => (float16[4, 256] y) {{
      a = Gelu (x)  f = Mul (a, g)  m = MatMul (f, w)  y = Relu (m)
    }}""")
    model.graph.initializer.append(weight)
    seen: list[TuningTask] = []
    found = tune(model, RULES, {}, stopwatch=stopwatch(by_kind(fused=2, split=1, alone=3), seen))
    assert [w.op.rule for w in seen][:3] == ["computed_factor", "pointwise", "gemm"]
    *variants, split, alone = candidates(seen[0], RULES, HERE, H200)
    assert {c.kind for c in variants} == {"fused"}
    assert [fused_ops(split.model)[n.op_type].rule for n in split.model.graph.node] == ["pointwise", "gemm"]
    assert [n.op_type for n in alone.model.graph.node] == ["Gelu", "Mul", "MatMul", "Relu"]
    report = pipeline.run(model, RULES, choices=found.choices(model, RULES))
    assert "computed_factor" not in report.by_rule()


def test_a_variant_is_carried_by_its_model(works: dict[str, TuningTask]) -> None:
    """As by every tuned model, so what is timed takes the way of what runs."""
    work = works["gemm: Gemm Gelu"]
    own, *others = [c for c in candidates(work, RULES, HERE, H200) if c.kind == "fused"]
    assert measurements.of_model(own.model) == {}
    for candidate in others:
        assert measurements.variants(measurements.of_model(candidate.model)[HERE]) == {work.key: candidate.tuning}


@pytest.mark.parametrize(
    ("rows", "columns", "count"),
    [(1, 8, 64), (1, 1024, 30), (128, 4096, 8), (64, 2**15, 2), (2**15, 1024, 15), (2**19, 1024, 2)],
)
def test_weights_leave_the_cache_and_a_run_stays_short(rows: int, columns: int, count: int) -> None:
    """Many times a small work, few a big one, never one alone."""
    weight = numpy_helper.from_array(np.zeros((1024, columns), np.float32), "w")
    model = onnx.parser.parse_model(f"{HEAD} g (float[{rows}, 1024] x) => (float[M, N] y) {{ y = MatMul (x, w) }}")
    model.graph.initializer.append(weight)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.shape.dim.add(dim_value=rows)
    model.graph.output[0].type.tensor_type.shape.dim.add(dim_value=columns)
    x = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (rows, 1024), (0, 0))
    assert watches._copies(model, {"x": x}) == count


def test_inputs_are_valid_for_any_operator() -> None:
    """Numbers of either sign; integers and booleans that index, mask and select."""
    model = onnx.parser.parse_model(
        f"{HEAD} g (float16[31, 33] x, int64[5] i, bool[7] m, bfloat16[3] b) => (float16[31, 33] y) {{ y = Relu (x) }}"
    )
    inputs = watches._inputs(model)
    assert {n: (x.dtype, x.shape) for n, x in inputs.items()} == {
        "x": (np.float16, (31, 33)), "i": (np.int64, (5,)), "m": (np.bool_, (7,)), "b": (ml_dtypes.bfloat16, (3,))
    }  # fmt: skip
    assert set(inputs["i"]) <= {0, 1}
    assert inputs["x"].min() < -1 < 1 < inputs["x"].max()


@pytest.mark.parametrize(
    ("mine", "same"),
    [([1.0, -2.0], True), ([1.02, -2.0], True), ([1.2, -2.0], False), ([1.0, np.nan], False), ([np.inf, -2.0], False)],
)
def test_a_missing_tile_is_told_from_rounding(mine: list[float], same: bool) -> None:
    truth = {"y": np.array([1.0, -2.0], np.float16), "k": np.array([True])}
    fault = watches._fault({"y": np.array(mine, np.float16), "k": np.array([False])}, truth)
    assert (fault == "") == same


def test_what_has_no_variants_has_one_candidate_beside_its_nodes() -> None:
    """An op of the library's own, attention, is measured against the nodes that it stands for."""
    q = "float16[2, 12, 16, 64]"
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g ({q} q, float16[2, 12, 64, 16] k, {q} v) => ({q} y) {{
      d = Constant <value = float16 {{12288}}> ()
      s = MatMul (q, k)  t = Mul (s, d)  p = Softmax <axis = -1> (t)  y = MatMul (p, v)
    }}"""
    seen: list[TuningTask] = []
    model = onnx.parser.parse_model(text)
    tune(model, RULES, {}, stopwatch=stopwatch(by_kind(fused=1, split=2, alone=3), seen))
    work = next(w for w in seen if w.op.library is not None)
    found: list[Candidate] = candidates(work, RULES, HERE, H200)
    assert [c.kind for c in found] == ["fused", "split", "alone"]


def test_a_kernel_is_measured_against_the_librarys_op_and_the_nodes() -> None:
    """Attention has a kernel of its own and an op of ONNX Runtime's; the rule alone would choose by the length."""
    seen: list[TuningTask] = []
    tune(short_attention(320), RULES, {}, stopwatch=stopwatch(by_kind(fused=1, library=2, split=3, alone=4), seen))
    work = next(w for w in seen if w.op.rule == "attention")
    found = candidates(work, RULES, HERE, H200)
    assert [c.kind for c in found if c.kind != "fused"] == ["library", "split", "alone"]
    library = next(c.model for c in found if c.kind == "library")
    assert [op.template for op in fused_ops(library).values()] == ["library"]
    for candidate in found[-3:]:
        onnx.checker.check_model(candidate.model, full_check=True)


@pytest.mark.parametrize("sequence", [320, 4096])
def test_in_float32_the_librarys_op_is_no_way(sequence: int) -> None:
    """The kernel is measured against the nodes, also where the rule alone would leave it out."""
    seen: list[TuningTask] = []
    model = short_attention(sequence, element="float")
    found = tune(model, RULES, {}, stopwatch=stopwatch(by_kind(fused=1, split=2, alone=3), seen))
    work = next(w for w in seen if w.op.rule == "attention")
    made = candidates(work, RULES, HERE, H200)
    assert [c.kind for c in made if c.kind != "fused"] == ["split", "alone"]
    variants = [c.tuning for c in made if c.tuning is not None]
    queries = [t.queries for t in variants if isinstance(t, AttentionVariant)]
    assert len(queries) == len(variants)
    assert all(q is not None and (q.streamed or q.parts) for q in queries)
    pipeline.run(model, RULES, choices=found.choices(model, RULES))
    assert [op.template for op in fused_ops(model).values()] == ["attention"]


@pytest.mark.parametrize(
    ("times", "template"),
    [
        ({"fused": 1, "library": 2, "split": 3, "alone": 4}, ["attention"]),
        ({"fused": 2, "library": 1, "split": 3, "alone": 4}, ["library"]),
        ({"fused": None, "library": 2, "split": 3, "alone": 4}, ["library"]),
        ({"fused": 2, "library": 2, "split": 3, "alone": 1}, []),
    ],
)
@pytest.mark.parametrize("sequence", [128, 320])
def test_the_fastest_way_runs(
    times: dict[str, float | None], template: list[str], sequence: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the rule would choose by the length alone; a file of the times says the same."""
    monkeypatch.setattr("onnxruntime.__version__", HERE.onnxruntime)
    of_library_alone = {**times, "fused": times["library"]}
    model = short_attention(sequence)

    def of(work: TuningTask, candidate: Candidate) -> float | None:
        return by_kind(**(times if work.op.template == "attention" else of_library_alone))(work, candidate)

    found = tune(model, RULES, {}, stopwatch=stopwatch(of))
    pipeline.run(model, RULES, choices=found.choices(model, RULES))
    assert [op.template for op in fused_ops(model).values() if op.rule == "attention"] == template
    assert reuse(short_attention(sequence), RULES, found.book).decisions.choices == found.decisions.choices
