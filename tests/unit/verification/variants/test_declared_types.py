"""The original with its types written in is one more rounding of it, asked where a verdict is in doubt."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxfuse
from onnxfuse.support.errors import ModelError
from onnxfuse.verification.compare import compare
from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.run import sessions
from onnxfuse.verification.variants import declared_types
from tests.support.small import ops, parse

WIDTH, LAYERS = 32, 4


def layers() -> onnx.ModelProto:
    """Return residuals of which ONNX Runtime does not see that they are of one shape, each before a normalization."""
    lines = ["e0 = Gather (table, ids)", "shape = Shape (ids)", "whole = Concat <axis = 0> (shape, width)"]
    for n in range(LAYERS):
        lines += [
            f"p{n} = MatMul (e{n}, w)", f"flat{n} = Reshape (p{n}, rows)", f"b{n} = Reshape (flat{n}, whole)",
            f"s{n} = Add (b{n}, e{n})", f"e{n + 1} = LayerNormalization <axis = -1, epsilon = 0.00001> (s{n}, g, c)",
        ]  # fmt: skip
    model = parse(
        f"""g (int64[B,S] ids) => (float[B,S,{WIDTH}] y)
        <int64[1] width = {{{WIDTH}}}, int64[2] rows = {{-1, {WIDTH}}}> {{
          {" ".join(lines)} y = Identity (e{LAYERS})
        }}"""
    )
    rng = np.random.default_rng(0)
    for name, array in {
        "table": rng.normal(0, 0.02, (90, WIDTH)),
        "w": rng.normal(0, 0.2, (WIDTH, WIDTH)),
        "g": rng.normal(1, 0.1, WIDTH),
        "c": rng.normal(0, 0.1, WIDTH),
    }.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


def as_it_runs(model: onnx.ModelProto, path: str) -> list[str]:
    """Return the operators that ONNX Runtime makes of a model."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = path
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return ops(onnx.load(path))


IDS = {"ids": np.random.default_rng(3).integers(0, 90, (2, 16))}


def test_types_that_are_known_let_onnx_runtime_fuse(tmp_path: Path) -> None:
    model = layers()
    told = declared_types.typed(model)
    assert told is not None
    assert "SkipLayerNormalization" not in as_it_runs(model, f"{tmp_path}/plain.onnx")
    assert "SkipLayerNormalization" in as_it_runs(told, f"{tmp_path}/typed.onnx")
    assert declared_types.typed(told) is None


def test_declared_types_stay_once_each() -> None:
    """One that cannot be inferred, and one of which more is inferred than the file says."""
    model = parse(
        """g (float[2,3] x) => (float[2,3] y) <float[n,3] made, float[m,k] doubled> {
          made = library.Make (x)
          doubled = Add (x, x)
          y = Sub (made, doubled)
        }"""
    )
    told = declared_types.typed(model)
    assert told is not None
    shapes = [
        (v.name, [d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim]) for v in told.graph.value_info
    ]
    assert sorted(shapes) == [("doubled", [2, 3]), ("made", ["n", 3])]


def moved(factor: float, name: str = "w") -> onnx.ModelProto:
    """Return the model with its types and one of its weights times a factor."""
    told = declared_types.typed(layers())
    assert told is not None
    tensor = next(t for t in told.graph.initializer if t.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * np.float32(factor), name))
    return told


def verified(fused: onnx.ModelProto, inputs: dict[str, np.ndarray] | None) -> VerifyReport:
    return onnxfuse.verify(layers(), fused, inputs=inputs, providers=[sessions.CPU], isolate=False)


both = pytest.mark.parametrize("inputs", [None, IDS], ids=["made up", "real"])


@both
def test_what_rounds_as_the_original_with_its_types_is_right(
    inputs: dict[str, np.ndarray] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rounding of the same function takes a doubtful verdict back; what is no rounding does not."""
    fused = moved(1 + ROUNDING)
    assert not verified(fused, inputs).ok
    for factor, right in ((1 + ROUNDING, True), (1.5, False)):
        session = sessions.ort_session(moved(factor), [sessions.CPU])
        monkeypatch.setattr(compare, "with_types", lambda *_, s=session: lambda given: sessions.run(s, given))
        report = verified(fused, inputs)
        assert report.ok is right, report.summary
        rows = [(r.case, r.output) for r in report.rows]
        assert rows == sorted(set(rows))
        assert {r.case for r in report.rows} == set(range(len(report.cases)))


ROUNDING = 2e-6
"""A weight that much larger moves the output by more than the original rounds, and by less than a hundredfold."""


@both
@pytest.mark.parametrize("name", ["w", "g", "c"])
def test_a_weight_by_a_hundredth_larger_is_still_wrong(name: str, inputs: dict[str, np.ndarray] | None) -> None:
    """Beside any rounding."""
    assert verified(moved(1, name), inputs).ok
    assert not verified(moved(1.01, name), inputs).ok


def test_what_cannot_be_opened_with_its_types_is_one_run_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict stays as it was."""

    def refuses(*_: object) -> None:
        raise ModelError("no", "none")

    monkeypatch.setattr(compare, "with_types", refuses)
    assert not verified(moved(1 + ROUNDING), IDS).ok
