"""`onnxfuse rules --new`: a rule begun from a model holds to its examples, or says what is left to write."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfuse.rules.language import rule_file
from tests.cli.conftest import Command

MODEL = """<ir_version: 8, opset_import: ["" : %d]> g (float[batch,4] x, float[batch,4] z) => (float[batch,4] y)
<float three = {3}, float zero = {0}, float six = {6}> {
  [first] r = Relu (x)
  [layer_add] a = Add (three, r)
  [layer_clip] c = Clip (a, zero, six)
  [layer_mul] m = Mul (r, c)
  [layer_div] d = Div (m, six)
  [last] y = Add (d, z)
}"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model that holds HardSwish spelled out."""
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL % 17), "in.onnx")
    return tmp_path


@pytest.mark.parametrize("at", [["layer_div"], ["d"], ["layer_*"], ["Div layer_div"]], ids=str)
def test_a_block_that_a_kernel_takes_is_a_fusion_that_holds(
    at: list[str], source: Path, onnxfuse_command: Command
) -> None:
    """Its examples, one that applies and one that does not, are true; and it finds the block in the model again."""
    begun = onnxfuse_command("rules", "swish", "--new", "--from", "in.onnx", "--at", *at, "--rules", "mine")
    assert begun.code == 0, begun.err
    assert "written: mine/swish.toml" in begun.out
    assert "next: onnxfuse rules swish --test --rules mine" in begun.out
    one = rule_file.read(source / "mine" / "swish.toml")
    assert [len(one.examples), bool(one.examples[0].after), bool(one.examples[1].refusal)] == [2, True, True]
    held = onnxfuse_command("rules", "swish", "--test", "--rules", "mine")
    assert held.code == 0, held.out
    made = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--rules", "mine", "--require", "swish")
    assert made.code == 0, made.err


def test_a_rewrite_can_be_begun_where_a_kernel_would_do(source: Path, onnxfuse_command: Command) -> None:
    """Its `to` is the author's to write; without the option what is written tells of it."""
    new = ("--new", "--from", "in.onnx", "--at", "layer_div", "--rules", "mine")
    assert "to replace these nodes by others instead: --rewrite" in onnxfuse_command("rules", "fused", *new).out
    begun = onnxfuse_command("rules", "mine", *new, "--rewrite")
    assert (begun.code, "a rewrite: write the replacement" in begun.out) == (0, True), begun.err
    one = rule_file.read(source / "mine" / "mine.toml")
    assert (one.fuse, len(one.rewrites)) == (None, 1)
    assert "--rewrite goes with --new" in onnxfuse_command("rules", "--rewrite").err


def test_of_one_node_those_before_it_that_nobody_else_reads_come_along(source: Path, onnxfuse_command: Command) -> None:
    """Relu is one of them: what it computes is read by two of the block."""
    done = onnxfuse_command("rules", "s", "--new", "--from", "in.onnx", "--at", "last", "--rules", "mine", "--json")
    nodes = json.loads(done.out)["new"]["nodes"]
    assert nodes == ["Relu first", "Add layer_add", "Clip layer_clip", "Mul layer_mul", "Div layer_div", "Add last"]
    assert (source / "mine" / "s.toml").exists()


@pytest.mark.usefixtures("source")
def test_a_long_block_is_cut_out_whole_back_to_its_product(onnxfuse_command: Command) -> None:
    """A gate of ten nodes with a mean inside; the product and its bias before it are named and left out."""
    onnx.save(gate(1), "gate.onnx")
    begun = onnxfuse_command("rules", "g", "--new", "--from", "gate.onnx", "--at", "g0/out", "--rules", "mine")
    assert begun.code == 0, begun.err
    assert "one kernel, template row" in begun.out
    assert "starts after Add bias: a product by a weight has its own kernel" in begun.out
    assert "cut at" not in begun.out
    assert len(rule_file.read(Path("mine/g.toml")).examples[0].after[0].split()) == 10
    assert onnxfuse_command("optimize", "gate.onnx", "out.onnx", "--rules", "mine").code == 0
    assert [n.op_type for n in onnx.load("out.onnx").graph.node if n.domain == ""] == []


@pytest.mark.usefixtures("source")
def test_what_is_cut_off_is_named(onnxfuse_command: Command) -> None:
    """Seven gates have 70 nodes: six stay behind, the nearest of them are named, and what to say for all."""
    onnx.save(gate(7), "gate.onnx")
    begun = onnxfuse_command("rules", "g", "--new", "--from", "gate.onnx", "--at", "g6/out", "--rules", "mine")
    assert begun.code == 0, begun.err
    assert "stopped at 64 nodes; left out: Sqrt g0/root, Div g0/scale and their producers" in begun.out
    assert "to extract the whole block, name it: several --at" in begun.out


