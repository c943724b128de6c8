"""How a fused op grows from its anchor, where it stops, and that nothing is lost on the way."""

import numpy as np
import onnx
import pytest

from onnxfuse.fusion.region.make_op import op_name
from onnxfuse.fusion.steps.movement import not_movement
from onnxfuse.fusion.steps.pointwise import MAX_INPUTS, MAX_NODES, MAX_OUTPUTS, not_pointwise
from onnxfuse.graph.graph import Graph
from onnxfuse.model.fused import DOMAIN, fused_ops
from onnxfuse.runtime.sessions.shape_math import shape_math
from onnxfuse.shapes.inference import infer
from tests.support.small import assert_same_numbers, evaluate, fuses, ops, optimize, parse, reasons, signed_inputs

# ---- what is read elsewhere


def test_a_value_read_outside_becomes_a_second_output() -> None:
    """The residual sum that a later MatMul reads is written by the same kernel."""
    text = """g (float[N,4] x, float[N,4] r) => (float[N,4] y)
    <float[4] scale = {1,-2,3,4}, float[4,4] w = {1,2,3,4,-1,-2,-3,-4,5,6,7,8,1,0,1,0}> {
      sum = Add (x, r)
      n = LayerNormalization (sum, scale)
      m = MatMul (n, w)
      y = Sub (m, sum)
    }"""
    made, _ = optimize(parse(text), "layer_norm")
    (fused,) = [n for n in made.graph.node if n.domain == DOMAIN]
    assert set(fused.output) == {"sum", "n"}
    assert_same_numbers(parse(text), made)


def test_a_graph_output_inside_becomes_an_output() -> None:
    """Every value that the caller asks for is still there, under its name and in its place."""
    text = "g (float[N,4] x) => (float[N,4] b, float[N,4] a, float[N,4] y) { a = Exp (x) b = Neg (a) y = Tanh (b) }"
    made, _ = optimize(parse(text), "pointwise")
    assert ops(made) == ["{Exp Neg Tanh}"]
    assert [o.name for o in made.graph.output] == ["b", "a", "y"]
    assert_same_numbers(parse(text), made)


def test_a_value_read_by_a_subgraph_becomes_an_output() -> None:
    """The body of an If reads it by name, from outside."""
    text = """g (float[4,4] x, bool c) => (float[4,4] y, float[4,4] z) {
      a = Exp (x) y = Neg (a)
      z = If (c) <then_branch = t () => (float[4,4] p) { p = MatMul (a, a) },
                  else_branch = e () => (float[4,4] q) { q = Identity (x) }>
    }"""
    made, _ = optimize(parse(text), "pointwise")
    assert "{Exp Neg}" in ops(made)
    (fused,) = [n for n in made.graph.node if n.domain == DOMAIN]
    assert list(fused.output) == ["a", "y"]
    assert_same_numbers(parse(text), made)


def test_a_value_inside_an_anchor_that_is_read_elsewhere_is_a_refusal() -> None:
    """A spelled-out norm whose variance the caller wants stays as it is: the rule cannot promise one kernel."""
    text = """g (float[N,4] x) => (float[N,4] y, float[N,1] var) <float epsilon = {0.00001}> {
      mean = ReduceMean <axes = [-1]> (x)
      d = Sub (x, mean)
      s = Mul (d, d)
      var = ReduceMean <axes = [-1]> (s)
      ve = Add (var, epsilon)
      deviation = Sqrt (ve)
      y = Div (d, deviation)
    }"""
    assert "value 'var' is a graph output" in reasons(text, "layer_norm")


def test_a_region_that_would_need_too_many_outputs_stops() -> None:
    """Each output is a pointer and a write: the region stops at the limit, and everything is still computed."""
    count = MAX_OUTPUTS + 3
    outputs = ", ".join(f"float[N,4] y{i}" for i in range(count))
    chain = " ".join(f"y{i} = Neg ({f'y{i - 1}' if i else 'x'})" for i in range(count))
    text = f"g (float[N,4] x) => ({outputs}) {{ {chain} }}"
    made, _ = optimize(parse(text), "pointwise")
    assert all(len(n.output) <= MAX_OUTPUTS for n in made.graph.node)
    assert len(made.graph.node) > 1
    assert_same_numbers(parse(text), made)


