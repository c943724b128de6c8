"""The promise as a whole: planted bugs are found, honest fusions pass, in float32 and float16."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfuse
from onnxfuse import runtime
from onnxfuse.files import io
from onnxfuse.model import precision_record
from onnxfuse.model.precision_record import PrecisionRecord
from onnxfuse.reporting.checks import checks
from onnxfuse.support.errors import DeviceError, ModelError, UsageError
from onnxfuse.verification import VerifyReport, verify
from onnxfuse.verification.inputs import branches
from onnxfuse.verification.run import sessions
from tests.support.verification.small_models import model, text_model

CPU = ["CPUExecutionProvider"]

BOTH = pytest.mark.parametrize("dtype", ["float32", "float16"])

LINEAR = "m = MatMul(x, w)  n = Add(m, b)  "

BUGS = {
    "an activation lost": (LINEAR + "y = Relu(n)", LINEAR + "y = Identity(n)"),
    "an activation with a small slope": (LINEAR + "y = Relu(n)", LINEAR + "y = LeakyRelu <alpha = 0.01> (n)"),
    "a missing bias": (LINEAR + "y = Relu(n)", "m = MatMul(x, w)  y = Relu(m)"),
    "another epsilon": (
        "y = LayerNormalization <epsilon = 0.00001> (x, g, b)",
        "y = LayerNormalization <epsilon = 0.001> (x, g, b)",
    ),
    "tanh in place of erf": (LINEAR + "y = Gelu(n)", LINEAR + 'y = Gelu <approximate = "tanh"> (n)'),
    "operands of Sub swapped": ("m = MatMul(x, w)  y = Sub(m, b)", "m = MatMul(x, w)  y = Sub(b, m)"),
    "a weight transposed": ("y = MatMul(x, w)", "t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t)"),
    "another axis": (LINEAR + "y = Softmax <axis = -1> (n)", LINEAR + "y = Softmax <axis = 0> (n)"),
    "a residual dropped": (LINEAR + "r = Relu(n)  y = Add(r, x)", LINEAR + "y = Relu(n)"),
    "a residual from elsewhere": (LINEAR + "r = Relu(n)  y = Add(r, x)", LINEAR + "r = Relu(n)  y = Add(r, m)"),
    "the mean kept": ("y = LayerNormalization(x, g, b)", "n = RMSNormalization(x, g)  y = Add(n, b)"),
}

WIDE = "u = Cast <to = 1> (x)  v = Cast <to = 1> (w)  c = Cast <to = 1> (b)  k = Cast <to = 1> (g)  "
"""What a fused kernel does: everything in float32, rounded once at the end."""

NARROW = {"float32": "  y = Identity(z)", "float16": "  y = Cast <to = 10> (z)"}

FUSIONS = {
    "linear and gelu": (LINEAR + "y = Gelu(n)", "m = MatMul(u, v)  n = Add(m, c)  z = Gelu(n)"),
    "gelu spelled out": (
        """two = Constant <value_float = 1.4142135> ()  root = CastLike(two, x)
           one = Constant <value_float = 1.0> ()  unit = CastLike(one, x)
           low = Constant <value_float = 0.5> ()  half = CastLike(low, x)
           d = Div(x, root)  e = Erf(d)  s = Add(e, unit)  t = Mul(x, s)  y = Mul(t, half)""",
        "z = Gelu(u)",
    ),
    "gemm": (LINEAR + "y = Relu(n)", "m = Gemm(u, v, c)  z = Relu(m)"),
    "residual and norm, sum reordered": (
        LINEAR + "r = Add(n, x)  y = LayerNormalization(r, g, b)",
        "m = MatMul(u, v)  n = Add(u, c)  r = Add(m, n)  z = LayerNormalization(r, k, c)",
    ),
    "two layers and softmax": (
        LINEAR + "r = Gelu(n)  o = MatMul(r, w)  y = Softmax(o)",
        "m = MatMul(u, v)  n = Add(m, c)  r = Gelu(n)  o = MatMul(r, v)  z = Softmax(o)",
    ),
}


@BOTH
@pytest.mark.parametrize("bug", BUGS)
def test_every_planted_bug_is_found(bug: str, dtype: str) -> None:
    """A model that computes something else is never the same, whatever the type."""
    right, wrong = BUGS[bug]
    opset = 23 if "RMS" in wrong else 20
    report = _run(model(right, dtype, opset=opset), model(wrong, dtype, opset=opset))
    assert not report.ok
    assert report.outputs[0].verdict == "mismatch"
    assert not report.problems


@BOTH
@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("seed", range(3))
def test_an_honest_fusion_passes_with_any_seed(fusion: str, dtype: str, seed: int) -> None:
    """Reordering and computing inside in float32 is no fault."""
    plain, fused = FUSIONS[fusion]
    report = _run(model(plain, dtype), model(WIDE + fused + NARROW[dtype], dtype), seeds=[seed])
    assert report.ok, report.outputs[0].measure.fault


def test_batch_normalization_folded_into_a_convolution_passes() -> None:
    """Weights that were folded in float64 are within the budget."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 3, 3, 3)) / 5
    scale, shift, mean = rng.standard_normal((3, 8))
    var = rng.uniform(0.5, 2, 8)
    k = scale / np.sqrt(var + np.float32(1e-5))
    graph = "g (float[batch, 3, 16, 16] x) => (float[batch, 8, 14, 14] y) "
    as32 = {n: v.astype(np.float32) for n, v in {"w": w, "s": scale, "t": shift, "m": mean, "v": var}.items()}
    plain = text_model(graph + "{ c = Conv(x, w)  y = BatchNormalization(c, s, t, m, v) }", **as32)
    folded = {"w": w * k[:, None, None, None], "b": shift - mean * k}
    fused = text_model(graph + "{ y = Conv(x, w, b) }", **{n: v.astype(np.float32) for n, v in folded.items()})
    assert _run(plain, fused).ok
    wrong = {"w": folded["w"], "b": shift + mean * k}
    assert not _run(
        plain, text_model(graph + "{ y = Conv(x, w, b) }", **{n: v.astype("f") for n, v in wrong.items()})
    ).ok


