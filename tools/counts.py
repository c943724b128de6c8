"""Count how the code is spread: `python -m tools.counts [CHECKOUT ...]` prints a table, a column for each checkout.

What stands in many places and should stand in one is counted the same way in every checkout, an older one included:
two columns say what a change of structure was worth.
"""

import ast
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import onnx

PACKAGE = "onnxfuse"
OPERATORS = frozenset(s.name for s in onnx.defs.get_all_schemas() if not s.domain)
"""Names of ONNX's operators, of the default domain."""
CONDITIONS = ("where", "about", "cost", "kernel")
"""Keys of a rule whose texts are conditions."""
INTERFACE = ("api", "cli", "contract", "options")
"""Packages of what users call: functions, commands, configuration."""
LARGEST = 5
"""Number of rooms and of packages that are listed."""


def parsed(folder: Path) -> dict[str, ast.Module]:
    """Return the modules of a checkout's package, by their path below it."""
    root = folder / PACKAGE
    return {f.relative_to(root).as_posix(): _parsed(f) for f in sorted(root.rglob("*.py"))}


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _outside_ops(modules: Mapping[str, ast.Module]) -> dict[str, ast.Module]:
    return {name: tree for name, tree in modules.items() if not name.startswith("ops/")}


def _is_literal(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in OPERATORS


def _is_name(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    return node.value.id == "ops" and node.attr in OPERATORS


def literals(modules: Mapping[str, ast.Module]) -> str:
    """Return how many strings outside `ops` are the name of an operator, and in how many files."""
    found = {name: sum(map(_is_literal, ast.walk(tree))) for name, tree in _outside_ops(modules).items()}
    return f"{sum(found.values())} in {sum(map(bool, found.values()))} files"


def tables(modules: Mapping[str, ast.Module]) -> int:
    """Return how many assignments of modules outside `ops` name two operators or more."""
    assigned = (
        one.value
        for tree in _outside_ops(modules).values()
        for one in tree.body
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None
    )
    return sum(sum(_is_literal(n) or _is_name(n) for n in ast.walk(value)) > 1 for value in assigned)


def shared_names(modules: Mapping[str, ast.Module]) -> str:
    """Return how many classes have the name of another one, and how many such names there are."""
    names = Counter(n.name for tree in modules.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    shared = [count for count in names.values() if count > 1]
    return f"{sum(shared)} of {len(shared)} names"


def calls(modules: Mapping[str, ast.Module]) -> str:
    """Return how often nodes are written by hand: calls of make_node, CopyFrom and fresh."""
    called = Counter(
        n.func.attr if isinstance(n.func, ast.Attribute) else n.func.id
        for tree in modules.values()
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute | ast.Name)
    )
    return ", ".join(str(called[name]) for name in ("make_node", "CopyFrom", "fresh"))


def circles(modules: Mapping[str, ast.Module]) -> str:
    """Return how many circles of imports there are among modules, and among folders."""
    names = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in modules}
    edges = defaultdict[str, set[str]](set)
    for module, path in names.items():
        edges[module] |= {_module(target, names) for target in _imports(modules[path])} - {module, ""}
    rooms = defaultdict[str, set[str]](set)
    for module, targets in edges.items():
        own = _room(module, names)
        rooms[own] |= {_room(t, names) for t in targets} - {own}
    return f"{_circles(edges)} / {_circles(rooms)}"


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the package that a module imports, in functions, too; type checkers' imports excepted."""
    waiting: list[ast.AST] = [tree]
    for node in waiting:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            yield from (f"{node.module}.{a.name}".removeprefix(f"{PACKAGE}.") for a in node.names)
        if not isinstance(node, ast.If) or "TYPE_CHECKING" not in ast.unparse(node.test):
            waiting += ast.iter_child_nodes(node)


def _module(target: str, names: Mapping[str, str]) -> str:
    """Return the module that an imported name is in, itself if it is one."""
    while target and target not in names:
        target = target.rpartition(".")[0]
    return target


def _room(module: str, names: Mapping[str, str]) -> str:
    """Return the folder of a module."""
    return names[module].rpartition("/")[0]


def _circles(edges: Mapping[str, set[str]]) -> int:
    """Return the number of strongly connected components of more than one node."""
    reached = {start: _reached(start, edges) for start in edges}
    groups = {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in edges}
    return sum(len(group) > 1 for group in groups)


def _reached(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        fresh = edges.get(waiting.pop(), set()) - found
        found |= fresh
        waiting += fresh
    return found


def rooms(modules: Mapping[str, ast.Module]) -> str:
    """Return the numbers of files of the largest folders, packages' own files not counted."""
    files = Counter(name.rpartition("/")[0] for name in modules if not name.endswith("__init__.py"))
    return ", ".join(f"{room or PACKAGE} {count}" for room, count in files.most_common(LARGEST))


def conditions(folder: Path) -> str:
    """Return the number of conditions of the shipped rules, of lines that give shapes, and of rules."""
    texts, shapes, rules = 0, 0, 0
    for path in sorted((folder / "rules").rglob("*.toml")):
        rules += 1
        for key, value in _keys(tomllib.loads(path.read_text(encoding="utf-8"))):
            texts += len([*_texts(value)]) if key in CONDITIONS else 0
            shapes += len(value) if key == "shapes" and isinstance(value, dict) else 0
    return f"{texts} and {shapes}, {rules} files"


def _keys(table: object) -> Iterator[tuple[str, object]]:
    """Yield every key in a file with its value, those of tables inside included."""
    for key, value in table.items() if isinstance(table, dict) else ():
        yield key, value
        yield from _keys(value)
    for one in table if isinstance(table, list) else ():
        yield from _keys(one)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for one in value if isinstance(value, list) else ():
        yield from _texts(one)


def lines(folder: Path) -> str:
    """Return the lines of Python of the package, and of its largest parts."""
    root, count = folder / PACKAGE, Counter[str]()
    for path in root.rglob("*.py"):
        count[path.relative_to(root).parts[0]] += path.read_bytes().count(b"\n")
    largest = ", ".join(f"{name} {number:,}" for name, number in count.most_common(LARGEST))
    return f"{count.total():,}: {largest}"


def interface_lines(folder: Path) -> str:
    """Return the lines of what users call, and of its options, together and by package."""
    count = {
        name: sum(f.read_bytes().count(b"\n") for f in (folder / PACKAGE / name).rglob("*.py")) for name in INTERFACE
    }
    return f"{sum(count.values()):,}: {', '.join(f'{name} {number:,}' for name, number in count.items() if number)}"


COUNTS: tuple[tuple[str, Callable[[Path], object]], ...] = (
    ("strings that name an operator, outside ops", lambda f: literals(parsed(f))),
    ("module tables of operators outside ops", lambda f: tables(parsed(f))),
    ("classes that share a name", lambda f: shared_names(parsed(f))),
    ("circles among modules / folders", lambda f: circles(parsed(f))),
    ("largest folders, files", lambda f: rooms(parsed(f))),
    ("make_node, CopyFrom, fresh", lambda f: calls(parsed(f))),
    ("conditions of rules, lines of shapes", conditions),
    ("lines of Python", lines),
    ("lines of the interface", interface_lines),
)


def main(arguments: list[str]) -> None:
    """Print the table of some checkouts, by default of this one."""
    folders = [Path(a) for a in arguments] or [Path(__file__).resolve().parents[1]]
    print(" | ".join(["| count", *(f.resolve().name for f in folders)]) + " |")
    print("|---" * (1 + len(folders)) + "|")
    for title, count in COUNTS:
        print(" | ".join([f"| {title}", *(str(count(f)) for f in folders)]) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
