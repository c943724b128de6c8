"""The whole way of a model: subgraphs, functions, old versions, missing names; the same bytes every time."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.model.fused import DOMAIN, fused_ops
from onnxfuse.rules.language import rule_file
from onnxfuse.support.errors import ModelError
from tests.support.small import assert_same_numbers, ops, optimize, parse

ROOT = Path(__file__).parents[3]

# ---- bodies of If, Loop and Scan

IF = """g (float[4,4] x, bool c) => (float[4,4] y)
<float[4,4] w = {1,2,3,4,-1,-2,-3,-4,1,0,1,0,0,1,0,1}, float[4] outer = {1,-2,3,-4}, float[4] scale = {1,2,-3,4}> {
  [product] a = MatMul (x, w)
  [choice] y = If (c) <
    then_branch = t () => (float[4,4] p) <float[4] inner = {0.5,1,1.5,-2}> {
      [one] s = Add (a, outer) [two] u = Mul (s, inner) v = Tanh (u) p = LayerNormalization (v, scale)
    },
    else_branch = e () => (float[4,4] q) { q = Neg (a) }>
}"""


def test_a_branch_of_an_if_is_optimized() -> None:
    """Outer values, outer weights and weights of the branch are read as they are anywhere else."""
    made, _ = optimize(parse(IF))
    (branch,) = [a.g for n in made.graph.node for a in n.attribute if a.name == "then_branch"]
    assert ops(made, branch) == ["{Add Mul Tanh LayerNormalization}"]
    assert_same_numbers(parse(IF), made, seed=0)
    assert_same_numbers(parse(IF), made, seed=3)


WRONG = """g (float[1] x, bool c) => (float[1] y) <float[1] one = {1}> {
  y = If (c) <
    then_branch = t () => (float[1] p) { p = Neg (x) },
    else_branch = e () => (float q) { a = Add (x, one) b = Sigmoid (a) q = Exp (b) }>
}"""
"""PaddlePaddle's exports declare numbers in branches that are lists of one."""


def test_what_a_branch_gives_out_is_declared_as_it_is() -> None:
    """ONNX Runtime makes room for a fused op's result as the branch declares it, and refuses another."""
    made, _ = optimize(parse(WRONG))
    branches = {a.name: a.g for n in made.graph.node for a in n.attribute}
    assert ops(made, branches["else_branch"]) == ["{Add Sigmoid Exp}"]
    assert [len(b.output[0].type.tensor_type.shape.dim) for b in branches.values()] == [1, 1]
    assert_same_numbers(parse(WRONG), made, seed=0)
    assert_same_numbers(parse(WRONG), made, seed=3)


LOOP = """g (float[4] x, int64 count, bool go) => (float[4] y) <float[4] b = {1,-2,3,0.5}, float third = {0.333}> {
  y = Loop (count, go, x) <body = loop (int64 i, bool again, float[4] state) => (bool still, float[4] next) {
    still = Identity (again)
    s = Add (state, b) t = Tanh (s) next = Mul (t, third)
  }>
}"""


def test_the_body_of_a_loop_is_optimized() -> None:
    """The state of a loop is a value like any other."""
    made, _ = optimize(parse(LOOP))
    body = made.graph.node[0].attribute[0].g
    assert "{Add Tanh Mul}" in ops(made, body)
    assert [o.name for o in body.output] == ["still", "next"]
    assert_same_numbers(parse(LOOP), made)


SCAN = """g (float[4] start, float[S,4] xs) => (float[4] last, float[S,4] ys) {
  last, ys = Scan <num_scan_inputs = 1, body = step (float[4] state, float[4] x) => (float[4] next, float[4] y) {
    s = Add (state, x) t = Sigmoid (s) next = Mul (s, t) y = Identity (next)
  }> (start, xs)
}"""


def test_the_body_of_a_scan_is_optimized() -> None:
    """And what it computes per step stays the same."""
    made, _ = optimize(parse(SCAN))
    body = next(a.g for a in made.graph.node[0].attribute if a.name == "body")
    assert ops(made, body) == ["{Add Sigmoid Mul Identity}"]
    assert_same_numbers(parse(SCAN), made)


def test_a_body_inside_a_body_is_optimized() -> None:
    """Depth makes no difference; a value two levels out is still read by its name."""
    text = """g (float[4] x, bool c) => (float[4] y) <float[4] b = {1,-2,3,0.5}> {
      a = Relu (x)
      y = If (c) <
        then_branch = t () => (float[4] p) {
          p = If (c) <
            then_branch = tt () => (float[4] pp) { s = Add (a, b) n = Neg (s) pp = Exp (n) },
            else_branch = te () => (float[4] qq) { qq = Neg (x) }> },
        else_branch = e () => (float[4] q) { q = Neg (x) }>
    }"""
    made, _ = optimize(parse(text), "pointwise")
    outer = next(a.g for a in made.graph.node[1].attribute if a.name == "then_branch")
    inner = next(a.g for a in outer.node[0].attribute if a.name == "then_branch")
    assert ops(made, inner) == ["{Add Neg Exp}"]
    for seed in range(4):
        assert_same_numbers(parse(text), made, seed)


