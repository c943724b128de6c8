"""What ONNX Runtime opens comes out, and computes the same: however little ONNX's own checker and inference like it."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

import onnxfuse
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.runtime.sessions.opening import refusal
from onnxfuse.support.errors import ModelError

FLOAT, HALF, INT64, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
ROW = np.linspace(0.5, 2, 4, dtype=np.float32)
MS = "com.microsoft"

Weights = dict[str, np.ndarray]


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """Return a node of values named by words; `-` is an input or output that is left out."""
    reads, makes = ([("" if v == "-" else v) for v in words.split()] for words in (inputs, outputs))
    return helper.make_node(op, reads, makes, **attributes)


def value(name: str, shape: Sequence[int | str] | None = ("N", 3, 4), dtype: int = FLOAT) -> ValueInfoProto:
    """Return the declaration of a value."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[NodeProto],
    *,
    inputs: Sequence[ValueInfoProto] | None = None,
    outputs: Sequence[ValueInfoProto] | None = None,
    weights: Weights | None = None,
    known: Sequence[ValueInfoProto] = (),
    opset: int = 13,
    imports: Sequence[tuple[str, int]] = (),
    ir: int = 8,
) -> ModelProto:
    """Return a model from `x` to `y`, both float[N,3,4] where nothing else is said."""
    graph = helper.make_graph(
        list(nodes), "g", list(inputs or [value("x")]), list(outputs or [value("y")]),
        [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()], value_info=list(known),
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*i) for i in imports)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir)


LAYER_NORM = [
    node("Mul", "n gamma", "s"), node("Add", "s beta", "y"),
    node("ReduceMean", "r", "m", axes=[-1]), node("Sub", "r m", "d"), node("Pow", "d two", "q"),
    node("ReduceMean", "q", "v", axes=[-1]), node("Add", "v eps", "e"), node("Sqrt", "e", "t"), node("Div", "d t", "n"),
    node("Add", "x bias", "b"), node("Add", "b x", "r"),
]  # fmt: skip
"""A norm of a sum, the sum after it: no node but the first stands behind what it reads."""

NORM: dict[str, np.ndarray] = {
    "gamma": ROW,
    "beta": ROW,
    "bias": ROW,
    "two": np.array(2, np.float32),
    "eps": np.array(1e-5, np.float32),
}


def branch(name: str, *nodes: NodeProto, shape: Sequence[int | str] = ("N", 3, 4)) -> onnx.GraphProto:
    """Return a branch that gives `name`, which it declares to be of this shape."""
    return helper.make_graph(list(nodes), name, [], [value(name, shape)])


def in_a_branch() -> ModelProto:
    inner = branch("b", node("Exp", "x", "t"), node("Mul", "t w", "b"), shape=[7])
    other = branch("c", node("Neg", "x", "c"))
    nodes = [node("Relu", "z", "y"), node("If", "p", "z", then_branch=inner, else_branch=other)]
    return model(nodes, inputs=[value("x"), value("p", [], BOOL)], weights={"w": ROW})


def two_versions(first: int, last: int) -> ModelProto:
    """Softmax has another axis before opset 13."""
    made = model([node("Softmax", "x", "s"), node("Relu", "s", "r"), node("Exp", "r", "y")], opset=first)
    made.opset_import.add(domain="ai.onnx", version=last)
    return made


def a_sequence() -> ModelProto:
    nodes = [
        node("SequenceConstruct", "x e", "s"), node("Exp", "x", "e"), node("SequenceAt", "s i", "t"),
        node("Relu", "t", "r"), node("Tanh", "r", "y"),
    ]  # fmt: skip
    return model(nodes, weights={"i": np.array(1, np.int64)})


def a_sparse_weight() -> ModelProto:
    made = model([node("Add", "x w", "a"), node("Relu", "a", "y")])
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("w", FLOAT, [1], [2.0]), helper.make_tensor("", INT64, [1], [2]), [4]
    )
    made.graph.sparse_initializer.append(sparse)
    return made


def without_a_name() -> ModelProto:
    made = model([node("Exp", "x", "y")])
    made.graph.name = ""
    return made


def imports_nothing_of_its_own() -> ModelProto:
    made = model([node("Exp", "x", "e"), node("Relu", "e", "y")], imports=[(MS, 1)])
    del made.opset_import[0]
    return made


