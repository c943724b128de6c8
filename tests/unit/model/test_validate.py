"""A model file may say anything: what contradicts itself is refused where it is read, in one message, in no time."""

import contextlib
import itertools
import os
import resource
import time
from collections.abc import Callable

import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper

import onnxfuse
from onnxfuse.files import io
from onnxfuse.model.validate import MOST_DEPTH, validate
from onnxfuse.shapes import onnx_inference
from onnxfuse.shapes.size_bounds import result_elements
from onnxfuse.support.errors import ModelError

HEAD = '<ir_version: 8, opset_import: ["" : 17]> '


def model(text: str = "g (float[2,3] x) => (float[3,2] y) <float[3] w = {1,2,3}> { a = Add (x, w) "
          "[turn] y = Transpose <perm = [1,0]> (a) }") -> onnx.ModelProto:  # fmt: skip
    """Return a model, by default one that is valid."""
    return onnx.parser.parse_model(HEAD + text)


def seconds() -> float:
    """Return the processor's time that this process and its children took, whatever else the machine does."""
    return sum(os.times()[:4])


def _dims(m: onnx.ModelProto) -> None:
    m.graph.initializer[0].dims[0] = 4


def _negative(m: onnx.ModelProto) -> None:
    m.graph.initializer[0].dims[0] = -3


def _huge(m: onnx.ModelProto) -> None:
    m.graph.initializer[0].dims.extend([2**62, 2**62])


def _type(m: onnx.ModelProto) -> None:
    m.graph.initializer[0].data_type = 99


def _raw(m: onnx.ModelProto) -> None:
    m.graph.initializer[0].raw_data = b"12345"


def _opset(m: onnx.ModelProto) -> None:
    m.opset_import[0].version = 2**40


def _ir(m: onnx.ModelProto) -> None:
    m.ir_version = -1


def _attribute_type(m: onnx.ModelProto) -> None:
    m.graph.node[1].attribute[0].CopyFrom(helper.make_attribute("perm", "reverse"))


def _attribute_kind(m: onnx.ModelProto) -> None:
    m.graph.node[1].attribute[0].type = AttributeProto.UNDEFINED


def _inputs(m: onnx.ModelProto) -> None:
    del m.graph.node[0].input[1]


def _outputs(m: onnx.ModelProto) -> None:
    del m.graph.node[0].output[:]


def _twice(m: onnx.ModelProto) -> None:
    m.graph.input.append(m.graph.input[0])


def _no_function(m: onnx.ModelProto) -> None:
    m.graph.node[0].domain = "onnxfuse"


def _lacking(m: onnx.ModelProto) -> None:
    m.graph.node[0].op_type = "Concat"


def _element(m: onnx.ModelProto) -> None:
    m.graph.input[0].type.tensor_type.elem_type = 99


def _reference(m: onnx.ModelProto) -> None:
    m.graph.node[1].attribute[0].CopyFrom(AttributeProto(name="perm", type=AttributeProto.INTS, ref_attr_name="order"))


def _empty_constant(m: onnx.ModelProto) -> None:
    m.graph.node.insert(0, helper.make_node("Constant", [], ["c"]))


FAULTS: list[tuple[Callable[[onnx.ModelProto], None], str]] = [
    (_dims, "weight 'w' holds 3 values in float_data, but its shape [4] needs 4"),
    (_negative, "weight 'w' has the shape [-3]"),
    (_huge, "which no tensor can have"),
    (_type, "weight 'w' is of the element type 99"),
    (_raw, "weight 'w' holds 5 bytes, but its shape [3] needs 12"),
    (_opset, "version 1099511627776 of the operator set ai.onnx"),
    (_ir, "its IR version is -1"),
    (_attribute_type, "Transpose 'turn': attribute 'perm' is of the type STRING, it takes INTS"),
    (_attribute_kind, "attribute 'perm' is of the type 0"),
    (_inputs, "Add 'a' has 1 input, it takes 2"),
    (_outputs, "Add '' computes no value"),
    (_twice, "input 'x' is defined twice"),
    (_no_function, "the model has no function onnxfuse.Add"),
    (_lacking, "Concat 'a' lacks its attribute 'axis'"),
    (_element, "'x' is of the element type 99"),
    (_reference, "Transpose 'turn': attribute 'perm' stands for '@order', which only a node of a function's body may"),
    (_empty_constant, "Constant 'c' holds 0 values"),
]


@pytest.mark.parametrize(("change", "told"), FAULTS)
def test_what_contradicts_itself_is_refused(change: Callable[[onnx.ModelProto], None], told: str) -> None:
    """By place and fact, from a file and from memory."""
    odd = model()
    validate(odd)
    change(odd)
    with pytest.raises(ModelError) as caught:
        validate(odd)
    assert told in str(caught.value)
    with pytest.raises(ModelError, match=r"^odd\.onnx: "):
        io.parse(odd.SerializeToString(), "odd.onnx")
    with pytest.raises(ModelError):
        onnxfuse.optimize(odd)


