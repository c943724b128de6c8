"""Build the kernel pack of a model, and describe what an existing pack covers."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from rich.markup import escape

from onnxfuse.cuda.build import cache
from onnxfuse.cuda.launch_programs import stored
from onnxfuse.cuda.pack import file
from onnxfuse.cuda.pack.layout import PTX, PackError, Target, head_of, sizes
from onnxfuse.cuda.planning.arch import SUPPORTED, Arch, named
from onnxfuse.deploy import screen
from onnxfuse.files import external, io
from onnxfuse.files.atomic_write import as_model_error, check_no_links, replacing, writable
from onnxfuse.files.model_source import Model, path_or_proto
from onnxfuse.model.fused import fused_ops
from onnxfuse.model.tf32 import is_strict_fp32
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.support.plurals import plural
from onnxfuse.support.progress import Progress, silent
from onnxfuse.support.screen import Blocks, Line, Screen
from onnxfuse.support.units import megabytes

if TYPE_CHECKING:
    from onnxfuse.runtime.packing.packing import PackResult

PORTABLE = Target(Arch("sm_86", 132, 1536), PTX)
"""The architecture whose plans have the fewest requirements: its PTX runs on GPUs from 8.6 on, including future
ones."""
MOST = 2**31 - 1

ARCHITECTURES = (
    f"Kernels are made for {', '.join(sorted((a.name for a in SUPPORTED), key=lambda n: int(n[3:].rstrip('a'))))}: "
    "onnxfuse docs install says which GPU has which."
)


@dataclass(frozen=True)
class Compiling:
    """Kernel pack: all launch programs and compiled kernels for ranges of shapes, in a file next to the model."""

    archs: tuple[str, ...] = ()
    """Architectures, such as sm_90a: by default the GPU here; without one every supported GPU."""
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By input dimension, the least and greatest size; by default 1 to 32 for the first one of an input, 1 to 512 for
    others."""
    ptx: bool | None = None
    """Whether to include PTX for later GPUs; by default if no GPU is named and none is here."""
    rules: tuple[Path, ...] = ()
    """Folders of the rules that made the model, in addition to the shipped ones."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Compiling":
        """Return the options of a call: keywords of `Kernels`."""
        return cls(tuple(given["archs"]), given["shapes"] or {}, given["ptx"], tuple(map(Path, given["rules"])))


@dataclass(frozen=True, repr=False)
class Compiled(Screen):
    """A kernel pack that was built."""

    target: Path
    made: "PackResult"
    assumed: tuple[str, ...]
    """Dimensions for which default ranges were used."""
    seconds: float

    @property
    def left(self) -> int:
        """Number of shapes in the ranges, per op and GPU, that are planned at run time."""
        return sum(p.left for p in self.made.programs)

    def screen(self) -> Blocks:
        """Return the target GPUs, the ranges, and what is planned at run time."""
        return screen.compiled(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return every fact as plain data for JSON."""
        return {
            "ok": True,
            "target": str(self.target),
            "bytes": self.made.size,
            "seconds": round(self.seconds, 3),
            **covered(self.made, self.assumed),
        }


def covered(pack: "PackResult", assumed: Sequence[str]) -> dict[str, Any]:
    """Return what a pack covers as plain data for JSON. `assumed`: the dimensions for which default ranges were
    used."""
    return {
        "ranges": {n: list(r) for n, r in pack.ranges.items()},
        "assumed": list(assumed),
        "targets": {n: {"kernels": c, "bytes": b} for n, (c, b) in pack.kernels.items()},
        "programs": [asdict(p) for p in pack.programs],
        "without": dict(pack.without),
    }


