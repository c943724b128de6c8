"""The recipes of docs/dev/ADDING.md are carried out in copies of the package, by the blocks of the page.

Those of a template, an element type and an activation are so beside what they add: `tests/unit/cuda`, `tests/unit/ops`.
"""

import re
import textwrap
from pathlib import Path

from onnxfuse.cuda.planning.arch import SUPPORTED
from onnxfuse.passes.phases import REWRITE
from onnxfuse.rules.language import rule_file
from tests.support.package_copy import ROOT, copy_package, run_in_copy, told_by_tests
from tests.support.recipes import blocks, edit

PASS = '''
import click.testing
import onnx

import onnxfuse
from onnxfuse.cli.main import group
from onnxfuse.passes import pipeline

text = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,4] x) => (float[N,4] y) { a = Neg (x) b = Neg (a) y = Exp (b) }"""
model = onnx.parser.parse_model(text)
pipeline.run(model, [])
assert [n.op_type for n in model.graph.node] == ["Exp"]
once = model.SerializeToString()
pipeline.run(model, [])
assert model.SerializeToString() == once
listed = click.testing.CliRunner().invoke(group, ["rules"]).output
assert "double_negation" in listed and "Removes a Neg of a Neg." in listed
'''


def test_a_pass_is_a_file_and_a_line_of_the_list(tmp_path: Path) -> None:
    """Its test passes, `onnxfuse rules` lists it, and what it made stays so; without it that test fails."""
    module, test = blocks("A pass", "python")
    copy_package(tmp_path)
    (tmp_path / "test_double_negation.py").write_text(test)
    assert "double_negation" not in {one.name for one in REWRITE.passes}
    assert "1 failed, 1 passed" in told_by_tests(tmp_path, "test_double_negation.py")
    (tmp_path / "onnxfuse/passes/fold/double_negation.py").write_text(module)
    phases = tmp_path / "onnxfuse/passes/phases.py"
    own = "from onnxfuse.passes.fold.merge_clips import merge_clips\n"
    edit(phases, own, f"from onnxfuse.passes.fold.double_negation import double_negation\n{own}")
    edit(phases, "        merge_clips,\n", "        merge_clips,\n        double_negation,\n")
    assert "2 passed" in told_by_tests(tmp_path, "test_double_negation.py")
    run_in_copy(tmp_path, PASS)


def test_an_exporters_spelling_is_a_rule_and_its_row(tmp_path: Path) -> None:
    """It keeps what its examples promise, and the row is what the page of rules is held to."""
    copy_package(tmp_path, ("rules",))
    rule, keys = blocks("An exporter's spelling", "toml")
    assert keys.splitlines()[0].startswith("shapes = ")
    (tmp_path / "rules/exporters/spelled_sigmoid.toml").write_text(rule)
    tests = "tests/unit/rules/test_shipped.py"
    assert re.search(r"\b6 passed, \d+ deselected", told_by_tests(tmp_path, tests, "-k", "spelled_sigmoid"))
    command = 'from onnxfuse.cli.main import main\nassert main(["rules", "spelled_sigmoid", "--test"]) == 0'
    run_in_copy(tmp_path, command)
    (row,) = blocks("An exporter's spelling", "markdown")
    assert row.startswith("| [spelled_sigmoid](../rules/exporters/spelled_sigmoid.toml) | ")
    assert "spelled_sigmoid" not in rule_file.shipped_files()


GPU = """
from onnxfuse import cuda
from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.planning.arch import GB300, SUPPORTED, named
from onnxfuse.fusion.region import proof

assert SUPPORTED[-1] == GB300 and len(SUPPORTED) == COUNT + 1
assert tables.card("sm_103").name == "NVIDIA GB300"
assert [arch for arch, _ in proof.FIRST[0]] == [*SUPPORTED]
assert named("sm_103").sm_count == GB300.sm_count
"""


def test_a_gpu_is_a_row_and_a_file_of_costs(tmp_path: Path) -> None:
    """It has costs, and ops are proven on it; without the file the test of the costs says so."""
    copy_package(tmp_path)
    (row,), (costs,) = blocks("A GPU", "python"), blocks("A GPU", "toml")
    assert "sm_103" not in {arch.name for arch in SUPPORTED}
    arch = tmp_path / "onnxfuse/cuda/planning/arch.py"
    edit(arch, "\nSUPPORTED = (", f"\n{row}\nSUPPORTED = (")
    edit(arch, "RTX5090, ORIN)", "RTX5090, ORIN, GB300)")
    tests = (
        "tests/unit/cuda/costs/test_tables.py",
        "tests/unit/fusion/region/test_proof.py",
        "-k",
        "supported or cost",
    )
    assert "failed" in told_by_tests(tmp_path, *tests)
    (tmp_path / "onnxfuse/cuda/costs/sm_103.toml").write_text(costs)
    assert re.search(r"^\d+ passed", told_by_tests(tmp_path, *tests), re.MULTILINE)
    run_in_copy(tmp_path, GPU.replace("COUNT", str(len(SUPPORTED))))