TWO = [node("Exp", "x", "e"), node("Relu", "e", "y")]

ACCEPTED: dict[str, Callable[[], ModelProto]] = {
    "nodes out of order": lambda: model(LAYER_NORM, weights=NORM),
    "a wrong rank of a branch": in_a_branch,
    "LayerNormalization before 17": lambda: model(
        [node("LayerNormalization", "x w w", "n - -", axis=-1), node("Exp", "n", "e"), node("Relu", "e", "y")],
        weights={"w": ROW}, opset=12,
    ),
    "LayerNormalization with its statistics before 17": lambda: model(
        [node("LayerNormalization", "x w w", "n m s", axis=-1), node("Add", "n m", "a"), node("Relu", "a", "y")],
        weights={"w": ROW}, opset=12, imports=[(MS, 1)],
    ),
    "SimplifiedLayerNormalization": lambda: model(
        [node("SimplifiedLayerNormalization", "x w", "n", axis=-1), node("Exp", "n", "e"), node("Relu", "e", "y")],
        weights={"w": ROW}, opset=12,
    ),
    "SkipLayerNormalization without an import": lambda: model(
        [node("SkipLayerNormalization", "x x w w", "n", domain=MS), node("Exp", "n", "e"), node("Relu", "e", "y")],
        weights={"w": ROW},
    ),
    "Gelu without an import": lambda: model([node("Gelu", "x", "e", domain=MS), node("Relu", "e", "y")]),
    "FusedMatMul without an import": lambda: model(
        [node("FusedMatMul", "x w", "e", domain=MS, alpha=0.5), node("Relu", "e", "t"), node("Exp", "t", "y")],
        weights={"w": np.eye(4, dtype=np.float32)},
    ),
    "quantized to 16 bits": lambda: model(
        [node("QuantizeLinear", "x s z", "q", domain=MS), node("DequantizeLinear", "q s z", "y", domain=MS)],
        weights={"s": np.array(0.1, np.float32), "z": np.array(3, np.uint16)},
    ),
    "ai.onnx.ml without an import": lambda: model(
        [node("Scaler", "x", "e", domain="ai.onnx.ml", offset=[0.5], scale=[2.0]), node("Relu", "e", "y")],
        inputs=[value("x", ["N", 4])], outputs=[value("y", ["N", 4])],
    ),
    "no import of the default domain": imports_nothing_of_its_own,
    "a wrong rank declared inside": lambda: model(TWO, known=[value("e", [7])]),
    "a wrong extent declared inside": lambda: model(TWO, known=[value("e", [5, 5, 5])]),
    "a wrong extent of an output": lambda: model(TWO, outputs=[value("y", ["N", 3, 5])]),
    "a wrong rank of an output": lambda: model(TWO, outputs=[value("y", ["N", 3])]),
    "a value declared twice": lambda: model(TWO, known=[value("e"), value("e")]),
    "a declaration of nothing": lambda: model(TWO, known=[value("nothing", [1])]),
    "an output without a type": lambda: model(TWO, outputs=[ValueInfoProto(name="y")]),
    "an output that is an input": lambda: model(TWO, outputs=[value("y"), value("x")]),
    "an output that is a weight": lambda: model(TWO, outputs=[value("y"), value("w", [4])], weights={"w": ROW}),
    "an output given twice": lambda: model(TWO, outputs=[value("y"), value("y")]),
    "MeanVarianceNormalization 9": lambda: model(
        [node("MeanVarianceNormalization", "x", "e", axes=[0, 2]), node("Relu", "e", "y")], opset=9),
    "MeanVarianceNormalization 13": lambda: model(
        [node("MeanVarianceNormalization", "x", "e", axes=[0, 2]), node("Relu", "e", "y")]),
    "weights among the inputs of IR 3": lambda: model(
        [node("Mul", "x w", "e"), node("Relu", "e", "y")], inputs=[value("x"), value("w", [4])], weights={"w": ROW},
        opset=9, ir=3,
    ),
    "a graph without a name": without_a_name,
    "two versions, 11 is meant": lambda: two_versions(13, 11),
    "two versions, 13 is meant": lambda: two_versions(11, 13),
    "a sequence": a_sequence,
    "a sparse weight": a_sparse_weight,
    "text": lambda: model(
        [node("Cast", "x", "s", to=TensorProto.STRING), node("Cast", "s", "f", to=FLOAT), node("Relu", "f", "e"),
         node("Tanh", "e", "y")]),
    "names of dimensions that are expressions": lambda: model(
        [node("Reshape", "x flat", "f"), node("Exp", "f", "e"), node("Relu", "e", "r"), node("Reshape", "r back", "y")],
        inputs=[value("x", ["N", "(floor(h/2) + 1)*(floor(w/2) + 1) + 1", 4])],
        outputs=[value("y", ["N", "(floor(h/2) + 1)*(floor(w/2) + 1) + 1", 4])],
        weights={"flat": np.array([0, -1]), "back": np.array([0, -1, 4])},
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:ONNX's checker does not take the model")
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_onnx_runtime_opens_comes_out_the_same(name: str) -> None:
    """It opens, and the result opens and computes the same, and comes out of a second time as it is."""
    made = ACCEPTED[name]()
    assert refusal(made) is None
    done = onnxfuse.optimize(made)
    for feeds in inputs_of(made):
        for before, after in zip(run(made, feeds), run(done, feeds), strict=True):
            np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    again = onnxfuse.optimize(done)
    assert again.SerializeToString(deterministic=True) == done.SerializeToString(deterministic=True)


def inputs_of(made: ModelProto) -> list[dict[str, np.ndarray]]:
    """Return numbers for the inputs, for both values of a truth value."""
    weights = {t.name for t in made.graph.initializer}
    shapes = {
        i.name: (2, 3, 4)[-len(i.type.tensor_type.shape.dim) or 3 :] for i in made.graph.input if i.name not in weights
    }
    numbers = {n: np.random.default_rng(0).standard_normal(s).astype(np.float32) for n, s in shapes.items() if n != "p"}
    return [{**numbers, "p": np.array(p)} for p in (True, False)] if "p" in shapes else [numbers]


def run(made: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what ONNX Runtime computes without optimizing."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.parametrize("name", ["nodes out of order", "a wrong rank declared inside", "Gelu without an import"])
def test_what_is_accepted_is_fused(name: str) -> None:
    """Taken is not left alone: the nodes that a rule takes elsewhere are taken here."""
    done = onnxfuse.optimize(ACCEPTED[name]())
    left = pipeline.count_ops(done)
    assert sum(n for op, n in left.items() if op.startswith("onnxfuse:")) == 1
    assert left.total() < 3


def test_nodes_of_branches_and_functions_are_sorted_too() -> None:
    """ONNX Runtime wants these in order; what comes out is."""
    inner = branch("b", node("Mul", "t w", "b"), node("Exp", "x", "t"))
    nodes = [node("If", "p", "z", then_branch=inner, else_branch=branch("c", node("Neg", "x", "c")))]
    made = model(
        [*nodes, node("F", "z", "y", domain="mine")], inputs=[value("x"), value("p", [], BOOL)], weights={"w": ROW},
        imports=[("mine", 1)],
    )  # fmt: skip
    body = [node("Relu", "t", "b"), node("Exp", "a", "t")]
    made.functions.append(helper.make_function("mine", "F", ["a"], ["b"], body, [helper.make_opsetid("", 13)]))
    assert refusal(onnxfuse.optimize(made)) is None


@pytest.mark.parametrize("opset", [9, 10, 11, 13])
def test_a_product_is_written_as_its_opset_takes_it(opset: int) -> None:
    """Gemm has three inputs before opset 11: what stands in the place of one has, too, or is no Gemm."""
    weights = {"w": np.arange(64 * 64, dtype=np.float32).reshape(64, 64), "b": np.ones(64, np.float32)}
    shapes: dict[str, Any] = {"inputs": [value("x", ["N", 64])], "outputs": [value("y", ["N", 64])]}
    made = model([node("Gemm", "x w b", "m"), node("Tanh", "m", "y")], **shapes, weights=weights, opset=opset)
    done = onnxfuse.optimize(made)
    assert refusal(done) is None
    for name in ("pointwise", "gemm"):
        rules = [r for r in rule_file.by_default(rule_file.shipped()) if r.name != name]
        alone = ModelProto()
        alone.CopyFrom(made)
        assert not pipeline.run(alone, rules, opens=refusal).notes


def test_an_operator_of_a_library_of_the_users_is_no_fault() -> None:
    """ONNX Runtime does not know it without the library: what stands beside it is fused, whatever else is odd."""
    nodes = [node("Exp", "x", "a"), node("Relu", "a", "b"), node("Foo", "b", "y", domain="mine")]
    made = model(nodes, imports=[("mine", 1)], known=[value("a", [7])])
    assert {n.domain for n in onnxfuse.optimize(made).graph.node} == {"onnxfuse", "mine"}


def test_what_the_checker_does_not_take_is_said() -> None:
    """One line: its words, and that ONNX Runtime opens the model all the same."""
    with pytest.warns(UserWarning, match=r"'name' of 'graph' is required.*ONNX Runtime does"):
        onnxfuse.optimize(ACCEPTED["a graph without a name"]())


def test_operators_that_onnx_runtime_knows_in_the_default_domain_need_no_note() -> None:
    """Their entries say what types they have: the rest of the file is checked as any other."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        onnxfuse.optimize(ACCEPTED["LayerNormalization before 17"]())
        onnxfuse.optimize(ACCEPTED["SimplifiedLayerNormalization"]())


def test_what_is_older_than_onnx_runtime_runs_is_left_alone() -> None:
    """Before opset 7 Add broadcasts where an attribute says so: a rule would take it for another."""
    nodes = [node("Exp", "x", "e"), node("Add", "e w", "a", broadcast=1, axis=2), node("Relu", "a", "y")]
    made = model(nodes, weights={"w": ROW}, opset=6)
    with pytest.warns(UserWarning, match="opset 6 is older"):
        assert [n.op_type for n in onnxfuse.optimize(made).graph.node] == ["Exp", "Add", "Relu"]


def test_a_model_is_invalid_in_the_words_of_onnx_runtime() -> None:
    """With the name of the node in the file, never of an op that was made of it."""
    nodes = [
        node("Cast", "x", "f", to=FLOAT, name="up"), node("Add", "f f", "s"),
        node("LayerNormalization", "s w w", "n", name="the_norm"), node("Relu", "n", "y"),
    ]  # fmt: skip
    made = model(nodes, inputs=[value("x", dtype=HALF)], weights={"w": ROW.astype(np.float16)}, opset=17)
    with pytest.raises(ModelError, match="the model is not valid") as told:
        onnxfuse.optimize(made)
    assert "the_norm" in str(told.value)
    assert "LayerNormalization_" not in str(told.value)
    assert "export the module in float32, and convert the file with `precision`" in told.value.hint


def test_a_weight_folded_in_both_branches_is_kept_once() -> None:
    """And undone it has its own axes again."""
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    shape = ("N", 8, 64)
    branches = [
        branch(o, node("MatMul", "x w", f"{o}m"), node(op, f"{o}m", o), shape=shape)
        for o, op in (("b", "Relu"), ("c", "Exp"))
    ]
    made = model(
        [node("If", "p", "y", then_branch=branches[0], else_branch=branches[1])],
        inputs=[value("x", shape), value("p", [], BOOL)], outputs=[value("y", None)], weights={"w": weight},
        opset=17,
    )  # fmt: skip
    done = onnxfuse.optimize(made)
    assert [t.name for t in done.graph.initializer] == ["w.terms_last"]
    assert not any(t for a in done.graph.node[0].attribute for t in a.g.initializer)
    assert pipeline.count_ops(onnxfuse.unfuse(done)) == pipeline.count_ops(made)


def test_a_weight_of_one_number_is_written_out_as_long_as_that_is_small() -> None:
    """So that a norm goes into the convolution before it; one as big as a bomb stays a node."""

    def made(extent: int) -> ModelProto:
        nodes = [
            node("ConstantOfShape", "s", "w", value=helper.make_tensor("v", FLOAT, [1], [0.5])),
            node("MatMul", "x w", "m"), node("Relu", "m", "y"),
        ]  # fmt: skip
        shapes: dict[str, Any] = {"inputs": [value("x", ["N", 256])], "outputs": [value("y", ["N", extent])]}
        return model(nodes, **shapes, weights={"s": np.array([256, extent])}, opset=17)

    assert "ConstantOfShape" not in pipeline.count_ops(onnxfuse.optimize(made(128)))
    assert "ConstantOfShape" in pipeline.count_ops(onnxfuse.optimize(made(1 << 20)))
