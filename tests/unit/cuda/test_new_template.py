"""A new template is a folder, a rule and a section of costs: docs/dev/ADDING.md's recipe, carried out in a copy; and a
copy without the folder and the rule of a template knows nothing of it."""

import re
import shutil
import textwrap
from pathlib import Path

import onnxfuse
from onnxfuse import cuda
from tests.support.package_copy import copy_package, run_in_copy
from tests.support.recipes import section
from tests.support.small import ops, parse

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,4] x) => (float[N,4] y) { y = Hardmax (x) }"""

SCRIPT = f'''
import numpy as np
import onnx

import onnxfuse
from onnxfuse import cuda
from onnxfuse.cuda.dispatch import dispatch
from onnxfuse.cuda.planning.arch import A100, H200
from onnxfuse.cuda.templates.hardmax.variant import HardmaxVariant
from onnxfuse.model.fused import fused_ops
from onnxfuse.rules.language import rule_file
from onnxfuse.support.json_fields import JsonObject
from tests.emulator import emulate
from tests.support.kernels import programs

# fused by its rule
(fused,) = fused_ops(onnxfuse.optimize(onnx.parser.parse_model("""{MODEL}"""))).values()
assert fused.template == "hardmax"
assert cuda.supports(fused, lambda: A100) is None

# numbers, at odd sizes and at pointers off 16 bytes; ties are won by the first
for shape, aligned in (((1, 1), True), ((33, 7), False), ((3, 50, 31), True), ((0, 4), True)):
    x = np.random.default_rng(0).integers(-3, 3, shape).astype(np.float32)
    (y,) = emulate.run(cuda.plan(fused, (shape,), aligned, H200), [x], [np.float32], aligned)
    assert (y == np.eye(shape[-1], dtype=np.float32)[x.argmax(-1)]).all()

# one launch program for all rows and columns
programs.agrees(fused, ((33, 7),), True, A100)

# variants: measured, named by a file, and read from the costs
assert [str(v) for v in cuda.candidates(fused, ((300, 7),), A100)] == [
    "None", "hardmax_rows 32", "hardmax_rows 64", "hardmax_rows 256"
]
assert dispatch.variant_of(JsonObject({{"hardmax_rows": 64}}, "here")) == HardmaxVariant(hardmax_rows=64)
assert cuda.plan(fused, ((300, 7),), True, A100).block == (128, 1, 1)
assert cuda.plan(fused, ((300, 7),), True, A100, HardmaxVariant(hardmax_rows=64)).grid == (5, 1, 1)
'''


def files() -> dict[str, str]:
    """Return the files of the recipe by path: each block follows the path that its step names."""
    path, block = r"`((?:cuda/templates/NAME|rules/FOLDER)/[\w.]+)`", r"\n\n    ```\w+\n(.*?)\n    ```\n"
    found = re.findall(f"{path}(?:(?!```).)*?{block}", section("A template"), re.DOTALL)
    return {
        path.replace("NAME", "hardmax").replace("FOLDER", "reduction"): f"{textwrap.dedent(text)}\n"
        for path, text in found
    }


def costs_section() -> str:
    """Return the section of costs."""
    (found,) = re.findall(r"^    (\[hardmax\]\n.*?)\n    ```", section("A template"), re.MULTILINE | re.DOTALL)
    return textwrap.dedent(f"    {found}")


def test_a_new_template_is_a_folder_a_rule_and_its_costs(tmp_path: Path) -> None:
    """It fuses, plans, computes, is recorded and tuned; nothing else of the package names it."""
    copy_package(tmp_path, ("onnxfuse", "rules"))
    written = files()
    assert [p.rpartition("/")[2] for p in written] == [
        "variant.py", "costs.py", "hardmax.cu", "plan.py", "template.py", "hardmax.toml",
    ]  # fmt: skip
    folder = tmp_path / "onnxfuse/cuda/templates/hardmax"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Hardmax along rows."""\n')
    for path, text in written.items():
        (tmp_path / ("" if path.startswith("rules/") else "onnxfuse") / path).write_text(text)
    costs = tmp_path / "onnxfuse/cuda/costs/sm_90a.toml"
    costs.write_text(f"{costs.read_text()}\n{costs_section()}\n")
    run_in_copy(tmp_path, SCRIPT)


def test_without_the_folder_there_is_no_such_template() -> None:
    assert "hardmax" not in cuda.TEMPLATES
    assert ops(onnxfuse.optimize(parse(MODEL))) == ["Hardmax"]


CHOOSING = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,64] x) => (float[N,2] y, int64[N,2] at, float[N,64] z) <int64[1] k = {2}, float half = {0.5}> {
  s = Mul (x, half)
  y, at = TopK (s, k)
  z = Softmax (s)
}"""

WITHOUT = f'''
import numpy as np
import onnx

import onnxfuse
from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import H200, SUPPORTED
from onnxfuse.model.fused import fused_ops
from onnxfuse.rules.language import rule_file
from tests.emulator import emulate

assert "topk" not in cuda.TEMPLATES
assert "topk" not in [rule.name for rule in rule_file.shipped()]
made = onnxfuse.optimize(onnx.parser.parse_model("""{CHOOSING}"""))
(fused,) = fused_ops(made).values()
assert (fused.template, [n.op_type for n in made.graph.node if not n.domain]) == ("row", ["TopK"])
for arch in SUPPORTED:
    assert cuda.supports(fused, lambda: arch) is None
x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
got = emulate.run(cuda.plan(fused, (x.shape,), True, H200), [x], [np.float32] * len(fused.outputs))
e = np.exp(x / 2)
np.testing.assert_allclose(got[-1], e / e.sum(-1, keepdims=True), rtol=1e-5)
'''


def test_a_template_goes_with_its_folder_and_its_rule(tmp_path: Path) -> None:
    """Without those of TopK the package imports, fuses, plans and computes all else."""
    assert "topk" in cuda.TEMPLATES
    copy_package(tmp_path, ("onnxfuse", "rules"))
    shutil.rmtree(tmp_path / "onnxfuse/cuda/templates/topk")
    (tmp_path / "rules/reduction/topk.toml").unlink()
    run_in_copy(tmp_path, WITHOUT)
