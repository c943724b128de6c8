"""Diagnose the environment: what is installed, what works, what is missing, and the command that fixes it."""

import importlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.markup import escape

from onnxfuse.deploy.package_conflicts import CUDA, ONNXRUNTIME, conflicts, installed
from onnxfuse.support import process_limits
from onnxfuse.support.errors import KernelError
from onnxfuse.support.plurals import plural
from onnxfuse.support.screen import Blocks, Line, Rows, Screen, plain_table

DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
"""Files of an installed NVIDIA driver, whether or not CUDA can be initialized."""

PACKAGES = (
    "onnxfuse", "onnx", ONNXRUNTIME, "onnx-graphsurgeon", "numpy", "click", "rich", "networkx", "threadpoolctl",
    *(() if sys.platform == "darwin" else ("cupy-cuda13x",)),
)  # fmt: skip
OPTIONAL = {
    "torch": ("export", "exporting"),
    "onnxscript": ("export", "exporting"),
    "cupti-python": ("profile", "onnxfuse profile on CUDA"),
    "matplotlib": ("plot", "onnxfuse bench --plot"),
}
"""Optional packages, with the extra that installs them, and the features that need them."""

Verdict = Literal["ok", "absent", "broken"]
COLORS: dict[Verdict, str] = {"ok": "green", "absent": "dim", "broken": "bold red"}


@dataclass(frozen=True)
class EnvironmentCheck:
    """One check."""

    what: str
    verdict: Verdict
    """`absent`: missing, and not needed for what was requested; `broken`: should work here and does not."""
    fact: str
    mend: str = ""
    """The command or step that fixes it."""


@dataclass(frozen=True, repr=False)
class Diagnosis(Screen):
    """All checks."""

    cuda_wanted: bool
    findings: tuple[EnvironmentCheck, ...]

    @property
    def broken(self) -> list[EnvironmentCheck]:
        """The checks that failed."""
        return [f for f in self.findings if f.verdict == "broken"]

    @property
    def cuda(self) -> bool:
        """Whether CUDA works."""
        return next(f for f in self.findings if f.what == "CUDA").verdict == "ok"

    def screen(self) -> Blocks:
        """Return what is to be fixed, and each check."""
        if self.broken:
            yield Line(f"[bold red]{len(self.broken)} to fix:[/] {', '.join(f.what for f in self.broken)}", fold=True)
        else:
            summary = "fused ops run as CUDA kernels" if self.cuda else "models run on the CPU, through the bodies"
            yield Line(f"[bold green]ok:[/] {summary}", fold=True)
        table = plain_table("", "what", "fact")
        for f in self.findings:
            mend = f"\n-> {f.mend}" if f.mend else ""
            table.add_row(f"[{COLORS[f.verdict]}]{f.verdict}[/]", f.what, escape(f.fact + mend))
        yield Rows(table)

    def as_dict(self) -> dict[str, Any]:
        """Return every fact as plain data for JSON."""
        findings = [asdict(f) for f in self.findings]
        return {"ok": not self.broken, "cuda_wanted": self.cuda_wanted, "findings": findings}


def doctor(provider: Literal["auto", "cpu", "cuda"] = "auto") -> Diagnosis:
    """Return what is installed, what works and what is missing; `auto` requires CUDA if there is an NVIDIA driver."""
    cuda_wanted = provider == "cuda" or (provider == "auto" and _has_driver())
    return Diagnosis(
        cuda_wanted, (*_packages(cuda_wanted), *_cuda(cuda_wanted), *_compiler(cuda_wanted), *_folders(), _limits())
    )


def _has_driver() -> bool:
    return any(f.exists() for f in DRIVER_FILES) or bool(
        importlib.import_module("onnxfuse.runtime.engine.cuda_provider").has_driver()
    )


