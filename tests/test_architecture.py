"""The shape of the code: imports point down at every level, rooms stay small, nothing heavy is imported unasked."""

import ast
import graphlib
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "onnxfuse"
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, which many of these tests read."""
    return ast.parse(path.read_text(encoding="utf-8"))


REWRITING = ("support", "ops", "model", "files", "shapes", "graph", "rules", "fusion", "passes")
"""What a machine needs to rewrite models."""

MAY_IMPORT: Mapping[str, Mapping[str, str]] = {
    "": {
        "support": "",
        "options": "support",
        "symbolic": "support",
        "ops": "support symbolic",
        "model": "support options ops",
        "files": "support model",
        "codegen": "support ops symbolic model",
        "shapes": "support ops symbolic model files",
        "graph": "support ops symbolic model files shapes",
        "reporting": "support ops model shapes",
        "cuda": "support ops symbolic model codegen files shapes graph",
        "rules": "support ops symbolic model shapes graph cuda",
        "contract": "support options model files rules",
        "fusion": "support ops symbolic model files shapes graph cuda rules",
        "passes": "support ops symbolic model files shapes graph cuda rules fusion",
        "runtime": "support ops symbolic model files shapes graph cuda rules fusion",
        "verification": "support ops symbolic model files shapes graph cuda runtime",
        "precision": "support ops model files shapes graph verification",
        "measure": "support options ops model files shapes graph cuda rules fusion passes runtime verification",
        "deploy": "support model codegen files shapes symbolic cuda rules runtime",
        "api": (
            "support options model files graph cuda rules contract fusion passes runtime "
            "verification precision measure deploy"
        ),
        "explanation": (
            "support ops symbolic model files shapes graph cuda rules fusion passes runtime measure deploy api"
        ),
        "authoring": "support options ops symbolic model files shapes graph cuda rules passes runtime verification api",
        "viewing": "support ops symbolic model files shapes graph reporting cuda rules runtime measure api explanation",
        "cli": "support options model files reporting rules deploy api explanation authoring viewing",
    },
    "api": {
        "request": "",
        "optimize": "request",
        "run": "request optimize",
    },
    "cli": {
        "base": "",
        "commands": "base",
    },
    "codegen": {
        "program": "",
        "emit": "program",
        "operators": "program",
    },
    "cuda": {
        "isa": "",
        "costs": "isa",
        "planning": "isa costs",
        "build": "planning",
        "launch_programs": "planning",
        "templates": "isa costs planning",
        "pack": "planning build launch_programs",
        "dispatch": "costs planning build launch_programs templates",
    },
    "fusion": {
        "region": "",
        "steps": "region",
        "undo": "region steps",
    },
    "graph": {
        "facts": "",
    },
    "measure": {
        "timing": "",
        "profile": "timing",
        "benchmark": "timing profile",
        "tune": "timing",
    },
    "ops": {
        "shapes": "",
        "definitions": "",
    },
    "passes": {
        "masks": "",
        "quantization": "",
        "control_flow": "",
        "definitions": "",
        "fold": "",
        "layout": "",
        "shapes": "",
        "views": "shapes",
        "alignment": "shapes views",
        "batching": "shapes views",
    },
    "rules": {
        "pattern": "",
        "match": "pattern",
        "language": "pattern match",
        "rewriting": "pattern match language",
    },
    "runtime": {
        "engine": "",
        "kernels": "engine",
        "sessions": "engine kernels",
        "packing": "engine kernels sessions",
    },
    "verification": {
        "run": "",
        "inputs": "run",
        "tolerance": "run",
        "reference": "run inputs",
        "report": "run inputs tolerance",
        "cases": "run inputs reference",
        "variants": "run inputs tolerance reference",
        "compare": "run inputs tolerance reference report cases variants",
        "localize": "run inputs tolerance reference report cases compare",
    },
    "cuda.templates": {
        "attention": "",
        "gemm": "",
        "general": "",
        "library": "",
        "reduction": "",
        "pointwise": "",
        "concat": "gemm",
        "conv": "gemm",
        "cached_attention": "attention",
        "recurrent": "gemm",
        "memory_bound": "reduction pointwise",
        "scan": "pointwise",
        "topk": "pointwise",
        "quantize": "attention gemm reduction",
        "row_product": "gemm reduction memory_bound",
        "parallel": "pointwise memory_bound",
    },
}
"""For each package ("" is the whole), its rooms and the sibling rooms that each may import, lowest first. A room is a
folder. A module directly in a package, such as `fusion/fuse.py`, may import all rooms of that package."""

BESIDE: Mapping[str, str] = {
    "onnxfuse": "onnxfuse",
    "examples": "onnxfuse",
    "models": "onnxfuse models",
    "bench": "onnxfuse models bench",
    "tools": "onnxfuse models bench tools",
}
"""The folders of the repository with Python in them, and which of them each may import: nobody imports the tests."""

ROOM = 20
"""Files in a folder, beyond which nobody finds what is there."""


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the modules that a file imports anywhere, also inside functions; type checkers' imports excepted."""
    tree = ast.parse(path.read_text(encoding="utf-8"))  # one of its own, as it is changed
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            node.body = [ast.Pass()]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def relative(path: Path) -> str:
    """Return the path as a test is called."""
    return str(path.relative_to(PACKAGE))


