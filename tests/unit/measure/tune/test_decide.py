"""What is made of times: which fusions stay, what other rules get, what is left alone; and what is measured at all."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.dispatch.measurements import Book, Machine, MeasuredVariants, Timed
from onnxfuse.files.io import without_weights
from onnxfuse.measure.tune import Tuned, on_gpu, reuse, tune
from onnxfuse.measure.tune.candidates import Candidate
from onnxfuse.measure.tune.work import TuningTask
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.runtime.engine.cuda_provider import cuda_unusable
from onnxfuse.runtime.kernels import variants as runtime_tuned
from onnxfuse.support.errors import DeviceError, UsageError
from tests.support.tuning import HERE, Times, block, by_kind, stopwatch

RULES = rule_file.by_default(rule_file.shipped())


def optimized(model: onnx.ModelProto, found: Tuned | None) -> onnx.ModelProto:
    copy = without_weights(model, lambda weight: weight)
    pipeline.run(copy, RULES, choices=None if found is None else found.choices(model, RULES))
    return copy


def ops(model: onnx.ModelProto) -> list[str]:
    """The operators, a fused op by its rule."""
    rules = {name: f"<{op.rule}>" for name, op in fused_ops(model).items()}
    return [rules.get(n.op_type, n.op_type) for n in model.graph.node]


STATIC = ["<gemm>", "MatMul", "<linear>", "<plain_product>", "<layer_norm>"]


def by_rule(**rules: Mapping[str, float]) -> Times:
    def of(work: TuningTask, candidate: Candidate) -> float:
        known = {"fused": 10.0, "split": 20.0, "alone": 20.0} | dict(rules.get(work.op.rule, {}))
        return known[candidate.kind]

    return of


def test_without_times_the_rules_decide() -> None:
    """A long sum stays with the library: what the rule says of cost holds."""
    assert ops(optimized(block(32), None)) == STATIC


@pytest.mark.parametrize("known", [{}, {HERE: {}}])
def test_an_empty_file_changes_nothing(known: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of which nothing is known are decided as without a file, byte for byte."""
    monkeypatch.setattr("onnxruntime.__version__", HERE.onnxruntime)
    model = block(32)
    found = reuse(model, RULES, known)
    assert found.decisions.unmeasured > 0
    plain, by_file = optimized(model, None), optimized(model, found)
    assert by_file.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)


def test_what_measures_fastest_is_made_even_where_the_rules_thought_otherwise() -> None:
    """Cost is overruled: the long sum becomes a kernel too."""
    model = block(32)
    found = tune(model, RULES, {}, stopwatch=stopwatch(by_kind(fused=1, split=2, alone=3)))
    assert ops(optimized(model, found)) == ["<gemm>", "<gemm>", "<plain_product>", "<layer_norm>"]
    assert {d.verdict for d in found.decisions.decided} == {"fused"}


def test_what_measures_slower_than_two_kernels_goes_to_the_other_rules() -> None:
    """The product is one by itself, the library's where it is faster, and the kernel after it is measured by itself."""
    model = block(32)
    found = tune(model, RULES, {}, stopwatch=stopwatch(by_rule(gemm={"split": 9})))
    assert ops(optimized(model, found)) == [
        "<plain_product>", "<linear>", "<plain_product>", "<linear>", "<plain_product>", "<layer_norm>",
    ]  # fmt: skip
    by_library = tune(model, RULES, {}, stopwatch=stopwatch(by_rule(gemm={"split": 9}, plain_product={"alone": 9})))
    assert ops(optimized(model, by_library)) == ["Gemm", "<linear>", "MatMul", "<linear>", "MatMul", "<layer_norm>"]
    assert [m.rule for d in found.decisions.decided for m in d.measured].count("linear") == 2


def test_what_measures_slower_than_its_nodes_is_left_alone() -> None:
    """By every rule; a product that was written as two nodes for the kernel's sake is one again."""
    model = block(32)
    found = tune(model, RULES, {}, stopwatch=stopwatch(by_kind(fused=3, split=2, alone=1)))
    left = optimized(model, found)
    assert Counter(ops(left)) == Counter(n.op_type for n in model.graph.node)
    gemm = next(n for n in left.graph.node if n.op_type == "Gemm")
    assert len(gemm.input) == 3
    assert {d.verdict for d in found.decisions.decided} == {"alone"}


