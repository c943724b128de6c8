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

from onnxfuse.api.deploy.compiling import Step, build, covered, pack_table, quiet, write
from onnxfuse.api.deploy.triton import Signature, config, signature
from onnxfuse.api.request.model_source import Model, copied, path_or_proto
from onnxfuse.api.request.options import Exporting
from onnxfuse.cuda.launch_programs import tape
from onnxfuse.cuda.pack import file, layout
from onnxfuse.files import io
from onnxfuse.files.atomic_write import as_model_error, check_no_links, filling, replacing, together
from onnxfuse.model.fused import fused_ops
from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import plural
from onnxfuse.support.text_tables import Table, Tabled

if TYPE_CHECKING:
    from onnxfuse.runtime.packing.packing import PackResult
    from onnxfuse.runtime.sessions.placement import How, Placement

MODEL = PurePath("1/model.onnx")
"""Relative path of the model, as Triton requires for version 1."""
LIBRARY = MODEL.with_name("libonnxfuse.so")
NO_SHAPES = "no launch program takes its shapes"
MANIFEST, CONFIG, README, LICENSE = "manifest.json", "config.pbtxt", "README.md", "LICENSE"


@dataclass(frozen=True, repr=False)
class Exported(Tabled):
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
    files: Mapping[str, int]
    """Size in bytes by file name."""
    seconds: float

    def table(self) -> Table:
        """Return a table of the target GPUs."""
        return pack_table(f"exported {self.folder}, {sum(self.files.values()) / 1e6:.1f} MB,", self.made)

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


def export_library(model: Model, folder: str | Path, asked: Exporting | None = None, step: Step = quiet) -> Exported:
    """Write a folder with everything that serves a fused model without Python, and return what it holds.

    The folder must be new, empty, or exported before; it is then a model of a Triton repository under its name. Raises
    ModelError for a model that has no fused ops or cannot be read; UsageError for an unknown dimension, an invalid
    range or architecture, or a folder with other content; DeviceError without the engine, KernelError without NVRTC.
    """
    begun = time.perf_counter()
    asked, folder, source = asked or Exporting(), Path(folder), path_or_proto(model)
    _usable(folder)
    for name in (MODEL, file.pack_path_of(Path(MODEL)), LIBRARY, MANIFEST, CONFIG, README, LICENSE):
        check_no_links(folder / name, folder)
    path = None if isinstance(source, onnx.ModelProto) else Path(source)
    light = source if isinstance(source, onnx.ModelProto) else io.load(source, weights=False)
    seen = signature(light)
    made, assumed = build(light, asked.compiling, step, path)
    batch = _batch(seen, asked, made)
    step("files", 0, 0)
    whole = copied(source) if isinstance(source, onnx.ModelProto) else io.load(source)
    placements = _placed(whole, made)
    with filling(folder), filling(folder / MODEL.parent):
        with together():
            _write(folder, whole, made)
            _tell(folder, seen, batch, made, asked)
        files = _manifest(folder, seen, batch, made, placements)
    return Exported(folder, made, assumed, placements, batch, seen.refusal, files, time.perf_counter() - begun)


def _usable(folder: Path) -> None:
    """Raise UsageError if the folder is a file, or has content that no export has written."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise UsageError(f"{folder}: is no folder", "Give the name of a new one.")
    if any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise UsageError(
            f"{folder}: is not empty, and no exported model", "Give a new folder, or one that was exported before."
        )


def _batch(seen: Signature, asked: Exporting, made: "PackResult") -> tuple[str, int] | None:
    """Return the dimension along which Triton batches requests, and the largest size that the pack covers."""
    name = seen.batch
    if asked.batch and name is None:
        raise UsageError(
            "--batch: there is no dimension that all inputs and outputs begin with", "Export with --no-batch."
        )
    return None if name is None or asked.batch is False else (name, made.ranges[name][1])


def _placed(model: onnx.ModelProto, made: "PackResult") -> tuple["Placement", ...]:
    """Replace ops without a kernel on some target by ONNX Runtime's own ops; return how each op runs."""
    from onnxfuse.runtime.sessions.ort_ops import place_library_ops
    from onnxfuse.runtime.sessions.placement import Placement, node_counts

    ops, counts = fused_ops(model), node_counts(model)
    every = frozenset(t.name for t in made.targets)
    on = {name: made.launched.get(name, frozenset[str]()) for name in ops}
    library = {name: op for name, op in made.library.items() if on.get(name) != every}
    place_library_ops(model, library, [name for name in ops if on[name]])
    placements = []
    for name, op in ops.items():
        how: How = "kernel" if on[name] == every else "library" if name in library else "function"
        if how == "kernel" or (how == "library" and not on[name]):
            why = ""
        elif on[name]:
            why = f"a kernel on {', '.join(sorted(on[name]))} alone"
        else:
            why = made.without.get(name, NO_SHAPES)
        placements.append(Placement(name, op.rule, counts[name], how, why))
    return tuple(placements)


