"""Build the stand-in CUDA libraries once and print the folder they are in (README.md says what they are)."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
CUDNN = "libcudnn.so.9"
DRIVER = "libcuda.so.1"
CURAND = "libcurand.so.10"  # the provider is linked against it, and uses nothing of it
TENSORRT = ("libnvinfer.so.10", "libnvonnxparser.so.10")  # the second has nothing of its own: libnvinfer.cpp has all
TRACED = 'extern "C" int {name}() {{ trace("{name}"); return 0; }}'
SILENT = 'extern "C" int {name}() {{ return 0; }}'  # what the compiler calls while a library loads


def built() -> Path:
    """Return the folder of the libraries, built now if these sources and this ONNX Runtime were not seen before."""
    folder = Path(tempfile.gettempdir()) / f"onnxfuse-fake-cuda-{_key()}"
    if folder.exists():
        return folder
    headers = cuda_headers(_header_folders())
    unfinished = Path(tempfile.mkdtemp(prefix="onnxfuse-fake-cuda-"))
    builds = [_start(soname, wanted, headers, unfinished) for soname, wanted in _wanted_symbols().items()]
    for build in builds:
        if build.wait():
            raise SystemExit(f"fake_cuda: g++ failed: {build.args!r}")
    try:
        unfinished.rename(folder)
    except OSError:  # another test process was faster
        shutil.rmtree(unfinished)
    return folder


def _key() -> str:
    sources = b"".join(p.read_bytes() for p in sorted(HERE.iterdir()) if p.suffix in (".py", ".cpp", ".h", ".txt"))
    provider = _provider()
    facts = f"{provider} {provider.stat().st_mtime_ns} {cuda_headers(_header_folders())} {os.getuid()}"
    return hashlib.sha256(sources + facts.encode()).hexdigest()[:16]


def _wanted_symbols() -> dict[str, set[str]]:
    """Map the soname of each CUDA library to the symbols that ONNX Runtime's CUDA provider wants from it."""
    command = ["nm", "-D", "--undefined-only", str(_provider())]
    wanted: dict[str, set[str]] = {DRIVER: set(), CURAND: set(), CUDNN: _cudnn_symbols()}
    wanted |= {library: set() for library in TENSORRT}
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        symbol, _, soname = line.split()[-1].partition("@")
        if soname.startswith(("libcudart", "libcublas", "libcurand")):
            wanted.setdefault(soname, set()).add(symbol)
        elif symbol.startswith("cu") and symbol[2:3].isupper() and not soname:
            wanted[DRIVER].add(symbol)
    return wanted


def _provider() -> Path:
    folders = _package_folders("onnxruntime")
    found = [p for f in folders if (p := f / "capi" / "libonnxruntime_providers_cuda.so").exists()]
    if not found:
        raise SystemExit("fake_cuda: ONNX Runtime's CUDA provider is not installed: pip install onnxruntime-gpu")
    return found[0]


def _cudnn_symbols() -> set[str]:
    return set((HERE / "cudnn_symbols.txt").read_text().split())


def _start(soname: str, wanted: set[str], headers: Path, folder: Path) -> "subprocess.Popen[bytes]":
    """Start the compiler on one library: our own functions, and a traced stub for each other symbol."""
    stem = soname.split(".so")[0]
    own = HERE / f"{stem}.cpp"
    written = own.read_text() if own.exists() else ""
    stubs = folder / f"{stem}_stubs.cpp"
    missing = sorted(s for s in wanted if f" {s}(" not in written and f"*{s}(" not in written)
    lines = [(SILENT if name.startswith("__") else TRACED).format(name=name) for name in missing]
    stubs.write_text("\n".join(['#include "trace.h"', *lines]))
    versions = folder / f"{stem}.map"
    # The provider binds to symbols under a version named like the library, except in these.
    versions.write_text(f"{'' if soname in (DRIVER, CUDNN, *TENSORRT) else soname} {{ global: *; }};\n")
    sources = [stubs, own] if own.exists() else [stubs]
    link = [f"-Wl,-soname,{soname}", f"-Wl,--version-script={versions}", "-o", folder / soname]
    command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{HERE}", f"-I{headers}", *link, *sources]
    return subprocess.Popen([str(word) for word in command])


def cuda_headers(folders: list[Path]) -> Path:
    """Return the first of the folders that has the headers of CUDA 13's runtime: those of CUDA 12 lay out structures
    differently."""
    for folder in folders:
        header = folder / "cuda_runtime_api.h"
        version = re.search(r"define CUDART_VERSION +13\d\d\d\b", header.read_text()) if header.exists() else None
        # A header of the runtime includes crt/host_defines.h, which is a wheel of its own.
        if version and (folder / "crt" / "host_defines.h").exists():
            return folder
    looked = ", ".join(map(str, folders)) or "no folder"
    raise SystemExit(
        f"fake_cuda: no cuda_runtime_api.h of CUDA 13 with its crt/host_defines.h in {looked}: "
        "pip install -e '.[dev]', or set CUDA_HOME to a CUDA 13 toolkit"
    )


def _header_folders() -> list[Path]:
    # Wheels before toolkits. `nvidia` is a package of as many folders as wheels were installed to.
    wheels = [p / "cu13" / "include" for p in _package_folders("nvidia")]
    return [*wheels, *(toolkit / "include" for toolkit in _toolkits())]


def _toolkits() -> Iterator[Path]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name])
    if nvcc := shutil.which("nvcc"):
        yield Path(nvcc).resolve().parents[1]
    yield Path("/usr/local/cuda")


def _package_folders(name: str) -> list[Path]:
    spec = importlib.util.find_spec(name)
    return [] if spec is None else [Path(p) for p in spec.submodule_search_locations or ()]


if __name__ == "__main__":
    print(built())
