"""The truth of onnx's own cases: every operator's gives a value for each output, and the one that the case expects."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case import node as node_cases

from onnxfuse.verification.reference.float64_reference import in_type
from onnxfuse.verification.reference.reference import float64_evaluator
from onnxfuse.verification.run.ml_types import in_carrier
from tests.support.node_cases import MODULES, cases_of

UNUSABLE = {
    "test_bernoulli": "draws random numbers: no two runs are the same, and `verify` says so",
    "test_dynamicquantizelinear": "expects what float32 rounds to a tie, which is none in float64",
    "test_resize_downsample_scales_linear_align_corners": "expects other corners than ONNX Runtime's, which ours are",
    "test_resize_downsample_scales_cubic_align_corners": "expects other corners than ONNX Runtime's, which ours are",
    "test_scan_sum": "Scan of opset 8, which onnx's reference does not have: float32 by ONNX Runtime takes its place",
}
"""Cases whose names begin so, and why the truth does not agree with them."""

WITHOUT_A_CASE = {
    "": {
        "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",  # random
        "GlobalLpPool", "MaxRoiPool",
    },
    "ai.onnx.ml": {
        "CastMap", "CategoryMapper", "DictVectorizer", "FeatureVectorizer", "Imputer", "LinearClassifier",
        "LinearRegressor", "Normalizer", "OneHotEncoder", "SVMClassifier", "SVMRegressor", "Scaler",
        "TreeEnsembleClassifier", "TreeEnsembleRegressor", "ZipMap",
    },
}  # fmt: skip
"""Operators that onnx has no case of."""

LOOSE = {1: 0.07, 2: 1e-2}
"""By bytes of an expected float: a rounding of its type, which the truth does not do."""


@pytest.mark.parametrize("module", MODULES)
def test_the_truth_is_what_the_case_expects(module: str) -> None:
    """A value for each output, of the shape and as near as the type of the case allows."""
    wrong = []
    for case in cases_of(module):
        if any(case.name.startswith(name) for name in UNUSABLE):
            continue
        wrong += [f"{case.name}: {why}" for why in differences(case)]
    assert not wrong, "\n".join(wrong)


def differences(case: Any) -> list[str]:
    """Return what is wrong with the truth of a case."""
    names = [o.name for o in case.model.graph.output]
    found = []
    for inputs, outputs in case.data_sets:
        feeds = {i.name: feed_of(x) for i, x in zip(case.model.graph.input, inputs, strict=False)}
        with np.errstate(all="ignore"):
            given = float64_evaluator(case.model).run(names, feeds)
        for name, got, wanted in zip(names, given, outputs, strict=True):
            if not same(got, wanted, case.rtol, case.atol):
                found.append(f"{name} is {got!r}"[:200])
    return found


def feed_of(x: Any) -> Any:
    """Return an input as the truth takes it: in float64."""
    if isinstance(x, TensorProto):
        x = numpy_helper.to_array(x)
    if x is None or isinstance(x, list | tuple):
        return None if x is None else [feed_of(one) for one in x]
    return in_type({"x": np.asarray(x)}, np.float64)["x"]


def same(got: Any, wanted: Any, rtol: float, atol: float) -> bool:
    """Return whether a value is the expected one: a tensor, a sequence of them, or nothing."""
    if isinstance(wanted, TensorProto):
        wanted = numpy_helper.to_array(wanted)
    if isinstance(wanted, list):
        return (
            isinstance(got, list)
            and len(got) == len(wanted)
            and all(same(a, b, rtol, atol) for a, b in zip(got, wanted, strict=True))
        )
    if got is None or wanted is None:
        return got is wanted
    a, b = in_carrier(np.asarray(got)), in_carrier(np.asarray(wanted))
    if a.shape != b.shape:
        return False
    if b.dtype.kind in "biuOUS":
        return bool(np.array_equal(a.astype(str), b.astype(str)) if b.dtype.kind in "OUS" else np.array_equal(a, b))
    looser = LOOSE.get(b.dtype.itemsize, 0.0)
    near = (max(rtol, looser), max(atol, looser / 10, 1e-6))
    return bool(np.allclose(a.astype(np.float64), b.astype(np.float64), *near, equal_nan=True))


def test_every_operator_has_a_case() -> None:
    """Each operator of onnx stands in its cases, or is listed as one that has none."""
    text = "".join(p.read_text(encoding="utf-8") for folder in node_cases.__path__ for p in Path(folder).rglob("*.py"))
    text += "".join(p.read_text(encoding="utf-8") for p in Path(*node_cases.__path__).parent.glob("model/*.py"))
    # In Python, or in a model in ONNX's syntax.
    named = {word for pair in re.findall(r"""["'](\w+)["']|= (\w+) ?[(<]""", text) for word in pair}
    without: dict[str, set[str]] = {"": set(), "ai.onnx.ml": set()}
    for schema in onnx.defs.get_all_schemas():
        if schema.domain in without and schema.name not in named:
            without[schema.domain].add(schema.name)
    assert without == WITHOUT_A_CASE
