"""What a model takes and returns, in words of one line, and which change of it a caller notices."""

import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse.contract.interface import broken, interface
from tests.support.small import parse

IDS, MASK, LOGITS = "input ids", "input mask", "output logits"
OLD = {IDS: "int64[batch,128]", LOGITS: "float32[batch,2]"}


def reasons(**changed: str | None) -> dict[str, str]:
    """Return what breaks if the types of these values change; None removes one."""
    names = {"ids": IDS, "mask": MASK, "logits": LOGITS}
    new = {**OLD, **{names[name]: text for name, text in changed.items() if text is not None}}
    return dict(broken(OLD, {k: v for k, v in new.items() if k not in {names[n] for n, t in changed.items() if not t}}))


def typed(value: onnx.ValueInfoProto) -> str:
    """Return the type of the only input of a model."""
    return interface(helper.make_model(helper.make_graph([], "g", [value], [])))[f"input {value.name}"]


def test_inputs_and_outputs_in_order_with_their_types() -> None:
    """An input and an output may have one name: they are two values."""
    model = parse("g (int64[batch,128] ids, float[2,3] x) => (bool x, float16[1] y) { }")
    assert list(interface(model).items()) == [
        ("input ids", "int64[batch,128]"),
        ("input x", "float32[2,3]"),
        ("output x", "bool[]"),
        ("output y", "float16[1]"),
    ]


def test_a_weight_that_is_listed_as_an_input_is_none() -> None:
    """No caller has to give it."""
    text = "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }"
    assert list(interface(parse(text))) == ["input x", "output y"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (helper.make_tensor_value_info("x", TensorProto.FLOAT, None), "float32"),
        (helper.make_tensor_value_info("x", TensorProto.FLOAT, []), "float32[]"),
        (helper.make_tensor_value_info("x", TensorProto.DOUBLE, [None, "n", 0]), "double[?,n,0]"),
        (helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2]), "sequence"),
        (onnx.ValueInfoProto(name="x"), "unknown"),
    ],
    ids=["any shape", "a number", "unnamed, named and no elements", "a sequence", "no type"],
)
def test_the_words_of_a_type(value: onnx.ValueInfoProto, text: str) -> None:
    assert typed(value) == text


def test_the_same_interface_breaks_nobody() -> None:
    assert reasons() == {}


def test_an_input_that_is_new_has_to_be_given() -> None:
    """An output that is new does not have to be read."""
    assert reasons(mask="int64[batch,128]") == {MASK: "callers have to give it"}
    assert dict(broken(OLD, {**OLD, "output hidden": "float32[batch,8]"})) == {}


@pytest.mark.parametrize("name", ["ids", "logits"])
def test_a_value_that_is_gone_fails_its_callers(name: str) -> None:
    assert reasons(**{name: None}) == {f"{'input' if name == 'ids' else 'output'} {name}": "callers that use it fail"}


def test_a_value_of_another_name_is_gone_and_new() -> None:
    """Callers give inputs by name."""
    assert reasons(ids=None, mask=OLD[IDS]) == {IDS: "callers that use it fail", MASK: "callers have to give it"}


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ("int64[N,128]", None),
        ("int64[?,128]", None),
        ("int64[batch,length]", None),
        ("int64", None),
        ("int64[8,128]", "other sizes are refused now: batch -> 8"),
        ("int64[batch,64]", "other sizes are refused now: 128 -> 64"),
        ("int64[1,64]", "other sizes are refused now: batch -> 1, 128 -> 64"),
        ("int64[batch]", "it has another number of dimensions"),
        ("int64[]", "it has another number of dimensions"),
        ("int32[batch,128]", "it is of another type"),
        ("int32", "it is of another type"),
        ("sequence", "it is of another type"),
    ],
)
def test_which_types_a_caller_s_values_no_longer_have(ids: str, reason: str | None) -> None:
    """A size that became fixed or another one; not a name that changed, nor a size that became dynamic."""
    assert reasons(ids=ids) == ({} if reason is None else {IDS: reason})


def test_a_shape_that_became_known_is_no_refusal() -> None:
    """Nothing says which shapes callers of the old model gave."""
    assert dict(broken({IDS: "int64"}, {IDS: "int64[batch,128]"})) == {}
    assert dict(broken({IDS: "sequence"}, {IDS: "sequence"})) == {}