def test_a_weight_read_only_by_a_body_is_kept() -> None:
    """The main graph does not read it, a branch does."""
    text = """g (float[4] x, bool c) => (float[4] y) <float[4] b = {1,-2,3,0.5}> {
      y = If (c) <then_branch = t () => (float[4] p) { s = Add (x, b) p = Neg (s) },
                  else_branch = e () => (float[4] q) { q = Neg (x) }>
    }"""
    made, _ = optimize(parse(text), "pointwise")
    assert [t.name for t in made.graph.initializer] == ["b"]
    assert_same_numbers(parse(text), made)


# ---- local functions


def test_local_functions_of_other_domains_are_inlined_and_matched() -> None:
    """torch exports modules as functions; the rules see through them, and none is left."""
    text = """<ir_version: 10, opset_import: ["" : 20, "torch" : 1]>
    g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,-2,3,4}, float[2] b = {0.5,-1}> {
      m = torch.linear (x, w, b) y = torch.act (m)
    }
    <domain: "torch", opset_import: ["" : 20]> linear (x, w, b) => (y) { m = MatMul (x, w) y = Add (m, b) }
    <domain: "torch", opset_import: ["" : 20]> act (x) => (y) { y = Gelu (x) }"""
    made, _ = optimize(parse(text))
    assert ops(made) == ["MatMul", "{Add Gelu}"]
    assert {f.domain for f in made.functions} == {DOMAIN}
    onnx.checker.check_model(made, full_check=True)
    assert_same_numbers(parse(text), made)


# ---- old versions, missing names


def test_a_model_of_ir_3_and_opset_9_is_optimized() -> None:
    """Its weights stand among the inputs, as that version wanted; they are constants all the same."""
    text = """<ir_version: 3, opset_import: ["" : 9]>
    g (float[N,2] x, float[2,3] w, float[3] b) => (float[N,3] y)
    <float[2,3] w = {1,-2,3,-4,5,-6}, float[3] b = {0.5,-1,2}> {
      m = MatMul (x, w) a = Add (m, b) y = Relu (a)
    }"""
    made, _ = optimize(parse(text))
    assert ops(made) == ["MatMul", "{Add Relu}"]
    assert [i.name for i in made.graph.input] == ["x"]
    assert made.opset_import[0].version == 9
    onnx.checker.check_model(made, full_check=True)
    assert_same_numbers(parse(text), made)


def test_a_default_for_an_input_is_no_constant() -> None:
    """Since IR 4 an input with an initializer is an input that the caller may give: it must not be folded."""
    text = """g (float[N,1,2,2] x, float[2] scale) => (float[N,2,2,2] y)
    <float[2,1,1,1] w = {1,2}, float[2] scale = {1,-0.5}, float[2] shift = {0.1,0.2}, float[2] mean = {0.3,-0.1},
     float[2] var = {1,4}> {
      c = Conv (x, w) y = BatchNormalization (c, scale, shift, mean, var)
    }"""
    made, report = optimize(parse(text), "batchnorm")
    assert ops(made) == ["Conv", "BatchNormalization"]
    assert [near.refusal.reason for near in report.near] == ["'scale' is not a constant"]


def test_nodes_without_names_are_called_by_their_first_output() -> None:
    """The report is readable where the exporter gave no names; the nodes get none."""
    made, report = optimize(parse("g (float[4] x) => (float[4] y) { a = Exp (x) y = Neg (a) }"), "pointwise")
    assert report.applied[0].nodes == ("Exp a", "Neg y")
    assert [n.name for n in made.graph.node] == [""]


def test_names_of_what_is_not_touched_stay() -> None:
    """Inputs, outputs, plain nodes, their values and weights keep their names, and the order of inputs and outputs."""
    text = """g (float[N,2] x, float[N,2] r) => (float[N,2] y, float[2,N] z) <float[2,2] w = {1,-2,3,4}> {
      [product] m = MatMul (x, w) [act] t = Tanh (m) [res] y = Add (t, r) [other] z = Transpose (r)
    }"""
    made, _ = optimize(parse(text))
    assert [i.name for i in made.graph.input] == ["x", "r"]
    assert [o.name for o in made.graph.output] == ["y", "z"]
    plain = {n.name: (n.op_type, list(n.input), list(n.output)) for n in made.graph.node if n.domain == ""}
    assert plain == {"product": ("MatMul", ["x", "w"], ["m"]), "other": ("Transpose", ["r"], ["z"])}