def compile(
    model: Model, options: Compiling | None = None, target: str | Path | None = None, step: Progress = silent
) -> Compiled:
    """Write the kernel pack of a fused model, by default next to its file, and return what it covers.

    Raises ModelError for a model that has no fused ops or cannot be read; UsageError for an unknown dimension, an
    invalid range or architecture; DeviceError without the engine, KernelError without NVRTC.
    """
    start = time.perf_counter()
    options = options or Compiling()
    source = path_or_proto(model)
    path = None if isinstance(source, onnx.ModelProto) else Path(source)
    if target is None and path is None:
        raise UsageError(
            "a model in memory has no path beside which a kernel pack could be written", "Say where: target=FILE."
        )
    file_path = Path(target) if target is not None else file.pack_path_of(path or Path())
    writable(file_path)
    if target is None:
        check_no_links(file_path, file_path.parent)
    light = source if isinstance(source, onnx.ModelProto) else io.outline(source)
    pack, assumed = build(light, options, step, path)
    write(pack, file_path)
    return Compiled(file_path, pack, assumed, time.perf_counter() - start)


def trust(model: Path) -> Path:
    """Let sessions use the pack next to a model's file, which was compiled elsewhere; return its path.

    Raises ModelError if there is none, or if it is incomplete.
    """
    file_path = file.pack_path_of(model)
    try:
        file.trust(file_path)
    except FileNotFoundError:
        raise ModelError(f"{file_path}: no such kernel pack", f"Compile it: onnxfuse compile {model}") from None
    except PackError as error:
        raise ModelError(f"{file_path}: {error}", f"Compile it: onnxfuse compile {model}") from None
    return file_path


def build(
    model: onnx.ModelProto, options: Compiling, step: Progress, path: Path | None = None
) -> "tuple[PackResult, tuple[str, ...]]":
    """Build the pack of a model in memory; return it with the dimensions whose ranges were assumed. `path`: its
    file."""
    from onnxfuse.runtime.packing.packing import make
    from onnxfuse.runtime.packing.ranges import dimensions

    if not fused_ops(model):
        raise ModelError(
            f"{path or 'the model'}: has no fused ops, and needs no kernels",
            "Optimize it first: onnxfuse optimize IN.onnx OUT.onnx --compile.",
        )
    defaults = dimensions(model)
    for dim, (low, high) in options.ranges.items():
        if dim not in defaults:
            raise UsageError(f"--shape {dim}: the model has no dimension of that name.{_names(dim, defaults)}")
        if not 0 <= low <= high <= MOST:
            raise UsageError(
                f"--shape {dim}={low}..{high}: is not a range", "Give the smallest and the largest size: 1..32."
            )
    ranges = {n: options.ranges.get(n, usual) for n, usual in defaults.items()}
    targets = _targets(options)
    pack = make(model, targets, ranges, tf32=not is_strict_fp32(model), rules=options.rules, path=path, step=step)
    return pack, tuple(n for n in defaults if n not in options.ranges)


def write(pack: "PackResult", file_path: Path) -> None:
    """Write a pack, which sessions of this user may use; an existing one is replaced atomically.

    Raises ModelError.
    """
    with as_model_error(file_path), replacing(file_path) as out:
        for part in pack.parts:
            out.write(part)
    head = head_of(pack.parts[0], pack.size)
    cache.trust_pack(head.digest.hex())


def _names(dim: str, dimensions: Mapping[str, Any]) -> str:
    if not dimensions:
        return " All of its dimensions are fixed."
    return did_you_mean(dim, set(dimensions)) + f" There are: {', '.join(dimensions)}."


def _targets(options: Compiling) -> tuple[Target, ...]:
    """Return the targets: those requested, else the GPU here, else every supported GPU, and PTX."""
    from onnxfuse.runtime.engine.cuda_provider import arch_here  # ONNX Runtime is imported only when something is run.

    if options.archs:
        targets = [Target(_arch(name)) for name in dict.fromkeys(options.archs)]
        portable = bool(options.ptx)
    else:
        arch = arch_here()
        targets = [Target(a) for a in ([arch] if arch else SUPPORTED)]
        portable = options.ptx if options.ptx is not None else arch is None
    return (*dict.fromkeys(targets), *((PORTABLE,) if portable else ()))


