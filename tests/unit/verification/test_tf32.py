"""Where CUDA sessions may round products to TF32, float32 outputs are held to that, and to no less."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.model.tf32 import is_strict_fp32, set_strict_fp32
from onnxfuse.symbolic.packing import Packing
from onnxfuse.verification import verify
from onnxfuse.verification.localize.bisect import investigate
from onnxfuse.verification.reference.float64_reference import as_tf32
from onnxfuse.verification.reference.reference import to_tf32
from onnxfuse.verification.run import sessions

CPU = ["CPUExecutionProvider"]
WEIGHT = np.random.default_rng(0).standard_normal((64, 48)) / 8


def product(weight: np.ndarray, rounded: str = "", after: str = "y = Tanh(m)") -> onnx.ModelProto:
    """Return Tanh(x @ w); `rounded` names the value that the product reads in place of x."""
    # Veltkamp's split: what is left of x is its upper 24 - 13 bits.
    split = "c = Mul(x, k)  d = Sub(c, x)  high = Sub(c, d)"
    text = f"g (float[n, 64] x) => (float[n, 48] y) {{ {split} m = MatMul({rounded or 'x'}, w) {after} }}"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {text}')
    for name, array in (("w", weight), ("k", np.array(2.0**13 + 1))):
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's provider stands in for CUDA's."""
    monkeypatch.setattr(sessions, "CUDA", CPU[0])
    monkeypatch.setattr(sessions, "chosen_providers", list)


def test_eleven_bits_are_kept() -> None:
    """Half a unit in the last of them at most; what has fewer stays as it is."""
    x = np.random.default_rng(1).standard_normal(10_000)
    assert 2.0**-12 < np.max(np.abs(to_tf32(x) / x - 1)) <= 2.0**-11
    kept = np.array([0.0, -1.0, 1 + 2.0**-10, 65504.0, np.inf])
    assert np.array_equal(to_tf32(kept), kept)
    assert to_tf32(np.array(1 + 2.0**-12)) == 1.0


PRODUCTS = {
    "MatMul": "float[2, 3, 4, 5] x, float[2, 3, 5, 6] w",
    "Gemm": "float[4, 5] x, float[5, 6] w",
    "Conv": "float[2, 3, 4, 5] x, float[6, 3, 2, 2] w",
    "ConvTranspose": "float[2, 3, 4, 5] x, float[3, 6, 2, 2] w",
    'Einsum <equation = "bij,bjk->bik">': "float[2, 4, 5] x, float[2, 5, 6] w",
}