def test_a_region_that_would_need_too_many_inputs_stops() -> None:
    """The sum of many tensors becomes several kernels, none over the limit."""
    count = MAX_INPUTS + 6
    inputs = ", ".join(f"float[N,4] x{i}" for i in range(count))
    chain = " ".join(f"s{i} = Sub ({f's{i - 1}' if i > 1 else 'x0'}, x{i})" for i in range(1, count))
    text = f"g ({inputs}) => (float[N,4] s{count - 1}) {{ {chain} }}"
    made, _ = optimize(parse(text), "pointwise")
    assert all(n.domain == DOMAIN and len(n.input) <= MAX_INPUTS for n in made.graph.node)
    assert_same_numbers(parse(text), made)


def test_a_region_that_would_hold_too_many_nodes_stops() -> None:
    """A long chain becomes several kernels, none over the limit."""
    count = MAX_NODES + 10
    chain = " ".join(f"v{i} = Tanh ({f'v{i - 1}' if i else 'x'})" for i in range(count))
    text = f"g (float[N,4] x) => (float[N,4] v{count - 1}) {{ {chain} }}"
    made, _ = optimize(parse(text), "pointwise")
    assert [len(op.body.node) for op in fused_ops(made).values()] == [MAX_NODES, 10]
    assert_same_numbers(parse(text), made)


# ---- convexity


def test_a_region_that_would_depend_on_itself_stops() -> None:
    """a -> MatMul -> y and a -> y: fused as one op, y would need itself. The fused op must not hold both a and y."""
    text = """g (float[4,4] x) => (float[4,4] w) {
      a = Relu (x) b = Exp (a)
      m = MatMul (b, b)
      y = Add (m, b) z = Neg (y) w = Tanh (z)
    }"""
    made, report = optimize(parse(text), "pointwise")
    assert ops(made) == ["{Relu Exp}", "MatMul", "{Add Neg Tanh}"]
    assert "depends on a node that depends on the fused op, which would be a cycle" in str(report.applied[0].stops)
    assert_same_numbers(parse(text), made)


def test_a_path_through_a_subgraph_is_a_path() -> None:
    """An If whose branch reads `b` and whose result feeds `y`: b and y cannot be one op."""
    text = """g (float[4,4] x, bool c) => (float[4,4] w) {
      a = Relu (x) b = Exp (a)
      m = If (c) <then_branch = t () => (float[4,4] p) { p = MatMul (b, b) },
                  else_branch = e () => (float[4,4] q) { q = Identity (x) }>
      y = Add (m, b) w = Neg (y)
    }"""
    made, _ = optimize(parse(text), "pointwise")
    assert ops(made) == ["{Relu Exp}", "If", "{Add Neg}"]
    assert_same_numbers(parse(text), made)


# ---- shapes


def test_a_broadcast_operand_grows_into_the_kernel() -> None:
    """A vector, a column and one number are read in place; no expanded tensor exists."""
    text = """g (float[N,4] x, float[4] v, float[N,1] c, float[1] k) => (float[N,4] y) {
      a = Add (x, v) b = Mul (c, a) y = Sub (k, b)
    }"""
    assert fuses(text, "pointwise") == ["{Add Mul Sub}"]


def test_work_on_a_smaller_shape_stays_outside() -> None:
    """It is done once per element there, and would be done many times in the kernel."""
    text = "g (float[4] v, float[N,4] x) => (float[N,4] y) { a = Tanh (v) b = Add (x, a) y = Relu (b) }"
    made, report = optimize(parse(text), "pointwise")
    assert ops(made) == ["Tanh", "{Add Relu}"]
    assert "computes float[4], the kernel runs over float[N,4]" in str(report.applied[0].stops)


