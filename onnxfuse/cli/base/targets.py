"""Map a call's arguments to inputs and outputs: IN OUT, any number with -o DIR or --in-place, - for a stream."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from onnxfuse.cli.base.parameters import STREAM, from_stdin
from onnxfuse.files.atomic_write import same_file
from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import plural


@dataclass(frozen=True)
class Job:
    """One model and its output."""

    source: Path
    target: Path | None
    """None for standard output."""
    name: str
    """The caller's name for it."""

    @property
    def target_name(self) -> str:
        """The caller's name for the output."""
        return STREAM if self.target is None else str(self.target)


def jobs(paths: Sequence[Path], output: Path | None, *, in_place: bool) -> list[Job]:
    """Return the jobs of a call. Raises UsageError if they are ambiguous, or a file would be lost."""
    if in_place and output is not None:
        raise UsageError("--in-place writes over IN.onnx, and -o names another place: they do not go together")
    if in_place:
        found = _apart([path for given in paths for path, _ in _models(given)])
        if any(str(path) == STREAM for path in found):
            raise UsageError("--in-place writes over files, and - is none")
        return [Job(path, path, str(path)) for path in found]
    if output is not None:
        return _into(paths, output)
    if len(paths) == 1:
        raise click.UsageError("Missing argument 'OUT.onnx': name it, or -o DIR, or --in-place.")
    if len(paths) > 2:
        raise UsageError(f"{plural(paths, 'model')}, and no place for them", "Say -o DIR, or --in-place.")
    source, target = paths
    return [_job(source, target)]


def _into(paths: Sequence[Path], output: Path) -> list[Job]:
    """Return the jobs of -o: a file for one model, a folder for any number, preserving subfolders."""
    single = len(paths) == 1 and not os.path.isdir(paths[0])
    if single and (str(output) == STREAM or (output.suffix == ".onnx" and not os.path.isdir(output))):
        return [_job(paths[0], output)]
    found = [(path, output / inside) for given in paths for path, inside in _models(given)]
    if str(output) == STREAM or any(str(path) == STREAM for path, _ in found):
        raise UsageError("- has no name in a folder", "Name the file: -o OUT.onnx, or -o - for standard output.")
    for number, (path, target) in enumerate(found):
        twin = next((other for other, place in found[:number] if place == target), None)
        if twin is not None:
            raise UsageError(f"{path} and {twin} would both be {target}", "Give each a folder of its own.")
        beside = next((other for other, _ in found if other != path and same_file(other, target)), None)
        if beside is not None:
            raise UsageError(f"{target}: is {beside}, which is read, too", "Give another folder.")
    return [_job(path, target) for path, target in found]


def _models(given: Path) -> list[tuple[Path, Path]]:
    """Return the models below a path, each with its relative path: all of a folder, by name."""
    if not os.path.isdir(given):
        return [(given, Path(given.name))]
    found = sorted(path for path in given.rglob("*.onnx") if path.is_file())
    if not found:
        raise UsageError(f"{given}: no file in this folder ends in .onnx", "Give the model itself.")
    return [(path, path.relative_to(given)) for path in found]


def _apart(paths: Sequence[Path]) -> list[Path]:
    """Return the paths without duplicate files."""
    found: list[Path] = []
    for path in paths:
        if not any(same_file(path, other) for other in found):
            found.append(path)
    return found


def _job(source: Path, target: Path) -> Job:
    read = from_stdin() if str(source) == STREAM else source
    if str(target) == STREAM:
        if sys.stdout.isatty():
            raise UsageError("-: standard output is a terminal, and a model is no text", "Send it on: | or >.")
        return Job(read, None, str(source))
    if same_file(source, target):
        raise UsageError(
            f"{target}: is IN.onnx itself, which would be gone", "Give another name, or --in-place to write over it."
        )
    return Job(read, target, str(source))