def test_a_name_that_is_not_utf8_is_refused() -> None:
    """Protobuf gives it as bytes, which no code here expects."""
    data = model().SerializeToString().replace(b"turn", b"t\xffrn")
    with pytest.raises(ModelError, match="is not UTF-8"):
        io.parse(data, "odd.onnx")


def test_the_same_holds_in_branches_and_functions() -> None:
    """Wherever a node or a tensor stands."""
    text = (
        "g (float[2] x, bool c) => (float[2] y) { y = If (c) <then_branch = a () => (float[2] u) { u = Relu (x) }, "
        "else_branch = b () => (float[2] v) { v = Neg (x) }> }"
    )
    odd = model(text)
    validate(odd)
    odd.graph.node[0].attribute[0].g.node[0].input.append("x")
    with pytest.raises(ModelError, match=r"If 'y': Relu 'u' has 2 inputs, it takes 1"):
        validate(odd)
    odd = model(text)
    branch = odd.graph.node[0].attribute[1].g
    branch.initializer.append(TensorProto(name="deep", data_type=1, dims=[5]))
    with pytest.raises(ModelError, match="weight 'deep' holds 0 values"):
        validate(odd)


@pytest.mark.parametrize("given", ["<keep = 0>", ""])
def test_a_function_may_stand_for_attributes_of_its_calls(given: str) -> None:
    """As ONNX Runtime reads it: one that the call lacks is the operator's default."""
    head = '<ir_version: 8, opset_import: ["" : 17, "f" : 1]> '
    body = "r <keep> (a) => (b) { b = ReduceMax <axes = [1], keepdims: int = @keep> (a) }"
    text = f'g (float[N,4] x) => (float[N,K] y) {{ y = f.r {given} (x) }} <domain: "f", opset_import: ["" : 17]> {body}'
    made = onnxfuse.optimize(onnx.parser.parse_model(head + text.replace("[N,K]", "[N]" if given else "[N,1]")))
    assert [a.i for a in made.graph.node[0].attribute if a.name == "keepdims"] == ([0] if given else [])


@pytest.mark.parametrize(("domain", "depth"), [("mine", 50), ("onnxfuse", 50), ("mine", 17)])
def test_functions_that_double_are_refused(domain: str, depth: int) -> None:
    """Fifty functions, each of which calls the one before twice, are 2^50 nodes: told at once, not tried.

    Seventeen are 2^18 nodes from 35: more than MANY_NODES, and many for each node of the file.
    """
    odd = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    odd.opset_import.append(helper.make_opsetid(domain, 1))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    for n in range(depth):
        calls = [("Relu", "") if n == 0 else (f"F{n - 1}", domain)] * 2
        nodes = [helper.make_node(op, [v], [w], domain=d) for (op, d), v, w in zip(calls, "ab", "bc", strict=True)]
        odd.functions.append(helper.make_function(domain, f"F{n}", ["a"], ["c"], nodes, imports))
    odd.graph.node[0].CopyFrom(helper.make_node(f"F{depth - 1}", ["x"], ["y"], domain=domain))
    start = time.perf_counter()
    with pytest.raises(ModelError, match=r"its functions expand to .* nodes, at most"):
        validate(odd)
    assert time.perf_counter() - start < 5


def test_bodies_of_many_fused_ops_are_no_explosion() -> None:
    """What optimizing 200,000 nodes made of them is read again: 3,200 ops of 64 nodes each."""
    made = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    made.opset_import.append(helper.make_opsetid("onnxfuse", 1))
    nodes = [helper.make_node("Relu", [f"v{n}"], [f"v{n + 1}"]) for n in range(64)]
    body = helper.make_function("onnxfuse", "F", ["v0"], ["v64"], nodes, [helper.make_opsetid("", 17)])
    made.functions.append(body)
    names = ["x", *(f"t{n}" for n in range(3199)), "y"]
    del made.graph.node[:]
    pairs = itertools.pairwise(names)
    made.graph.node.extend(helper.make_node("F", [a], [b], domain="onnxfuse") for a, b in pairs)
    validate(made)


def test_functions_nest_as_deep_as_what_walks_them() -> None:
    """A chain of calls that is longer than any module tree is told; one that is taken can be verified."""
    odd = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    odd.opset_import.append(helper.make_opsetid("mine", 1))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    for n in range(MOST_DEPTH):
        node = helper.make_node(f"F{n - 1}" if n else "Relu", ["a"], ["b"], domain="mine" if n else "")
        odd.functions.append(helper.make_function("mine", f"F{n}", ["a"], ["b"], [node], imports))
    odd.graph.node[0].CopyFrom(helper.make_node(f"F{MOST_DEPTH - 1}", ["x"], ["y"], domain="mine"))
    assert onnxfuse.verify(odd, odd, providers=["CPUExecutionProvider"]).ok
    node = helper.make_node(f"F{MOST_DEPTH - 1}", ["a"], ["b"], domain="mine")
    odd.functions.append(helper.make_function("mine", "last", ["a"], ["b"], [node], imports))
    with pytest.raises(ModelError, match=f"its functions call each other {MOST_DEPTH + 1} deep, at most"):
        validate(odd)