def _write(folder: Path, model: onnx.ModelProto, made: "PackResult") -> None:
    """Write the binary files: library, model and pack."""
    from onnxfuse.runtime.engine.bridge import bridge
    from onnxfuse.runtime.sessions.opening import (
        require_written,  # ONNX Runtime is imported only when something is run.
    )

    with io.saving(model, folder / MODEL, opens=require_written(model)):
        pass
    write(made, file.pack_path_of(folder / MODEL))
    with as_model_error(folder / LIBRARY), bridge().path.open("rb") as own, replacing(folder / LIBRARY) as out:
        shutil.copyfileobj(own, out)


def _tell(folder: Path, seen: Signature, batch: tuple[str, int] | None, made: "PackResult", asked: Exporting) -> None:
    """Write the text files, for Triton and for people."""
    at = PurePath(asked.at) if asked.at is not None else folder.resolve()
    if not seen.refusal:
        io.write_text(folder / CONFIG, config(seen, at / LIBRARY, 0 if batch is None else batch[1]))
    elif os.path.lexists(folder / CONFIG):
        os.unlink(folder / CONFIG)
    page = Template((resources.files("onnxfuse.api.deploy") / "exported.md").read_text(encoding="utf-8"))
    named = {
        "name": folder.resolve().name,
        "at": str(at),
        "repository": str(at.parent),
        "model": str(MODEL),
        "library": str(LIBRARY),
        "pack": str(file.pack_path_of(Path(MODEL))),
        "ranges": "; ".join(f"`{n}` {least}..{most}" for n, (least, most) in made.ranges.items()) or "all are fixed",
        "targets": ", ".join(t.name for t in made.targets),
        "triton": f"No `config.pbtxt`: {seen.refusal}." if seen.refusal else "This folder is a model of a repository.",
        "batch": "Triton joins no requests."
        if batch is None
        else f"Triton joins requests along `{batch[0]}`, to {plural(batch[1], 'row')}:\n"
        "these must not depend on each other, else export with `--no-batch`.",
        "tf32": " The CUDA provider's option `use_tf32` is to be 0." if seen.strict_fp32 else "",
    }
    io.write_text(folder / README, page.substitute(named))
    licence = metadata.distribution("onnxfuse").read_text("licenses/LICENSE")
    io.write_text(folder / LICENSE, licence or "Apache-2.0: https://www.apache.org/licenses/LICENSE-2.0\n")


def _manifest(
    folder: Path,
    seen: Signature,
    batch: tuple[str, int] | None,
    made: "PackResult",
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
        "architectures": [t.name for t in made.targets],
        "ranges": {n: list(r) for n, r in made.ranges.items()},
        "use_tf32": not seen.strict_fp32,
        "batch": None if batch is None else {"dimension": batch[0], "most": batch[1]},
        "triton": seen.refusal or None,
        "ops": [asdict(p) for p in placements],
        "files": {str(p.relative_to(folder)): {"bytes": p.stat().st_size, "sha256": _digest(p)} for p in files},
    }
    io.write_text(manifest, json.dumps(facts, indent=2) + "\n")
    return {str(p.relative_to(folder)): p.stat().st_size for p in (*files, manifest)}


def _digest(path: Path) -> str:
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()