def _arch(name: str) -> Arch:
    """Return the GPU of an architecture by name: the one here if it is of that architecture."""
    from onnxfuse.cuda import arch_of, compiles_for
    from onnxfuse.runtime.engine.cuda_provider import cuda_unusable, device_count

    arch = named(name)
    if arch is None:
        raise UsageError(f"--arch {name}: is not of the form sm_90a", ARCHITECTURES)
    if arch.number not in compiles_for():
        raise UsageError(f"--arch {name}: the compiler knows no such architecture", ARCHITECTURES)
    here = (arch_of(d) for d in range(device_count())) if cuda_unusable() is None else ()
    return next((a for a in here if a.name == arch.name), arch)


# ---- inspection


@dataclass(frozen=True, repr=False)
class PackInspection(Screen):
    """What the pack next to a model covers."""

    path: Path
    fault: str
    """Why it is not used, in one line; empty if it is."""
    mend: str
    """The command that rebuilds it, if something is wrong with it."""
    size: int = 0
    targets: Mapping[str, tuple[int, int]] | None = None
    """By name: number of kernels, and their bytes."""
    facts: Mapping[str, Any] | None = None
    """`ranges` by dimension, `programs`, `without`."""

    def screen(self) -> Blocks:
        """Return what it covers, and why it is not used."""
        yield Line(f"[bold]kernels[/] {escape(str(self.path))}: {megabytes(self.size)}")
        if self.fault:
            yield Line(f"[yellow]not used:[/] it {escape(self.fault)}. Build it again: {escape(self.mend)}")
        if self.facts is not None:
            yield from screen.covered(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return every fact as plain data for JSON."""
        return {
            "path": str(self.path), "fault": self.fault, "mend": self.mend, "bytes": self.size,
            "targets": {n: {"kernels": c, "bytes": b} for n, (c, b) in (self.targets or {}).items()},
            **(self.facts or {}),
        }  # fmt: skip


def inspect(model: Path) -> PackInspection | None:
    """Return what the pack next to a model's file covers; None if there is none. Compiles and runs nothing."""
    file_path = file.pack_path_of(model)
    mend = f"onnxfuse compile {model}"
    try:
        pack = file.opened(file_path, named=False, links=external.follows_links())
    except FileNotFoundError:
        return None
    except PackError as error:
        return PackInspection(file_path, f"{error}", mend)
    index, fault = pack.index, ""
    ops, packed = set(fused_ops(io.outline(model))), {e.name for e in index.ops}
    facts = _facts(index.facts)
    lacking = ops - packed - set(facts["without"])
    if pack.head.planners.hex() != stored.planners():
        fault = "was made by another version of onnxfuse"
    elif ops and not ops & packed:
        fault = "belongs to another model"
    elif lacking:
        fault = f"lacks {len(lacking)} of {plural(ops, 'fused op')}"
    return PackInspection(file_path, fault, mend if fault else "", pack.head.size, sizes(index), facts)


def _facts(text: str) -> dict[str, Any]:
    """Parse the descriptive facts of a pack, whose content is not trusted."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    facts = document if isinstance(document, dict) else {}
    ranges, programs, without = (facts.get(n) for n in ("ranges", "programs", "without"))
    return {
        "ranges": {str(n): r for n, r in ranges.items() if _is_range(r)} if isinstance(ranges, dict) else {},
        "programs": [p for p in programs if _is_program(p)] if isinstance(programs, list) else [],
        "without": {str(n): str(w) for n, w in without.items()} if isinstance(without, dict) else {},
    }


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(n, int) for n in value)


def _is_program(value: Any) -> bool:
    kinds = {"op": str, "target": str, "why": str, "aligned": bool, "whole": bool, "shapes": int, "left": int}
    return isinstance(value, dict) and all(isinstance(value.get(n), kind) for n, kind in kinds.items())