def test_an_original_that_overflows_on_the_way_judges_nothing() -> None:
    """What is finite in place of its infinities is neither right nor wrong by it, and that is told."""
    graph = "g (float[2, 8] x) => (float[2, 8] y) "
    over = "{ a = Mul(x, big)  b = Mul(a, big)  c = Mul(b, low)  y = Mul(c, low) }"
    plain = text_model(graph + over, big=np.array(1e38, "f"), low=np.array(1e-38, "f"))
    fused = text_model(graph + "{ y = Mul(x, k) }", k=np.array(1.00001, "f"))
    x = np.random.default_rng(0).standard_normal((2, 8)).astype("f")
    report = _run(plain, fused, inputs=[{"x": x}])
    (output,) = report.outputs
    assert (output.verdict, report.ok) == ("undecided", False)
    assert output.why_undecided.startswith("the original is finite nowhere that the truth is: ")
    assert report.summary.startswith("not shown to be the same: y could not be judged")


@pytest.mark.parametrize("seed", range(20))
def test_a_single_number_is_judged_without_luck(seed: int) -> None:
    """The original's error in an output of one element may be zero by chance; the verdict does not hang on it."""
    sum_ = "g (float[1, 512] x) => (float[1, 1] y) "
    w = np.random.default_rng(3).standard_normal((512, 1)).astype("f")
    plain = text_model(sum_ + "{ y = MatMul(x, w) }", w=w)
    halves = "{ h, i = Split <axis = 1, num_outputs = 2> (x)  a = MatMul(h, v)  b = MatMul(i, w)  y = Add(a, b) }"
    fused = text_model(sum_ + halves, v=w[:256], w=w[256:])
    assert _run(plain, fused, seeds=[seed]).ok
    biased = text_model(sum_ + "{ a = MatMul(x, w)  y = Add(a, c) }", w=w, c=np.full(1, 1e-3, "f"))
    assert not _run(plain, biased, seeds=[seed]).ok