def dotted(path: Path) -> str:
    """Return the name of a module below the package, as imports write it."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {dotted(f): f for f in FILES}
ROOMS = {dotted(f) for f in FILES if f.name == "__init__.py"}
FRONT = {"", "__main__", "_making", "_public", "_running"}
"""What users import: it may use all, and only the command line uses it."""


def used(path: Path) -> Iterator[str]:
    """Yield the modules below the package that a file imports."""
    for name in imported(path):
        if name == "onnxfuse" or name.startswith("onnxfuse."):
            words = name.split(".")[1:]
            yield next(m for n in range(len(words), -1, -1) if (m := ".".join(words[:n])) in MODULES)


def crossing(one: str, other: str) -> tuple[str, str, str]:
    """Return the package that two modules share, and what each of them is there."""
    mine, its = one.split("."), other.split(".")
    depth = next((n for n, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), min(len(mine), len(its)))
    return ".".join(mine[:depth]), ".".join(mine[depth : depth + 1]), ".".join(its[depth : depth + 1])


def below(package: str, name: str) -> str:
    """Return the whole name of what is called so in a package."""
    return f"{package}.{name}" if package else name


def test_every_room_has_its_place() -> None:
    """A new folder is entered in the table of this test, with what it may import."""
    for package, rooms in MAY_IMPORT.items():
        inside = {r for r in ROOMS if r and r.rpartition(".")[0] == package}
        assert {below(package, r) for r in rooms} == inside
    assert {r.rpartition(".")[0] for r in ROOMS if r} == set(MAY_IMPORT)


def listed(package: str = "") -> Iterator[str]:
    """Yield the rooms in the order of the table of imports, those of a package after it."""
    for room in MAY_IMPORT.get(package, {}):
        yield below(package, room).replace(".", "/")
        yield from listed(below(package, room))


def test_the_page_lists_every_room() -> None:
    """In the order of imports, with what is in it."""
    page = (PACKAGE.parent / "docs" / "HOW_IT_WORKS.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z_/]+)` \| \S", page, re.MULTILINE) == list(listed())


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_the_table_points_down(package: str) -> None:
    """No room of a package reaches itself through others."""
    tuple(graphlib.TopologicalSorter({r: uses.split() for r, uses in MAY_IMPORT[package].items()}).static_order())


@pytest.mark.parametrize("path", [f for m, f in MODULES.items() if m not in FRONT], ids=relative)
def test_imports_point_down(path: Path) -> None:
    """At every level: no room imports one that the table does not give it; only the command line imports the front."""
    me = dotted(path)
    for other in used(path):
        if other in FRONT:
            assert me.split(".")[0] == "cli", f"{me} imports the front door"
            continue
        package, mine, its = crossing(me, other)
        if mine != its and {below(package, mine), below(package, its)} <= ROOMS:
            assert its in MAY_IMPORT[package][mine].split(), f"{me} imports {other}"


@pytest.mark.parametrize("folder", BESIDE)
def test_folders_import_down(folder: str) -> None:
    """Sample models know no measurement, measurements no site, and nothing outside the tests imports from them."""
    root = PACKAGE.parent
    others = {f.name for f in root.iterdir() if any(f.glob("*.py")) and f.name not in BESIDE[folder].split()}
    assert "tests" in others
    for path in sorted((root / folder).rglob("*.py")):
        found = {name.split(".")[0] for name in imported(path)} & others
        assert not found, f"{path.relative_to(root)} imports {', '.join(sorted(found))}"


def test_no_modules_import_each_other() -> None:
    """No circle among modules, imports inside functions included."""
    graph = {m: {o for o in used(f) if o not in FRONT and o != m} for m, f in MODULES.items() if m not in FRONT}
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_stored_launch_programs_are_of_all_code_that_plans_depend_on() -> None:
    """A cached program is used only if no package that the planners reach by imports has changed."""
    from onnxfuse.cuda.launch_programs import stored

    reached, waiting = set[str](), [m for m in MODULES if m.split(".")[0] == "cuda"]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += [m for m in used(MODULES[module]) if m not in FRONT]
    assert {m.split(".")[0] for m in reached} == set(stored.PLANNERS)


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_can_be_looked_over(room: str) -> None:
    """What a folder holds fits on a page."""
    files = [m for m in MODULES if m and m.rpartition(".")[0] == room and m not in ROOMS]
    assert len(files) <= ROOM


@pytest.mark.parametrize(
    "path", [f for f in FILES if f.relative_to(PACKAGE).parts[:2] == ("cli", "commands")], ids=relative
)
def test_no_command_imports_another(path: Path) -> None:
    """What two of them need is the library's, or printing that stands in a module of its own."""
    from onnxfuse.options import COMMANDS

    others = {name.split(".")[3] for name in imported(path) if name.startswith("onnxfuse.cli.commands.")} & set(
        COMMANDS
    )
    assert not others, f"{path.stem} imports the command{'s' * (len(others) > 1)} {', '.join(sorted(others))}"


