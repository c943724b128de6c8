"""Optional rules: they apply where they are asked for, and nowhere else; every command says so."""

import json
from pathlib import Path

import onnx
import pytest

import models
import onnxfuse
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.cli.conftest import Command
from tests.support.small import ops

MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float16[N,8] x, float16[4] s, float16[4] b) => (float16[N,4] y)
<float16[8,4] w> { [m] m = MatMul (x, w) [y] y = LayerNormalization (m, s, b) }"""
OPTIONAL = """summary = "Softsign is a Tanh."
optional = "for this test"
[[rewrite]]
from = '(x) => (y) { y = Softsign (x) }'
to = '(x) => (y) { y = Tanh (x) }'
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A product that a norm reads, in.onnx, in the current folder."""
    monkeypatch.chdir(tmp_path)
    model = onnx.parser.parse_model(MODEL.replace("<float16[8,4] w>", f"<float16[8,4] w = {{{_bits()}}}>"))
    onnx.save(model, "in.onnx")
    return tmp_path


def _bits() -> str:
    """Return 32 numbers of float16 by their bits: 1, 2 and -2 in turn."""
    return ", ".join(str((15360, 16384, 49152)[i % 3]) for i in range(32))


def _made(run: Command, *more: str) -> list[str]:
    done = run("optimize", "in.onnx", "out.onnx", *more)
    assert done.code == 0, done.err
    return ops(onnx.load("out.onnx"))


def test_a_rule_applies_where_it_is_asked_for(folder: Path, onnxfuse_command: Command) -> None:
    """`--also` adds it to the others, `--only` asks for it, too, `--skip` goes before both."""
    plain, fused = ["MatMul", "{LayerNormalization}"], ["{MatMul}", "{LayerNormalization}"]
    assert _made(onnxfuse_command) == plain
    assert _made(onnxfuse_command, "--also", "product") == fused
    assert _made(onnxfuse_command, "--only", "product") == ["{MatMul}", "LayerNormalization"]
    assert _made(onnxfuse_command, "--only", "layer_norm", "--also", "product") == fused
    assert _made(onnxfuse_command, "--also", "product", "--skip", "product") == plain
    assert ops(onnxfuse.optimize(folder / "in.onnx", also=["product"])) == fused


def test_the_others_make_what_they_make_without_it(folder: Path) -> None:
    """A norm that reads the product has the very kernel that it has beside the library's."""
    made = [onnxfuse.optimize(folder / "in.onnx", also=also) for also in ((), ("product",))]
    alone, beside = ({name for name, op in fused_ops(m).items() if op.rule != "product"} for m in made)
    assert alone == beside != set()


def test_a_model_keeps_what_was_asked_for(folder: Path, onnxfuse_command: Command) -> None:
    """An optimized model comes out as it went in, also where the rule is not asked for again."""
    _made(onnxfuse_command, "--also", "product")
    onnxfuse_command("optimize", "out.onnx", "again.onnx")
    assert (folder / "again.onnx").read_bytes() == (folder / "out.onnx").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--also", "gemm"), "'gemm' applies without --also, which is for optional rules"),
        (("--also", "prodct"), "'prodct' is not a rule. Did you mean product?"),
        (("--require", "product"), "the rule 'product' is optional and was not requested"),
        (("--undo", "--also", "product"), "--undo cannot be combined with any of"),
    ],
)
def test_what_cannot_be_asked_for_is_exit_2(
    folder: Path, onnxfuse_command: Command, arguments: tuple[str, ...], told: str
) -> None:
    """One message, and nothing is written."""
    result = onnxfuse_command("optimize", "in.onnx", "out.onnx", *arguments)
    assert (result.code, told in result.err) == (2, True), result.err
    assert not (folder / "out.onnx").exists()


def test_a_configuration_asks_for_it(folder: Path, onnxfuse_command: Command) -> None:
    """Its requirement holds with `also`, and is a mistake of the file without."""
    config = folder / "onnxfuse.toml"
    config.write_text('[[model]]\npath = "in.onnx"\nalso = ["product"]\nrequire = { product = 1 }\n')
    assert onnxfuse_command("ci", "--update").code == 0
    assert "product" in json.loads((folder / "onnxfuse.lock").read_text())["rules"]
    config.write_text('[[model]]\npath = "in.onnx"\nrequire = { product = 1 }\n')
    result = onnxfuse_command("ci")
    assert result.code == 2
    assert "onnxfuse.toml:3:23: require: the rule 'product' is optional and was not requested" in result.err


@pytest.mark.usefixtures("folder")
def test_explain_says_where_it_would_apply(onnxfuse_command: Command) -> None:
    """After the reason why the node is as it is; not where it was asked for, left out, or nothing is left to take."""
    told = onnxfuse_command("explain", "in.onnx", "--at", "m").out
    assert told.index("too little to fuse") < told.index(
        "--also product: for models whose shapes change with every run"
    )
    assert "--also product" in onnxfuse_command("explain", "in.onnx").out
    facts = json.loads(onnxfuse_command("explain", "in.onnx", "--json").out)["optional"]
    (product,) = (one for one in rule_file.shipped() if one.name == "product")
    assert facts == [{"rule": "product", "nodes": ["MatMul m"], "when": product.optional}]
    for more in (("--also", "product"), ("--only", "gemm"), ("--at", "y")):
        assert json.loads(onnxfuse_command("explain", "in.onnx", "--json", *more).out)["optional"] == [], more
    assert "product took it" in onnxfuse_command("explain", "in.onnx", "--also", "product", "--at", "m").out


def test_the_list_of_rules_says_so(onnxfuse_command: Command) -> None:
    """In the column of its kind, in full where it is explained, and in JSON, empty for all others."""
    line = next(line for line in onnxfuse_command("rules").out.splitlines() if line.startswith("product "))
    assert "fuse, gemm, optional" in line
    assert (
        "optional: --also product, for models whose shapes change with every run"
        in onnxfuse_command("rules", "product").out
    )
    facts = {f["name"]: f["optional"] for f in json.loads(onnxfuse_command("rules", "--json").out)["rules"]}
    assert [name for name, when in facts.items() if when] == [r.name for r in rule_file.shipped() if r.optional]


def test_a_rule_of_ones_own_waits_to_be_asked_for_too(folder: Path, onnxfuse_command: Command) -> None:
    """As does one of a pack: it is a key of the file."""
    onnx.save(onnx.parser.parse_model(MODEL.replace("<float16[8,4] w>", "").partition("{")[0].replace(
        "=> (float16[N,4] y)", "=> (float16[N,8] y) { y = Softsign (x) }")), "in.onnx")  # fmt: skip
    (folder / "mine").mkdir()
    (folder / "mine" / "soft.toml").write_text(OPTIONAL)
    assert _made(onnxfuse_command, "--rules", "mine") == ["Softsign"]
    assert _made(onnxfuse_command, "--rules", "mine", "--also", "soft") == ["Tanh"]


def test_bert_keeps_no_product_of_the_library() -> None:
    """What the other rules leave of it, plain products are: each has a launch program for all shapes."""
    model = models.build("bert_base", dtype="float16", layers=1, vocabulary=100)
    assert pipeline.run(model).by_rule()["plain_product"] == 2
    assert not {"MatMul", "Gemm"} & {n.op_type for n in model.graph.node}