@pytest.mark.parametrize("seed", range(10))
def test_many_elements_of_one_cause_are_judged_without_luck(seed: int) -> None:
    """A thousand elements that share one rounding are one draw of it: more seeds are run before the verdict."""
    share = "g (float[1] x) => (float[1000] y) <float c = {{{}}}, float k = {{1.5}}> {{ {} y = Mul(d, w) }}"
    w = np.linspace(1, 2, 1000, dtype=np.float32)
    plain = text_model(share.format(5000.0, "a = Add(x, c)  d = Sub(a, c)"), w=w)
    scaled = "q = Mul(x, k)  a = Add(q, c)  e = Sub(a, c)  d = Div(e, k)"
    assert _run(plain, text_model(share.format(5000.0, scaled), w=w), seeds=[seed]).ok
    coarse = _run(plain, text_model(share.format(40000.0, scaled), w=w), seeds=[seed])
    assert not coarse.ok


def test_whole_numbers_must_be_equal() -> None:
    """An ArgMax over another axis is found, the same one passes; ties of float16 are not held against it."""
    text = "g (float16[64, 64] x) => (int64[n] y) {{ y = ArgMax <axis = {}, keepdims = 0> (x) }}"
    plain = text_model(text.format(1))
    last = text_model(text.format(1).replace("keepdims", "select_last_index = 1, keepdims"))
    assert _run(plain, plain).ok
    assert not _run(plain, text_model(text.format(0))).ok
    assert not _run(plain, last).ok  # a tie of equal inputs is decided: by the first of them


@pytest.mark.parametrize(
    ("fused", "problem"),
    [
        ("g (float[n, 4] z) => (float[n, 4] y) { y = Relu(z) }", "input 'x' is missing in the fused model"),
        ("g (float[n, 4] x) => (float[n, 4] z) { z = Relu(x) }", "output 'y' is missing in the fused model"),
        ("g (float16[n, 4] x) => (float16[n, 4] y) { y = Relu(x) }", "input 'x' is float16[n,4] in the fused model"),
        ("g (float[n, 4, 1] x) => (float[n, 4, 1] y) { y = Relu(x) }", "input 'x' is float[n,4,1]"),
        ("g (float[n, 5] x) => (float[n, 5] y) { y = Relu(x) }", "input 'x' is float[n,5]"),
        ("g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) { y = Relu(x)  z = Neg(x) }", "output 'z' is not in"),
    ],
)
def test_another_interface_is_told_before_anything_runs(fused: str, problem: str) -> None:
    """Names, types, ranks and fixed extents of inputs and outputs are part of the promise."""
    report = _run(text_model("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"), text_model(fused))
    assert not report.ok
    assert report.problems[0].startswith(problem)
    assert not report.cases


def test_dimension_names_may_differ() -> None:
    """What a dynamic dimension is called is not part of the promise."""
    plain = text_model("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    assert _run(plain, text_model("g (float[batch, 4] x) => (float[m, 4] y) { y = Relu(x) }")).ok


def test_a_fused_model_that_fails_where_the_original_runs_is_a_mismatch() -> None:
    """A Reshape that was frozen at one batch size is found by the other batch sizes."""
    plain = text_model("g (float[n, 4] x) => (float[m, 2] y) { y = Reshape(x, s) }", s=np.array([-1, 2]))
    frozen = text_model("g (float[n, 4] x) => (float[m, 2] y) { y = Reshape(x, s) }", s=np.array([2, 2]))
    report = _run(plain, frozen)
    assert not report.ok
    assert "fails where the original runs (x=3x4)" in report.problems[0]


def test_inputs_that_the_original_refuses_are_left_out_and_noted() -> None:
    """Made-up sizes need not suit the model; when none does, the user is asked for some."""
    plain = text_model("g (float[n, 4] x) => (float[m, 32] y) { y = Reshape(x, s) }", s=np.array([-1, 32]))
    report = _run(plain, plain)
    assert report.ok
    refused = [c for c in report.cases if c.note]
    assert refused
    assert all(c.shapes["x"] != (8, 4) and "the original refuses it" in c.note for c in refused)
    with pytest.raises(UsageError, match="the original runs on none of the inputs"):
        _run(plain, plain, shapes={"n": [1, 3]})


def test_what_most_cases_could_not_judge_is_not_ok() -> None:
    """The original loses all digits of all but the wide numbers: one case of six decides, and the verdict says so."""
    constant = "<float[1] c = {1e8}>"
    original = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 20]> '
        f"g (float[N, 40] x) => (float[N, 40] y) {constant} {{ s = Add (x, c) y = Sub (s, c) }}"
    )
    fused = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 20]> g (float[N, 40] x) => (float[N, 40] y) { y = Identity (x) }'
    )
    report = verify(original, fused, providers=CPU)
    assert not report.ok
    assert report.unverified == ("y",)
    judged = [c.name for n, c in enumerate(report.cases) if n not in report.undecided]
    assert "wide" in judged
    assert not {"normal", "small", "edge"} & {*judged}
    assert "y could not be judged: 6 of 11 cases could not be judged: the original's own error is " in report.summary
    junit = {c.name: c for c in checks("verify", report.as_dict())}
    assert not junit["output y"].ok
    some = replace(report, rows=tuple(r for r in report.rows if r.case not in report.undecided[1:]))
    assert some.ok, "half of the cases is enough"