@pytest.mark.parametrize("path", [f for f in FILES if f.relative_to(PACKAGE).parts[0] in REWRITING], ids=relative)
def test_rewriting_needs_no_cuda_and_no_session(path: Path) -> None:
    """Neither CuPy nor ONNX Runtime, in no function."""
    packages = {name.split(".")[0] for name in imported(path)}
    assert not packages & {"cupy", "cupy_backends", "onnxruntime", "torch"}


@pytest.mark.parametrize(
    "path",
    [f for f in FILES if f.relative_to(PACKAGE).parts[0] != "ops"],
    ids=relative,
)
def test_no_module_has_a_table_of_operators(path: Path) -> None:
    """What several operators have in common is a trait of their entries, in `ops`."""
    for node in parsed(path).body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        named = [
            one.attr
            for one in ast.walk(value or ast.Pass())
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "ops"
        ]
        assert len([name for name in named if name[0].isupper() and name != "Trait"]) < 2, f"line {node.lineno}"


TOGETHER = {
    "fusion/steps/merge.py": "which nodes of a body its op's name leaves out",
    "fusion/steps/transposed_io.py": "the two nodes that a kernel reads and writes through",
    "graph/constant_folding.py": "selections from a shape, and lookups in tables, each by what it computes",
    "graph/facts/masks.py": "nodes of positions, each by what it computes",
    "passes/batching/repeat_shared_heads.py": "nodes between the scores and the Softmax of an attention",
    "passes/control_flow/constant_sequences.py": "nodes that make and change sequences, each by what it does",
    "verification/inputs/branches.py": "operators whose operand decides a branch, beside the comparisons",
    "verification/inputs/input_roles.py": "arithmetic that keeps elements aligned, beside views and casts",
    "verification/reference/ort_reference.py": "nodes that have nothing to check themselves",
}
"""Files that name several operators in one expression, and what these have in common there alone."""


