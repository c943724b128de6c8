"""Map a call's arguments to inputs and outputs: IN OUT, any number with -o DIR or --in-place, - for a stream."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from onnxfuse.cli.base.parameters import from_stdin
from onnxfuse.files.atomic_write import same_file
from onnxfuse.options.commands import STREAM
from onnxfuse.support.close_match import hint_for_missing, no_such_file
from onnxfuse.support.errors import ModelError, UsageError
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


def jobs(paths: Sequence[Path], output: Path | None, *, in_place: bool, dry: bool = False) -> list[Job]:
    """Return the jobs of a call. Raises UsageError if they are ambiguous, or a file would be lost.

    `dry`: nothing will be written, so that a single path needs no output.
    """
    if in_place and output is not None:
        raise UsageError("--in-place overwrites IN.onnx, so it cannot be combined with -o")
    if in_place or output is not None:
        _require_all(paths)
    if in_place:
        sources = _distinct([path for path_or_folder in paths for path, _ in _models(path_or_folder)])
        if any(str(path) == STREAM for path in sources):
            raise UsageError("--in-place overwrites files, and - is standard input")
        return [Job(path, path, str(path)) for path in sources]
    if output is not None:
        return _output_jobs(paths, output)
    if len(paths) == 1 and dry:
        return [Job(_source(path), path, str(path)) for path, _ in _models(paths[0])]
    if len(paths) == 1:
        raise click.UsageError("Missing argument 'OUT.onnx': name it, or -o DIR, or --in-place.")
    if len(paths) > 2:
        raise UsageError(f"{plural(paths, 'model')}, but no output", "Use -o DIR or --in-place.")
    source, target = paths
    return [_job(source, target)]


def _require_all(paths: Sequence[Path]) -> None:
    """Raise ModelError for a named model that is not there, before another one is written."""
    missing = next((path for path in paths if str(path) != STREAM and not os.path.exists(path)), None)
    if missing is not None:
        raise ModelError(no_such_file(missing), f"{hint_for_missing(missing)} No model was written.")


def _output_jobs(paths: Sequence[Path], output: Path) -> list[Job]:
    """Return the jobs of -o: a file for one model, a folder for any number, preserving subfolders."""
    single = len(paths) == 1 and not os.path.isdir(paths[0])
    if single and (str(output) == STREAM or (output.suffix == ".onnx" and not os.path.isdir(output))):
        return [_job(paths[0], output)]
    pairs = [(path, output / inside) for path_or_folder in paths for path, inside in _models(path_or_folder)]
    if str(output) == STREAM or any(str(path) == STREAM for path, _ in pairs):
        raise UsageError(
            "standard input has no name for a file in a folder",
            "Name the file: -o OUT.onnx, or -o - for standard output.",
        )
    for index, (path, target) in enumerate(pairs):
        twin = next((other for other, other_target in pairs[:index] if other_target == target), None)
        if twin is not None:
            raise UsageError(
                f"{path} and {twin} would both be written to {target}", "Write each to a folder of its own."
            )
        overwritten = next((other for other, _ in pairs if other != path and same_file(other, target)), None)
        if overwritten is not None:
            raise UsageError(f"{target}: is {overwritten}, which is read, too", "Give another folder.")
    return [_job(path, target) for path, target in pairs]


def _models(path_or_folder: Path) -> list[tuple[Path, Path]]:
    """Return the models below a path, each with its relative path: all of a folder, by name."""
    if not os.path.isdir(path_or_folder):
        return [(path_or_folder, Path(path_or_folder.name))]
    files = sorted(path for path in path_or_folder.rglob("*.onnx") if path.is_file())
    if not files:
        raise UsageError(f"{path_or_folder}: no file in this folder ends in .onnx", "Name the model's file.")
    return [(path, path.relative_to(path_or_folder)) for path in files]


def _distinct(paths: Sequence[Path]) -> list[Path]:
    """Return the paths without duplicate files."""
    distinct: list[Path] = []
    for path in paths:
        if not any(same_file(path, other) for other in distinct):
            distinct.append(path)
    return distinct


def _source(path: Path) -> Path:
    """Return the file to read: for - a temporary one."""
    return from_stdin() if str(path) == STREAM else path


def _job(source: Path, target: Path) -> Job:
    read = _source(source)
    if str(target) == STREAM:
        if sys.stdout.isatty():
            raise UsageError(
                "-: standard output is a terminal, and a model is binary",
                "Pipe it to another command, or redirect it to a file.",
            )
        return Job(read, None, str(source))
    if same_file(source, target):
        raise UsageError(
            f"{target}: is IN.onnx itself, which would be overwritten",
            "Choose another name, or use --in-place to overwrite it.",
        )
    return Job(read, target, str(source))