def test_correctness_is_never_overruled() -> None:
    """However fast, no kernel is made where the rule's conditions do not hold: here the types that it multiplies."""
    model = block(32)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for weight in model.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float64), weight.name))
    found = tune(model, RULES, {}, stopwatch=stopwatch(by_kind(fused=1, split=2, alone=3)))
    assert "<gemm>" not in ops(optimized(model, found))


def test_equal_times_keep_the_kernel_and_a_failed_one_never_stays() -> None:
    model = block(32)
    same = tune(model, RULES, {}, stopwatch=stopwatch(by_kind(fused=1, split=1, alone=1)))
    assert {d.verdict for d in same.decisions.decided} == {"fused"}
    broken = tune(model, RULES, {}, stopwatch=stopwatch(by_kind(fused=None, split=None, alone=1)))
    assert {d.verdict for d in broken.decisions.decided} == {"alone"}
    nothing = tune(model, RULES, {}, stopwatch=stopwatch(by_kind(fused=None, split=None, alone=None)))
    assert not nothing.decisions.decided
    assert ops(optimized(model, nothing)) == STATIC


def test_each_work_is_measured_once() -> None:
    """Layers with one body and one shape share their times; a second tuning measures nothing, and decides the same."""
    seen: list[TuningTask] = []
    model = two_blocks()
    watch = stopwatch(by_kind(fused=1, split=2, alone=3), seen)
    first = tune(model, RULES, {}, stopwatch=watch)
    assert len({w.key for w in seen}) == len(seen) == len(first.decisions.new)
    assert max(d.places for d in first.decisions.decided) == 2
    again = tune(model, RULES, first.book, stopwatch=watch)
    assert len(seen) == len(first.decisions.new)
    assert not again.decisions.new
    assert again.decisions.choices == first.decisions.choices


def two_blocks() -> onnx.ModelProto:
    first = onnx.compose.add_prefix(block(32), "a/", rename_inputs=False, rename_outputs=False)
    second = onnx.compose.add_prefix(block(32), "b/")
    return onnx.compose.merge_models(first, second, io_map=[("y", "b/x")])


def test_each_size_is_measured_and_the_kernel_has_to_win_at_all() -> None:
    """At the geometric mean the kernel would win by far; at one size it is slower, so it does not stay."""
    model = block()

    def times(work: TuningTask, candidate: Candidate) -> float:
        rows = work.shapes[0][0]
        return {"fused": 1.0 if rows == 8 else 5.0, "split": 50.0, "alone": 4.0}[candidate.kind]

    found = tune(model, RULES, {}, ({"N": 8}, {"N": 512}), stopwatch(times))
    assert {m.shapes[0][0] for d in found.decisions.decided for m in d.measured} == {8, 512}
    assert {d.verdict for d in found.decisions.decided} == {"alone"}
    at_one = tune(model, RULES, found.book, ({"N": 8},), stopwatch(times))
    assert not at_one.decisions.new
    assert {d.verdict for d in at_one.decisions.decided} == {"fused"}