def test_what_operators_have_in_common_is_a_trait() -> None:
    """No new tuple of operators inside a function: where a second place asks the same, it is a trait of the entries."""
    found = {
        relative(f)
        for f in FILES
        if f.relative_to(PACKAGE).parts[0] != "ops"
        for n in ast.walk(parsed(f))
        if isinstance(n, ast.Tuple | ast.List | ast.Set) and len(n.elts) > 1 and all(map(_is_operator, n.elts))
    }
    assert found == {*TOGETHER}


def _is_operator(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ops"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_file_says_what_it_is(path: Path) -> None:
    """At its top."""
    assert ast.get_docstring(parsed(path))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_no_exception_is_swallowed(path: Path) -> None:
    """No `except Exception`, no bare `except`, no handler that only passes; the command line's end tells all."""
    way_out = path == PACKAGE / "cli" / "main.py"
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"line {node.lineno}: bare except"
            assert way_out or "Exception" not in {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}, (
                f"line {node.lineno}: except Exception"
            )
            assert not all(isinstance(s, ast.Pass) for s in node.body), f"line {node.lineno}: swallowed"


SILENCED = re.compile(r"# (?:type: ignore|noqa)\b(?:\[[\w, -]+\]|: \w+)?(.*)")


def test_what_is_silenced_says_why() -> None:
    """A finding of mypy or ruff that is silenced has the reason behind it."""
    root = PACKAGE.parent
    for path in (file for folder in ("tests", *BESIDE) for file in (root / folder).rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = SILENCED.search(line)
            assert found is None or found[1].strip(" #-"), f"{path}:{number}: gives no reason"


def test_importing_onnxfuse_imports_neither_cupy_nor_onnxruntime() -> None:
    """A machine without CUDA can rewrite models, and a help page does not wait for a driver."""
    script = """
import sys
import onnxfuse, onnxfuse.passes.pipeline, onnxfuse.fusion.undo.unfuse, onnxfuse.files.io
heavy = {"cupy", "onnxruntime", "torch"} & set(sys.modules)
assert not heavy, heavy
"""
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_public_surface_is_short_and_sorted() -> None:
    """What a user may rely on; functions are callable under their own names."""
    import onnxfuse

    assert sorted(onnxfuse.__all__) == onnxfuse.__all__
    for name in ("explain", "optimize", "register", "session", "unfuse", "verify"):
        assert callable(getattr(onnxfuse, name))


@pytest.mark.parametrize("path", sorted((PACKAGE / "cuda" / "templates").rglob("*.py")), ids=relative)
def test_one_emitter_prints_what_surrounds_the_cores(path: Path) -> None:
    """A template tells how each operand is reached; structs of operands, their elements and entry points are emit's."""
    text = path.read_text(encoding="utf-8")
    for words in ("struct Pointers {", "struct Held", ".get(lane)", "Element element(const Held<W>", "PARAMETERS p"):
        assert words not in text, f"{words!r} is printed by codegen/emit/access.py and entry.py"


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "gpu").glob("*.py")), ids=lambda p: p.stem)
def test_what_a_gpu_is_needed_for_can_be_imported_without_one(path: Path) -> None:
    """A script that a sanitizer runs is met by no other test."""
    importlib.import_module(f"tests.gpu.{path.stem}")


NAMES_IN_TEXT = {
    "fusion/steps/concat.py": "part of a fused op's name, Concat2",
    "symbolic/parsing.py": "functions of sympy in the name of an extent, Min and Max",
}
"""Files with string literals that are called as an operator, and what they are there."""


def test_operators_are_named_in_their_registry() -> None:
    """Everywhere else an operator is `ops.NAME`, and what more than one place knows of it is in its entry."""
    from onnxfuse import ops

    names = {name for _, name in ops.ENTRIES}
    found = {
        relative(f)
        for f in FILES
        if f.relative_to(PACKAGE).parts[0] != "ops"
        for n in ast.walk(parsed(f))
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value in names
    }
    assert found == {*NAMES_IN_TEXT}


