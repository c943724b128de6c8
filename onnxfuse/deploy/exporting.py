"""Export a folder that serves a fused model without Python: from C++, C#, Java, or NVIDIA Triton Inference Server."""

import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata, resources
from pathlib import Path, PurePath
from string import Template
from typing import TYPE_CHECKING, Any

import onnx
from rich.markup import escape

from onnxfuse.cuda.launch_programs import tape
from onnxfuse.cuda.pack import file, layout
from onnxfuse.deploy import screen
from onnxfuse.deploy.compiling import Compiling, build, covered, write
from onnxfuse.deploy.triton import Signature, config, signature
from onnxfuse.files import io
from onnxfuse.files.atomic_write import as_model_error, check_no_links, filling, replacing, together
from onnxfuse.files.model_source import Model, copied, loaded, path_or_proto
from onnxfuse.model.fused import fused_ops
from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import plural
from onnxfuse.support.progress import Progress, silent
from onnxfuse.support.screen import Blocks, Line, Screen
from onnxfuse.support.units import megabytes

if TYPE_CHECKING:
    from onnxfuse.runtime.packing.packing import PackResult
    from onnxfuse.runtime.sessions.placement import How, Placement

MODEL = PurePath("1/model.onnx")
"""Relative path of the model, as Triton requires for version 1."""
LIBRARY = MODEL.with_name("libonnxfuse.so")
NO_SHAPES = "no launch program covers its shapes"
MANIFEST, CONFIG, README, LICENSE = "manifest.json", "config.pbtxt", "README.md", "LICENSE"


@dataclass(frozen=True, repr=False)
class Exported(Screen):
    """A folder that was written."""

    folder: Path
    made: "PackResult"
    assumed: tuple[str, ...]
    """Dimensions for which default ranges were used."""
    placements: tuple["Placement", ...]
    """How each fused op runs, with the reason if it does not run as our kernel on every target GPU."""
    batch: tuple[str, int] | None
    """The dimension along which Triton batches requests, and the maximum batch size."""
    triton: str
    """Why there is no config.pbtxt; empty if there is one."""
    at: PurePath
    """The folder as the server sees it, which config.pbtxt names."""
    files: Mapping[str, int]
    """Size in bytes by file name."""
    seconds: float

    def screen(self) -> Blocks:
        """Return what the folder holds: the kernels, the ops that run otherwise, and what Triton does."""
        size = megabytes(sum(self.files.values()))
        yield Line(f"[bold green]exported:[/] {size} in {self.seconds:.1f} s: {escape(str(self.folder))}")
        yield from screen.covered({**covered(self.made, self.assumed), "without": {}})
        for p in self.placements:
            if p.runs_as != "kernel":
                implementation = "ONNX Runtime's own op" if p.runs_as == "onnxruntime" else "its body"
                yield Line(
                    f"{escape(p.op)}: {implementation}{escape(f'; {p.reason}' if p.reason else '')}", style="dim"
                )
        if self.triton:
            yield Line(f"[yellow]no config.pbtxt:[/] {escape(self.triton)}")
        else:
            named = escape(str(self.at / LIBRARY))
            yield Line(f"config.pbtxt names the library as the server sees it: {named}", hint="; another path: --at")
        if self.batch is not None:
            name, batch_size = self.batch
            joined = f"Triton batches requests along {escape(name)}, to {plural(batch_size, 'row')}"
            yield Line(joined, hint="; if rows depend on each other, export with --no-batch")

    def as_dict(self) -> dict[str, Any]:
        """Return every fact as plain data for JSON."""
        return {
            "ok": True,
            "folder": str(self.folder),
            "bytes": sum(self.files.values()),
            "files": dict(self.files),
            "seconds": round(self.seconds, 3),
            "batch": None if self.batch is None else {"dimension": self.batch[0], "most": self.batch[1]},
            "triton": self.triton,
            "placements": [asdict(p) for p in self.placements],
            "pack": covered(self.made, self.assumed),
        }


def export_library(
    model: Model,
    folder: str | Path,
    kernels: Compiling | None = None,
    *,
    at: str | None = None,
    batch: bool | None = None,
    step: Progress = silent,
) -> Exported:
    """Write a folder with everything that serves a fused model without Python, and return what it holds.

    The folder must be new, empty, or exported before; it is then a model of a Triton repository under its name. `at`:
    its path as the server sees it, by default where it is written. `batch`: whether Triton batches requests along the
    common first dimension of inputs and outputs, by default if there is one. Raises ModelError for a model that has no
    fused ops or cannot be read; UsageError for an unknown dimension, an invalid range or architecture, or a folder with
    other content; DeviceError without the engine, KernelError without NVRTC.
    """
    start = time.perf_counter()
    folder, source = Path(folder), path_or_proto(model)
    _check_folder(folder)
    for name in (MODEL, file.pack_path_of(Path(MODEL)), LIBRARY, MANIFEST, CONFIG, README, LICENSE):
        check_no_links(folder / name, folder)
    path = None if isinstance(source, onnx.ModelProto) else Path(source)
    light = loaded(source, weights=False)
    interface = signature(light)
    pack, assumed = build(light, kernels or Compiling(), step, path)
    batching = _batching(interface, batch, pack)
    step("files", 0, 0)
    full_model = copied(source) if isinstance(source, onnx.ModelProto) else io.load(source)
    placements = _place_ops(full_model, pack)
    seen = folder.resolve() if at is None else PurePath(at)
    with filling(folder), filling(folder / MODEL.parent):
        with together():
            _write(folder, full_model, pack)
            _write_texts(folder, interface, batching, pack, seen)
        files = _manifest(folder, interface, batching, pack, placements)
    seconds = time.perf_counter() - start
    return Exported(folder, pack, assumed, placements, batching, interface.refusal, seen, files, seconds)