def test_an_output_of_nothing_but_nan_is_undecided() -> None:
    """Where the original never gives a number, nothing was proven."""
    plain = text_model(
        "g (float[n, 4] x) => (float[n, 4] y) { z = Abs(x)  m = Neg(z)  o = Sub(m, c)  y = Sqrt(o) }", c=np.ones(1, "f")
    )
    report = _run(plain, plain)
    assert report.outputs[0].verdict == "undecided"
    assert not report.ok


def test_zero_size_outputs_pass() -> None:
    """A batch of nothing is a batch."""
    plain = text_model("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    report = _run(plain, plain, shapes={"n": [0, 2]})
    assert report.ok
    assert {c.shapes["x"] for c in report.cases} == {(0, 4), (2, 4)}
    assert "nothing of" not in report.summary
    report = _run(plain, plain, shapes={"n": [0]})
    assert report.summary.endswith("nothing of y was compared: no case gave an element of it")
    assert (report.verdict, report.ok, report.undecided) == ("undecided", False, tuple(range(len(report.cases))))


def test_control_flow_and_functions_are_compared_in_float64() -> None:
    """If, and models that are fused already, have a truth in float64 too."""
    branches = """g (bool[1] p, float[n, 4] x) => (float[n, 4] y) {
      y = If (p) <
        then_branch = yes () => (float[n, 4] a) { a = Gelu(x) },
        else_branch = no () => (float[n, 4] b) { b = Neg(x) }
      >
    }"""
    report = _run(text_model(branches), text_model(branches))
    assert (report.ok, report.truth) == (True, "float64")
    assert not _run(text_model(branches), text_model(branches.replace("Neg(x)", "Identity(x)"))).ok
    called = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20, "own": 1]> g (float[n, 4] x) => (float[n, 4] y) { y = own.Twice(x) }'
        '<domain: "own", opset_import: ["": 20]> Twice (x) => (y) { t = Erf(x)  y = Add(t, t) }'
    )
    report = _run(called, called)
    assert (report.ok, report.truth) == (True, "float64")


def test_paths_bytes_and_models_give_one_report(tmp_path: Path) -> None:
    """How a model is given changes nothing; external data beside the file is found."""
    plain = model(LINEAR + "y = Relu(n)")
    onnx.save(plain, tmp_path / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=0)
    plain = model(LINEAR + "y = Relu(n)")
    by_path = verify(tmp_path / "a.onnx", str(tmp_path / "a.onnx"), providers=CPU)
    by_bytes = verify(plain.SerializeToString(), plain, providers=CPU)
    assert by_path.ok
    assert [r.measure for r in by_path.rows] == [r.measure for r in by_bytes.rows]


