"""Growth by steps: templates allow them, rules want them, and each has its place in the order."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest

from onnxfuse import cuda
from onnxfuse.cuda import Growth
from onnxfuse.fusion import fuse
from onnxfuse.fusion.region import proof
from onnxfuse.fusion.region.make_op import outline
from onnxfuse.fusion.steps import growth
from onnxfuse.fusion.steps.growth import FINISHING, GROWING
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.rules.language import rule_file
from onnxfuse.support.errors import RuleError
from tests.support.small import assert_same_numbers, ops, optimize, parse

STARTS = {Growth.LIBRARY_ANCHOR, Growth.CONCAT, Growth.PRODUCER, Growth.SHARED_INPUT}
"""What decides where growth begins, before its first step."""


def test_every_kind_of_growth_is_one_step_and_some_template_allows_it() -> None:
    """None is only a word."""
    in_order = [kind for kinds, _ in (*GROWING, *FINISHING) for kind in kinds]
    assert sorted([*in_order, *STARTS]) == sorted(Growth)
    assert set().union(*(t.growth for t in cuda.TEMPLATES.values())) == set(Growth)


def test_templates_have_an_order_of_their_own() -> None:
    """No two share a place in it, a name, or the words that tell them apart."""
    found = cuda.TEMPLATES.values()
    for fact in ("name", "order", "summary"):
        assert len({getattr(t, fact) for t in found}) == len(found)
    assert [t.order for t in found] == sorted(t.order for t in found)


@pytest.mark.parametrize(
    ("template", "line", "told"),
    [
        ("row", 'beside = "x"', "`beside` grows by siblings, which template 'row' does not allow"),
        ("row", 'prologue = "x"', "`prologue` grows by left operand, which template 'row' does not allow"),
        ("direct", "transposes = true", "`transposes` grows by transposed output, which template 'direct' does not"),
    ],
)
def test_a_step_that_the_template_does_not_allow_is_told(tmp_path: Path, template: str, line: str, told: str) -> None:
    """With the line, and the steps that it allows: nothing is fused less than a rule seems to say."""
    file = tmp_path / "odd.toml"
    file.write_text(
        f'summary = "S."\n[fuse]\ntemplate = "{template}"\n{line}\n[[fuse.anchor]]\n'
        "pattern = '''(x) => (y) { y = Softmax (x) }'''\n"
    )
    with pytest.raises(RuleError, match=r"odd\.toml:4: ") as raised:
        rule_file.read(file)
    assert told in str(raised.value)
    assert all(kind in raised.value.hint for kind in cuda.TEMPLATES[template].growth)


OTHER_WORDS = {"pointwise", "concat", "library", "row", "attention", "depthwise"}
"""Names of templates that mean something else, too: words of rules, a form of an op, a constant of the layout,
functions of the library in its times."""


@pytest.mark.parametrize("name", sorted(set(cuda.TEMPLATES) - OTHER_WORDS))
def test_a_template_is_named_in_its_folder_and_by_rules_alone(name: str) -> None:
    """What others ask of it they ask its object: a new one is a folder and a rule file."""
    package = Path(cuda.__file__).parents[1]
    found = [f for f in package.rglob("*.py") if f'"{name}"' in f.read_text(encoding="utf-8")]
    assert {f.relative_to(package).parts[:2] for f in found} == {("cuda", "templates")}


# ---- what is enough for a kernel


def found(
    nodes: str, *names: str, outputs: str = "float[N,8] y", inputs: str = "float[N,8] x"
) -> tuple[list[str], str]:
    """Return the operators that are left of these nodes by the rules of these names, and why nothing more was fused."""
    matrix = ", ".join(str(n % 5 - 2) for n in range(64))
    weights = "int64[1] o = {-1}, int64[3] apart = {-1,2,4}, int64[2] whole = {-1,8}, float c = {2}"
    weights += f", float[8,8] v = {{{matrix}}}, float[8,8] u = {{{matrix}}}"
    model = parse(f"g ({inputs}) => ({outputs}) <{weights}> {{ {nodes} }}")
    made, report = optimize(model, *names)
    assert_same_numbers(model, made)
    return ops(made), "\n".join(f"{one.refusal.node}: {one.refusal.reason}" for one in report.near)


@pytest.mark.parametrize(
    ("nodes", "rules", "outputs", "left"),
    [
        ("a = Exp (x) y = Neg (a)", ["pointwise"], "float[N,8] y", ["{Exp Neg}"]),
        # an anchor counts for nothing by itself: one node beside it is enough for a rule that wants one
        ("a = Exp (x) y = ReduceSum (a, o)", ["reduce"], "float[N,1] y", ["{Exp ReduceSum}"]),
        # but a second product of one input does, as one kernel replaces two
        ("y = MatMul (x, v) z = MatMul (x, u)", ["gemm"], "float[N,8] y, float[N,8] z",
         ["{Transpose MatMul Transpose MatMul}"]),
        # an anchor between kernels is one, too
        ("p = Softmax (x) r = ReduceSum (p, o) q = Mul (x, r) y = Softmax (q)", ["softmax", "reduce"], "float[N,8] y",
         ["{Softmax}", "{ReduceSum}", "{Mul Softmax}"]),
    ],
)  # fmt: skip
def test_enough_is_fused(nodes: str, rules: list[str], outputs: str, left: list[str]) -> None:
    """As many nodes around the anchor as the rule wants."""
    assert found(nodes, *rules, outputs=outputs) == (left, "")


@pytest.mark.parametrize(
    ("nodes", "rule", "outputs", "told"),
    [
        ("y = Exp (x)", "pointwise", "float[N,8] y",
         "y: too little to fuse: 1 pointwise node around it, the rule wants 2"),
        ("a = Hardmax (x) y = Exp (a)", "pointwise", "float[N,8] y",
         "y: too little to fuse: 1 pointwise node around it, the rule wants 2; a: Hardmax is not pointwise"),
        ("y = ReduceSum (x, o)", "reduce", "float[N,1] y",
         "y: too little to fuse: 0 pointwise nodes around it, the rule wants 1"),
        ("y = MatMul (x, v)", "gemm", "float[N,8] y",
         "y: too little to fuse: 0 pointwise nodes around it, the rule wants 1"),
        ("t = Transpose (x) y = Hardmax (t)", "lone_movement", "float[8,N] y",
         "t: too little to fuse: 1 node that launches a kernel, the rule wants all nodes around it to be fused; "
         "y: Hardmax is not pointwise"),
    ],
)  # fmt: skip
def test_too_little_is_told_with_its_number(nodes: str, rule: str, outputs: str, told: str) -> None:
    """How much there is, how much the rule wants, and the neighbour at which growth ended."""
    assert found(nodes, rule, outputs=outputs)[1] == told


VIEWED = "p = Softmax (x) h = Reshape (p, apart) e = {} t = Reshape (e, whole) r = Softmax (t) y = Neg (r)"


@pytest.mark.parametrize(
    ("nodes", "outputs", "fused"),
    [
        (VIEWED.format("Exp (h)"), "", True),
        (VIEWED.format("Mul (h, c)"), "", True),
        (VIEWED.format("Exp (h)") + " q = Softmax (t) z = Exp (q)", ", float[N,8] z", True),
        # the library reads it, or makes it, or makes another operand, or the caller reads it
        (VIEWED.format("Exp (h)").replace("Softmax (t)", "Hardmax (t)"), "", False),
        (VIEWED.format("Exp (h)").replace("Softmax (x)", "Identity (x)"), "", False),
        (VIEWED.format("Mul (h, k)"), "", False),
        (VIEWED.format("Exp (h)") + " z = Hardmax (e)", ", float[N,2,4] z", False),
        (VIEWED.format("Exp (h)"), ", float[N,2,4] e", False),
    ],
)
def test_one_node_between_kernels_is_a_kernel(nodes: str, outputs: str, fused: bool) -> None:
    """It begins while the one before it ends. All around it must be kernels; views between them launch nothing."""
    left, _ = found(
        nodes, "softmax", "pointwise", outputs=f"float[N,8] y{outputs}", inputs="float[N,8] x, float[1,2,4] k"
    )
    own = "Mul" if "Mul" in nodes else "Exp"
    assert (f"{{{own}}}" in left) is fused
    assert (own in left) is not fused


def test_a_movement_may_begin_at_the_models_input() -> None:
    """As nothing that the library computes has to end first; elementwise work alone there is the library's."""
    shapes = {"inputs": "float[N,8,4] x", "outputs": "float[N,4,8] y"}
    moved = "t = Transpose <perm = [0,2,1]> (x) y = Softmax (t)"
    assert found(moved, "lone_movement", "softmax", **shapes)[0] == ["{Transpose}", "{Softmax}"]
    behind = "a = Softmax (x) t = Transpose <perm = [0,2,1]> (a) y = Softmax (t)"
    assert found(behind, "lone_movement", "softmax", **shapes)[0] == ["{Softmax}", "{Transpose}", "{Softmax}"]