def test_dead_nodes_and_unread_weights_go() -> None:
    """What no output depends on is not computed, and not stored."""
    text = """g (float[2,2] x) => (float[2,2] y) <float[2] unread = {1,2}, float[2] dead_weight = {1,2}> {
      d = Mul (x, dead_weight) e = Exp (d) a = Relu (x) y = MatMul (a, a)
    }"""
    made, _ = optimize(parse(text))
    assert ops(made) == ["Relu", "MatMul"]
    assert not made.graph.initializer


def test_metadata_of_the_model_stays() -> None:
    """Producer, documentation and properties belong to the user."""
    model = parse("g (float[4] x) => (float[4] y) { a = Exp (x) y = Neg (a) }")
    model.producer_name, model.doc_string = "someone", "about"
    model.metadata_props.add(key="author", value="someone")
    made, _ = optimize(model)
    assert (made.producer_name, made.doc_string) == ("someone", "about")
    assert [(p.key, p.value) for p in made.metadata_props] == [("author", "someone")]


# ---- graphs at the edge


@pytest.mark.parametrize(
    ("text", "left"),
    [
        # No nodes at all; an input, and a weight, that are outputs as they are.
        ("g (float[4] x) => (float[4] x) { }", []),
        ("g (float[4] x) => (float[4] x, float[4] y) { a = Neg (x) y = Exp (a) }", ["{Neg Exp}"]),
        (
            "g (float[4] x) => (float[4] w, float[4] y) <float[4] w = {1,2,3,4}> { a = Neg (x) y = Exp (a) }",
            ["{Neg Exp}"],
        ),
        # One number; no element.
        ("g (float x) => (float y) { a = Neg (x) y = Exp (a) }", ["{Neg Exp}"]),
        ("g (float[0,4] x) => (float[0,4] y) { a = Neg (x) y = Exp (a) }", ["{Neg Exp}"]),
        # An empty weight stands for an absent one.
        (
            """g (float[1,2,3,3] x) => (float[1,2,6,6] y) <float[0] roi = {}, float[4] scales = {1,1,2,2}> {
              a = Relu (x) b = Neg (a) y = Resize (b, roi, scales)
            }""",
            ["{Relu Neg Resize}"],
        ),
        # A weight on the left, a product with a vector, biases of every legal shape.
        (
            """g (float[3,2] x) => (float[2,2] y) <float[2,3] w = {1,-2,3,-4,5,-6}, float[2] b = {1,2}> {
              m = MatMul (w, x) h = Add (m, b) y = Relu (h)
            }""",
            ["MatMul", "{Add Relu}"],
        ),
        (
            """g (float[2] x) => (float[3] y) <float[2,3] w = {1,-2,3,-4,5,-6}, float[3] b = {1,2,3}> {
              m = MatMul (x, w) h = Add (m, b) y = Relu (h)
            }""",
            ["MatMul", "{Add Relu}"],
        ),
        *(
            (
                f"""g (float[3,2] x, float[3,3] given) => (float[3,3] y)
                <float[2,3] w = {{1,-2,3,-4,5,-6}}, float{shape} b = {{{",".join("1253"[:count])}}}> {{
                  m = Gemm (x, w, {name}) y = Relu (m)
                }}""",
                ["Gemm", "{Add Relu}"],
            )
            for shape, count, name in (
                ("", 1, "b"), ("[1]", 1, "b"), ("[3,1]", 3, "b"), ("[1,3]", 3, "b"), ("", 1, "given"),
            )
        ),
    ],
)  # fmt: skip
def test_a_graph_at_the_edge_is_a_graph(text: str, left: list[str]) -> None:
    """Nothing is too small or too odd: valid ONNX gives valid ONNX and the same numbers."""
    made, _ = optimize(parse(text))
    assert ops(made) == left
    onnx.checker.check_model(made, full_check=True)
    assert_same_numbers(parse(text), made)


# ---- models that are not valid


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("g (float[2,3] x, float[4] b) => (float[2,3] y) { a = Relu (x) y = Add (a, b) }", "ncompatible dimensions"),
        ("g (float[3] x) => (float[3] y) { a = Relu (x) y = NoSuchOperator (a) }", "NoSuchOperator"),
        ("g (float[3] x) => (float[3] y) { a = Relu (nowhere) y = Neg (a) }", "nowhere"),
        ("g (float[3] x) => (float[3] y) { a = Relu <no_such = 1> (x) y = Neg (a) }", "no_such"),
        ("g (float[3] x) => (float[3] y) { y = Exp (a) a = Neg (y) }", "'a' of node"),
        ("g (float[3] x) => (float[3] y) { a = Exp (x) a = Neg (x) y = Abs (a) }", "'a' has been used as output names"),
    ],
)
def test_a_model_that_is_not_valid_is_refused_in_onnx_own_words(text: str, told: str) -> None:
    """One message that names what is wrong, whatever the phase that finds it."""
    with pytest.raises(ModelError, match="the model is not valid") as caught:
        optimize(parse(text))
    assert told in str(caught.value)