def test_models_that_are_too_big_for_one_message_go_through_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ModelProto beyond 2 GB is written with external data; the limit is lowered here instead of the model grown."""
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", 1000)
    for truth in ("float64", "float32"):
        report = _run(model(LINEAR + "y = Relu(n)", "float16"), model(LINEAR + "y = Relu(n)", "float16"), truth=truth)
        assert (report.ok, report.truth) == (True, truth)


def test_the_package_can_be_called(tmp_path: Path) -> None:
    """`onnxfuse.verify(...)` works before and after the package of that name is imported."""
    plain = model("y = Relu(x)")
    for _ in range(2):
        assert onnxfuse.verify(plain, plain, providers=CPU).ok
    with pytest.raises(ModelError, match="no such file"):
        onnxfuse.verify(tmp_path / "missing.onnx", plain)


@pytest.mark.parametrize("name", ["RandomNormalLike", "Bernoulli"])
def test_random_models_are_refused(name: str) -> None:
    """No two runs of a model that draws random numbers are comparable."""
    plain = text_model(f"g (float[n, 4] x) => (float[n, 4] y) {{ z = Sigmoid(x)  y = {name}(z) }}")
    with pytest.raises(UsageError, match=name):
        _run(plain, plain)


def test_a_model_that_onnx_runtime_cannot_open_is_a_model_error() -> None:
    """An operator that does not exist is told as such."""
    plain = text_model("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    plain.graph.node[0].op_type = "Rellu"
    with pytest.raises(ModelError, match=r"cannot open the original model on CPU.*Rellu"):
        _run(plain, plain)


def test_no_cuda_where_it_was_asked_for_is_a_device_error() -> None:
    """ONNX Runtime would fall back to the CPU in silence."""
    if sessions.chosen_providers(None) != CPU:
        pytest.skip("CUDA works here")
    plain = model("y = Relu(x)")
    with pytest.raises(DeviceError):
        verify(plain, plain, providers=["CUDAExecutionProvider"])


@pytest.mark.parametrize(("called", "launched"), [(0, 0), (3, 0), (3, 6)])
def test_a_run_on_cuda_counts_calls(called: int, launched: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of a CUDA run is ok only if the kernels were called; CPU sessions stand in."""
    plain = model("y = Relu(x)")
    placed = runtime.Placement("Relu_1", "pointwise", 1, "kernel", "")
    on_cpu = sessions.ort_session
    fused = on_cpu(plain, CPU)
    fused.fused = (placed,)
    monkeypatch.setattr(sessions, "chosen_providers", list)
    monkeypatch.setattr(sessions, "ort_session", lambda source, providers, cuda: on_cpu(source, CPU))
    monkeypatch.setattr(sessions, "with_kernels", lambda source, providers, cuda, rules: fused)
    monkeypatch.setattr(runtime, "calls", lambda: {"Relu_1": called})
    monkeypatch.setattr(runtime, "launches", lambda: {"Relu_1": launched})
    monkeypatch.setattr(runtime, "reset_counts", lambda: None)
    report = verify(plain, plain, providers=["CUDAExecutionProvider"])
    assert [(k.calls, k.launches) for k in report.kernels] == [(called, launched)]
    assert report.ok is (called > 0)
    assert all(r.verdict == "ok" for r in report.rows)


BRANCHED = """g (float[2, 3] x) => (float[2, 3] y) {
  limit = Constant <value_float = 1e38> ()
  most = ReduceMax <keepdims = 0> (x)
  found = Greater (most, limit)
  y = If <
    then_branch = some () => (float[2, 3] a) { d = Add (x, x)  s = Sigmoid (d)  a = Mul (d, s) },
    else_branch = none () => (float[2, 3] b) { b = Neg (x) }
  > (found)
}"""