def test_rows_of_a_table_are_looked_up_by_the_kernel() -> None:
    """What others read of them is an output; a table for all of a batch alike is read in place."""
    text = """g (float[16,4] w, int64[N,S] i, float[16,4] p, int64[1,S] k) => (float[N,S,4] y, float[N,S,4] u) {
      u = Gather (w, i) v = Gather (p, k) s = Add (u, v) y = Softmax <axis = -1> (s) }"""
    assert fuses(text, "softmax") == ["{Gather Gather Add Softmax}"]


@pytest.mark.parametrize(
    ("text", "left", "reason"),
    [
        ("u = Gather <axis = 1> (t, k)", ["Gather"], "this Gather is not a lookup of table rows"),
        ("o = Constant <value_ints = [3]> () u = Gather (w, o)", ["Constant", "Gather"], "this Gather is not a lookup"),
        ("u = Gather (w, k) z = MatMul (u, u)", ["Gather", "MatMul"], "which others read"),
        ("a = Gather (w, k) b = Gather (w, i) u = Add (a, b)", ["Gather"], "is read in two ways"),
    ],
)
def test_other_gathers_stay_outside(text: str, left: list[str], reason: str) -> None:
    text = f"""g (float[16,4] w, float[4,16] t, int64[N,4] i, int64[4] k, float[N,4,4] x, float[4,4] w4)
    => (float[N,4,4] y, float[4,4] z) {{ {text} s = Add (u, x) y = Softmax <axis = -1> (s) }}"""
    text = text if " z = " in text else text.replace("s = Add", "z = MatMul (w4, w4) s = Add")
    made, report = optimize(parse(text), "softmax")
    assert [op for op in ops(made) if op in left] == left
    assert reason in "\n".join(str(a.stops) for a in report.applied)
    assert_same_numbers(parse(text), made)


def test_an_unknown_rank_is_no_obstacle_along_a_chain() -> None:
    """What a Reshape to a computed shape gives has no known rank; the nodes after it keep that shape and fuse."""
    text = """g (float[4,6] x, int64[K] shape) => (float[A,B] y) {
      r = Reshape (x, shape) a = Relu (r) b = Exp (a) c = Neg (b) y = MatMul (c, c)
    }"""
    made, _ = optimize(parse(text), "pointwise")
    assert ops(made) == ["Reshape", "{Relu Exp Neg}", "MatMul"]
    inputs = {"x": signed_inputs(parse(text))["x"], "shape": np.array([2, 3, 2, 2])}
    np.testing.assert_array_equal(evaluate(made, inputs)[0], evaluate(parse(text), inputs)[0])


# ---- element types


@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
def test_every_float_type_fuses(dtype: str) -> None:
    """The same chain in single, double and half precision."""
    text = f"g ({dtype}[N,4] x, {dtype}[4] v) => ({dtype}[N,4] y) {{ a = Mul (x, v) s = Sigmoid (a) y = Mul (a, s) }}"
    assert fuses(text, "pointwise") == ["{Mul Sigmoid Mul}"]


def test_bfloat16_fuses() -> None:
    """ONNX Runtime has no bfloat16 on the CPU; the reference gives bit for bit what it gave before."""
    text = "g (bfloat16[N,4] x, bfloat16[4] v) => (bfloat16[N,4] y) { a = Mul (x, v) s = Tanh (a) y = Add (a, s) }"
    made, _ = optimize(parse(text), "pointwise")
    assert ops(made) == ["{Mul Tanh Add}"]
    inputs = signed_inputs(parse(text))
    (before,), (after,) = evaluate(parse(text), inputs), evaluate(made, inputs)
    assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("g (int64[N,4] a, int64[N,4] b) => (int64[N,4] y) { s = Add (a, b) y = Mul (s, a) }", ["{Add Mul}"]),
        ("g (bool[N,4] a, bool[N,4] b) => (bool[N,4] y) { s = And (a, b) y = Not (s) }", ["{And Not}"]),
        (
            "g (int32[N,4] a, float[N,4] b) => (float[N,4] y) { f = Cast <to = 1> (a) y = Mul (f, b) }",
            ["{Cast Mul}"],
        ),
        (
            "g (bool[N,1] c, float[N,4] a, float[N,4] b) => (float[N,4] y) { s = Where (c, a, b) y = Neg (s) }",
            ["{Where Neg}"],
        ),
    ],
)
def test_whole_numbers_and_truth_values_fuse(text: str, left: list[str]) -> None:
    """Work on tensors of integers and masks is pointwise work like any other."""
    assert fuses(text, "pointwise") == left


