"""Newer Pythons: what 3.12, 3.13 and 3.14 no longer have is used nowhere; processes start by any method."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

ROOT = Path(__file__).parents[2]

GONE_MODULES = (
    "asynchat", "asyncore", "distutils", "imp", "smtpd",  # 3.12
    "aifc", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "lib2to3", "mailcap", "msilib", "nis", "nntplib",
    "ossaudiodev", "pipes", "sndhdr", "spwd", "sunau", "telnetlib", "uu", "xdrlib",  # 3.13
)  # fmt: skip

GONE_NAMES = {
    "ast": ("Bytes", "Ellipsis", "NameConstant", "Num", "Str"),
    "asyncio": ("AbstractChildWatcher", "SafeChildWatcher", "ThreadedChildWatcher", "get_child_watcher"),
    "importlib.abc": ("ResourceReader", "Traversable", "TraversableResources", "Finder"),
    "importlib.resources": ("contents", "is_resource"),
    "importlib.util": ("module_for_loader", "set_loader", "set_package"),
    "locale": ("resetlocale",),
    "pkgutil": ("ImpImporter", "ImpLoader", "find_loader", "get_loader"),
    "pty": ("master_open", "slave_open"),
    "ssl": ("match_hostname", "wrap_socket"),
    "typing": ("io", "re"),
    "unittest": ("findTestCases", "getTestCaseNames", "makeSuite"),
    "urllib.request": ("FancyURLopener", "URLopener"),
}
"""What this Python may still have, by module."""

IMPORTED = """
import importlib, pkgutil, sys
import click, ml_dtypes, networkx, numpy, onnx, onnx.inliner, onnx.parser, onnx.reference, rich.console, threadpoolctl
import onnx_graphsurgeon, onnxruntime
gone_modules, gone_names = {modules!r}, {names!r}
for name, names in gone_names.items():
    module = importlib.import_module(name)
    for each in names:
        module.__dict__.pop(each, None)
    module.__dict__.pop("__getattr__", None)  # by which a deprecated name still comes
for name in gone_modules:
    sys.modules[name] = None
import onnxfuse
for module in pkgutil.walk_packages(onnxfuse.__path__, "onnxfuse."):
    if not module.name.endswith(("__main__", ".libonnxfuse")):  # a program, and a library that is no module
        importlib.import_module(module.name)
assert any(n.domain == "onnxfuse" for n in onnxfuse.optimize(sys.argv[1]).graph.node)
"""

IN_A_POOL = """
import multiprocessing, sys
import onnxfuse

def fused(path):
    return sum(n.domain == "onnxfuse" for n in onnxfuse.optimize(path).graph.node)

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    with multiprocessing.Pool(1) as pool:
        assert pool.apply(fused, (sys.argv[1],)) == fused(sys.argv[1]) > 0
    assert onnxfuse.verify(sys.argv[1], onnxfuse.optimize(sys.argv[1]), providers=["CPUExecutionProvider"]).ok
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = "g (float[N, 64] x) => (float[N, 64] y) { a = Exp (x)  b = Neg (a)  y = Sigmoid (b) }"
    file = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'), file)
    return file


def ran(script: str, folder: Path, *arguments: object) -> None:
    file = folder / "script.py"
    file.write_text(script)
    command = [sys.executable, file, *map(str, arguments)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    done = subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_nothing_that_newer_pythons_removed_is_used(model: Path, tmp_path: Path) -> None:
    """Every module is imported, and a model optimized, without the names and modules that are gone by 3.14."""
    ran(IMPORTED.format(modules=GONE_MODULES, names=GONE_NAMES), tmp_path, model)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_any_start_method_of_processes_does(method: str, model: Path, tmp_path: Path) -> None:
    """3.14 starts processes by forkserver where 3.13 forks: models are optimized in a pool, and verified in a child."""
    ran(IN_A_POOL, tmp_path, model, method)