BOMBS = {
    "a lie about ConstantOfShape": "g (float[2] x) => (float[n] y) <int64[1] size = {600000000}, float[2] z> "
                                   "{ z = ConstantOfShape (size) y = Mul (z, x) }",
    "Tile": "g (float[2] x) => (float[n] y) <int64[1] by = {900000000}, float[1] one = {1}, float[1] t> "
            "{ t = Tile (one, by) y = Mul (t, x) }",
    "Range": "g (int64[1] x) => (int64[n] y) <int64 a = {0}, int64 b = {600000000}, int64 c = {1}> "
             "{ r = Range (a, b, c) y = Add (r, x) }",
    "Expand": "g (float[2] x) => (float[n] y) <int64[2] to = {30000,30000}, float[1] one = {1}, float[1] t> "
              "{ t = Expand (one, to) y = Mul (t, x) }",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_what_a_few_bytes_ask_for_is_not_computed(name: str) -> None:
    """Constants are not folded into gigabytes, whatever the file declares of their size: it is left, or refused."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(ModelError):
        assert onnxfuse.optimize(model(BOMBS[name])).ByteSize() < 10_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes


def test_integers_that_double_are_ended() -> None:
    """Forty Concats, each of the one before with itself, are 2^40 integers; the message says what is too long."""
    steps = " ".join(f"c{n + 1} = Concat <axis = 0> (c{n}, c{n})" for n in range(40))
    start = seconds()
    with pytest.raises(ModelError, match=r"cannot be inferred: .* comes to 5.4e\+08 elements in 'c29'"):
        onnxfuse.optimize(model(f"g (int64[1] x) => (int64[n] c40) {{ c0 = Shape (x) {steps} }}"))
    assert seconds() - start < 10


def test_what_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an Einsum that is none ONNX's inference never comes back."""
    monkeypatch.setattr(onnx_inference, "SECONDS", 0.5)
    with pytest.raises(ModelError, match=r"cannot be inferred: .* took more than 1 s"):
        onnxfuse.optimize(model('g (float[a,b] x) => (float[c] y) { y = Einsum <equation = "ij0"> (x) }'))


ODD_EXTENTS = {
    "terms": "1+" * 3000 + "N", "signs": "-" * 9000 + "N", "digits": "9" * 5000 + "*N", "a digit that is none": "²*N",
    "factors": "N*" * 4900 + "N", "brackets": "(" * 300 + "N" + ")" * 300, "no number": "floor(1e400-1e400)",
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD_EXTENTS)
def test_extents_of_any_name_are_names(odd: str) -> None:
    """What does not come out as a number, or nests beyond what Python reads, is a name like any other."""
    made = model("g (float[2,N] x) => (float[M,M] y) { s = Shape (x) w = Expand (x, s) r = Relu (w) t = Transpose (r) "
                 "q = MatMul (r, t) n = Sigmoid (q) y = Neg (n) }")  # fmt: skip
    for dim in (made.graph.input[0].type.tensor_type.shape.dim[1], *made.graph.output[0].type.tensor_type.shape.dim):
        dim.dim_param = ODD_EXTENTS[odd]
    onnxfuse.optimize(made)


def test_an_extent_has_a_name_of_some_length() -> None:
    """A hundred thousand factors are no name of an exporter's."""
    made = model()
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N*" * 100_000 + "N"
    with pytest.raises(ModelError, match="'x' names an extent by 200001 letters, at most 10000 are allowed"):
        onnxfuse.optimize(made)


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("y = ConstantOfShape (a)", 6), ("y = Expand (a, b)", 20), ("y = Tile (b, c)", 10),
        ("y = Concat <axis=0> (a, b)", 4),
        ('y = Expand (a, "")', 0), ('y = Range (i, "", k)', 0), ('y = Gather ("", a)', 0), ('y = Tile ("", "")', 0),
        ("y = Add (a, c)", 2), ("y = Gather (b, a)", 2), ("y = Range (i, j, k)", 4), ("y = Loop (a, b)", None),
    ],
)  # fmt: skip
def test_sizes_are_told_before_they_are_computed(text: str, elements: int | None) -> None:
    """From the values of the inputs, not from what is declared."""
    import numpy as np

    values = {"a": np.array([2, 3]), "b": np.array([10, 2]), "c": np.array([5]), "i": np.array(1), "j": np.array(9),
              "k": np.array(2)}  # fmt: skip
    node = onnx.parser.parse_node(text) if "Loop" not in text else helper.make_node("Loop", ["a", "b"], ["y"])
    assert result_elements(node, values) == elements