def test_strings_stay_outside() -> None:
    """A kernel knows numbers; nodes on strings are left alone, and the reason names the type."""
    text = "g (string[N] a, string[N] b) => (bool[N] y) { e = Equal (a, b) y = Not (e) }"
    made, _ = optimize(parse(text, 19), "pointwise")
    assert made == parse(text, 19)


def test_an_unknown_element_type_is_left_alone() -> None:
    """The output of an operator that ONNX does not know has no type: what reads it is not fused, and says so."""
    text = """<ir_version: 8, opset_import: ["" : 17, "elsewhere" : 1]>
    g (float[N,4] x) => (float[N,4] y) { u = elsewhere.Strange (x) a = Relu (u) y = Exp (a) }"""
    made, report = optimize(parse(text))
    assert ops(made) == ["Strange", "Relu", "Exp"]
    assert report.applied == []


# ---- what belongs to the CPU


def test_arithmetic_on_shapes_is_left_alone() -> None:
    """ONNX Runtime computes shapes on the CPU; a kernel there would copy two numbers to the GPU and back."""
    text = """g (float[N,C] x, int64[1] k) => (float[A,B] y) <int64[1] two = {2}, int64[1] minus = {-1}> {
      shape = Shape <start = 0, end = 1> (x)
      a = Mul (shape, two) b = Add (a, k) c = Sub (b, two) d = Div (c, two)
      target = Concat <axis = 0> (d, minus)
      y = Reshape (x, target)
    }"""
    made, report = optimize(parse(text))
    assert ops(made) == ["Shape", "Mul", "Add", "Sub", "Div", "Concat", "Reshape"]
    assert report.applied == []


def test_shapes_beside_what_comes_of_constants_stay_there_too() -> None:
    """ONNX Runtime computes what depends on constants alone before it places nodes; one that is large stays away."""
    text = """g (float[N,C] x) => (float[K] y) <float[K] c = {VALUES}> {
      size = Size (x) f = Cast <to = 1> (size) k = Softmax (c) a = Mul (f, k) b = Add (a, k) y = Neg (b)
    }"""
    small, large = (text.replace("K]", f"{n}]").replace("VALUES", ",".join(["2.5"] * n)) for n in (100, 101))
    assert fuses(small) == ["Size", "Cast", "Softmax", "Mul", "Add", "Neg"]
    assert "{" in "".join(fuses(large))


def test_a_product_with_a_shape_keeps_the_shape_outside() -> None:
    """x * sqrt(size) : the size is made on the CPU and drawn on the GPU, the rest is one kernel that reads its root."""
    text = """g (float[N,C] x) => (float[N,C] y) {
      size = Size (x) f = Cast <to = 1> (size) r = Sqrt (f)
      a = Relu (x) b = Mul (a, r) y = Neg (b)
    }"""
    assert fuses(text, "pointwise") == ["Size", "Add", "Range", "Reshape", "{Cast Sqrt}", "{Relu Mul Neg}"]


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ("o = ConstantOfShape (s) f = Cast <to = 1> (o) a = Exp (f) y = Neg (a)", ["Shape", "ConstantOfShape"]),
        ("n = Size (x) r = Range (zero, n, one) f = Cast <to = 1> (r) a = Exp (f) y = Neg (a)", ["Size", "Range"]),
        ("n = Size (x) h = Cast <to = 10> (n) a = Exp (h) b = Neg (a) y = Cast <to = 1> (b)", ["Size", "Range"]),
    ],
)
def test_what_cuda_makes_of_a_shape_is_on_the_device(nodes: str, left: list[str]) -> None:
    """Positions and masks are made there of a shape that CUDA reads in host memory, and half types never leave it."""
    text = f"""g (float[N,C] x) => (float[A,B] y) <int64 zero = {{0}}, int64 one = {{1}}> {{ s = Shape (x) {nodes} }}"""
    made, _ = optimize(parse(text), "pointwise")
    kept = [op for op in ops(made) if op in left]
    assert kept == left
    assert any("{" in op for op in ops(made))
    assert shape_math(made) == set()