def test_one_node_is_enough_where_the_librarys_kernel_is_slow() -> None:
    """A Pad of the channels; a Transpose alone stays."""
    shapes = {"inputs": "float[64,32,32,16] x", "outputs": "float[A,B,C,D] y"}
    pads = "p = Constant <value = int64[8] {0,1,0,0,0,1,0,0}> ()"
    assert found(f"{pads} y = Pad (x, p)", "movement", **shapes)[0] == ["{Pad}"]
    assert found("y = Transpose <perm = [0,2,3,1]> (x)", "movement", **shapes)[0] == ["Transpose"]


def test_only_sibling_anchors_are_looked_up_among_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another region's outline is not even made: it costs as much as writing the op. Nor is any before a failure."""
    outlined = list[list[str]]()

    def noted(graph: Graph, nodes: list[Node]) -> Hashable | None:
        outlined.append([n.op for n in nodes])
        return outline(graph, nodes)

    monkeypatch.setattr(growth, "outline", noted)
    two = "y = MatMul (x, v) z = MatMul (x, u)"
    found(two, "gemm", outputs="float[N,8] y, float[N,8] z")
    assert outlined == []
    # no kernel for two products: the outline is that of the failure, and the next two are found by theirs
    proven = proof.proven_op
    tried = list[list[str]]()

    def no_pair(graph: Graph, nodes: list[Node], *rest: Any, **more: Any) -> Any:
        tried.append([n.op for n in nodes])
        return "two are too many" if tried[-1].count("MatMul") > 1 else proven(graph, nodes, *rest, **more)

    monkeypatch.setattr(fuse, "proven_op", no_pair)
    four = f"{two} a = Exp (x) p = MatMul (a, v) q = MatMul (a, u) b = MatMul (y, v) r = Relu (b)"
    outputs = ", ".join(f"float[N,8] {name}" for name in "yzpqr")
    assert found(four, "gemm", outputs=outputs)[0].count("{Transpose MatMul Relu}") == 1
    assert {tuple(nodes) for nodes in outlined} == {("MatMul", "MatMul")}
    phases = 2
    assert len([nodes for nodes in tried if nodes.count("MatMul") > 1]) == phases