def _check_folder(folder: Path) -> None:
    """Raise UsageError if the folder is a file, or has content that no export has written."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise UsageError(f"{folder}: is not a folder", "Name a new folder.")
    if any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise UsageError(
            f"{folder}: is not empty, and does not hold an exported model",
            "Name a new folder, or one that export-library wrote.",
        )


def _batching(interface: Signature, requested: bool | None, pack: "PackResult") -> tuple[str, int] | None:
    """Return the dimension along which Triton batches requests, and the largest size that the pack covers."""
    name = interface.batch
    if requested and name is None:
        raise UsageError(
            "--batch: the inputs and outputs do not all begin with the same dimension", "Export with --no-batch."
        )
    return None if name is None or requested is False else (name, pack.ranges[name][1])


def _place_ops(model: onnx.ModelProto, pack: "PackResult") -> tuple["Placement", ...]:
    """Replace ops without a kernel on some target by ONNX Runtime's own ops; return how each op runs."""
    from onnxfuse.runtime.sessions.ort_ops import place_library_ops
    from onnxfuse.runtime.sessions.placement import Placement, node_counts

    ops, counts = fused_ops(model), node_counts(model)
    every = frozenset(t.name for t in pack.targets)
    on = {name: pack.launched.get(name, frozenset[str]()) for name in ops}
    library = {name: op for name, op in pack.library.items() if on.get(name) != every}
    place_library_ops(model, library, [name for name in ops if on[name]])
    placements = []
    for name, op in ops.items():
        placement: How = "kernel" if on[name] == every else "onnxruntime" if name in library else "body"
        if placement == "kernel" or (placement == "onnxruntime" and not on[name]):
            cause = ""
        elif on[name]:
            cause = f"a kernel on {', '.join(sorted(on[name]))} alone"
        else:
            cause = pack.without.get(name, NO_SHAPES)
        placements.append(Placement(name, op.rule, counts[name], placement, cause))
    return tuple(placements)


def _write(folder: Path, model: onnx.ModelProto, pack: "PackResult") -> None:
    """Write the binary files: library, model and pack."""
    from onnxfuse.runtime.engine.bridge import bridge
    from onnxfuse.runtime.sessions.opening import (
        require_written,  # ONNX Runtime is imported only when something is run.
    )

    with io.saving(model, folder / MODEL, opens=require_written(model)):
        pass
    write(pack, file.pack_path_of(folder / MODEL))
    with as_model_error(folder / LIBRARY), bridge().path.open("rb") as library, replacing(folder / LIBRARY) as out:
        shutil.copyfileobj(library, out)


def _write_texts(
    folder: Path, interface: Signature, batch: tuple[str, int] | None, pack: "PackResult", at: PurePath
) -> None:
    """Write the text files, for Triton and for people."""
    if not interface.refusal:
        io.write_text(folder / CONFIG, config(interface, at / LIBRARY, 0 if batch is None else batch[1]))
    elif os.path.lexists(folder / CONFIG):
        os.unlink(folder / CONFIG)
    page = Template((resources.files("onnxfuse.deploy") / "exported.md").read_text(encoding="utf-8"))
    named = {
        "name": folder.resolve().name,
        "at": str(at),
        "repository": str(at.parent),
        "model": str(MODEL),
        "library": str(LIBRARY),
        "pack": str(file.pack_path_of(Path(MODEL))),
        "ranges": "; ".join(f"`{n}` {low}..{high}" for n, (low, high) in pack.ranges.items()) or "all are fixed",
        "targets": ", ".join(t.name for t in pack.targets),
        "triton": f"No `config.pbtxt`: {interface.refusal}."
        if interface.refusal
        else "This folder is a model of a Triton repository.",
        "batch": "Triton does not batch requests."
        if batch is None
        else f"Triton batches requests along `{batch[0]}`, to {plural(batch[1], 'row')}:\n"
        "these must not depend on each other, else export with `--no-batch`.",
        "tf32": " The CUDA provider's option `use_tf32` must be 0." if interface.strict_fp32 else "",
    }
    io.write_text(folder / README, page.substitute(named))
    licence = metadata.distribution("onnxfuse").read_text("licenses/LICENSE")
    io.write_text(folder / LICENSE, licence or "Apache-2.0: https://www.apache.org/licenses/LICENSE-2.0\n")


def _manifest(
    folder: Path,
    interface: Signature,
    batch: tuple[str, int] | None,
    pack: "PackResult",
    placements: tuple["Placement", ...],
) -> dict[str, int]:
    """Write the manifest as the last file; return the files with their sizes."""
    from onnxfuse.runtime.engine.abi import VERSION

    manifest = folder / MANIFEST
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != manifest)
    facts = {
        "onnxfuse": metadata.version("onnxfuse"),
        "licence": "Apache-2.0",
        "abi": VERSION,
        "pack": f"{layout.VERSION}.{tape.VERSION}",
        "onnxruntime": ">=1.24",
        "platform": f"linux_{platform.machine()}",
        "architectures": [t.name for t in pack.targets],
        "ranges": {n: list(r) for n, r in pack.ranges.items()},
        "use_tf32": not interface.strict_fp32,
        "batch": None if batch is None else {"dimension": batch[0], "most": batch[1]},
        "triton": interface.refusal or None,
        "ops": [asdict(p) for p in placements],
        "files": {str(p.relative_to(folder)): {"bytes": p.stat().st_size, "sha256": _digest(p)} for p in files},
    }
    io.write_text(manifest, json.dumps(facts, indent=2) + "\n")
    return {str(p.relative_to(folder)): p.stat().st_size for p in (*files, manifest)}


def _digest(path: Path) -> str:
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()