def drawn(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return random float64 inputs of a model without symbolic sizes."""
    rng = np.random.default_rng(2)
    return {i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]) for i in model.graph.input}


@pytest.mark.parametrize("operator", PRODUCTS)
def test_both_factors_of_every_product_are_rounded(operator: str) -> None:
    """Of numbers that have the digits of TF32 a product is what it is of those that are rounded to them."""
    name, _, attributes = operator.partition(" ")
    call = f"{name} {attributes} (x, w)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({PRODUCTS[operator]}) => (float[a, b] y) {{ y = {call} }}'
    )
    given = drawn(model)
    rounded = {name: to_tf32(x) for name, x in given.items()}
    evaluate = as_tf32(model)
    assert np.array_equal(evaluate(given)["y"], evaluate(rounded)["y"])
    assert not np.array_equal(evaluate(given)["y"], evaluate({**rounded, "w": rounded["w"] * (1 + 2.0**-9)})["y"])


def test_the_factors_of_attention_are_rounded() -> None:
    """Queries, keys and values, those of a cache and new ones; the mask is added to scores as it is."""
    model = onnx.parser.parse_model(
        """<ir_version: 11, opset_import: ["": 24]>
        g (float[1, 2, 3, 4] q, float[1, 2, 3, 4] k, float[1, 2, 3, 4] v, float[3, 5] mask, float[1, 2, 2, 4] past_k,
           float[1, 2, 2, 4] past_v) => (float[1, 2, 3, 4] y)
        { y, present_k, present_v = Attention (q, k, v, mask, past_k, past_v) }"""
    )
    given = drawn(model)
    rounded = {name: x if name == "mask" else to_tf32(x) for name, x in given.items()}
    evaluate = as_tf32(model)
    assert np.array_equal(evaluate(given)["y"], evaluate(rounded)["y"])
    assert not np.array_equal(evaluate(given)["y"], evaluate(given | {"mask": to_tf32(given["mask"])})["y"])


def test_the_factors_of_attention_behind_a_kv_cache_are_rounded() -> None:
    """The caches themselves keep all digits."""
    model = onnx.parser.parse_model(
        """<ir_version: 11, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[1, 1, 32] q, float[1, 1, 16] k, float[1, 1, 16] v,
           float[1, 1, 8, 16] past_k, float[1, 1, 8, 16] past_v)
        => (float[1, 1, 32] y, float[1, 1, 8, 16] present_k, float[1, 1, 8, 16] present_v)
        <int32[1] lengths = {5}, int32 total = {6}> {
          y, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1>
            (q, k, v, past_k, past_v, lengths, total)
        }"""
    )
    given = drawn(model)
    exact, rounded = (as_tf32(model)(x) for x in (given, {name: to_tf32(x) for name, x in given.items()}))
    assert np.array_equal(exact["y"], rounded["y"])
    assert np.array_equal(exact["present_k"][:, :, 5], given["k"])
    assert not np.array_equal(exact["present_k"], rounded["present_k"])


def test_the_factors_of_a_product_by_a_packed_weight_are_rounded() -> None:
    """The activations and the numbers that are unpacked; neither the bytes nor the scales themselves."""
    weight = np.random.default_rng(3).integers(0, 256, (4, 2, 16), np.uint8)
    model = onnx.parser.parse_model(
        """<ir_version: 11, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[3, 64] x, float[4, 2] scales) => (float[3, 4] y)
        { y = com.microsoft.MatMulNBits <K = 64, N = 4, bits = 4, block_size = 32> (x, w, scales) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    given = drawn(model)
    x, unpacked = given["x"], Packing(4, 32, 64).unpack(weight, given["scales"], None, np.float64)
    y = as_tf32(model)(given)["y"]
    assert np.allclose(y, to_tf32(x) @ to_tf32(unpacked).T, rtol=0, atol=1e-12)
    assert not np.allclose(y, x @ to_tf32(unpacked).T, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("cuda")
def test_a_product_of_rounded_factors_passes_where_the_session_may_round() -> None:
    """The report says so; the budget is what the rounding does to the original, within a factor of two."""
    report = verify(product(WEIGHT), product(to_tf32(WEIGHT), "high"), providers=CPU)
    assert (report.ok, report.tf32) == (True, True), report.summary
    assert all(0.1 < r.severity <= 1 for r in report.outputs)


def test_it_fails_where_the_session_may_not() -> None:
    """On the CPU float32 is float32."""
    report = verify(product(WEIGHT), product(to_tf32(WEIGHT), "high"), providers=CPU)
    assert (report.ok, report.tf32) == (False, False)
    assert report.outputs[0].severity > 10


@pytest.mark.usefixtures("cuda")
def test_what_is_right_without_rounding_is_not_judged_by_it() -> None:
    """The stricter budget stands wherever it holds."""
    report = verify(product(WEIGHT), product(WEIGHT), providers=CPU)
    assert (report.ok, report.tf32) == (True, False)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    "wrong",
    [product(WEIGHT * 1.01), product(WEIGHT, after="y = Erf(m)"), product(np.roll(WEIGHT, 1, axis=1), "high")],
    ids=["weight", "activation", "axis"],
)
def test_a_fault_is_a_fault_there_too(wrong: onnx.ModelProto) -> None:
    """With the strict budget in the report, so that its figures are the known ones."""
    report = verify(product(WEIGHT), wrong, providers=CPU)
    assert (report.ok, report.tf32) == (False, False)


@pytest.fixture
def opened_with(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The options of each CUDA session; its provider is the CPU's."""
    found: list[dict[str, str]] = []

    def record(providers: Sequence[str], cuda: Mapping[str, str]) -> list[str]:
        found.append(dict(cuda))
        return list(providers)

    monkeypatch.setattr(sessions, "with_options", record)
    return found


def strictly(model: onnx.ModelProto) -> onnx.ModelProto:
    set_strict_fp32(model)
    return model


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("fused", "asked", "options", "why"),
    [
        (product(WEIGHT), None, {}, ""),
        (product(WEIGHT), False, {"use_tf32": "0"}, "asked for"),
        (strictly(product(WEIGHT)), None, {"use_tf32": "0"}, "the fused file was made with --strict-fp32"),
        (strictly(product(WEIGHT)), True, {"use_tf32": "1"}, ""),
    ],
    ids=["default", "asked for", "strict", "strict, and not"],
)
def test_original_and_fused_model_round_alike(
    fused: onnx.ModelProto, asked: bool | None, options: dict[str, str], why: str, opened_with: list[dict[str, str]]
) -> None:
    """By what was asked for, else by what the fused file says; the report tells why nothing is rounded."""
    report = verify(product(WEIGHT), fused, providers=CPU, use_tf32=asked)
    assert (report.ok, report.without_tf32, opened_with) == (True, why, [options, options])


@pytest.mark.usefixtures("cuda", "opened_with")
def test_where_nothing_may_round_nothing_is_judged_by_it() -> None:
    """A kernel that rounds all the same is a mismatch in a strict file; bisect looks at it under the same option."""
    plain, fused = product(WEIGHT), strictly(product(to_tf32(WEIGHT), "high"))
    report = verify(plain, fused, providers=CPU)
    assert (report.ok, report.tf32) == (False, False)
    bisection = investigate(plain, fused, report).bisection
    assert bisection is not None
    assert bisection.fault
    allowed = verify(plain, fused, providers=CPU, use_tf32=True)
    assert (allowed.ok, allowed.tf32) == (True, True)
    assert is_strict_fp32(fused), "what was given is not changed"