def _packages(cuda_wanted: bool) -> Iterator[EnvironmentCheck]:
    yield EnvironmentCheck("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    for name in PACKAGES:
        found = installed(name)
        if found is None:
            yield EnvironmentCheck(name, "broken", "not installed", f"pip install {name}")
        else:
            yield EnvironmentCheck(name, "ok", found)
    for name, (extra, user) in OPTIONAL.items():
        version_found = installed(name) or ""
        mend = "" if version_found else f"pip install 'onnxfuse[{extra}]'"
        yield EnvironmentCheck(
            name, "ok" if version_found else "absent", version_found or f"not installed; only {user} needs it", mend
        )
    for conflict in conflicts():
        yield EnvironmentCheck(
            f"{conflict.what} (conflict)", _verdict(conflict.fact, cuda_wanted), conflict.fact, conflict.mend
        )


def _cuda(cuda_wanted: bool) -> Iterator[EnvironmentCheck]:
    import onnxruntime

    from onnxfuse.runtime.engine.bridge import bridge_missing
    from onnxfuse.runtime.engine.cuda_provider import cuda_unusable

    engine_fault = bridge_missing()
    mend = "apt install g++ && pip install --force-reinstall --no-deps onnxfuse"
    yield EnvironmentCheck(
        "engine", _verdict(engine_fault, True), engine_fault or "built", mend if engine_fault else ""
    )
    yield EnvironmentCheck("providers", "ok", ", ".join(onnxruntime.get_available_providers()))
    unusable = cuda_unusable()
    yield EnvironmentCheck("CUDA", _verdict(unusable, cuda_wanted), unusable or "works", _mend_cuda(unusable))
    if unusable is None:
        yield from _cards()


def _verdict(fault: str | None, needed: bool) -> Verdict:
    if fault is None:
        return "ok"
    return "broken" if needed else "absent"


def _mend_cuda(unusable: str | None) -> str:
    """Return the step that makes CUDA usable."""
    if unusable is None:
        return ""
    if "no CUDA provider" in unusable:
        return "pip install --force-reinstall onnxruntime-gpu"
    if "library" in unusable:
        return "pip install 'onnxfuse[cuda]'"
    if "no NVIDIA driver" in unusable:
        return "on a machine with an NVIDIA GPU, install its driver (CUDA 13); elsewhere models run on the CPU"
    return "nvidia-smi shows the state of the driver; update or restart it"


def _cards() -> Iterator[EnvironmentCheck]:
    import cupy

    runtime = cupy.cuda.runtime
    try:
        driver, count = runtime.driverGetVersion(), runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        yield EnvironmentCheck(
            "CuPy", "broken", f"cannot use the driver: {error}", "update the NVIDIA driver to CUDA 13"
        )
        return
    yield _driver(driver)
    for index in range(count):
        device = runtime.getDeviceProperties(index)
        size = device["totalGlobalMem"] / 2**30
        fact = f"{device['name'].decode()}, sm_{device['major']}{device['minor']}, {size:.0f} GiB"
        yield EnvironmentCheck(f"GPU {index}", "ok", fact)


def _driver(number: int) -> EnvironmentCheck:
    """Return the check of the driver, from the version of CUDA that it reports: 12080 is 12.8."""
    words = f"CUDA {number // 1000}.{number % 1000 // 10}"
    if number >= 1000 * CUDA:
        return EnvironmentCheck("driver", "ok", words)
    return EnvironmentCheck(
        "driver", "broken", f"{words}; the libraries and kernels here are for CUDA {CUDA}",
        "update the NVIDIA driver to 580 or newer",
    )  # fmt: skip


def _limits() -> EnvironmentCheck:
    """Return the check of memory limits, which keep a verification from taking all memory of the machine."""
    missing = process_limits.no_memory_limit()
    fact = "a reference in float64 stays within its memory limit" if missing is None else f"not limited: {missing}"
    return EnvironmentCheck("memory limits", "ok" if missing is None else "absent", fact)


def _compiler(cuda_wanted: bool) -> Iterator[EnvironmentCheck]:
    """Compile a trivial kernel to check that NVRTC loads and produces a cubin."""
    from onnxfuse.codegen.emit.source import generated
    from onnxfuse.cuda import Arch, KernelSource
    from onnxfuse.cuda.build import nvrtc

    text = 'extern "C" __global__ void probe(float* x) { x[threadIdx.x] = 1.0f; }\n'
    try:
        cubin, _ = nvrtc.build(KernelSource("probe", (generated("probe", text),)), Arch("sm_90", 132))
    except KernelError as error:
        yield EnvironmentCheck("NVRTC", _verdict(f"{error}", cuda_wanted), f"{error}", "pip install 'onnxfuse[nvrtc]'")
        return
    from cupy_backends.cuda.libs import nvrtc as library

    version_text = ".".join(map(str, library.getVersion()))
    yield EnvironmentCheck("NVRTC", "ok", f"{version_text}, compiles ({plural(cubin, 'byte')} for sm_90)")


def _folders() -> Iterator[EnvironmentCheck]:
    from onnxfuse.cuda.build import cache
    from onnxfuse.rules.language.rule_file import shipped, shipped_folder

    try:
        folder: Path | str = cache.folder()
        count, size = cache.size()
        reason = _not_writable(cache.folder())
    except RuntimeError as error:  # no home directory
        folder, reason, count, size = "none", f"{error}", 0, 0
    contents = f"{plural(count, 'kernel')}, {size / 1e6:.1f} of at most {cache.LIMIT / 1e6:.0f} MB"
    fact = f"{folder}: {reason or contents}"
    mend = "export XDG_CACHE_HOME=FOLDER, a folder that you can write to" if reason else ""
    yield EnvironmentCheck("kernel cache", _verdict(reason, True), fact, mend)
    yield EnvironmentCheck("rules", "ok", f"{shipped_folder()}: {plural(len(shipped()), 'rule')}")


def _not_writable(folder: Path) -> str | None:
    """Return why no file can be created in `folder`, or in its nearest existing parent."""
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    if not existing.is_dir():
        return f"{existing} is a file"
    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return f"cannot be written ({os.strerror(error.errno or 0)})"