@pytest.mark.parametrize("precision", ["", "float16"])
def test_an_op_of_a_branch_that_never_ran_is_told_as_that_branch(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A detector with other weights finds no box: what it would do with one is left out, and no failure of a kernel.

    So where a file is held to the budget, and where to the contract for lower precision.
    """
    plain = text_model(BRANCHED)
    made, same = onnxfuse.optimize(plain), text_model(BRANCHED)
    if precision:
        for one in (made, same):
            precision_record.write(one, PrecisionRecord(precision, 0.01, "", "", 1))
    (name,) = branches.only_in_bodies(made)
    on_cpu = sessions.ort_session
    fused = on_cpu(made, CPU)
    fused.fused = (runtime.Placement(name, "pointwise", 1, "kernel", ""),)
    monkeypatch.setattr(sessions, "chosen_providers", list)
    monkeypatch.setattr(sessions, "ort_session", lambda source, providers, options=None, cuda=None: on_cpu(source, CPU))
    monkeypatch.setattr(sessions, "with_kernels", lambda source, providers, cuda=None, rules=(): fused)
    monkeypatch.setattr(runtime, "calls", dict)
    monkeypatch.setattr(runtime, "launches", dict)
    monkeypatch.setattr(runtime, "reset_counts", lambda: None)
    report = verify(plain, made, providers=["CUDAExecutionProvider"])
    assert report.ok, report.problems
    assert report.never_ran
    assert report.never_ran[0] in report.summary
    everywhere = verify(plain, same, providers=["CUDAExecutionProvider"])
    assert everywhere.problems == (f"fused op {name} was never called",)


def test_bfloat16_goes_in_and_out() -> None:
    """ONNX Runtime hands out no NumPy array of it, we do."""
    made = text_model(
        "g (bfloat16[n] x) => (bfloat16[n] y) { f = Cast <to = 1> (x)  g = Neg(f)  y = Cast <to = 16> (g) }"
    )
    x = np.array([1.5, -3.0, 0.0], ml_dtypes.bfloat16)
    got = sessions.run(sessions.ort_session(made, CPU), {"x": x})["y"]
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got, -x)
    assert _run(made, made).ok
    worse = text_model("g (bfloat16[n] x) => (bfloat16[n] y) { f = Cast <to = 1> (x)  y = Cast <to = 16> (f) }")
    assert not _run(made, worse).ok


def test_own_weights_are_not_changed() -> None:
    """Verifying reads models and changes nothing in them."""
    plain = model(LINEAR + "y = Relu(n)", "float16")
    before = plain.SerializeToString(deterministic=True)
    _run(plain, plain, truth="float32")
    assert plain.SerializeToString(deterministic=True) == before
    assert numpy_helper.to_array(plain.graph.initializer[0]).dtype == np.float16


def _run(plain: onnx.ModelProto, fused: onnx.ModelProto, **options: Any) -> VerifyReport:
    return verify(plain, fused, providers=CPU, **options)


def test_two_providers_against_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original runs on both: its own error is the worse one, and both providers are told. The CPU stands in."""
    plain, fused = model(LINEAR + "y = Relu(n)"), model(LINEAR + "y = Relu(n)")
    opened: list[str] = []
    on_cpu = sessions.ort_session

    def record(source: sessions.Model, providers: list[str], **_options: Any) -> object:
        opened.append(providers[0])
        return on_cpu(source, CPU)

    monkeypatch.setattr(sessions, "chosen_providers", list)
    monkeypatch.setattr(sessions, "ort_session", record)
    monkeypatch.setattr(sessions, "with_kernels", lambda source, providers, cuda, rules: _bare(on_cpu(source, CPU)))
    report = verify(plain, fused, providers=CPU, fused_providers=["CUDAExecutionProvider"])
    assert opened == ["CPUExecutionProvider", "CUDAExecutionProvider"]
    assert report.ok
    facts = report.as_dict()
    assert (facts["provider"], facts["fused_provider"]) == ("CPUExecutionProvider", "CUDAExecutionProvider")


def test_cases_of_the_same_shapes_run_one_after_another() -> None:
    """CUDA libraries plan a convolution anew whenever its shapes change; else the order is that of the seeds."""
    report = _run(model("y = Relu(x)"), model("y = Relu(x)"), seeds=range(3), shapes={"batch": (2, 5)})
    planned = [c for c in report.cases if c.name != "large"]
    order = [(c.shapes["x"][0], c.seed) for c in planned]
    assert order == sorted(order)
    assert len(order) == len({(c.name, c.seed, tuple(c.shapes["x"])) for c in planned}) == 15
    real = [{"x": np.ones((n, 32), np.float32)} for n in (4, 1, 4)]
    report = _run(model("y = Relu(x)"), model("y = Relu(x)"), inputs=real)
    assert [c.name for c in report.cases] == ["inputs 0", "inputs 2", "inputs 1"]


def _bare(session: Any) -> Any:
    session.fused = ()
    return session