def test_an_operator_is_its_entry(tmp_path: Path) -> None:
    """Without that of DepthToSpace the tests of the entries name it; with the page's they pass."""
    copy_package(tmp_path)
    (entry,) = blocks("An operator's entry", "python")
    movement = tmp_path / "onnxfuse/ops/movement.py"
    with_it = movement.read_text()
    edit(movement, entry, "")
    edit(movement, ' "DepthToSpace",', "")
    registry, about = "tests/unit/ops/test_registry.py", ("-k", "DepthToSpace or depth or export")
    assert "test_every_operator_of_onnx_has_an_entry[DepthToSpace]" in told_by_tests(tmp_path, registry, *about)
    movement.write_text(with_it)
    told = told_by_tests(tmp_path, registry, "tests/unit/ops/test_shapes.py", *about)
    assert re.search(r"^\d+ passed", told, re.MULTILINE)


def test_the_entries_of_activations_are_those_of_the_package() -> None:
    """The page shows two as they are; `tests/unit/ops/test_new_activation.py` writes another one."""
    (shown,) = blocks("An activation", "python")
    source = (ROOT / "onnxfuse/ops/elementwise.py").read_text()
    for entry in shown.split("\n\n\n"):
        for part in re.split(r"\n\n", entry.strip()):
            assert f"{part}\n" in source, part


OPTION = """
import os

import numpy as np
import onnx

from onnxfuse.cli.main import main

weight = onnx.numpy_helper.from_array(np.ones(2000, np.float32), "w")
graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["w"], ["y"])], "g", [], [], [weight])
model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
assert main(["inspect", "m.onnx", "--whole"]) == 0
os.remove("m.data")
assert main(["inspect", "m.onnx"]) == 0
assert main(["inspect", "m.onnx", "--whole"]) == 1
"""
LISTED = """
import contextlib, io, json

from onnxfuse.cli.main import main

def printed(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*words]) == 0
    return out.getvalue()

assert "--whole" in printed("inspect", "--help")
for words, value, origin in (((), False, "default"), (("--whole",), True, "flag")):
    options = json.loads(printed("config", "--json", "inspect", "m.onnx", *words))["options"]
    (row,) = [one for one in options if one["flag"] == "--whole"]
    assert (row["value"], row["origin"]) == (value, origin), row
"""


def test_an_option_is_its_declaration_and_its_use(tmp_path: Path) -> None:
    """Two files change: the command knows, explains, lists and obeys it."""
    copy_package(tmp_path)
    declared, used = blocks("An option", "python")
    argument = '    model: Annotated[Path, Argument("MODEL.onnx", "outline")]\n'
    commands = tmp_path / "onnxfuse/options/commands.py"
    (group,) = re.findall(r"^class InspectCommand.*?^class ", commands.read_text(), re.MULTILINE | re.DOTALL)
    assert argument in group
    edit(commands, group, group.replace(argument, argument + textwrap.indent(declared, "    ")))
    edit(tmp_path / "onnxfuse/cli/commands/inspect.py", "    return 0\n", textwrap.indent(used, "    "))
    run_in_copy(tmp_path, OPTION)
    run_in_copy(tmp_path, LISTED)
    told = told_by_tests(tmp_path, "tests/unit/options", "-k", "declaration or flag_twice")
    assert re.search(r"^\d+ passed", told, re.MULTILINE)


def test_a_room_is_a_folder_and_two_rows(tmp_path: Path) -> None:
    """The architecture's tests name what is missing, step by step."""
    copy_package(tmp_path, ("onnxfuse", "docs", "tests"))
    architecture = tmp_path / "tests/test_architecture.py"

    def failed() -> set[str]:
        told = told_by_tests(tmp_path, str(architecture), "-k", "room or points_down or import_each_other")
        assert " passed" in told
        return set(re.findall(r"^FAILED \S+::(\w+)", told, re.MULTILINE))

    room = tmp_path / "onnxfuse/passes/sorting"
    room.mkdir()
    (room / "__init__.py").write_text('"""Orders of nodes."""\n')
    assert failed() == {"test_every_room_has_its_place"}
    edit(architecture, '    "passes": {\n', '    "passes": {\n        "sorting": "",\n')
    assert failed() == {"test_the_page_lists_every_room"}
    edit(tmp_path / "docs/HOW_IT_WORKS.md", "| `passes/masks` |", "| `passes/sorting` | orders |\n| `passes/masks` |")
    assert failed() == set()


def test_every_recipe_is_carried_out() -> None:
    """A new section of the page has its test, here or where it is named."""
    page = (ROOT / "docs/dev/ADDING.md").read_text()
    carried = {
        "A pass", "An exporter's spelling", "A GPU", "An operator's entry", "An option", "A room",  # here
        "A fusion", "A template", "An element type", "An activation",  # tests/project/test_pages.py, tests/unit
    }  # fmt: skip
    assert {*re.findall(r"^## (.+)$", page, re.MULTILINE)} == carried | {"Smaller changes"}