def test_a_file_decides_where_shapes_are_dynamic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sizes all that was measured of an op counts."""
    monkeypatch.setattr("onnxruntime.__version__", HERE.onnxruntime)
    model = block()
    found = tune(model, RULES, {}, ({"N": 8},), stopwatch(by_kind(fused=3, split=2, alone=1)))
    assert reuse(model, RULES, found.book).decisions.choices == found.decisions.choices


def test_what_is_known_of_a_shape_tells_which_times_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of one body by weights of two sizes, of an open batch: slower for one, it stays for the other."""
    monkeypatch.setattr("onnxruntime.__version__", HERE.onnxruntime)
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
    g (float16[N,64] x, float16[64,64] w, float16[64,256] v) => (float16[N,256] z) {
      m = MatMul (x, w)  y = Relu (m)  n = MatMul (y, v)  z = Relu (n)
    }""")

    def times(work: TuningTask, candidate: Candidate) -> float:
        return {"fused": 3.0 if work.shapes[1] == (64, 256) else 1.0, "split": 2.5, "alone": 2.0}[candidate.kind]

    found = tune(model, RULES, {}, ({"N": 8},), stopwatch(times))
    assert sorted(d.verdict for d in found.decisions.decided) == ["alone", "fused"]
    assert str(found).splitlines()[0].startswith("tuned: 1 fused op stays a kernel")
    assert f"measured on {HERE}" in str(found)
    assert [d["verdict"] for d in found.as_dict()["decisions"]] == [d.verdict for d in found.decisions.decided]
    assert "<td>left alone</td><td>2.0 alone<br>3.0 fused</td>" in found._repr_html_()
    later = reuse(model, RULES, found.book)
    assert later.decisions.choices == found.decisions.choices
    assert ops(optimized(model, later)) == ["<gemm>", "MatMul", "Relu"]


@pytest.mark.parametrize(
    ("sizes", "told"),
    [({}, "dimensions are dynamic (N)"), ({"N": 1, "M": 2}, "no dynamic dimension called 'M'")],
)
def test_sizes_have_to_fit_the_model(sizes: dict[str, int], told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        tune(block(), RULES, {}, (sizes,), stopwatch(by_kind(fused=1, split=2, alone=3)))


def test_times_of_another_machine_are_not_used_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU those of this GPU, driver and ONNX Runtime hold; without one, those of this ONNX Runtime."""
    model = block(32)
    book = tune(model, RULES, {}, stopwatch=stopwatch(by_kind(fused=3, split=2, alone=1))).book
    monkeypatch.setattr("onnxruntime.__version__", HERE.onnxruntime)
    assert reuse(model, RULES, book).note == ""
    monkeypatch.setattr("onnxruntime.__version__", "9.9")
    other = reuse(model, RULES, book)
    was = "Some GPU, driver 580.1, onnxruntime 1.2.3"
    assert other.note == f"tuning not used: measured on {was}; here is onnxruntime 9.9, without a GPU"
    assert not other.decisions.decided
    assert not other.book
    monkeypatch.setattr(runtime_tuned, "cuda_unusable", lambda: None)
    monkeypatch.setattr(runtime_tuned, "machine_of", lambda device: Machine("Some GPU", "590.0", "1.2.3"))
    assert "here is Some GPU, driver 590.0, onnxruntime 1.2.3" in reuse(model, RULES, book).note
    monkeypatch.setattr(runtime_tuned, "machine_of", lambda device: HERE)
    assert reuse(model, RULES, book).book == book


def test_tuning_needs_a_gpu() -> None:
    if cuda_unusable() is None:
        pytest.skip("there is a GPU here")
    with pytest.raises(DeviceError):
        on_gpu()


def test_a_model_carries_what_decided_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its sessions run the fastest variants, and it is explained as it was decided; other models' stays out."""
    monkeypatch.setattr("onnxruntime.__version__", HERE.onnxruntime)
    model, other = block(32), block(32, inner=1024)
    watch = stopwatch(by_rule(gemm={"split": 9}))
    shared = tune(other, RULES, {}, stopwatch=watch).book
    found = tune(model, RULES, shared, stopwatch=watch)
    fused = optimized(model, found)
    found.attach(fused)
    onnx.checker.check_model(fused)
    carried = measurements.of_model(fused)
    assert set(fused_ops(fused)) < {m.op for m in carried[HERE].values()}
    assert len(carried[HERE]) < len(found.book[HERE])
    assert reuse(fused, RULES, carried).decisions.choices == found.decisions.choices


def test_an_optimized_model_is_decided_anew(tmp_path: Path) -> None:
    """Tuning a model that was optimized without times gives what tuning the original gives."""
    model = block(32)
    watch = stopwatch(by_kind(fused=1, split=2, alone=3))
    found = tune(optimized(model, None), RULES, {}, stopwatch=watch)
    assert {d.verdict for d in found.decisions.decided} == {"fused"}
    assert set(found.book[HERE]) == set(tune(model, RULES, {}, stopwatch=watch).book[HERE])


def measured(fused: float | None, split: float | None, alone: float | None) -> MeasuredVariants:
    times: dict[Any, float | None] = {"fused": fused, "split": split, "alone": alone}
    return MeasuredVariants("op", "rule", (), (), ((1,),), tuple(Timed(k, microseconds=t) for k, t in times.items()))


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ([(1, 2, 3)], "fused"),
        ([(2, 1, 3)], "split"),
        ([(2, 3, 1)], "alone"),
        ([(1, 1, 1)], "fused"),
        ([(2, 1, 1)], "alone"),  # no kernel at all rather than another
        ([(1, 2, 3), (1, 2, 3)], "fused"),
        ([(1, 9, 3), (4, 9, 3)], "alone"),
        ([(1, 2, 9), (9, 8, 3)], "split"),  # 16 against 27
        ([(None, 2, 3)], "split"),
        ([(None, None, 3)], "alone"),
        ([(1, None, None)], "fused"),
        ([(1, None, 2), (None, None, 2)], "alone"),
    ],
)
def test_the_verdict_follows_from_the_times(times: list[tuple[float | None, ...]], verdict: str) -> None:
    assert measurements.verdict([measured(*t) for t in times]) == verdict
