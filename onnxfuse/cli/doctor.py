"""`onnxfuse doctor`: what is installed, what works, what is missing, and the command that mends it."""

import importlib
import importlib.util
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import click
from rich.markup import escape
from rich.table import Table

from onnxfuse.cli.console import output, print_json, working
from onnxfuse.model.errors import KernelError

ENVIRONMENT = 5
DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
"""What a machine with an NVIDIA driver has, whether or not CUDA starts there."""

PACKAGES = (
    "onnxfuse", "onnx", "onnxruntime-gpu", "onnx-graphsurgeon", "cupy-cuda13x", "numpy", "click", "rich", "networkx",
    "threadpoolctl",
)  # fmt: skip
OPTIONAL = {
    "torch": ("export", "exporting"),
    "onnxscript": ("export", "exporting"),
    "cupti-python": ("profile", "onnxfuse profile on CUDA"),
    "matplotlib": ("plot", "onnxfuse bench --plot"),
}
"""Packages that only some things need, with the extra that brings them, and what needs them."""

Verdict = Literal["ok", "absent", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    """`absent`: not there, and nothing that is asked for needs it; `broken`: it should work here and does not."""
    fact: str
    mend: str = ""
    """The command or the step that mends it."""


@click.command("doctor")
@click.option(
    "--provider",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What has to work: auto wants CUDA where there is an NVIDIA driver.",
)
@click.option("--json", "as_json", is_flag=True, help="Print every fact as JSON.")
def command(provider: str, as_json: bool) -> int:
    """Say what is installed, what works and what is missing, with the command that mends it.

    Exit 5 where something that should work here does not: a package that onnxfuse needs, or CUDA where there is a
    driver for it (--provider cuda: always, --provider cpu: never).
    """
    with working("look"):
        wanted = provider == "cuda" or (provider == "auto" and _has_driver())
        findings = [*_packages(), *_cuda(wanted), *_compiler(wanted), *_folders()]
    broken = [f for f in findings if f.verdict == "broken"]
    if as_json:
        print_json("doctor", {"ok": not broken, "cuda_wanted": wanted, "findings": [asdict(f) for f in findings]})
    else:
        _print(findings, broken)
    return ENVIRONMENT if broken else 0


def _has_driver() -> bool:
    return any(f.exists() for f in DRIVER_FILES) or importlib.import_module("onnxfuse.runtime.cuda").device_count() > 0


def _packages() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    for name in PACKAGES:
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            yield Finding(name, "broken", "not installed", f"pip install {name}")
    if _installed("onnxruntime"):
        yield _twin()
    for name, (extra, user) in OPTIONAL.items():
        found = version(name) if _installed(name) else ""
        mend = "" if found else f"pip install 'onnxfuse[{extra}]'"
        yield Finding(name, "ok" if found else "absent", found or f"not installed; only {user} needs it", mend)


def _twin() -> Finding:
    """Return what the package without CUDA does beside onnxruntime-gpu: both are imported under one name."""
    if "CUDAExecutionProvider" in importlib.import_module("onnxruntime").get_available_providers():
        return Finding("onnxruntime", "ok", f"{version('onnxruntime')}, installed too; onnxruntime-gpu is what runs")
    mend = "pip uninstall onnxruntime && pip install --force-reinstall onnxruntime-gpu"
    return Finding(
        "onnxruntime", "broken", f"{version('onnxruntime')}: hides the CUDA provider of onnxruntime-gpu", mend
    )


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _cuda(wanted: bool) -> Iterator[Finding]:
    import onnxruntime

    from onnxfuse.runtime.bridge import bridge_missing
    from onnxfuse.runtime.cuda import cuda_unusable

    missing = bridge_missing()
    mend = "apt install g++ && pip install --force-reinstall --no-deps onnxfuse"
    yield Finding("native bridge", _verdict(missing, True), missing or "built", mend if missing else "")
    yield Finding("providers", "ok", ", ".join(onnxruntime.get_available_providers()))
    unusable = cuda_unusable()
    yield Finding("CUDA", _verdict(unusable, wanted), unusable or "works", _mend_cuda(unusable))
    if unusable is None:
        yield from _cards()


def _verdict(missing: str | None, wanted: bool) -> Verdict:
    if missing is None:
        return "ok"
    return "broken" if wanted else "absent"


def _mend_cuda(unusable: str | None) -> str:
    """Return the step that mends what keeps CUDA from working."""
    if unusable is None:
        return ""
    if "no CUDA provider" in unusable:
        return "pip install --force-reinstall onnxruntime-gpu"
    if "library" in unusable:
        return "pip install 'onnxfuse[cuda]'"
    if "no NVIDIA driver" in unusable:
        return "on a machine with an NVIDIA GPU, install its driver (CUDA 13); elsewhere models run on the CPU"
    return "nvidia-smi shows the state of the driver; update or restart it"


def _cards() -> Iterator[Finding]:
    import cupy

    runtime = cupy.cuda.runtime
    try:
        driver, count = runtime.driverGetVersion(), runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        yield Finding("CuPy", "broken", f"cannot use the driver: {error}", "update the NVIDIA driver to CUDA 13")
        return
    yield Finding("driver", "ok", f"CUDA {driver // 1000}.{driver % 1000 // 10}")
    for number in range(count):
        card = runtime.getDeviceProperties(number)
        size = card["totalGlobalMem"] / 2**30
        fact = f"{card['name'].decode()}, sm_{card['major']}{card['minor']}, {size:.0f} GiB"
        yield Finding(f"GPU {number}", "ok", fact)


def _compiler(wanted: bool) -> Iterator[Finding]:
    """Compile a kernel of one line: NVRTC loads and makes a cubin."""
    from onnxfuse.kernels import Arch, KernelSource
    from onnxfuse.kernels.build import nvrtc
    from onnxfuse.kernels.emit.source import generated

    text = 'extern "C" __global__ void probe(float* x) { x[threadIdx.x] = 1.0f; }\n'
    try:
        cubin, _ = nvrtc.build(KernelSource("probe", (generated("probe", text),)), Arch("sm_90", 132))
    except KernelError as error:
        yield Finding("NVRTC", _verdict(str(error), wanted), str(error), "pip install 'onnxfuse[cuda]'")
        return
    from cupy_backends.cuda.libs import nvrtc as library

    numbers = ".".join(map(str, library.getVersion()))
    yield Finding("NVRTC", "ok", f"{numbers}, compiles ({len(cubin)} bytes for sm_90)")


def _folders() -> Iterator[Finding]:
    from onnxfuse.kernels.build import cache
    from onnxfuse.rewrite.language.rule_file import shipped, shipped_folder

    try:
        folder: Path | str = cache.folder()
        count, size = cache.size()
        reason = _not_writable(cache.folder())
    except RuntimeError as error:  # no home
        folder, reason, count, size = "none", str(error), 0, 0
    fact = f"{folder}: {reason or f'{count} kernels, {size / 1e6:.1f} of at most {cache.LIMIT / 1e6:.0f} MB'}"
    mend = "export XDG_CACHE_HOME=FOLDER with a folder of yours that can be written" if reason else ""
    yield Finding("kernel cache", _verdict(reason, True), fact, mend)
    yield Finding("rules", "ok", f"{shipped_folder()}: {len(shipped())} rules")


def _not_writable(folder: Path) -> str | None:
    """Return why no file can be made in `folder`, or in the nearest folder above it that there is."""
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if not there.is_dir():
        return f"{there} is a file"
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as error:
        return f"cannot be written ({os.strerror(error.errno or 0)})"


def _print(findings: list[Finding], broken: list[Finding]) -> None:
    console = output()
    if broken:
        console.print(f"[bold red]{len(broken)} to mend:[/] {', '.join(f.what for f in broken)}")
    else:
        cuda = next(f for f in findings if f.what == "CUDA")
        how = "fused ops run as CUDA kernels" if cuda.verdict == "ok" else "models run on the CPU, through the bodies"
        console.print(f"[bold green]ok:[/] {how}")
    table = Table("", "what", "fact", box=None, pad_edge=False, header_style="bold")
    table.columns[2].overflow = "fold"
    colors = {"ok": "green", "absent": "dim", "broken": "bold red"}
    for f in findings:
        mend = f"\n-> {f.mend}" if f.mend else ""
        table.add_row(f"[{colors[f.verdict]}]{f.verdict}[/]", f.what, escape(f.fact + mend))
    console.print(table)