# ---- the same bytes


@pytest.mark.parametrize("name", ["bodies", *(r.name for r in rule_file.shipped() if r.examples)])
def test_an_optimized_model_comes_out_as_it_went_in(name: str) -> None:
    """The second run changes no byte, for the examples of every shipped rule and for the models of this file."""
    examples = [e.text for r in rule_file.shipped() if r.name == name for e in r.examples]
    for text in examples or (IF, LOOP, SCAN):
        once, _ = optimize(parse(text))
        twice, report = optimize(once)
        assert twice.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)
        assert report.applied == []


def test_the_same_model_gives_the_same_bytes_in_every_process() -> None:
    """Whatever the seed of Python's hashes."""
    script = """
import hashlib, onnx
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.unit.passes.test_pipeline import IF, LOOP, SCAN
digest = hashlib.sha256()
for text in [IF, LOOP, SCAN, *(r.examples[0].text for r in rule_file.shipped() if r.examples)]:
    model = onnx.parser.parse_model(text if text.startswith("<") else '<ir_version: 8, opset_import: ["" : 17]>' + text)
    pipeline.run(model)
    digest.update(model.SerializeToString(deterministic=True))
print(digest.hexdigest())
"""
    digests = set()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1


def test_the_model_that_was_given_is_left_as_it_is() -> None:
    """`onnxfuse.optimize` and `explain` work on a copy."""
    model = parse(IF)
    onnxfuse.optimize(model)
    onnxfuse.explain(model)
    assert model == parse(IF)


# ---- the way back


def test_unfusing_reaches_into_bodies() -> None:
    """Fused ops inside If, Loop and Scan come back as the nodes they were, names included."""
    for text in (IF, LOOP, SCAN):
        made, _ = optimize(parse(text))
        assert fused_ops(made)
        plain = onnxfuse.unfuse(made)
        assert not plain.functions
        assert _every_node(plain.graph) == _every_node(parse(text).graph)
        assert_same_numbers(parse(text), plain)


@pytest.mark.parametrize(
    "outer",
    ["z = Div (x, k)", "zz = Div (x, k) z = Exp (zz)"],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_number_that_several_graphs_share_comes_back_once(outer: str, first: bool) -> None:
    """A scalar of the main graph that fused ops here and in two branches hold: one name, one definition."""
    nodes = [
        outer,
        """y = If (c) <then_branch = t () => (float[4] p) { a = Mul (x, k) p = Neg (a) },
                       else_branch = e () => (float[4] q) { b = Mul (x, k) q = Abs (b) }>""",
    ]
    text = "g (float[4] x, bool c) => (float[4] y, float[4] z) <float k = {3}> {"
    model = parse(text + " ".join(nodes if first else reversed(nodes)) + "}")
    made, _ = optimize(model)
    plain = onnxfuse.unfuse(made)
    onnx.checker.check_model(plain, full_check=True)
    assert _every_node(plain.graph) == _every_node(model.graph)
    assert [t.name for t in plain.graph.initializer] == ["k"]
    assert_same_numbers(model, plain)


def test_undoing_what_lost_its_provenance_is_refused() -> None:
    """A tool that drops metadata leaves nothing to undo by: a message, not a guess."""
    made, _ = optimize(parse("g (float[4] x) => (float[4] y) { a = Exp (x) y = Neg (a) }"))
    for holder in (*made.graph.node, *made.functions):
        del holder.metadata_props[:]
    with pytest.raises(ModelError, match="does not say which nodes it replaced"):
        onnxfuse.unfuse(made)


def test_a_model_without_fused_ops_is_unfused_to_itself() -> None:
    """There is nothing to undo."""
    assert onnxfuse.unfuse(parse(IF)) == parse(IF)


def test_optimizing_what_was_unfused_gives_the_same_model() -> None:
    """The way there and back can be walked again: same operators, same kernels."""
    made, _ = optimize(parse(IF))
    again, _ = optimize(onnxfuse.unfuse(made))
    assert fused_ops(again).keys() == fused_ops(made).keys()


def _every_node(graph: onnx.GraphProto) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    found = []
    for node in graph.node:
        if node.op_type != "Constant":
            found.append((node.op_type, node.name, tuple(node.input), tuple(node.output)))
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += _every_node(attribute.g)
    return sorted(found)
