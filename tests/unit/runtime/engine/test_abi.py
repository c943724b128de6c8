"""The engine as a file: what it shows to a process, and what it asks of one."""

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from onnxfuse.runtime.engine import abi
from onnxfuse.runtime.engine.abi import FUNCTIONS
from onnxfuse.runtime.engine.bridge import LIBRARY

ENGINE = Path(__file__).parents[4] / "engine"
HEADER = (ENGINE / "onnxfuse.h").read_text(encoding="utf-8")
DECLARED = set(re.findall(r"(\w+)\(", " ".join(re.findall(r"ONNXFUSE_EXPORT (?!__)[^;]*?\w+\(", HEADER))))


def _lines(*command: str | Path) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_library_shows_its_c_abi_alone() -> None:
    """No C++ name and none of a library that is linked in: several of them live in one process."""
    shown = {line.split()[-1] for line in _lines("nm", "-D", "--defined-only", LIBRARY)}
    assert shown == DECLARED
    assert len(shown) > 10


def test_python_knows_what_the_header_declares() -> None:
    """But what ONNX Runtime calls, what takes pointers to its objects, which Python has not, and what opens packs."""
    assert set(FUNCTIONS) == DECLARED - {"RegisterCustomOps", "onnxfuse_register", "onnxfuse_open"}


def test_the_library_needs_nothing_but_the_system() -> None:
    """Neither Python nor CUDA nor ONNX Runtime nor a C++ library."""
    needed = [line for line in _lines("readelf", "-d", LIBRARY) if "NEEDED" in line]
    names = {re.findall(r"\[(.*?)\]", line)[0] for line in needed}
    assert names <= {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}


STRUCTS = {
    "numbers": abi.Numbers, "tensor_map": abi.TensorMap, "launch": abi.Launch, "kernel": abi.Kernel,
    "program": abi.Program, "question": abi.Question, "host": abi.Host, "op": abi.Op, "counts": abi.Counts,
    "memory": abi.Memory,
}  # fmt: skip


def test_python_has_the_structures_of_the_header(tmp_path: Path) -> None:
    """Field by field, as a C compiler lays them out; and the header is C."""
    fields = [(name, field[0]) for name, struct in STRUCTS.items() for field in struct._fields_]
    lines = [f'printf("%zu\\n", sizeof(onnxfuse_{name}));' for name in STRUCTS]
    lines += [f'printf("%zu\\n", offsetof(onnxfuse_{name}, {field}));' for name, field in fields]
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    includes = '#include "onnxfuse.h"\n#include <stdio.h>\n'
    source.write_text(includes + "int main(void) { " + "\n".join(lines) + ' printf("%d\\n", ONNXFUSE_ABI); return 0; }')
    _lines("gcc", "-std=c99", "-Wall", "-Werror", "-pedantic", f"-I{ENGINE}", source, "-o", program)
    expected = [ctypes.sizeof(struct) for struct in STRUCTS.values()]
    expected += [getattr(STRUCTS[name], field).offset for name, field in fields]
    assert [int(line) for line in _lines(program)] == [*expected, abi.VERSION]


def test_a_library_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has another number, and one that lacks a function."""
    assert abi.opened(LIBRARY).onnxfuse_abi() == abi.VERSION
    monkeypatch.setattr(abi, "VERSION", abi.VERSION + 1)
    with pytest.raises(OSError, match=rf"is of version {abi.VERSION - 1}, expected {abi.VERSION}"):
        abi.opened(LIBRARY)
    (tmp_path / "none.c").write_text("int onnxfuse_abi(void) { return 1; }")
    _lines("gcc", "-shared", "-fPIC", tmp_path / "none.c", "-o", tmp_path / "none.so")
    with pytest.raises(OSError, match=r"has no onnxfuse_\w+: it is of another version of onnxfuse"):
        abi.opened(tmp_path / "none.so")