def gate(count: int) -> onnx.ModelProto:
    """Return a product with its bias, and gates behind it: x * tanh(|x / 0.5|^3 / sqrt(mean(x^2) + 0.1))."""
    lines, x = ["[fc] m = MatMul (x, w)", "[bias] a = Add (m, b)"], "a"
    for i in range(count):
        lines.append(
            f"[g{i}_square] q{i} = Mul ({x}, {x}) [g{i}_mean] p{i} = ReduceMean (q{i}, last) "
            f"[g{i}_size] s{i} = Abs ({x}) [g{i}_scale] h{i} = Div (s{i}, half) [g{i}_cube] c{i} = Pow (h{i}, three) "
            f"[g{i}_eps] e{i} = Add (p{i}, tenth) [g{i}_root] r{i} = Sqrt (e{i}) [g{i}_div] n{i} = Div (c{i}, r{i}) "
            f"[g{i}_tanh] t{i} = Tanh (n{i}) [g{i}_out] y{i} = Mul ({x}, t{i})"
        )
        x = f"y{i}"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g (float[N,16] x) => (float[N,32] {x})
        <int64[1] last = {{-1}}, float half = {{0.5}}, float three = {{3}}, float tenth = {{0.1}}>
        {{ {" ".join(lines)} }}"""
    )
    for node in model.graph.node:
        node.name = node.name.replace("_", "/")
    weights = np.random.default_rng(0).standard_normal((17, 32)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights[:16], "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights[16], "b"))
    return model


def test_what_no_kernel_takes_is_a_rewrite_that_says_what_is_left(source: Path, onnxfuse_command: Command) -> None:
    """`to` is marked, and --test fails until it is written; a large weight is an input of the pattern."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 11]>
        g (double[N,16] x) => (double[N,16] y) { [p] p = MatMul (x, w) [e] y = Det (p) }""".replace("Det", "Acosh")
    )
    weight = np.random.default_rng(0).standard_normal((16, 16))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, "double.onnx")
    begun = onnxfuse_command("rules", "mine", "--new", "--from", "double.onnx", "--at", "[pe]", "--rules", "mine")
    assert begun.code == 0, begun.err
    assert "a rewrite: write the replacement into `to`" in begun.out
    text = (source / "mine" / "mine.toml").read_text()
    assert "Write `to` yourself" in text
    assert "is a weight of the model, too large to be written here" in text
    assert len(text) < 1500
    assert onnxfuse_command("rules", "--test", "--rules", "mine").code == 1


def test_attributes_of_old_operators_are_inputs_of_the_pattern(source: Path, onnxfuse_command: Command) -> None:
    """A rule is written in the newest form, the example in that of the model; half types by their bits."""
    text = """<ir_version: 8, opset_import: ["" : 10]> g (float16[N,4] x) => (float16[N,4] y) <float16 k = {16896}> {
      [a] a = Add (x, k) [c] c = Clip <min = 0.0, max = 6.0> (a) [m] y = Mul (x, c) }"""
    onnx.save(onnx.parser.parse_model(text), "old.onnx")
    begun = onnxfuse_command("rules", "old", "--new", "--from", "old.onnx", "--at", "m", "--rules", "mine")
    assert begun.code == 0, begun.err
    rule = (source / "mine" / "old.toml").read_text()
    assert "Constant <value = float {3.0}>" in rule
    assert "float16 c0 = {16896}" in rule
    assert "Clip <" not in rule.split("[[example]]")[0]
    assert onnxfuse_command("rules", "old", "--test", "--rules", "mine").code == 0


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bad-name", "--new", "--from", "in.onnx", "--at", "last"], "'bad-name' is not a valid name for a rule"),
        (["mine", "--new", "--from", "in.onnx", "--at", "lst"], "Did you mean last?"),
        (["gemm", "--new", "--from", "in.onnx", "--at", "last"], "'gemm' is a shipped rule"),
        (["mine", "--new", "--at", "last"], "--new takes NAME, --from, --at"),
        (["mine", "--from", "in.onnx"], "--new takes NAME, --from, --at"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_mistake_is_exit_2_and_writes_nothing(
    arguments: list[str], told: str, source: Path, onnxfuse_command: Command
) -> None:
    """What is wrong, and what to do."""
    done = onnxfuse_command("rules", *arguments)
    assert done.code == 2
    assert told in done.err
    assert [p.name for p in source.iterdir()] == ["in.onnx"]


def test_a_file_that_is_there_is_kept(source: Path, onnxfuse_command: Command) -> None:
    """No rule is written over another."""
    (source / "mine.toml").write_text("mine")
    done = onnxfuse_command("rules", "mine", "--new", "--from", "in.onnx", "--at", "last")
    assert done.code == 2
    assert "mine.toml: already exists" in done.err
    assert (source / "mine.toml").read_text() == "mine"