# ---- products


def test_a_bias_is_taken_out_of_a_conv_only_where_more_follows() -> None:
    """A Conv with nothing after it keeps its bias, in the node it came in, byte for byte."""
    text = """g (float[N,1,4,4] x) => (float[N,2,4,4] y) <float[2,1,1,1] w = {1,-2}, float[2] b = {0.5,-1}>
    { y = Conv (x, w, b) }"""
    assert "too little to fuse" in reasons(text, "conv")


def test_a_bias_is_always_taken_out_of_a_gemm() -> None:
    """ONNX Runtime copies it into the whole output first, and lets the product read that back."""
    text = (
        "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,-2,3,4}, float[2] b = {0.5,-1}> { y = Gemm (x, w, b) }"
    )
    assert fuses(text, "linear") == ["Gemm", "{Add}"]


def test_a_gemm_whose_beta_is_not_one_keeps_its_bias() -> None:
    """The Add that would take the bias's place knows no factor; the activation still fuses alone or not at all."""
    text = """g (float[N,2] x, float[N,2] r) => (float[N,2] y) <float[2,2] w = {1,-2,3,4}, float[2] b = {0.5,-1}> {
      m = Gemm <beta = 0.5> (x, w, b) a = Tanh (m) y = Add (a, r)
    }"""
    made, _ = optimize(parse(text))
    (gemm,) = [n for n in made.graph.node if n.op_type == "Gemm"]
    assert list(gemm.input) == ["x", "w", "b"]
    assert_same_numbers(parse(text), made)


def test_the_split_bias_keeps_the_product_name() -> None:
    """The library's node and the values around it are found again by their names."""
    text = """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,-2,3,4}, float[2] b = {0.5,-1}> {
      [product] m = Gemm (x, w, b) [act] y = Relu (m)
    }"""
    made, _ = optimize(parse(text, 17), "linear")
    assert ops(made) == ["Gemm", "{Add Relu}"]
    assert made.graph.node[0].name == "product"
    assert list(made.graph.node[1].output) == ["y"]