PRIVATE = {"variant", "costs", "body", "work", "problem", "sm80", "sm90", "few", "halo", "stencil", "direct"}
"""Modules of templates that nobody outside their room, and those built on it, may know: variants, costs, kernels."""


def test_templates_are_known_by_their_interface_alone() -> None:
    """Deleting a folder deletes the template: shared code imports no template's variants, costs or kernels."""
    for path in FILES:
        if "cuda/templates/" in path.as_posix():
            continue
        for name in used(path):
            words = name.split(".")
            assert words[:2] != ["cuda", "templates"] or words[-1] not in PRIVATE, f"{relative(path)} imports {name}"


NUMBERS = 96
"""Ceiling of the numbers that `onnxfuse/cuda` sets outside the homes of facts; lower it with each one that leaves."""
HOMES_OF_FACTS = ("cuda/costs/", "cuda/isa/", "/costs.py", "cuda/planning/arch.py", "cuda/planning/limits.py")
"""What was measured stands in the costs; what data sheets, the PTX ISA and CUDA say in the other ones."""


def _assigned_numbers(body: list[ast.stmt]) -> Iterator[float]:
    """Yield the numbers in assignments of a module and its classes; 0, 1 and -1 measure nothing."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _assigned_numbers(statement.body)
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            constants = (n.value for n in ast.walk(statement.value) if isinstance(n, ast.Constant))
            yield from (n for n in constants if isinstance(n, int | float) and n not in (0, 1))


def test_numbers_of_a_card_have_a_home() -> None:
    """A size or a time that was measured is a line of a cost file, with what was measured, and not of code."""
    paths = [f for f in FILES if f.is_relative_to(PACKAGE / "cuda")]
    code = [f for f in paths if not any(home in f.as_posix() for home in HOMES_OF_FACTS)]
    counts = {relative(f): len([*_assigned_numbers(parsed(f).body)]) for f in code}
    assert sum(counts.values()) <= NUMBERS, {name: count for name, count in counts.items() if count}


KERNELS = PACKAGE / "cuda" / "templates"
KERNEL_FILES = sorted(KERNELS.rglob("*.cu"))
NAMED_FILE = re.compile(r"[\w/]+\.cuh?\b")
HEADER_PARTS = {
    "formula": r" = ",
    "shapes": r"\[[\w .,/*]+\]",
    "accuracy": r"[Aa]ccuracy",
    "reference": r", \d{4}\)|, \d{4};",
}
"""What the header of a kernel says, itself or by naming the file that does."""


def header(path: Path) -> str:
    """Return the comment with which a kernel file begins."""
    lines = takewhile(lambda line: line.startswith("//"), path.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("//").strip() for line in lines)


def headers(path: Path) -> dict[Path, str]:
    """Return the header of a kernel file, of those that it names, and so on."""
    found: dict[Path, str] = {}
    waiting = [path]
    while waiting:
        if (one := waiting.pop()) in found:
            continue
        found[one] = header(one)
        for name in NAMED_FILE.findall(found[one]):
            around = (one.parent, KERNELS, KERNELS.parent, KERNELS.parent / "include")
            near = next((folder / name for folder in around if (folder / name).exists()), None)
            assert near is not None, f"{one.name} names {name}, which is not there"
            waiting.append(near)
    return found


@pytest.mark.parametrize("path", KERNEL_FILES, ids=lambda path: str(path.relative_to(KERNELS)))
def test_the_header_of_a_kernel_says_what_it_computes(path: Path) -> None:
    """Formula, shapes, accuracy and a reference with its year stand in it, or in a file that it names."""
    text = "\n".join(headers(path).values())
    missing = [part for part, sign in HEADER_PARTS.items() if not re.search(sign, text)]
    assert not missing, f"{path.name} does not say: {', '.join(missing)}"
    assert re.search(HEADER_PARTS["accuracy"], header(path)), f"{path.name} does not say what its accuracy is"