def test_every_activation_of_onnx_fuses_after_a_product() -> None:
    """None is listed in any rule: whatever the body language knows grows."""
    activations = {
        "Relu": "", "LeakyRelu": "<alpha = 0.1>", "Elu": "", "Selu": "", "Celu": "", "Sigmoid": "", "HardSigmoid": "",
        "HardSwish": "", "Tanh": "", "Softplus": "", "Softsign": "", "Mish": "", "Gelu": "", "ThresholdedRelu": "",
        "Erf": "", "Abs": "",
    }  # fmt: skip
    for op, attributes in {**activations, "Gelu ": '<approximate = "tanh">'}.items():
        name = op.strip()
        text = f"""g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {{1,-2,3,4}}, float[2] b = {{0.5,-1}}> {{
          m = MatMul (x, w) h = Add (m, b) y = {name} {attributes} (h)
        }}"""
        assert fuses(text, "linear", opset=20) == ["MatMul", f"{{Add {name}}}"], op


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("Gelu", "Div Erf Add Mul Mul"),
        ("FastGelu", "Pow Mul Add Mul Tanh Add Mul Mul"),
        ("QuickGelu", "Mul Sigmoid Mul"),
        ("ScaledSiLU", "ScaledSiLU"),
    ],
)
def test_every_activation_of_onnx_runtime_fuses_after_a_product(name: str, nodes: str) -> None:
    """As those of ONNX do, written out if their entries say how."""
    text = f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {{1,-2,3,4}}, float[2] b = {{0.5,-1}}> {{
      m = MatMul (x, w) h = Add (m, b) y = com.microsoft.{name} (h)
    }}"""
    made, _ = optimize(parse(text), "linear")
    assert [sorted(one.strip("{}").split()) for one in ops(made)] == [["MatMul"], sorted(f"Add {nodes}".split())]


def test_activations_with_operands_fuse_after_a_product() -> None:
    """Clip (also Relu6) with its limits, PRelu with its slopes, SiLU as two nodes."""
    header = """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,-2,3,4}, float[2] b = {0.5,-1},
    float[2] slope = {0.1,-0.2}, float lo = {0}, float hi = {6}> { m = MatMul (x, w) h = Add (m, b) """
    for tail, left in (
        ("y = Clip (h, lo, hi)", "{Add Clip}"),
        ("y = PRelu (h, slope)", "{Add PRelu}"),
        ("s = Sigmoid (h) y = Mul (h, s)", "{Add Sigmoid Mul}"),
    ):
        assert fuses(header + tail + " }", "linear") == ["MatMul", left]


# ---- provenance


def test_a_fused_node_says_where_it_comes_from() -> None:
    """The rule and the names of the nodes that it replaced stand in the node itself."""
    text = "g (float[N,4] x) => (float[N,4] y) { [first] a = Exp (x) [second] y = Neg (a) }"
    made, report = optimize(parse(text), "pointwise")
    (fused,) = made.graph.node
    facts = {p.key: p.value for p in fused.metadata_props}
    assert facts["onnxfuse.rule"] == "pointwise"
    assert facts["onnxfuse.nodes"] == '["first", "second"]'
    assert fused.name == "second"
    assert report.applied[0].nodes == ("Exp first", "Neg second")


def test_equal_regions_share_one_body() -> None:
    """Twelve layers of a transformer need one kernel, not twelve."""
    text = """g (float[4,4] x) => (float[4,4] y) {
      a = Exp (x) b = Neg (a) m = MatMul (b, b) c = Exp (m) d = Neg (c) n = MatMul (d, d) e = Exp (n) y = Neg (e)
    }"""
    made, _ = optimize(parse(text), "pointwise")
    assert ops(made) == ["{Exp Neg}", "MatMul", "{Exp Neg}", "MatMul", "{Exp Neg}"]
    assert len(made.functions) == 1


def test_a_fused_op_is_called_by_its_rule() -> None:
    """And by its operators where they are few; a word that both have stands once, and a digest tells names apart."""
    several = ["Add", "Mul", "Neg", "Exp"]
    for rule, operators, name in (
        ("attention", several, "Attention_0123456789"),
        ("linear", ["Transpose", "Add", "Gelu"], "Linear_AddGelu_0123456789"),
        ("gemm", ["Gemm", "Add", "Gelu"], "GemmAddGelu_0123456789"),
        ("layer_norm", ["LayerNormalization"], "LayerNormalization_0123456789"),
        ("softmax", ["Softmax"], "Softmax_0123456789"),
        ("2-my rule", several, "Rule2MyRule_0123456789"),
    ):
        assert op_name(rule, operators, "0123456789", ()) == name
    assert op_name("softmax", several, "0123456789", ["Gone_9876543210", "Old_0123456789"]) == "Old_0123456789"


def test_regions_that_differ_in_a_constant_or_a_type_do_not_share_a_body() -> None:
    """The constant and the element type are part of the kernel."""
    text = """g (float[4,4] x) => (float[4,4] y) <float k = {2}, float l = {3}> {
      a = Exp (x) b = Mul (a, k) m = MatMul (b, b) c = Exp (m) y = Mul (c, l)
    }"""
    made, _ = optimize(parse(text), "pointwise")
    assert len(made.functions) == 2
    onnx.checker.check_model(made, full_check=True)


# ---- around a reduction


@pytest.mark.parametrize(
    ("second", "left"),
    [
        ("v = ReduceSum <axes = [1]> (d) y = Mul (d, v)", ["{ReduceMean Sub ReduceSum Mul}"]),
        # Where both axes are as long, only the numbers tell them apart.
        ("v = ReduceSum <axes = [2]> (d) y = Mul (d, v)", ["{ReduceMean Sub}", "{ReduceSum Mul}"]),
        (
            "v = Exp (d) m = ReduceMean <axes = [1]> (v) y = Sub (v, m)",
            ["{ReduceMean Sub Exp ReduceMean Sub}"],
        ),
    ],
)
def test_only_reductions_over_the_same_axes_join(second: str, left: list[str]) -> None:
    """Each one that does is a round more over the same rows, whatever stands between them."""
    text = f"g (float[N,4,4] x) => (float[N,4,4] y) {{ m0 = ReduceMean <axes = [1]> (x) d = Sub (x, m0) {second} }}"
    assert fuses(text, "reduce", opset=11) == left


def test_a_sum_joins_what_is_before_and_behind_it() -> None:
    """Nodes of both shapes grow: of the whole, and of what the reduction leaves."""
    text = """g (float[N,4,5] x, float[5] scale) => (float[N,5] y) <int64[1] axes = {1}> {
      a = Mul (x, scale) e = Exp (a) s = ReduceSum <keepdims = 0> (e, axes) l = Log (s) y = Mul (l, scale)
    }"""
    assert fuses(text, "reduce") == ["{Mul Exp ReduceSum Log Mul}"]


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        ("N,5,1", ["{ReduceSum Clip Mul ReduceSum Div}"]),
        # It is there once for all five: their sum is not the kernel's.
        ("N,1,4", ["ReduceSum", "{Clip Mul ReduceSum Div}"]),
    ],
)
def test_the_sum_of_a_mask_joins_the_masked_sum(mask: str, left: list[str]) -> None:
    """With what stands between them, though the mask is one for all columns."""
    text = f"""g (float[N,5,4] x, float[{mask}] m) => (float[N,1,4] y) <int64[1] axes = {{1}}, float least = {{0.5}}> {{
      c = ReduceSum (m, axes) k = Clip (c, least) p = Mul (x, m) s = ReduceSum (p, axes) y = Div (s, k)
    }}"""
    assert fuses(text, "reduce") == left


def test_a_sum_that_is_read_beside_the_whole() -> None:
    """With its axis kept it broadcasts back; the values before it are still there."""
    text = """g (float[N,4] x, float[N,4] r) => (float[N,4] y, float[N,4] z, float[N,1] s) <int64[1] axes = {1}> {
      a = Add (x, r) z = Abs (a) s = ReduceSum (z, axes) d = Sub (z, s) y = Relu (d)
    }"""
    assert fuses(text, "reduce") == ["{Add Abs ReduceSum Sub Relu}"]


def test_a_sum_without_its_axis_never_meets_the_whole() -> None:
    """[4] beside [4,4] lies along the columns, whatever was summed: that Sub stays outside."""
    text = """g (float[4,4] x) => (float[4,4] y) <int64[1] axes = {1}> {
      a = Abs (x) s = ReduceSum <keepdims = 0> (a, axes) y = Sub (a, s)
    }"""
    assert fuses(text, "reduce") == ["{Abs ReduceSum}", "Sub"]
    assert "has lost the axes that were reduced" in str(optimize(parse(text), "reduce")[1].applied)


@pytest.mark.parametrize(
    ("shape", "left"), [("{1,4,1,6}", ["{Relu ReduceSum Reshape}"]), ("{6,4}", ["{Relu ReduceSum}", "Reshape"])]
)
def test_a_reshape_of_a_sum_that_only_adds_axes(shape: str, left: list[str]) -> None:
    """One that cuts axes could ask for a kernel that there is none for; it stays outside."""
    count = shape.count(",") + 1
    dims = shape.strip("{}")
    text = f"""g (float[3,4,6] x) => (float[{dims}] y) <int64[1] axes = {{0}}, int64[{count}] shape = {shape}> {{
      a = Relu (x) s = ReduceSum (a, axes) y = Reshape (s, shape)
    }}"""
    assert fuses(text, "reduce") == left


def test_a_larger_anchor_comes_before_its_parts() -> None:
    """The mean of a norm is not taken by itself."""
    text = """g (float[N,4] x, float[N,4] r) => (float[N,4] y) <float epsilon = {0.00001}> {
      a = Add (x, r) s = Mul (a, a) m = ReduceMean <axes = [-1]> (s) e = Add (m, epsilon) d = Sqrt (e) y = Div (a, d)
    }"""
    made, report = optimize(parse(text))
    assert ops(made) == ["{Add Mul ReduceMean Add Sqrt Div}"]
    assert set(report.by_rule()) == {"rms_norm"}


def test_no_kernel_begins_at_what_is_computed_once() -> None:
    """ONNX Runtime standardizes weights as it makes a session: CUDA need not know how, and no run waits for it."""
    text = """g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,2,3,4,-1,-2,-3,-4,5,6,7,8,1,0,1,0}> {
      mean = ReduceMean <axes = [0]> (w) d = Sub (w, mean) s = Mul (d, d) v = ReduceMean <axes = [0]> (s)
      n = Div (d, v) m = MatMul (x, n) y = Relu (m)
    }"""
    made, _ = optimize(parse(text))
    assert ops(made) == ["ReduceMean", "Sub", "Mul", "ReduceMean", "Div", "MatMul", "Relu"]
    assert_same_numbers(parse(text), made)
    in_half, _ = optimize(parse(text.replace("float", "float16")))  # ONNX Runtime's CPU has no kernels for it
    assert ops(in_half)[0] == "{ReduceMean Sub Mul ReduceMean Div}"


def test_no_kernel_begins_at_arithmetic_on_shapes() -> None:
    """ONNX Runtime does it on the CPU, whatever rule would have it."""
    text = """g (float[A,B,C] x) => (int64[D] y) <int64 n0 = {0}, int64[1] two = {2}> {
      s = Shape (x) c = CumSum (s, n0) y = Mul (c, two)
    }"""
    made, _ = optimize(parse(text))
    assert not fused_ops(made)


# ---- why a node is no work of a kernel


REFUSED = """g (float[N,4] x, string[N] words, float[2,4] sized) => (float[N,4] y) {
  m = Cast <to = 8> (x)
  n = Cast <to = 1> (words)
  d, mask = Dropout (x)
  shape = Shape (x)  moved = Neg (shape)  extents = Concat <axis = 0> (shape, moved)
  odd = mine.Odd (x)  known = Neg (odd)
  i = NonZero (x)  r = Reshape (x, shape)  t = Transpose (words)
  f = mine.Moved (x)  turned = Transpose (f)
  y = Neg (x)
}"""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("m", "the element type of 'm' is string"),
        ("d", "Dropout has 2 outputs"),
        ("moved", "computes a shape, which stays on the CPU"),
        ("known", "the element type of 'odd' is not known"),
        ("odd", "Odd is not pointwise"),
        ("i", "NonZero is not pointwise"),
        ("y", None),
    ],
)
def test_what_no_kernel_computes_elementwise(value: str, said: str | None) -> None:
    graph = graph_of(REFUSED)
    node = graph.producer(value)
    assert node is not None
    assert not_pointwise(graph, node, frozenset({"shape", "moved", "extents"})) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("y", "Neg is not data movement"),
        ("extents", "computes a shape, which stays on the CPU"),
        ("r", "'shape' is computed at run time"),
        ("t", "the element type of 'words' is string"),
        ("turned", "the element type of 'f' is not known"),
    ],
)
def test_what_no_kernel_moves(value: str, said: str) -> None:
    graph = graph_of(REFUSED)
    node = graph.producer(value)
    assert node is not None
    assert not_movement(graph, node, frozenset({"shape", "moved", "extents"})) == said


def test_what_is_fused_is_not_fused_again() -> None:
    made, _ = optimize(parse("g (float[N,4] x) => (float[N,4] y) { a = Exp (x) y = Neg (a) }"))
    graph = Graph(made.graph, made.graph, 17)
    (node,) = graph.nodes
    assert (not_pointwise(graph, node, frozenset()), not_movement(graph, node, frozenset())) == ("already fused",) * 2


def graph_of(text: str) -> Graph:
    model = parse(text)
    return Graph(model.graph, infer(model).graph, 17)
